"""Scans in NumPy are those of the loop in float64, by hooks on the modules of transformers."""

import os
import threading

import numpy as np
import pytest
import torch

import attnviz
from attnviz.attention.growing import GrowingRun
from attnviz.engine.effects import METRICS, ScanOptions, Variant
from attnviz.engine.patching import Patch, Site
from attnviz.engine.scan import on_numpy
from attnviz.engine.scan.on_numpy import forks
from attnviz.engine.scan.run import open_scan
from attnviz.errors import UsageError
from attnviz.models import memory
from attnviz.models.bundled import Bundled
from attnviz.records import Input

from ...attention.test_families import IDS, MODELS
from ..ablation_loop import PROJECTIONS, loop_metrics, outputs_without
from ..scans import every, measured
from ..stacks import HEADED, both, once_quick

OTHER = [*IDS[5:], *IDS[:5]]
LONGER = [*OTHER, 8, 9]
FEW = ("gpt2", "llama, biases", "neox", "gpt-neo", "qwen3", "bert")
TEXTS = ["The cat sat on the mat.", "The dog ran to the old house.", "Once there was a small fox."]
LONG = " ".join(3 * TEXTS)
OTHER_TEXT = LONG.replace("cat", "dog")


def ours(numpy, torch_, oracle, largest=None):
    """Errors of NumPy are at most ten times torch's; where neither has any, they are rounding."""
    near = 2e-6 * max(1.0, np.abs(oracle).max())
    found = np.abs(np.asarray(numpy) - oracle).max()
    assert found <= 10 * np.abs(np.asarray(torch_) - oracle).max() + near, largest


def inputs_of(ids):
    return {"input_ids": torch.tensor([ids])}


def looped(model, variant, ids=IDS, value=None):
    heads = model.numpy.stack.shape.heads
    return loop_metrics(
        model.wide, model.loop, "self", heads, variant.heads, inputs_of(ids), model.masked, value
    )


def compared(model, variants, found, expected):
    one, other = (measured(scan, variants) for scan in found)
    assert set(one) == set(other) == set(METRICS)
    for name in METRICS:
        oracle = np.array([row[name] for row in expected])
        ours(one[name], other[name], oracle, name)
        np.testing.assert_allclose(other[name], oracle, rtol=1e-4, atol=1e-4, err_msg=name)
    assert (one["flip_rate"] == other["flip_rate"]).all()


@pytest.mark.parametrize("name", once_quick(HEADED))
def test_every_metric_equals_the_loop(name, tmp_path):
    model = both(name, tmp_path)
    heads = model.heads
    some = [heads[0], heads[-1]]
    variants = [*(Variant((head,)) for head in some), Variant((heads[1], heads[-1]))]
    texts = [IDS[:6] if model.masked else IDS]
    expected = [looped(model, variant, texts[0]) for variant in variants]
    compared(model, variants, model.scans(texts, pair=(5, 7)), expected)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in HEADED][::2])
def test_models_without_words_have_their_output(name, tmp_path):
    model = both(name, tmp_path)
    numpy, other = (measured(scan, every(scan)) for scan in model.scans([IDS]))
    assert set(numpy) == set(other) == {"output_mse", "output_cosine"}
    for metric, values in other.items():
        np.testing.assert_allclose(numpy[metric], values, rtol=1e-4, atol=1e-5)


def outputs(model, ids):
    """By (layer, head) the columns that enter the output projection, (token, dim)."""
    shape, seen = model.numpy.stack.shape, {}
    hooks = []
    for layer in range(shape.layers):
        module = model.wide.get_submodule(PROJECTIONS[model.loop]["self"].format(layer))

        def keep(module, args, layer=layer):
            seen[layer] = args[0][0]

        hooks.append(module.register_forward_pre_hook(keep))
    with torch.inference_mode():
        model.wide(**inputs_of(ids))
    for hook in hooks:
        hook.remove()
    return {
        (layer, head): rows.reshape(len(ids), shape.heads, -1)[:, head]
        for layer, rows in seen.items()
        for head in range(shape.heads)
    }


@pytest.mark.parametrize(
    ("name", "mode", "references", "options"),
    [
        ("gpt2", "mean", (IDS, LONGER), {"mode": "mean"}),
        ("gpt-neo", "mean", (IDS, LONGER), {"mode": "mean"}),
        ("qwen3", "resample", (IDS, LONGER), {"mode": "resample"}),
        ("llama, biases", "resample", (IDS, LONGER), {"mode": "resample"}),
    ],
)
def test_replacements_equal_the_loop(name, mode, references, options, tmp_path):
    model = both(name, tmp_path)
    values, heads = outputs(model, OTHER), model.heads
    if mode == "mean":
        texts = [outputs(model, ids) for ids in references]
        values = {head: torch.cat([text[head] for text in texts]).mean(0) for head in heads}
    variants = [Variant((heads[0],)), Variant((heads[-1],)), Variant((heads[1], heads[-2]))]
    expected = [looped(model, variant, value=values) for variant in variants]
    found = model.scans([IDS], references, pair=(5, 7), **options)
    compared(model, variants, found, expected)
    if mode == "resample":
        assert found[0].notes == found[1].notes != []


