"""The order of removal and the losses it goes by, made by hand, and what may be asked."""

from pathlib import Path

import numpy as np
import pytest

from attnviz.engine.effects import Scores, Variant
from attnviz.errors import UsageError
from attnviz.inspect.prune.prune import (
    Goal,
    RemovalBounds,
    ScanMeter,
    goal_of,
    random_losses,
    removal_order,
)
from attnviz.inspect.prune.request import PruneRequest
from attnviz.records import ModelInfo

# 2 layers × 3 heads. Each head costs this when it goes; L0H0 and L1H2 stand in for each other:
# while one is there the other is worth nothing.
_PRICE = {(0, 0): 0.0, (0, 1): 0.3, (0, 2): 0.5, (1, 0): 0.2, (1, 1): 0.4, (1, 2): 0.0}
_PAIR = {(0, 0), (1, 2)}
_CLEAN = 2.0


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


# Losses over several texts ------------------------------------------------------------------------


_LOSSES = (1.0, 3.0)


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
            yield Scores(text, chosen, {"loss_delta": deltas}, {"loss": _LOSSES[text]})


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


# What may be asked --------------------------------------------------------------------------------


_INFO = ModelInfo("m", None, "M", "float32", layers=4, heads=4, kv_heads=4, head_dim=2)


def _goal(request):
    bounds = RemovalBounds(
        (0, 1, 2, 3), 4, 4, empty_layers=request.empty_layers, uniform=request.uniform
    )
    return goal_of(request, bounds, _INFO, 2.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fraction": 0.3, "until_loss": 1.1}, "expected one of .* got --fraction and --until"),
        ({"fraction": 0.3, "heads": ("1",)}, "expected one of"),
        ({"out": Path("d")}, "--out writes what is left"),
        ({"fraction": 0.0}, "between 0 and 1"),
        ({"fraction": float("nan")}, "between 0 and 1"),
        ({"until_loss": 1.0}, "above 1, such as 1.05"),
        ({"until_loss": float("inf")}, "above 1"),
        ({"heads": ("1",), "uniform": True}, "give one"),
        ({"rerank": True, "method": "gradient"}, "leave out --method gradient"),
    ],
)
def test_what_no_model_could_heed_is_refused(given, message):
    with pytest.raises(UsageError, match=message):
        PruneRequest(**given)


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
        goal_of(PruneRequest(heads=("0.1",)), bounds, _INFO, 2.0)
