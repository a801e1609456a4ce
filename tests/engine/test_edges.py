"""Edges cut, held against models written out in plain torch with a mask that is added to scores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

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
from ..attention.test_families import MODELS, made
from ..attention.test_families import stack as stack_of
from .architectures import ARCHITECTURES, inputs_of, small_model, state_of
from .scans import IDS, input_of

HEADED = [name for name, (cls, _) in MODELS.items() if cls.endswith(("LM", "LMHeadModel"))]
MASK = MaskToken(96, "<mask>")
EDGES = [(6, 2), (7, 2)]
SOME = [(0, 1), (2, 0), (2, 2)]
QUICK = (
    "gemma2",
    "gpt_oss",
    "bert",
    "modernbert",
    "t5",
    "gptj",
    "gpt_neo",
    "bloom",
    "falcon",
    "mpt",
)


def added(heads: Any, layer: int, count: int, tokens: int, edges: Any = EDGES) -> Tensor:
    """What is added to the scores of a causal layer: (head, query, key)."""
    mask = torch.zeros(count, tokens, tokens).masked_fill(
        torch.ones(tokens, tokens).triu(1).bool(), -torch.inf
    )
    for head in range(count):
        if (layer, head) in heads:
            for query, key in edges:
                mask[head, query, key] = -torch.inf
    return mask


def plain_gpt2(model: Any, ids: tuple[int, ...], heads: Any) -> np.ndarray:
    """Log-probabilities (token, word) of a GPT-2 that is written out here."""
    state, config = model.state_dict(), model.config

    def norm(x: Tensor, name: str) -> Tensor:
        gain, bias = state[f"{name}.weight"], state[f"{name}.bias"]
        return functional.layer_norm(x, x.shape[-1:], gain, bias, config.layer_norm_epsilon)

    def line(x: Tensor, name: str) -> Tensor:
        return x @ state[f"{name}.weight"] + state[f"{name}.bias"]

    text = torch.tensor(ids)
    x = state["transformer.wte.weight"][text] + state["transformer.wpe.weight"][: len(ids)]
    for layer in range(config.n_layer):
        block = f"transformer.h.{layer}"
        query, key, value = (
            part.unflatten(-1, (config.n_head, -1)).transpose(0, 1)
            for part in line(norm(x, f"{block}.ln_1"), f"{block}.attn.c_attn").chunk(3, -1)
        )
        scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5
        weights = (scores + added(heads, layer, config.n_head, len(ids))).softmax(-1)
        x = x + line((weights @ value).transpose(0, 1).flatten(1), f"{block}.attn.c_proj")
        inner = functional.gelu(
            line(norm(x, f"{block}.ln_2"), f"{block}.mlp.c_fc"), approximate="tanh"
        )
        x = x + line(inner, f"{block}.mlp.c_proj")
    logits = norm(x, "transformer.ln_f") @ state["lm_head.weight"].T
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


@pytest.mark.parametrize("heads", [SOME, [(1, 1)]])
def test_a_plain_model_with_a_mask_predicts_the_same(heads: Any) -> None:
    model, scan, _ = opened("gpt2")
    places = tuple(range(len(IDS)))
    found = scan.outcome(places, heads, EDGES)
    expected = plain_gpt2(model, IDS, heads)
    assert found.log_probabilities == pytest.approx(expected, abs=1e-4)
    losses = -expected[np.arange(len(IDS) - 1), IDS[1:]]
    assert found.losses[1:] == pytest.approx(losses, abs=1e-4)
    assert np.isnan(found.losses[0])
    assert found.loss == pytest.approx(losses.mean(), abs=1e-4)
    whole = scan.outcome(places)
    assert whole.log_probabilities == pytest.approx(plain_gpt2(model, IDS, ()), abs=1e-4)
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
        mask = added((), 0, 1, len(ids))[0].clamp(min=torch.finfo(torch.float32).min)
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


@pytest.mark.parametrize("name", HEADED)
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


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.long)
        for name in ARCHITECTURES
        if name != "fsmt"
    ],
)
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


@pytest.mark.parametrize("name", ["bloom", "gpt_neo"])
def test_attention_that_is_written_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle takes the softmax's place in the model's own file."""
    model, scan, _ = opened(name)
    found = scan.outcome((8,), [(1, 2)], EDGES, losses=False)
    plain, calls = functional.softmax, []

    def softmax(scores: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if scores.shape[-2:] == (11, 11):
            calls.append(scores)
            if len(calls) == 2:
                scores = scores.clone()
                heads = scores.view(-1, 11, 11)
                for query, key in EDGES:
                    heads[2, query, key] = -torch.inf
        return plain(scores, *args, **kwargs)

    monkeypatch.setattr(functional, "softmax", softmax)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([IDS])).logits
    assert len(calls) == 3
    expected = logits[0, 8].double().log_softmax(-1)
    assert found.log_probabilities[0] == pytest.approx(expected.numpy(), abs=1e-5)


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
