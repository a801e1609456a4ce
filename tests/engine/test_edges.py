"""Edges cut, held against models of transformers whose masks or softmax leave the edges out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from attnviz.engine.backend import backend_of
from attnviz.engine.edges import CutScan, EdgePrediction
from attnviz.engine.edges_on_numpy import NumpyCutter
from attnviz.engine.edges_on_torch import TorchCutter, cutting
from attnviz.engine.patchable import patchable_transformers
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.bundled import Bundled
from attnviz.models.model import MaskToken
from attnviz.models.stack_model import StackModel
from attnviz.records import Input

from ..attention.test_families import IDS as FAMILY_IDS
from ..attention.test_families import made
from ..attention.test_families import stack as stack_of
from .architectures import ARCHITECTURES, inputs_of, quick_or_long, small_model, state_of
from .scans import IDS, input_of
from .stacks import HEADED, once_quick

MASK = MaskToken(96, "<mask>")
EDGES = [(6, 2), (7, 2)]
SOME = [(0, 1), (2, 0), (2, 2)]


def cut_in_the_softmax(name: str, heads: Any) -> np.ndarray:
    """Log-probabilities (token, word) of eager attention whose softmax sees −∞ at the edges."""
    model, plain, calls = small_model(name, attention="eager"), functional.softmax, []

    def softmax(scores: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if scores.shape[-2:] == (len(IDS), len(IDS)):
            scores = scores.clone()
            for head in [head for layer, head in heads if layer == len(calls)]:
                for query, key in EDGES:
                    scores.view(-1, len(IDS), len(IDS))[head, query, key] = -torch.inf
            calls.append(scores)
        return plain(scores, *args, **kwargs)

    with mock.patch.object(functional, "softmax", softmax), torch.inference_mode():
        logits = model(input_ids=torch.tensor([IDS])).logits[0]
    assert len(calls) == 3
    return logits.double().log_softmax(-1).numpy()


def opened(name: str, kind: Any = None) -> tuple[Any, CutScan, Any]:
    """A small model, ready for cuts, and every (layer, head) of it."""
    model, given = small_model(name), input_of(inputs_of(name))
    kind = kind or ("self" if given.target is None else "cross")
    patchable = patchable_transformers(model, kind, given, MASK)
    every = [(layer, head) for layer, count in patchable.heads.items() for head in range(count)]
    return (
        model,
        CutScan(TorchCutter(patchable), given, ARCHITECTURES[name].stack != "encoder"),
        every,
    )


@pytest.mark.parametrize(
    ("name", "heads"),
    [("gpt2", SOME), ("gpt2", [(1, 1)]), ("bloom", [(1, 2)]), ("gpt_neo", [(1, 2)])],
)
def test_a_softmax_without_the_edge_predicts_the_same(name: str, heads: Any) -> None:
    _, scan, _ = opened(name)
    places = tuple(range(len(IDS)))
    found = scan.outcome(places, heads, EDGES)
    expected = cut_in_the_softmax(name, heads)
    assert found.log_probabilities == pytest.approx(expected, abs=1e-4)
    losses = -expected[np.arange(len(IDS) - 1), IDS[1:]]
    assert found.losses[1:] == pytest.approx(losses, abs=1e-4)
    assert np.isnan(found.losses[0])
    assert found.loss == pytest.approx(losses.mean(), abs=1e-4)
    whole = scan.outcome(places)
    assert whole.log_probabilities == pytest.approx(cut_in_the_softmax(name, ()), abs=1e-4)
    apart = np.exp(whole.log_probabilities) * (whole.log_probabilities - found.log_probabilities)
    assert whole.kl(found) == pytest.approx(apart.sum(-1), abs=1e-9)
    assert whole.kl(found)[:6] == pytest.approx(0, abs=1e-9), "earlier tokens see no cut"
    assert (whole.kl(found)[6:] > 1e-7).all()


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_neox", "bert", "roberta"])
def test_cut_in_every_head_is_a_mask_of_the_model_itself(name: str) -> None:
    """transformers takes a mask (1, 1, query, key) that is added to the scores of all heads."""
    model, scan, every = opened(name)
    given = input_of(inputs_of(name))
    places = (8,)
    causal = ARCHITECTURES[name].stack == "decoder"
    ids = given.ids if causal else given.masked(8, MASK).ids
    mask = torch.zeros(len(ids), len(ids))
    if causal:
        mask = torch.full_like(mask, torch.finfo(torch.float32).min).triu(1)
    if name == "mistral":
        near = torch.ones(len(ids), len(ids)).tril(-model.config.sliding_window).bool()
        mask = mask.masked_fill(near, torch.finfo(torch.float32).min)
    for query, key in EDGES:
        mask[query, key] = torch.finfo(torch.float32).min
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids]), attention_mask=mask[None, None]).logits
    expected = logits[0, 8].double().log_softmax(-1)
    found = scan.outcome(places, every, EDGES, losses=False)
    assert found.log_probabilities[0] == pytest.approx(expected.numpy(), abs=1e-4)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("heads", [[(0, 1)], [(1, 1), (4, 2), (4, 3)]])
def test_the_bundled_model_without_an_edge(heads: Any, backend: str) -> None:
    """Weights after the softmax, emptied at the edge and rescaled, are those of a score of −∞."""
    model = Bundled()
    given = Input(model.encode("The old captain saw the ship and the captain sat."))
    patchable = backend_of(model).open_patchable("self", given)
    cutter: Any = TorchCutter(patchable) if backend == "torch" else NumpyCutter(model)
    found = CutScan(cutter, given, True).outcome((9,), heads, EDGES)

    def emptied(layer: int) -> Any:
        def edit(module: Any, args: Any, weights: Tensor) -> Tensor:
            weights = weights.clone()
            for head in [head for at, head in heads if at == layer]:
                for query, key in EDGES:
                    weights[0, head, query, key] = 0
                    weights[0, head, query] /= weights[0, head, query].sum()
            return weights

        return edit

    layers: Any = patchable.root.layers
    hooks = [
        block.self_attn.weights_point.register_forward_hook(emptied(layer))
        for layer, block in enumerate(layers)
    ]
    with torch.inference_mode():
        expected = patchable.root(torch.tensor([given.ids]))[0, 9].double().log_softmax(-1)
    for hook in hooks:
        hook.remove()
    assert found.log_probabilities[0] == pytest.approx(expected.numpy(), abs=2e-5)


def numpy_opened(name: str, model: Any, directory: Path) -> StackModel:
    stack, read = stack_of(directory)
    tiny = Bundled()
    info = replace(tiny.info, layers=read.shape.layers, heads=read.shape.heads)
    return StackModel(info, stack, lambda: None, mask_id=MASK)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("name", once_quick(HEADED))
def test_every_family_in_numpy_predicts_as_on_torch(name: str, tmp_path: Path) -> None:
    model = made(tmp_path, name)
    numpy = numpy_opened(name, model, tmp_path)
    given, causal = Input.of_ids(FAMILY_IDS), numpy.causal
    scans = [
        CutScan(cutter, given, causal)
        for cutter in (
            NumpyCutter(numpy),
            TorchCutter(patchable_transformers(model, "self", given, MASK)),
        )
    ]
    every = [(layer, head) for layer in range(numpy.info.layers) for head in (0, 2)]
    for heads, edges in ((), ()), (every, EDGES), ([(1, 1)], [(9, 8)]), (every, ()):
        ours, theirs = (scan.outcome((7, 9), heads, edges) for scan in scans)
        assert ours.log_probabilities == pytest.approx(theirs.log_probabilities, abs=1e-4)
        assert ours.losses == pytest.approx(theirs.losses, abs=1e-4, nan_ok=True)
    plain, nothing = (scans[0].outcome((7, 9), heads, ()) for heads in ((), every))
    assert (plain.log_probabilities == nothing.log_probabilities).all()
    with pytest.raises(UsageError, match="no other key"):
        scans[0].outcome((5,), [(0, 0)], [(0, key) for key in range(len(FAMILY_IDS))])


@pytest.mark.parametrize("name", quick_or_long(name for name in ARCHITECTURES if name != "fsmt"))
def test_every_architecture(name: str) -> None:
    """What a cut must and must not move, whatever computes the attention."""
    for kind in ("encoder", "decoder", "cross") if name in ("t5", "bart") else (None,):
        model, scan, every = opened(name, kind)
        before = state_of(model)
        whole, cut = scan.outcome((5,)), scan.outcome((5,), every, [(5, 2)])
        assert whole.kl(cut)[0] > 1e-7
        assert whole.kl(scan.outcome((5,), every, ()))[0] < 1e-7
        if scan.causal and kind != "encoder":
            assert cut.losses[1:6] == pytest.approx(whole.losses[1:6], abs=1e-5)
        alone = [whole.kl(scan.outcome((5,), [head], [(5, 2)]))[0] for head in every[:2]]
        assert alone[0] != alone[1]
        assert state_of(model) == before


def test_a_masked_model_hides_each_word_in_turn() -> None:
    model, scan, every = opened("bert")
    whole = scan.outcome((3,))
    for place in (3, 7):
        ids = torch.tensor([[*IDS[:place], MASK, *IDS[place + 1 :]]])
        with torch.inference_mode():
            logs = model(input_ids=ids).logits[0, place].double().log_softmax(-1)
        assert whole.losses[place] == pytest.approx(-float(logs[IDS[place]]), abs=1e-5)
        if place == 3:
            assert whole.log_probabilities[0] == pytest.approx(logs.numpy(), abs=1e-5)
    assert scan.passes((3,), losses=True) == len(IDS)
    assert scan.passes((3,), losses=False) == 1
    assert np.isnan(scan.outcome((3,), every, EDGES, losses=False).loss)


def test_kl_is_never_negative() -> None:
    same = EdgePrediction((0,), np.log([[0.25, 0.75, 0.0 + 1e-300]]), np.array([np.nan, 1.0]))
    assert same.kl(same).tolist() == [0]
    assert same.loss == 1


def test_what_cannot_be_cut() -> None:
    model = small_model("bert")
    given = Input.of_ids(IDS)
    with pytest.raises(UnsupportedError, match="no mask token is known"):
        CutScan(TorchCutter(patchable_transformers(model, "self", given)), given, False)
    bare: Any = model.bert
    with pytest.raises(UnsupportedError, match="has no language-model head"):
        CutScan(TorchCutter(patchable_transformers(bare, "self", given, MASK)), given, False)
    gpt = small_model("gpt2")
    with pytest.raises(UsageError, match="too short for a loss"):
        CutScan(
            TorchCutter(patchable_transformers(gpt, "self", given)), Input.of_ids(IDS[:1]), True
        )
    _, scan, _ = opened("gpt2")
    with pytest.raises(UsageError, match="no layer 7"):
        scan.outcome((5,), [(7, 0)], EDGES)
    for name in ("gpt2", "bloom", "falcon", "mistral"):
        _, scan, _ = opened(name)
        with pytest.raises(UsageError, match="no other key"):
            scan.outcome((5,), [(0, 0)], [(0, 0)])


def test_nothing_is_left_behind() -> None:
    model = small_model("llama")
    before = state_of(model)
    given = Input.of_ids(IDS)
    patchable = patchable_transformers(model, "self", given)
    with (
        pytest.raises(RuntimeError, match="ours"),
        patchable.hook_points.borrowed(),
        cutting(patchable, [(0, 0)], EDGES, given),
    ):
        raise RuntimeError("ours")
    assert state_of(model) == before
