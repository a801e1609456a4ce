"""The properties that a model's attention, and its observation, must have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnviz.learn.verify.examinee import (
    Examinee,
    Maps,
    Outputs,
    ReferenceRun,
    apart,
    furthest,
    score_spread,
)
from attnviz.learn.verify.records import Check, ComparedNumber, Tolerance
from attnviz.records import Input, ModelInfo, Tokens

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The machine epsilon of each dtype: the gap from 1 to the next number."""

_STORED = 12
"""Results that a layer stores one after another: norms, projections, scores, weights, sums …"""

_PLACES = 4
"""Number of places from which the causality check changes a text."""

_HIDDEN = "masked means none at all"


def exact(name: str, difference: float, where: str = "", reason: str = "") -> ComparedNumber:
    """Return a compared number whose difference must be exactly 0.

    name: what was measured. where: the head of the difference. reason: a clause on why it must be
        0.
    """
    words = reason or "bit for bit: the same operations on the same numbers"
    return ComparedNumber(name, difference, Tolerance(0.0, 0, 0.0), words, where)


@dataclass(frozen=True)
class Rounding:
    """Derives the tolerances of a model's numbers over texts of at most ``keys`` tokens.

    info: the facts of the model. dtype: of its least exact steps.
    stacks: 2 for an encoder–decoder, whose output went through both.

    Half-precision types sum in float32, so only stored results are rounded to them; in the wider
    types every term of a sum counts.
    """

    info: ModelInfo
    keys: int
    dtype: str
    stacks: int = 1

    @property
    def _half(self) -> bool:
        return self.dtype in ("float16", "bfloat16")

    def of_sum(self, terms: int, largest: float) -> tuple[Tolerance, str]:
        """Return the tolerance of one sum of products, and a clause on the reason for it.

        terms: how many products. largest: the largest absolute number that is rounded.
        """
        if self._half:
            return self._bound(2, largest, "2 results stored, sums in float32")
        return self._bound(terms, largest, f"a sum of {terms:,} terms")

    def of_model(self, largest: float) -> tuple[Tolerance, str]:
        """Return the tolerance of a number that went through all layers, and the reason for it.

        largest: the largest absolute number that is rounded.
        """
        layers, width = self.info.layers * self.stacks, self.info.heads * self.info.head_dim
        per_layer = _STORED
        if not self._half:
            # Projections in and out and a feed-forward part four times as wide.
            per_layer += 6 * width + self.info.head_dim + self.keys
        words = f"{layers} layer{'s' * (layers != 1)} × {per_layer:,} roundings"
        return self._bound(layers * per_layer, largest, words)

    def of_weights(self, maps: Maps) -> tuple[Tolerance, str]:
        """Return the tolerance of the attention weights of a whole run, and the reason for it.

        maps: these weights.
        """
        tolerance, words = self.of_model(score_spread(maps))
        return tolerance, f"{words}; scores {tolerance.largest:.3g} apart"

    def of_outputs(self, outputs: NDArray[np.float64]) -> tuple[Tolerance, str]:
        """Return the tolerance of the outputs of a whole run, and the reason for it."""
        tolerance, words = self.of_model(max(1.0, float(np.abs(np.nan_to_num(outputs)).max())))
        return tolerance, f"{words}; outputs up to {tolerance.largest:.3g}"

    def _bound(self, roundings: int, largest: float, words: str) -> tuple[Tolerance, str]:
        return Tolerance(EPSILON[self.dtype], roundings, largest), words


@dataclass(frozen=True, eq=False)
class ObservedRun:
    """The first observed run of a verified model, which properties are tested on.

    examinee: the model. maps, outputs: the attention weights and outputs. rounding: the tolerances.
        state: digests of the model before the run.
    """

    examinee: Examinee
    maps: Maps
    outputs: Outputs
    rounding: Rounding
    state: Mapping[str, str]

    @classmethod
    def of(cls, examinee: Examinee) -> ObservedRun:
        """Run the model once while it is observed; return the results.

        Raises UnsupportedError if its attention cannot be observed.
        """
        state = examinee.state()
        maps, outputs = examinee.capture(examinee.passage), examinee.outputs(examinee.passage)
        keys = max(weights.shape[-1] for weights in maps.values())
        stacks = 2 if len(examinee.kinds) > 1 else 1
        rounding = Rounding(examinee.info, keys, examinee.rounds_in, stacks)
        return cls(examinee, maps, outputs, rounding, state)

    @property
    def of_weights(self) -> tuple[Tolerance, str]:
        return self.rounding.of_weights(self.maps)

    @property
    def of_outputs(self) -> tuple[Tolerance, str]:
        return self.rounding.of_outputs(self.outputs)


