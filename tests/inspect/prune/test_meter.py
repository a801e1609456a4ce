"""Losses over several texts, from scans that are made by hand."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import pytest

from attnviz.engine.effects import Scores, Variant
from attnviz.errors import UsageError
from attnviz.inspect.prune.order import ScanMeter

_CLEAN = (1.0, 3.0)


class _Scanner:
    """Each removed head costs 0.5 in the first text and 0.1 in the second; two at a time."""

    def __init__(self) -> None:
        self.measured: list[Variant] = []

    def scan_all(
        self, wanted: Mapping[int, Sequence[int]], variants: Sequence[Variant]
    ) -> Iterator[Scores]:
        for text, some in wanted.items():
            yield from self._scan(text, variants, some)

    def _scan(
        self, text: int, variants: Sequence[Variant], wanted: Sequence[int]
    ) -> Iterator[Scores]:
        order = list(reversed(wanted))
        for start in range(0, len(order), 2):
            chosen = tuple(order[start : start + 2])
            self.measured += [variants[index] for index in chosen]
            price = (0.5, 0.1)[text]
            deltas = np.array([price * len(variants[index].heads) for index in chosen])
            yield Scores(text, chosen, {"loss_delta": deltas}, {"loss": _CLEAN[text]})

    def gradients(self, removed: Collection[tuple[int, int]] = ()) -> dict[tuple[int, int], float]:
        return {(0, 1): float(len(removed))}


class _Headless:
    def scan_all(
        self, wanted: Mapping[int, Sequence[int]], variants: Sequence[Variant]
    ) -> Iterator[Scores]:
        for text, some in wanted.items():
            yield Scores(text, tuple(some), {"output_mse": np.zeros(len(some))}, {})

    def gradients(self, removed: Collection[tuple[int, int]] = ()) -> dict[tuple[int, int], float]:
        return {}


def test_losses_are_means_over_the_texts() -> None:
    shares: list[float] = []
    meter = ScanMeter(_Scanner(), 2, (0, 0), shares.append)
    one, two, three, again = meter.losses([[(0, 1)], [(1, 0), (0, 1)], [(0, 0)], [(0, 1), (1, 0)]])
    assert one == three == pytest.approx(2.0 + 0.3)
    assert two == again == pytest.approx(2.0 + 0.6)
    assert meter.baseline == pytest.approx(2.0)
    assert meter.losses([[(1, 0), (0, 1)]]) == [two]
    assert sum(shares) == pytest.approx(3)  # what is asked for twice is measured once


def test_the_whole_model_is_measured_once() -> None:
    scanner = _Scanner()
    meter = ScanMeter(scanner, 2, (4, 2))
    assert meter.losses([()]) == [meter.baseline] == [pytest.approx(2.0)]
    assert scanner.measured == [Variant(((4, 2),))] * 2


def test_gradients_are_passed_on() -> None:
    meter = ScanMeter(_Scanner(), 1, (0, 0))
    assert meter.gradients([(0, 0)]) == {(0, 1): 1.0}


def test_a_model_without_predictions_is_refused() -> None:
    meter = ScanMeter(_Headless(), 1, (0, 0))
    with pytest.raises(UsageError, match="no loss to prune by"):
        meter.losses([[(0, 1)]])
    with pytest.raises(UsageError, match="no loss to prune by"):
        _ = meter.baseline
