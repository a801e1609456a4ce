"""What may be asked of prune, and what it then means for a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attnviz.errors import UsageError
from attnviz.inspect.prune.order import RemovalBounds, goal_of
from attnviz.inspect.prune.request import PruneRequest
from attnviz.records import ModelInfo

_INFO = ModelInfo("m", None, "M", "float32", layers=4, heads=4, kv_heads=4, head_dim=2)


def _goal(request: PruneRequest) -> Any:
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
        ({"fraction": 1.0}, "between 0 and 1"),
        ({"fraction": -0.2}, "between 0 and 1"),
        ({"fraction": float("nan")}, "between 0 and 1"),
        ({"until_loss": 1.0}, "above 1, such as 1.05"),
        ({"until_loss": float("nan")}, "above 1"),
        ({"until_loss": float("inf")}, "above 1"),
        ({"heads": ("1",), "uniform": True}, "give one"),
    ],
)
def test_what_no_model_could_heed_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PruneRequest(**given)


def test_a_fraction_is_rounded_to_heads() -> None:
    assert _goal(PruneRequest(fraction=0.3)).count == 5  # of 16: 4.8
    assert _goal(PruneRequest(fraction=0.75)).count == 12
    assert _goal(PruneRequest(fraction=0.9, empty_layers=True)).count == 14
    assert _goal(PruneRequest(fraction=0.3, uniform=True)).count == 4  # one of each layer
    assert _goal(PruneRequest(fraction=0.5, uniform=True)).count == 8


def test_a_fraction_that_no_removal_meets_is_refused() -> None:
    with pytest.raises(UsageError, match=r"is 14, only 12 can go .* at most 0.75, or add"):
        _goal(PruneRequest(fraction=0.9))
    with pytest.raises(UsageError, match=r"is none, one is the least: expected at least 0.0625"):
        _goal(PruneRequest(fraction=0.01))
    with pytest.raises(UsageError, match=r"takes 4 at a time: expected at least 0.25"):
        _goal(PruneRequest(fraction=0.2, uniform=True))


def test_a_limit_is_a_multiple_of_the_whole_loss() -> None:
    goal = _goal(PruneRequest(until_loss=1.05))
    assert (goal.count, goal.loss) == (12, pytest.approx(2.1))
    assert _goal(PruneRequest()).count == 12
    assert _goal(PruneRequest()).loss is None


def test_named_heads_are_the_only_ones() -> None:
    goal = _goal(PruneRequest(heads=("L0H1,L2H3", "3.0-1")))
    assert goal.among == {(0, 1), (2, 3), (3, 0), (3, 1)}
    assert goal.count == 4
    assert _goal(PruneRequest(heads=("L1H1",), index_base=1)).among == {(0, 0)}
    with pytest.raises(UsageError, match="no head 7: this model has heads 0 to 3"):
        _goal(PruneRequest(heads=("L0H7",)))
    with pytest.raises(UsageError, match="no layer 9"):
        _goal(PruneRequest(heads=("9.0",)))
    with pytest.raises(UsageError, match="all 4 heads of layer 1: leave one"):
        _goal(PruneRequest(heads=("1.*",)))
    assert _goal(PruneRequest(heads=("1.*",), empty_layers=True)).count == 4


def test_layers_without_attention_have_no_heads_to_name() -> None:
    bounds = RemovalBounds((1, 3), 4, 4)
    with pytest.raises(UsageError, match="layer 0 of 'm' has no attention heads"):
        goal_of(PruneRequest(heads=("0.1",)), bounds, _INFO, 2.0)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (PruneRequest(fraction=0.3), "--fraction 0.3"),
        (PruneRequest(until_loss=1.05), "--until-loss 1.05"),
        (PruneRequest(heads=("L0H1", "3")), "--heads L0H1 3"),
        (PruneRequest(heads=("L1H2",), index_base=1), "--heads L1H2 --index-base 1"),
        (PruneRequest(), "all prunable heads"),
    ],
)
def test_what_was_asked_is_told_as_it_can_be_typed_again(
    request_: PruneRequest, words: str
) -> None:
    assert request_.goal == words
