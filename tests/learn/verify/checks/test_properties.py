"""Each property on a made-up model that has it, and on one that lost it in one place."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from attnviz.learn.verify.examinee import Padded, ReferenceRun
from attnviz.learn.verify.head_sums import HeadSum
from attnviz.learn.verify.properties import PROPERTIES, ObservedRun, Rounding, property_check
from attnviz.learn.verify.report import Check
from attnviz.records import Input, ModelInfo

INFO = ModelInfo("made", None, "Made", "float32", 2, 3, 3, 5)
ROUNDING = Rounding(INFO, 7, "float32")
IDS = (11, 12, 13, 14, 15, 16, 17)


def weights_of(ids: tuple[int, ...], causal: bool) -> dict[Any, np.ndarray]:
    """Softmax over made-up scores that depend on both tokens of a pair, and on nothing else."""
    numbers = np.array(ids, dtype=np.float64)
    scores = np.sin(numbers[:, None] * 1.7 + numbers[None] * 0.9)
    powers = np.exp(scores) * (np.tri(len(ids)) if causal else 1)
    shares = powers / powers.sum(-1, keepdims=True)
    return {("self", layer): np.stack([shares] * 3).astype(np.float32) for layer in range(2)}


@dataclass
class Made:
    """A model that is only its numbers; ``broken`` names what is wrong with it."""

    broken: str = ""
    causal: tuple[Any, ...] = ("self",)
    dropout: float = 0.1
    info: ModelInfo = INFO
    kinds: tuple[Any, ...] = ("self",)
    rounds_in: str = "float32"
    passage: Input = field(default_factory=lambda: Input.of_ids(IDS))
    trained: bool = False
    runs: int = 0
    sink: bool = False
    parts: dict[str, str] = field(default_factory=lambda: {"parameters": "a", "hooks": "b"})

    def observe(self, passage: Input) -> tuple[dict[Any, np.ndarray], np.ndarray]:
        self.runs += 1
        maps = weights_of(passage.ids, bool(self.causal) and self.broken != "mask")
        if self.broken == "state" or (self.trained and self.broken == "dropout"):
            maps["self", 1][2] *= 1 + 1e-3 * self.runs
        if self.broken == "leak":  # zeros ahead, but an earlier row knows a later token
            maps["self", 0][1, 0, 0] -= 1e-3 * passage.ids[-1]
        if self.broken == "nan":
            maps["self", 1][0, 2, 1] = np.nan
        if self.broken == "rows":
            maps["self", 1][2, 3] *= 1.001
        if self.broken == "negative":
            maps["self", 0][0, 6, :2] += [-1, 1]
        maps = {place: maps[place] * (0.75 if self.sink else 1) for place in maps}
        return maps, self.outputs(passage)

    def outputs(self, passage: Input) -> np.ndarray:
        outputs = np.cumsum(np.cos(passage.ids))[:, None] * np.ones(3)
        return outputs + (1e-3 * passage.ids[-1] if self.broken == "outputs leak" else 0)

    def references(self) -> tuple[ReferenceRun, ...]:
        maps = weights_of(IDS, bool(self.causal))
        if self.broken == "eager":
            maps["self", 0][1, 4, 2] += 1e-7
        if self.broken == "layers":
            del maps["self", 1]
        return (ReferenceRun("eager", maps, exact=True), ReferenceRun("torch", maps))

    def unobserved(self) -> tuple[ReferenceRun, ...]:
        outputs = self.outputs(self.passage) + (0.01 if self.broken == "moved" else 0)
        return (ReferenceRun("sdpa", outputs), ReferenceRun("eager", outputs, exact=True))

    def sinks(self) -> dict[Any, np.ndarray]:
        if not self.sink:
            return {}
        taken = 0.25 if self.broken != "sink" else 0.2
        return {("self", layer): np.full((3, 7, 1), taken) for layer in range(2)}

    def head_sums(self) -> tuple[tuple[HeadSum, ...], str]:
        if self.broken == "gate":
            return (), "a gate stands between"
        off = 1e-3 if self.broken == "heads" else 1e-7
        return (HeadSum("self", 0, 0.0, 16, 2.0), HeadSum("self", 1, off, 16, 2.0)), ""

    def padded(self) -> tuple[list[Padded], str]:
        if self.broken == "no mask":
            return [], "takes no attention mask"
        maps = weights_of(IDS, bool(self.causal))
        outputs = self.outputs(self.passage)
        if self.broken == "padding":
            maps["self", 1][0, 6] *= 0.99
        seen = (1e-30, "L0H2") if self.broken == "padding seen" else (0.0, "")
        return [Padded("right", maps, outputs, seen)], ""

    def other_ids(self, count: int) -> tuple[int, ...]:
        return tuple(11 + place % 40 for place in range(count))

    @contextmanager
    def training(self) -> Iterator[None]:
        self.trained = True
        yield
        self.trained = False

    def state(self) -> dict[str, str]:
        return dict(self.parts)


def check(made: Made, name: str, **parts: Any) -> Check:
    """The property whose name begins so."""
    (whole,) = (known for known in PROPERTIES if known.startswith(name))
    return property_check(whole, replace(ObservedRun.of(made), rounding=ROUNDING, **parts))


@pytest.mark.parametrize("name", PROPERTIES)
def test_what_holds_passes(name: str) -> None:
    found = check(Made(), name)
    assert found.verdict == "pass", found
    assert all(measure.tolerance.reason for measure in found.measures)
    assert found.claim


@pytest.mark.parametrize(
    ("name", "broken", "where"),
    [
        ("rows", "rows", "L1H2"),
        ("rows", "negative", ""),
        ("rows", "nan", "L1H0"),
        ("causality", "mask", "L0H0"),
        ("causality", "leak", "L0H1"),
        ("causality", "outputs leak", ""),
        ("causality", "nan", "L1H0"),
        ("heads", "heads", "L1"),
        ("weights", "eager", "L0H1"),
        ("weights", "layers", "other layers"),
        ("weights", "nan", "L1H0"),
        ("outputs", "moved", ""),
        ("dropout", "dropout", "L1H2"),
        ("dropout", "state", "L1H2"),
        ("padding", "padding", "L1H0"),
        ("padding", "padding seen", "L0H2"),
    ],
)
def test_what_is_broken_fails_and_is_named(name: str, broken: str, where: str) -> None:
    found = check(Made(broken), name)
    assert found.verdict == "fail"
    failed = [measure for measure in found.measures if not measure.passed]
    assert failed[0].where == where


def test_what_does_not_apply_says_why_and_sinks_are_shown() -> None:
    assert (
        check(Made(causal=()), "causality").skipped
        == "bidirectional attention: no causal mask to test"
    )
    assert check(Made("gate"), "heads").skipped == "a gate stands between"
    assert check(Made("no mask"), "padding").skipped == "takes no attention mask"
    one = Made(passage=Input.of_ids((11,)))
    assert check(one, "causality").skipped == "one token has no later one"
    found = check(Made(sink=True), "rows")
    assert found.verdict == "pass"
    assert found.notes == ("a learned sink takes 0.250 to 0.250 of a row",)
    assert check(Made("sink", sink=True), "rows").verdict == "fail"


def test_changed_tokens_differ_everywhere() -> None:
    """Otherwise causality would be proven by changing nothing."""
    seen: list[tuple[int, ...]] = []

    class Noted(Made):
        def observe(self, passage: Input) -> tuple[dict[Any, np.ndarray], np.ndarray]:
            seen.append(passage.ids)
            return super().observe(passage)

    check(Noted(), "causality")
    for ids in seen[1:]:
        kept = [one == other for one, other in zip(ids, IDS, strict=True)]
        place = kept.index(False)
        assert place >= 1
        assert not any(kept[place:])
    assert len(seen) == 1 + 4


def test_half_precision_counts_what_is_stored() -> None:
    """Sums run in float32 there: 12 results in each of 2 layers, whatever the width."""
    half = Rounding(replace(INFO, dtype="bfloat16"), 7, "bfloat16")
    tolerance = half.of_model(1.0)
    assert tolerance.value == 4 * 2.0**-7 * math.sqrt(24)
    assert tolerance.reason == "2 layers × 12 roundings"
    # 12 stored, 6 · 15 summed by projections, 5 by scores, 7 by mixing.
    assert ROUNDING.of_model(3.0).value == 4 * 2.0**-23 * math.sqrt(2 * 114) * 3