@pytest.mark.parametrize("name", FEW[1:-1:2])
def test_a_control_takes_off_a_random_direction(name, tmp_path):
    model = both(name, tmp_path)
    shape, held, seed = model.numpy.stack.shape, outputs(model, IDS), 3
    expected, variants = [], [Variant((head,)) for head in (model.heads[0], model.heads[-2])]
    for variant in variants:
        ((layer, head),) = variant.heads
        every_head = [(layer, one) for one in range(shape.heads)]
        generator = np.random.default_rng((seed, layer, head))
        drawn = generator.standard_normal((shape.heads, held[layer, head].shape[1]), np.float32)
        direction = torch.tensor(drawn / np.linalg.norm(drawn)).double()
        norm = held[layer, head].norm(dim=-1)[:, None]
        value = {place: held[place] - norm * direction[place[1]] for place in every_head}
        expected.append(looped(model, Variant(tuple(every_head)), value=value))
    compared(model, variants, model.scans([IDS], pair=(5, 7), control=True, seed=seed), expected)


@pytest.mark.parametrize("name", FEW[1:-1:2])
def test_the_last_position_alone(name, tmp_path):
    model = both(name, tmp_path)
    shape, variants = model.numpy.stack.shape, [Variant((head,)) for head in model.heads[::2]]
    clean = outputs_without(model.wide, model.loop, "self", shape.heads, (), inputs_of(IDS))
    expected = []
    for variant in variants:
        removed = outputs_without(
            model.wide, model.loop, "self", shape.heads, variant.heads, inputs_of(IDS)
        )
        change = clean.scores - removed.scores
        ends = clean.hidden[-1], removed.hidden[-1]
        moved = [float(run.logits[-1, 5] - run.logits[-1, 7]) for run in (clean, removed)]
        expected.append(
            {
                "loss_delta": float(change[-2, IDS[-1]]),
                "kl": float((clean.scores[-1].exp() * change[-1]).sum()),
                "flip_rate": float(clean.scores[-1].argmax() != removed.scores[-1].argmax()),
                "output_mse": float((ends[0] - ends[1]).square().mean()),
                "output_cosine": float(1 - torch.cosine_similarity(*ends, dim=0)),
                "logit_diff": moved[1] - moved[0],
            }
        )
    compared(model, variants, model.scans([IDS], pair=(5, 7), positions="last"), expected)


def test_draws_have_a_standard_error_and_tokens_their_losses(tmp_path):
    model = both("llama 3", tmp_path)
    references = (OTHER, IDS[3:] + IDS[:3], IDS[7:] + IDS[:7])
    options = {"mode": "resample", "draws": 3, "token_losses": True}
    pieces = [
        next(iter(scan.scan(0, [Variant(((1, 2),))], [0])))
        for scan in model.scans([IDS], references, **options)
    ]
    for name, values in pieces[1].metrics.items():
        assert pieces[0].metrics[name] == pytest.approx(values, abs=1e-5)
        assert pieces[0].errors[name] == pytest.approx(pieces[1].errors[name], abs=1e-5)
    np.testing.assert_allclose(pieces[0].token_losses, pieces[1].token_losses, atol=1e-5)
    assert pieces[0].baseline == pytest.approx(pieces[1].baseline, abs=1e-5)


@pytest.mark.parametrize("name", FEW)
def test_one_at_a_time_is_the_growing_pass(name, tmp_path, monkeypatch):
    model = both(name, tmp_path)
    options = {"pair": (5, 7), "positions": ("all", "last")[FEW.index(name) % 2]}
    scan = model.scans([IDS], **options)[0]
    variants = [*every(scan), Variant((model.heads[0], model.heads[-1]))]
    grown = measured(scan, variants)
    monkeypatch.setattr(on_numpy, "_BLOCK", 1)
    monkeypatch.setattr(on_numpy, "_TOKENS", 1)
    alone = model.scans([IDS], **options)[0]
    pieces = list(alone.scan(0, variants, range(len(variants))))
    assert [len(piece.variants) for piece in pieces] == [1] * len(variants)
    for metric, values in measured(alone, variants).items():
        assert grown[metric] == pytest.approx(values, rel=0, abs=2e-6), metric
    assert (grown["flip_rate"] == measured(alone, variants)["flip_rate"]).all()