_Found: TypeAlias = tuple[list[ComparedNumber], list[str]]
"""The measures of a check, and its notes."""


class Property(NamedTuple):
    """A property that the attention of every model must have, with its test.

    name, claim: as in ``Check``. test: returns the measures and notes of a run, or a string with
        the reason why the property does not apply.
    """

    name: str
    claim: str
    test: Callable[[ObservedRun], _Found | str]

    def check(self, run: ObservedRun) -> Check:
        found = self.test(run)
        if isinstance(found, str):
            return Check("", self.name, claim=self.claim, skipped=found)
        measures, notes = found
        return Check("", self.name, claim=self.claim, measures=tuple(measures), notes=tuple(notes))


def model_checks(
    examinee: Examinee, on_check: Callable[[str], None] = lambda name: None
) -> Iterator[Check]:
    """Yield the check of every property of a model, in the order of the report.

    on_check: called with the name of each before it is tested.
    Raises UnsupportedError if the architecture's attention cannot be observed.
    """
    on_check("a first run")
    run = ObservedRun.of(examinee)
    for one in PROPERTIES:
        on_check(one.name)
        yield one.check(run)


def _rows_sum(run: ObservedRun) -> _Found:
    """Measure the distance of each query's weights from a sum of one, and negative weights.

    A learned sink counts in the sum.
    """
    sinks = run.examinee.sinks()
    sums = {
        place: weights.sum(-1, dtype=np.float64)
        + (sinks[place][..., 0].astype(np.float64) if place in sinks else 0.0)
        for place, weights in run.maps.items()
    }
    off, where = furthest((place, np.abs(total - 1)) for place, total in sums.items())
    terms = max(weights.shape[-1] for weights in run.maps.values()) + bool(sinks)
    least = float(np.min([weights.min() for weights in run.maps.values()]))  # NaN if a weight is
    negative = math.nan if math.isnan(least) else max(0.0, -least)
    measures = [
        ComparedNumber(
            "max row-plus-sink error" if sinks else "max row-sum error",
            off,
            *run.rounding.of_sum(terms, 1.0),
            where,
        ),
        exact("most negative weight", negative, reason="a share is never negative"),
    ]
    if not sinks:
        return measures, []
    shares = np.concatenate([taken.ravel() for taken in sinks.values()])
    taken = f"{shares.min():.3f} to {shares.max():.3f}"
    return measures, [f"a learned sink takes {taken} of a row"]


def _causality(run: ObservedRun) -> _Found | str:
    """Test that later tokens change no earlier attention weights and outputs.

    A string with the reason is returned if the property does not apply.
    """
    examinee, kinds = run.examinee, run.examinee.causal
    if not kinds:
        return "bidirectional attention: no causal mask to test"
    length = len(examinee.passage.predicted)
    if length < 2:
        return "one token has no later one"

    def until(maps: Maps, place: int) -> Maps:
        """Return the attention weights of the queries before the position ``place``."""
        return {key: weights[:, :place] for key, weights in maps.items() if key[0] in kinds}

    causal = until(run.maps, length)
    ahead = furthest((place, np.triu(weights, 1)) for place, weights in causal.items())
    seen, moved = (0.0, ""), 0.0
    places = sorted({int(place) for place in np.linspace(1, length - 1, _PLACES).round()})
    for place in places:
        changed = _changed(examinee, place)
        earlier = apart(until(causal, place), until(examinee.capture(changed), place))
        seen = max(seen, earlier, key=lambda difference: _number(difference[0]))
        before = np.abs(examinee.outputs(changed)[:place] - run.outputs[:place]).max()
        moved = max(moved, float(before), key=_number)
    measures = [
        exact("weight on later tokens", *ahead, _HIDDEN),
        ComparedNumber("change of earlier weights", seen[0], *run.of_weights, seen[1]),
        ComparedNumber("change of earlier outputs", moved, *run.of_outputs),
    ]
    tried = ", ".join(map(str, places))
    return measures, [f"changed from token {tried} on, of tokens 0 … {length - 1}"]


