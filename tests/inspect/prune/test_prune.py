"""``attnviz prune`` from the command line to the directory that it writes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

import attnviz
from attnviz.engine.effects import Scores, Variant
from attnviz.errors import UsageError
from attnviz.inspect.prune.prune import (
    Goal,
    RemovalBounds,
    ScanMeter,
    goal_of,
    random_losses,
    removal_order,
    split_texts,
)
from attnviz.inspect.prune.request import PruneRequest
from attnviz.models.bundled import Bundled
from attnviz.records import ModelInfo

_TEXT = "The cat sat on the mat because it was tired, and the cat sat on the mat."
_INFO = Bundled().info
_HEADS = _INFO.layers * _INFO.heads
# 2 layers × 3 heads. Each head costs this when it goes; L0H0 and L1H2 stand in for each other:
# while one is there the other is worth nothing.
_PRICE = {(0, 0): 0.0, (0, 1): 0.3, (0, 2): 0.5, (1, 0): 0.2, (1, 1): 0.4, (1, 2): 0.0}
_PAIR = {(0, 0), (1, 2)}
_CLEAN = 2.0
_MADE = ModelInfo("m", None, "M", "float32", layers=4, heads=4, kv_heads=4, head_dim=2)


def _document(run, *arguments):
    return run("prune", *arguments, "--json").document


def _masked_loss(directory, ids, removed):
    """Cross-entropy of a Llama directory with heads emptied before ``o_proj``: the oracle."""
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    width = model.config.head_dim
    for entry in removed:

        def empty(module, args, head=entry["head"]):
            outputs = args[0].clone()
            outputs[..., head * width : (head + 1) * width] = 0
            return (outputs,)

        model.model.layers[entry["layer"]].self_attn.o_proj.register_forward_pre_hook(empty)
    batch = torch.tensor([ids])
    with torch.inference_mode():
        return float(model(batch, labels=batch).loss)


def _halves():
    """The first and the second half of the text, each after the beginning-of-text token."""
    start, *ids = Bundled().encode(_TEXT).ids
    return [start, *ids[: len(ids) // 2]], [start, *ids[len(ids) // 2 :]]


def _tiny():
    return Path(attnviz.__file__).parent / "data" / "tiny"


def test_a_third_of_the_bundled_model(run):
    document = _document(run, _TEXT, "--fraction", "0.3")
    assert document["schema"] == "attnviz.prune/1"
    assert next(iter(document)) == "schema"
    gone = round(0.3 * _HEADS)
    left = list(range(_HEADS - 1, _HEADS - gone - 1, -1))
    assert len(document["removed"]) == gone
    steps = document["steps"]
    assert [{"layer": s["layer"], "head": s["head"]} for s in steps] == document["removed"]
    assert [step["heads_left"] for step in steps] == left
    scores = [step["score"] for step in steps]
    assert scores == sorted(scores)

    ranked, held_out = _halves()
    assert document["split"] == "tokens"
    assert (document["held_out"]["tokens"], document["ranking"]["tokens"]) == (
        len(held_out),
        len(ranked),
    )
    for half, told in ((held_out, document), (ranked, document["ranking"])):
        for count in (0, 1, gone):
            expected = _masked_loss(str(_tiny()), half, document["removed"][:count])
            found = told["steps"][count - 1]["loss"] if count else told["baseline"]["loss"]
            assert found == pytest.approx(expected, abs=1e-5)
    # what one removal costs alone, on the ranking half, is its score
    alone = _masked_loss(str(_tiny()), ranked, document["removed"][gone - 1 :])
    assert scores[-1] == pytest.approx(alone - document["ranking"]["baseline"]["loss"], abs=1e-5)
    assert [point["heads_left"] for point in document["random"]] == left
    assert document["pruned"]["path"] is None


def test_a_cut_model_is_smaller_and_the_same(run, tmp_path):
    arguments = (_TEXT, "--fraction", "0.5", "--uniform", "--draws", "1")
    document = _document(run, *arguments, "--out", "small")
    assert (document["pruned"]["form"], document["pruned"]["heads"]) == ("cut", _INFO.heads // 2)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "small", dtype=torch.float32).eval()
    numbers = sum(parameter.numel() for parameter in opened.parameters())
    assert document["parameters_after"] == numbers
    # half of the heads × 4 projections × the width of a head × that of the model
    one = 4 * _INFO.head_dim * opened.config.hidden_size
    assert document["parameters_before"] - numbers == _HEADS // 2 * one
    ids = AutoTokenizer.from_pretrained(tmp_path / "small")(_TEXT)["input_ids"]
    assert ids == list(Bundled().encode(_TEXT).ids)
    _, ids = _halves()
    batch = torch.tensor([ids])
    with torch.inference_mode():
        loss = float(opened(batch, labels=batch).loss)
    assert loss == pytest.approx(_masked_loss(str(_tiny()), ids, document["removed"]), abs=1e-5)
    assert loss == pytest.approx(document["steps"][-1]["loss"], abs=1e-5)
    # and it is a model like any other
    again = run("heads", _TEXT, "--model", "./small", "--json").document
    assert (again["model"]["heads"], again["model"]["layers"]) == (_INFO.heads // 2, _INFO.layers)


def test_an_encoder_decoder_is_pruned_in_its_encoder(run, checkpoint, tmp_path):
    directory = str(checkpoint("t5"))
    document = _document(
        run, "the cat sat", "--model", directory, "--fraction", "0.2", "--out", "d"
    )
    assert document["pruned"]["form"] == "masked"
    assert len(document["removed"]) == 1
    assert any("only the encoder's heads" in note for note in document["notes"])
    assert (tmp_path / "d" / "model.safetensors").is_file()


@pytest.mark.parametrize("removed", ["L0H1", "*.0-1"])
def test_the_plan_is_what_is_written(run, removed):
    """The plan is arithmetic on a config; what is written was counted by its own class."""
    arguments = (_TEXT, "--heads", removed, "--draws", "0")
    planned = _document(run, *arguments)["pruned"]
    written = _document(run, *arguments, "--out", "d")["pruned"]
    assert (written["path"], planned["path"]) == ("d", None)
    for key in ("form", "heads", "kv_heads", "architecture", "parameters", "zeroed", "note"):
        assert planned[key] == written[key], key


def test_a_limit_that_no_removal_meets_writes_nothing(redrawn, refused, tmp_path):
    # by gradient: the heads that exact measurement would take first lower this model's loss
    how = (_TEXT, "--uniform", "--method", "gradient", "--draws", "0")
    document = _document(redrawn, "--fraction", "0.25", *how)
    assert len(document["steps"]) == _INFO.layers
    ratio = document["steps"][-1]["loss_ratio"]
    assert ratio > 1
    limit = f"{1 + (ratio - 1) / 2:.6f}"
    arguments = ("--until-loss", limit, *how)
    assert "no head can go" in refused(2, "prune", *arguments, "--out", "d")
    assert list(tmp_path.iterdir()) == []
    document = _document(redrawn, *arguments)
    assert (document["steps"], document["removed"]) == ([], [])
    assert document["parameters_after"] == document["parameters_before"]
    assert "No head removed: no head can go" in redrawn("prune", *arguments).out


def test_a_copy_of_a_ranking_text_is_never_held_out():
    model = Bundled()
    a, b, c = (model.encode(text) for text in ("the cat sat", "a dog ran", "it was late"))
    assert split_texts([a, b, c]) == ((a, c), (b,))
    for texts in ([a, a, b, b], [a, b, b, a, c], [b, a, a, a]):
        ranked, held_out = split_texts(texts)
        assert not {text.ids for text in ranked} & {text.ids for text in held_out}
        assert len(ranked) + len(held_out) == len(texts)
    with pytest.raises(UsageError, match="the 3 texts are all the same"):
        split_texts([a, a, a])


class _Meter:
    """Losses that add up, but for the pair: 1.1 once both are gone."""

    baseline = _CLEAN

    def __init__(self, scale=1.0):
        self.asked = 0
        self._scale = scale

    def losses(self, removals):
        self.asked += len(removals)
        return [self._loss(set(removal)) for removal in removals]

    def _loss(self, gone):
        return _CLEAN + self._scale * (sum(_PRICE[head] for head in gone) + 1.1 * (gone >= _PAIR))

    def gradients(self):
        """Blind to the pair, as a first order is."""
        return _PRICE


def _bounds(**settings):
    return RemovalBounds((0, 1), 3, 3, **settings)


def _prune(*asked, **options):
    """Ranked by prices; held out, each is doubled."""
    return removal_order(_Meter(), _Meter(2.0), *asked, **options)


def _heads(steps):
    return [(step.layer, step.head) for step in steps]


def test_one_ranking_does_not_see_that_two_heads_stand_in_for_each_other():
    steps = _prune(_bounds(), Goal(3), "exact")
    assert _heads(_prune(_bounds(), Goal(2, among={(1, 1), (0, 1)}), "exact")) == [(0, 1), (1, 1)]
    assert _heads(steps) == [(0, 0), (1, 2), (1, 0)]
    assert [step.loss for step in steps] == pytest.approx([2.0, 4.2, 4.6])
    assert [step.ranking_loss for step in steps] == pytest.approx([2.0, 3.1, 3.3])
    assert [step.score for step in steps] == pytest.approx([0.0, 0.0, 0.2])
    assert [step.heads_left for step in steps] == [5, 4, 3]


def test_ranking_again_after_each_removal_does():
    steps = _prune(_bounds(), Goal(3), "exact", rerank=True)
    assert _heads(steps) == [(0, 0), (1, 0), (0, 1)]
    assert [step.loss for step in steps] == pytest.approx([2.0, 2.4, 3.0])
    assert [step.score for step in steps] == pytest.approx([0.0, 0.2, 0.3])


@pytest.mark.parametrize(
    ("method", "rerank"), [("exact", False), ("exact", True), ("gradient", False)]
)
def test_each_layer_keeps_a_head_unless_told_otherwise(method, rerank):
    for empty, most in ((False, 4), (True, 6)):
        bounds = _bounds(empty_layers=empty)
        assert bounds.most == most
        steps = _prune(bounds, Goal(99), method, rerank=rerank)
        assert len(steps) == most
        assert len({layer for layer, _ in set(_PRICE) - set(_heads(steps))}) == (not empty) * 2


def test_a_limit_of_the_loss_ends_before_it_is_passed():
    for rerank, expected in ((False, [(0, 0)]), (True, [(0, 0), (1, 0), (0, 1)])):
        steps = _prune(_bounds(), Goal(6, loss=3.2), "exact", rerank=rerank)
        assert _heads(steps) == expected
    assert _prune(_bounds(), Goal(6, loss=1.9), "exact") == ()


def test_uniform_removal_takes_one_head_of_every_layer_a_round():
    bounds = _bounds(uniform=True)
    assert (bounds.round, bounds.most) == (2, 4)
    steps = _prune(bounds, Goal(4), "gradient")
    layers = [step.layer for step in steps]
    assert sorted(layers[:2]) == sorted(layers[2:]) == [0, 1]
    # a round that the limit cuts short does not count
    kept = _prune(bounds, Goal(4, loss=2.05), "exact", rerank=True)
    assert len(kept) == 0


def test_uniform_removal_of_grouped_heads_takes_one_of_every_group():
    bounds = RemovalBounds((1, 3), 6, 2, uniform=True)  # groups 0 1 2 and 3 4 5, of layers 1 and 3
    assert (bounds.total, bounds.round, bounds.most) == (12, 4, 8)
    order = list(bounds.ordered(bounds.all_heads()))
    for start in (0, 4):
        taken = [(layer, head // 3) for layer, head in order[start : start + 4]]
        assert sorted(taken) == [(1, 0), (1, 1), (3, 0), (3, 1)]
    assert len(order) == 8


def test_random_orders_are_seeded_and_within_the_bounds():
    points = random_losses(_Meter(), _bounds(), [1, 4], draws=5, seed=3)
    assert points == random_losses(_Meter(), _bounds(), [1, 4], draws=5, seed=3)
    assert points != random_losses(_Meter(), _bounds(), [1, 4], draws=5, seed=4)
    assert [point.heads_left for point in points] == [5, 2]
    for point in points:
        assert point.ends[0] <= point.mean <= point.ends[1]
    single = random_losses(_Meter(), _bounds(), [1], draws=1, seed=0)[0]
    assert single.ends == (single.mean, single.mean)
    assert any(single.mean == pytest.approx(_CLEAN + price) for price in _PRICE.values())
    assert random_losses(_Meter(), _bounds(), [], draws=5, seed=0) == ()
    assert random_losses(_Meter(), _bounds(), [1], draws=0, seed=0) == ()


class _Scanner:
    """Each removed head costs 0.5 in the first text and 0.1 in the second; two at a time."""

    def __init__(self):
        self.measured = []

    def scan_all(self, wanted, variants):
        for text, some in wanted.items():
            yield from self._scan(text, variants, some)

    def _scan(self, text, variants, wanted):
        order = list(reversed(wanted))
        for start in range(0, len(order), 2):
            chosen = tuple(order[start : start + 2])
            self.measured += [variants[index] for index in chosen]
            price = (0.5, 0.1)[text]
            deltas = np.array([price * len(variants[index].heads) for index in chosen])
            yield Scores(text, chosen, {"loss_delta": deltas}, {"loss": (1.0, 3.0)[text]})


class _Headless:
    def scan_all(self, wanted, variants):
        for text, some in wanted.items():
            yield Scores(text, tuple(some), {"output_mse": np.zeros(len(some))}, {})


def test_losses_are_means_over_the_texts():
    shares = []
    meter = ScanMeter(_Scanner(), 2, (0, 0))
    meter.on_measured = shares.append
    one, two, three, again = meter.losses([[(0, 1)], [(1, 0), (0, 1)], [(0, 0)], [(0, 1), (1, 0)]])
    assert one == three == pytest.approx(2.0 + 0.3)
    assert two == again == pytest.approx(2.0 + 0.6)
    assert meter.baseline == pytest.approx(2.0)
    assert meter.losses([[(1, 0), (0, 1)]]) == [two]
    assert sum(shares) == pytest.approx(3)  # what is asked for twice is measured once


def test_the_whole_model_is_measured_once():
    scanner = _Scanner()
    meter = ScanMeter(scanner, 2, (4, 2))
    assert meter.losses([()]) == [meter.baseline] == [pytest.approx(2.0)]
    assert scanner.measured == [Variant(((4, 2),))] * 2


def test_a_model_without_predictions_is_refused():
    meter = ScanMeter(_Headless(), 1, (0, 0))
    with pytest.raises(UsageError, match="no loss to prune by"):
        meter.losses([[(0, 1)]])
    with pytest.raises(UsageError, match="no loss to prune by"):
        _ = meter.baseline


def _goal(request):
    bounds = RemovalBounds(
        (0, 1, 2, 3), 4, 4, empty_layers=request.empty_layers, uniform=request.uniform
    )
    return goal_of(request, bounds, _MADE, 2.0)


@pytest.mark.parametrize(
    ("given", "count", "words"),
    [
        ({"fraction": 0.3}, 5, "--fraction 0.3"),  # of 16: 4.8
        ({"fraction": 0.75}, 12, "--fraction 0.75"),
        ({"fraction": 0.9, "empty_layers": True}, 14, "--fraction 0.9"),
        ({"fraction": 0.3, "uniform": True}, 4, "--fraction 0.3"),  # one of each layer
        ({"fraction": 0.5, "uniform": True}, 8, "--fraction 0.5"),
        ({"until_loss": 1.05}, 12, "--until-loss 1.05"),
        ({"heads": ("L0H1", "3")}, 5, "--head L0H1 3"),
        ({"heads": ("L1H2",), "index_base": 1}, 1, "--head L1H2 --index-base 1"),
        ({}, 12, "all prunable heads"),
    ],
)
def test_the_goal_is_counted_and_told(given, count, words):
    request = PruneRequest(**given)
    goal = _goal(request)
    assert (goal.count, request.goal) == (count, words)
    assert goal.loss == (pytest.approx(2.1) if request.until_loss else None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        # What no model could heed.
        ({"fraction": 0.3, "until_loss": 1.1}, "expected one of .* got --fraction and --until"),
        ({"fraction": 0.3, "heads": ("1",)}, "expected one of"),
        ({"out": Path("d")}, "--out writes what is left"),
        ({"fraction": 0.0}, "between 0 and 1"),
        ({"fraction": float("nan")}, "between 0 and 1"),
        ({"until_loss": 1.0}, "above 1, such as 1.05"),
        ({"until_loss": float("inf")}, "above 1"),
        ({"heads": ("1",), "uniform": True}, "give one"),
        ({"rerank": True, "method": "gradient"}, "leave out --method gradient"),
        # What this one cannot.
        ({"fraction": 0.9}, r"is 14, only 12 can go .* at most 0.75, or add"),
        ({"fraction": 0.01}, r"is none, one is the least: expected at least 0.0625"),
        ({"fraction": 0.2, "uniform": True}, r"takes 4 at a time: expected at least 0.25"),
        ({"heads": ("L0H7",)}, "no head 7: this model has heads 0 to 3"),
        ({"heads": ("9.0",)}, "no layer 9"),
        ({"heads": ("1.*",)}, "all 4 heads of layer 1: leave one"),
    ],
)
def test_a_goal_that_no_removal_meets_is_refused(given, message):
    with pytest.raises(UsageError, match=message):
        _goal(PruneRequest(**given))


def test_named_heads_are_the_only_ones():
    goal = _goal(PruneRequest(heads=("L0H1,L2H3", "3.0-1")))
    assert goal.among == {(0, 1), (2, 3), (3, 0), (3, 1)}
    assert _goal(PruneRequest(heads=("L1H1",), index_base=1)).among == {(0, 0)}
    assert _goal(PruneRequest(heads=("1.*",), empty_layers=True)).count == 4
    bounds = RemovalBounds((1, 3), 4, 4)
    with pytest.raises(UsageError, match="layer 0 of 'm' has no attention heads"):
        goal_of(PruneRequest(heads=("0.1",)), bounds, _MADE, 2.0)