@pytest.mark.parametrize("name", [*FEW[::2], "electra, as wide"])
def test_a_head_that_nothing_reads_costs_exactly_nothing(name, tmp_path):
    model = both(name, tmp_path)
    layer, head = model.heads[-2]
    stack = model.numpy.stack
    weight = stack.tensors[f"layers.{layer}.output.weight"].copy()
    weight.reshape(len(weight), stack.shape.heads, -1)[:, head] = 0
    stack.tensors._kept[f"layers.{layer}.output.weight"] = weight
    scan = model.scans([IDS], pair=(5, 7), token_losses=True)[0]
    variants = every(scan)
    (piece,) = scan.scan(0, variants, range(len(variants)))
    place = piece.variants.index(variants.index(Variant(((layer, head),))))
    found = {metric: float(values[place]) for metric, values in piece.metrics.items()}
    assert found == dict.fromkeys(METRICS, 0.0)
    losses = piece.token_losses[place]
    assert set(losses[losses == losses]) == {0.0}
    assert (np.delete(piece.metrics["output_mse"], place) > 0).all()


def test_what_does_not_fit_is_refused(tmp_path):
    model = both("gpt2", tmp_path)
    scan = model.scans([IDS])[0]
    with pytest.raises(UsageError, match="no layer 3 with heads: expected 0 to 2"):
        measured(scan, [Variant(((3, 0),))])
    with pytest.raises(UsageError, match="too short for a loss"):
        measured(model.scans([[5]])[0], [Variant(((0, 0),))])
    scan._runner._max_memory = 10_000
    with pytest.raises(UsageError, match=r"one more run over 13 tokens takes .*--max-memory"):
        measured(scan, every(scan))


def test_gradients_are_those_of_torch(tmp_path):
    numpy, other = (scan.gradients() for scan in both("llama 3", tmp_path).scans([IDS]))
    assert numpy == other


def test_equal_beginnings_are_one_row():
    changes = [
        Variant(((0, 1),)),
        Variant(((0, 1), (2, 0))),
        Variant(((0, 1), (2, 0), (2, 3))),
        Variant(((1, 2),)),
        Variant(((0, 1),), "the same"),
    ]
    grown, ends = forks(changes, 0, 4)
    assert [fork.sources for fork in grown] == [(-1,), (0, -1), (0, 0, 0, 1), (0, 1, 2, 3)]
    assert ends == [0, 1, 2, 3, 0]
    assert grown[2].patches == {
        1: Patch((Site("output", 2, 0),)),
        2: Patch((Site("output", 2, 0), Site("output", 2, 3))),
    }


def test_removals_in_any_order_are_those_measured_alone():
    """In one scan many rows are shared, in scans of one removal none."""
    heads = [(layer, head) for layer in range(6) for head in range(4)]
    drawn = np.random.default_rng(3)
    variants = [
        Variant(tuple(sorted(map(heads.__getitem__, drawn.permutation(24)[:count]))))
        for count in range(1, 24, 6)
        for _ in range(2)
    ]
    text = Input.of_ids(drawn.integers(5, 4000, 19).tolist())

    def losses(some):
        (scores,) = open_scan(Bundled("float64"), [text], ScanOptions()).scan(
            0, some, range(len(some))
        )
        order = np.argsort(scores.variants)
        return np.stack([scores.metrics[name][order] for name in ("loss_delta", "kl")])

    alone = np.concatenate([losses([variant]) for variant in variants], axis=1)
    np.testing.assert_allclose(losses(variants), alone, rtol=1e-9, atol=1e-12)


QUESTIONS = {
    "ablate": lambda: attnviz.ablate("tiny", TEXTS),
    "ablate one text": lambda: attnviz.ablate("tiny", LONG, mode="mean"),
    "patch": lambda: attnviz.patch("tiny", LONG, OTHER_TEXT, what="value", answer=" a", foil=" on"),
    "prune": lambda: attnviz.prune("tiny", TEXTS, fraction=0.2, draws=2),
}


@pytest.mark.parametrize(
    "name", ["ablate", *(pytest.param(name, marks=pytest.mark.long) for name in [*QUESTIONS][1:])]
)
def test_three_threads_give_what_one_gives(name, monkeypatch):
    monkeypatch.setattr(memory, "processors", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(3)), raising=False)
    begun = []
    plain = GrowingRun.ends

    def ends(run, *given, **more):
        begun.append(threading.get_ident())
        return plain(run, *given, **more)

    monkeypatch.setattr(GrowingRun, "ends", ends)
    found, threads = [], []
    for number in ("1", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", number)
        begun.clear()
        found.append(QUESTIONS[name]().to_dict() | {"seconds": 0})
        threads.append(len(set(begun)))
    assert threads[0] == 1
    assert threads[1] > 1
    assert found[0] == found[1]