def _number(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _changed(examinee: Examinee, place: int) -> Input:
    """Return the input with other tokens in the predicted text, from the position ``place`` on."""
    passage = examinee.passage
    text = passage.predicted.ids
    offered = examinee.other_ids(2 * len(text))
    fresh = [
        next(other for other in offered[index:] if other != old)
        for index, old in enumerate(text[place:])
    ]
    changed = Tokens.bare((*text[:place], *fresh))
    if passage.target is None:
        return Input(changed)
    return replace(passage, target=changed)


def _heads_sum(run: ObservedRun) -> _Found | str:
    """Test that a module's output is the sum of its heads through W_O, plus b_O.

    A string with the reason is returned if that cannot be measured.
    """
    sums, reason = run.examinee.head_sums()
    if not sums:
        return reason

    def off(entry: int) -> float:
        return _number(float(np.abs(sums[entry].summed - sums[entry].output).max()))

    # Modules differ in size: the worst is the one with the largest share of its tolerance.
    bounds = [run.rounding.of_sum(one.terms, one.largest) for one in sums]

    def beyond(entry: int) -> float:
        allowed = bounds[entry][0].value
        # If all outputs are zero, so is the tolerance.
        return off(entry) / allowed if allowed else math.inf if off(entry) else 0.0

    worst = max(range(len(sums)), key=beyond)
    place = sums[worst]
    where = f"L{place.layer}" + ("" if place.kind == "self" else f" {place.kind}")
    measure = ComparedNumber("max difference", off(worst), *bounds[worst], where)
    said = f"{len(sums)} module{'s' * (len(sums) != 1)} added up"
    return [measure], [said, reason] if reason else [said]


def _eager_weights(run: ObservedRun) -> _Found:
    """Measure how far observed attention weights are from those of the unobserved model."""
    return [
        _comparison(reference, *apart(run.maps, reference.found), run.of_weights)
        for reference in run.examinee.references()
    ], []


def _outputs_kept(run: ObservedRun) -> _Found:
    """Test that the outputs do not change if the model is observed."""
    measures = []
    for reference in run.examinee.unobserved():
        shown = reference.found[-len(run.outputs) :]
        same = shown.shape == run.outputs.shape
        difference = float(np.abs(shown - run.outputs).max()) if same else math.inf
        measures.append(_comparison(reference, difference, "", run.of_outputs))
    return measures, []


def _comparison(
    reference: ReferenceRun[Maps] | ReferenceRun[Outputs],
    difference: float,
    where: str,
    bound: tuple[Tolerance, str],
) -> ComparedNumber:
    if reference.exact:
        return exact(reference.name, difference, where)
    return ComparedNumber(reference.name, difference, *bound, where)


def _dropout_off(run: ObservedRun) -> _Found:
    """Test that dropout is off while a model is observed, even in training mode."""
    examinee = run.examinee
    again = apart(run.maps, examinee.capture(examinee.passage))
    measures = [exact("captured twice", *again, "nothing is drawn: bit for bit")]
    if not examinee.dropout:
        return measures, ["this model has no dropout to switch off"]
    with examinee.training():
        trained = apart(run.maps, examinee.capture(examinee.passage))
    measures.append(exact("captured in training mode", *trained, "dropout is off: bit for bit"))
    return measures, [f"dropout of up to {examinee.dropout:g} while training"]


def _padding_ignored(run: ObservedRun) -> _Found | str:
    """Test that padding gets no attention weight and does not change the real tokens.

    A string with the reason is returned if there is no run with padding.
    """
    runs, reason = run.examinee.padded()
    if not runs:
        return reason
    measures = []
    for one in runs:
        wanted = {place: run.maps[place] for place in run.maps if place in one.maps}
        difference, where = apart(wanted, one.maps)
        # An encoder–decoder's decoder is not padded, so its rows stay in place as well.
        moved = float(np.abs(one.outputs - run.outputs).max())
        measures += [
            exact(f"weight on padding, {one.side}", *one.on_padding, _HIDDEN),
            ComparedNumber(f"change of weights, {one.side}", difference, *run.of_weights, where),
            ComparedNumber(f"change of outputs, {one.side}", moved, *run.of_outputs),
        ]
    return measures, [reason] if reason else []


def _unchanged(run: ObservedRun) -> _Found:
    """Test that the runs have changed no part of the model."""
    before, after = run.state, run.examinee.state()
    parts = dict.fromkeys((*before, *after))
    other = [part for part in parts if before.get(part) != after.get(part)]
    measure = exact("parts that changed", len(other), ", ".join(other), "digests (SHA-256) agree")
    return [measure], [f"compared: {', '.join(parts)}"]


PROPERTIES = (
    Property("rows sum to one", "the weights of each query are shares of one", _rows_sum),
    Property("causality", "changing later tokens changes nothing before them", _causality),
    Property("heads sum to the output", "Σ_h z_h W_O^h + b_O is the module's output", _heads_sum),
    Property(
        "weights match an unhooked run",
        "captured weights equal those of an unhooked run",
        _eager_weights,
    ),
    Property("outputs unchanged", "outputs with capture equal those without it", _outputs_kept),
    Property("dropout off", "captures agree, also in training mode", _dropout_off),
    Property(
        "padding ignored", "padding gets no weight and changes no real token", _padding_ignored
    ),
    Property("model unchanged", "all of these runs leave the model as it was", _unchanged),
)
"""The properties in the order of the report; the last is tested after all others."""
