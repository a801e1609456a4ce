"""The order of removal, on losses that are made by hand."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from attnviz.inspect.prune.order import Goal, RemovalBounds, random_losses, removal_order
from attnviz.inspect.prune.records import PruneStep
from attnviz.inspect.prune.request import Importance

Head = tuple[int, int]

# 2 layers × 3 heads. Each head costs this when it goes; L0H0 and L1H2 stand in for each other:
# while one is there the other is worth nothing.
_PRICE = {(0, 0): 0.0, (0, 1): 0.3, (0, 2): 0.5, (1, 0): 0.2, (1, 1): 0.4, (1, 2): 0.0}
_PAIR = {(0, 0), (1, 2)}
_CLEAN = 2.0


class _Meter:
    """Losses that add up, but for the pair: 1.1 once both are gone."""

    baseline = _CLEAN

    def __init__(self, scale: float = 1.0) -> None:
        self.asked = 0
        self._scale = scale

    def losses(self, removals: Sequence[Collection[Head]]) -> list[float]:
        self.asked += len(removals)
        return [self._loss(set(removal)) for removal in removals]

    def _loss(self, gone: set[Head]) -> float:
        return _CLEAN + self._scale * (sum(_PRICE[head] for head in gone) + 1.1 * (gone >= _PAIR))

    def gradients(self, removed: Collection[Head]) -> Mapping[Head, float]:
        """Blind to the pair, as a first order is, until one of them has gone."""
        last = _PAIR - set(removed) if _PAIR & set(removed) else set()
        return {head: price + 1.1 * (head in last) for head, price in _PRICE.items()}


def _bounds(**settings: bool) -> RemovalBounds:
    return RemovalBounds((0, 1), 3, 3, **settings)


def _prune(*asked: Any, **options: Any) -> tuple[PruneStep, ...]:
    """Ranked by prices; held out, each is doubled."""
    return removal_order(_Meter(), _Meter(2.0), *asked, **options)


def _heads(steps: Sequence[PruneStep]) -> list[Head]:
    return [(step.layer, step.head) for step in steps]


def test_one_ranking_does_not_see_that_two_heads_stand_in_for_each_other() -> None:
    steps = _prune(_bounds(), Goal(3), "exact")
    assert _heads(steps) == [(0, 0), (1, 2), (1, 0)]
    assert [step.loss for step in steps] == pytest.approx([2.0, 4.2, 4.6])
    assert [step.ranking_loss for step in steps] == pytest.approx([2.0, 3.1, 3.3])
    assert [step.score for step in steps] == pytest.approx([0.0, 0.0, 0.2])
    assert [step.heads_left for step in steps] == [5, 4, 3]


@pytest.mark.parametrize("method", ["exact", "gradient"])
def test_ranking_again_after_each_removal_does(method: Importance) -> None:
    steps = _prune(_bounds(), Goal(3), method, rerank=True)
    assert _heads(steps) == [(0, 0), (1, 0), (0, 1)]
    assert [step.loss for step in steps] == pytest.approx([2.0, 2.4, 3.0])
    assert [step.score for step in steps] == pytest.approx([0.0, 0.2, 0.3])


@pytest.mark.parametrize("method", ["exact", "gradient"])
@pytest.mark.parametrize("rerank", [False, True])
def test_each_layer_keeps_a_head_unless_told_otherwise(method: Importance, rerank: bool) -> None:
    for empty, most in ((False, 4), (True, 6)):
        bounds = _bounds(empty_layers=empty)
        assert bounds.most == most
        steps = _prune(bounds, Goal(99), method, rerank=rerank)
        assert len(steps) == most
        assert len({layer for layer, _ in set(_PRICE) - set(_heads(steps))}) == (not empty) * 2


def test_a_limit_of_the_loss_ends_before_it_is_passed() -> None:
    for rerank, expected in ((False, [(0, 0)]), (True, [(0, 0), (1, 0), (0, 1)])):
        steps = _prune(_bounds(), Goal(6, loss=3.2), "exact", rerank=rerank)
        assert _heads(steps) == expected
    assert _prune(_bounds(), Goal(6, loss=1.9), "exact") == ()


def test_only_chosen_heads_go() -> None:
    goal = Goal(2, among={(1, 1), (0, 1)})
    assert _heads(_prune(_bounds(), goal, "exact")) == [(0, 1), (1, 1)]


def test_uniform_removal_takes_one_head_of_every_layer_a_round() -> None:
    bounds = _bounds(uniform=True)
    assert (bounds.round, bounds.most) == (2, 4)
    steps = _prune(bounds, Goal(4), "gradient")
    layers = [step.layer for step in steps]
    assert sorted(layers[:2]) == sorted(layers[2:]) == [0, 1]
    # a round that the limit cuts short does not count
    kept = _prune(bounds, Goal(4, loss=2.05), "exact", rerank=True)
    assert len(kept) == 0


def test_uniform_removal_of_grouped_heads_takes_one_of_every_group() -> None:
    bounds = RemovalBounds((1, 3), 6, 2, uniform=True)  # groups 0 1 2 and 3 4 5, of layers 1 and 3
    assert (bounds.total, bounds.round, bounds.most) == (12, 4, 8)
    order = list(bounds.ordered(bounds.all_heads()))
    for start in (0, 4):
        taken = [(layer, head // 3) for layer, head in order[start : start + 4]]
        assert sorted(taken) == [(1, 0), (1, 1), (3, 0), (3, 1)]
    assert len(order) == 8


def test_removals_without_a_limit_are_measured_once_each() -> None:
    ranking, held_out = _Meter(), _Meter()
    removal_order(ranking, held_out, _bounds(), Goal(4), "exact")
    assert (ranking.asked, held_out.asked) == (6 + 4, 4)


def test_random_orders_are_seeded_and_within_the_bounds() -> None:
    points = random_losses(_Meter(), _bounds(), [1, 4], draws=5, seed=3)
    assert points == random_losses(_Meter(), _bounds(), [1, 4], draws=5, seed=3)
    assert points != random_losses(_Meter(), _bounds(), [1, 4], draws=5, seed=4)
    assert [point.heads_left for point in points] == [5, 2]
    for point in points:
        assert point.low <= point.mean <= point.high
    single = random_losses(_Meter(), _bounds(), [1], draws=1, seed=0)[0]
    assert single.mean == single.low == single.high
    assert any(single.mean == pytest.approx(_CLEAN + price) for price in _PRICE.values())
    assert random_losses(_Meter(), _bounds(), [], draws=5, seed=0) == ()
    assert random_losses(_Meter(), _bounds(), [1], draws=0, seed=0) == ()
