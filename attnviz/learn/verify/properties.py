"""The properties that a model's attention, and its observation, must have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from attnviz.draw.numbers import counted
from attnviz.learn.verify.examinee import (
    Examinee,
    Maps,
    Outputs,
    apart,
    differences,
    furthest,
    score_spread,
)
from attnviz.learn.verify.report import Check, ComparedNumber, Tolerance, exact
from attnviz.records import Input, ModelInfo, Tokens

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The machine epsilon of each dtype: the gap from 1 to the next number."""

_STORED = 12
"""Results that a layer stores one after another: norms, projections, scores, weights, sums …"""

_TRIED = 4
"""Number of positions from which the causality check changes a text."""

_HIDDEN = "masked means none at all"


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
    def half(self) -> bool:
        return self.dtype in ("float16", "bfloat16")

    def of_sum(self, terms: int, largest: float) -> Tolerance:
        """Return the tolerance of one sum of products.

        terms: how many products. largest: the largest absolute number that is rounded.
        """
        words = "2 results stored, sums in float32" if self.half else f"a sum of {terms:,} terms"
        return Tolerance(EPSILON[self.dtype], 2 if self.half else terms, largest, words)

    def of_model(self, largest: float, more: str = "") -> Tolerance:
        """Return the tolerance of a number that went through all layers.

        largest: the largest absolute number that is rounded. more: the end of the reason.
        """
        layers, width = self.info.layers * self.stacks, self.info.heads * self.info.head_dim
        per_layer = _STORED
        if not self.half:
            # Projections in and out and a feed-forward part four times as wide.
            per_layer += 6 * width + self.info.head_dim + self.keys
        words = f"{counted(layers, 'layer')} × {per_layer:,} roundings{more}"
        return Tolerance(EPSILON[self.dtype], layers * per_layer, largest, words)


@dataclass(frozen=True, eq=False)
class ObservedRun:
    """The first observed run of a verified model, which properties are tested on.

    examinee: the model. maps, outputs: the attention weights and outputs. weights_within,
        outputs_within: their tolerances. rounding: derives further ones.
    state: digests of the model before the run.
    """

    examinee: Examinee
    maps: Maps
    outputs: Outputs
    rounding: Rounding
    state: Mapping[str, str]
    weights_within: Tolerance
    outputs_within: Tolerance

    @classmethod
    def of(cls, examinee: Examinee) -> ObservedRun:
        """Run the model once while it is observed; return the results.

        Raises UnsupportedError if its attention cannot be observed.
        """
        state = examinee.state()
        maps, outputs = examinee.observe(examinee.passage)
        keys = max(weights.shape[-1] for weights in maps.values())
        stacks = 2 if len(examinee.kinds) > 1 else 1
        rounding = Rounding(examinee.info, keys, examinee.rounds_in, stacks)
        spread = score_spread(maps)
        largest = max(1.0, float(np.abs(np.nan_to_num(outputs)).max()))
        return cls(
            examinee=examinee,
            maps=maps,
            outputs=outputs,
            rounding=rounding,
            state=state,
            weights_within=rounding.of_model(spread, f"; scores {spread:.3g} apart"),
            outputs_within=rounding.of_model(largest, f"; outputs up to {largest:.3g}"),
        )

    def weights(self, name: str, other: Maps, *, same: bool = False) -> ComparedNumber:
        """Return how far the weights of another run are apart from those of this one.

        same: True if the same operations ran, so that no bit may differ.
        """
        difference, where = apart(self.maps, other)
        if same:
            return exact(name, difference, where)
        return ComparedNumber(name, difference, self.weights_within, where)

    def output(self, name: str, other: Outputs, *, same: bool = False) -> ComparedNumber:
        """Return how far the outputs of another run are apart from those of this one.

        same: True if the same operations ran, so that no bit may differ.
        """
        difference = float(differences(other, self.outputs).max())
        return (
            exact(name, difference)
            if same
            else ComparedNumber(name, difference, self.outputs_within)
        )


_Tested: TypeAlias = tuple[list[ComparedNumber], list[str]]
"""The measures of a check and its notes; without measures, the note is why it does not apply."""


def model_checks(
    examinee: Examinee, on_check: Callable[[str], None] = lambda name: None
) -> Iterator[Check]:
    """Yield the check of every property of a model, in the order of the report.

    on_check: called with the name of each before it is tested.
    Raises UnsupportedError if the architecture's attention cannot be observed.
    """
    on_check("a first run")
    run = ObservedRun.of(examinee)
    for name in PROPERTIES:
        on_check(name)
        yield property_check(name, run)


def property_check(name: str, run: ObservedRun) -> Check:
    """Return the check of one of ``PROPERTIES`` on a run."""
    claim, test = PROPERTIES[name]
    measures, notes = test(run)
    if not measures:
        return Check("", name, claim=claim, skipped=notes[0])
    return Check("", name, claim=claim, measures=tuple(measures), notes=tuple(notes))


def _rows_sum(run: ObservedRun) -> _Tested:
    """Measure the distance of each query's weights from a sum of one, and negative weights.

    A learned sink counts in the sum.
    """
    sinks = run.examinee.sinks()
    sums = {
        at: weights.sum(-1, dtype=np.float64) + (sinks[at][..., 0] if at in sinks else 0.0)
        for at, weights in run.maps.items()
    }
    terms = max(weights.shape[-1] for weights in run.maps.values()) + bool(sinks)
    least = float(np.min([weights.min() for weights in run.maps.values()]))  # NaN if a weight is
    negative = math.nan if math.isnan(least) else max(0.0, -least)
    off, where = furthest((at, np.abs(total - 1)) for at, total in sums.items())
    name = "max row-plus-sink error" if sinks else "max row-sum error"
    measures = [
        ComparedNumber(name, off, run.rounding.of_sum(terms, 1.0), where),
        exact("most negative weight", negative, reason="a share is never negative"),
    ]
    if not sinks:
        return measures, []
    shares = np.concatenate([taken.ravel() for taken in sinks.values()])
    return measures, [f"a learned sink takes {shares.min():.3f} to {shares.max():.3f} of a row"]


def _causality(run: ObservedRun) -> _Tested:
    """Test that later tokens change no earlier attention weights and outputs."""
    examinee, kinds = run.examinee, run.examinee.causal
    if not kinds:
        return [], ["bidirectional attention: no causal mask to test"]
    length = len(examinee.passage.predicted)
    if length < 2:
        return [], ["one token has no later one"]

    def until(maps: Maps, position: int) -> Maps:
        return {at: weights[:, :position] for at, weights in maps.items() if at[0] in kinds}

    ahead = furthest((at, np.triu(w, 1)) for at, w in until(run.maps, length).items())
    tried = sorted({int(position) for position in np.linspace(1, length - 1, _TRIED).round()})
    changes: list[tuple[ComparedNumber, ComparedNumber]] = []
    for position in tried:
        before = replace(run, maps=until(run.maps, position), outputs=run.outputs[:position])
        maps, outputs = examinee.observe(_changed(examinee, position))
        weights = before.weights("change of earlier weights", until(maps, position))
        moved = before.output("change of earlier outputs", outputs[:position])
        changes.append((weights, moved))
    worst = [max(column, key=lambda m: m.severity) for column in zip(*changes, strict=True)]
    measures = [exact("weight on later tokens", *ahead, _HIDDEN), *worst]
    positions = ", ".join(map(str, tried))
    return measures, [f"changed from token {positions} on, of tokens 0 … {length - 1}"]


def _changed(examinee: Examinee, position: int) -> Input:
    """Return the input with other tokens in the predicted text, from a position on."""
    passage = examinee.passage
    text = passage.predicted.ids
    offered = examinee.other_ids(2 * len(text))
    fresh = [
        next(other for other in offered[index:] if other != old)
        for index, old in enumerate(text[position:])
    ]
    changed = Tokens.bare((*text[:position], *fresh))
    return Input(changed) if passage.target is None else replace(passage, target=changed)


def _heads_sum(run: ObservedRun) -> _Tested:
    """Test that a module's output is the sum of its heads through W_O, plus b_O."""
    sums, reason = run.examinee.head_sums()
    if not sums:
        return [], [reason]
    measures = [
        ComparedNumber(
            "max difference",
            math.inf if math.isnan(module.difference) else module.difference,
            run.rounding.of_sum(module.terms, module.largest),
            f"L{module.layer}" + ("" if module.kind == "self" else f" {module.kind}"),
        )
        for module in sums
    ]
    # Modules differ in size: the worst is the one with the largest share of its tolerance.
    worst = max(measures, key=lambda measure: measure.severity[0])
    return [worst], [f"{counted(len(sums), 'module')} added up", *([reason] if reason else [])]


def _eager_weights(run: ObservedRun) -> _Tested:
    """Measure how far observed attention weights are from those of the unobserved model."""
    references = run.examinee.references()
    return [run.weights(way.name, way.numbers, same=way.exact) for way in references], []


def _outputs_kept(run: ObservedRun) -> _Tested:
    """Test that the outputs do not change if the model is observed."""
    last = slice(-len(run.outputs), None)
    references = run.examinee.unobserved()
    return [run.output(way.name, way.numbers[last], same=way.exact) for way in references], []


def _dropout_off(run: ObservedRun) -> _Tested:
    """Test that dropout is off while a model is observed, even in training mode."""
    examinee = run.examinee
    again = apart(run.maps, examinee.observe(examinee.passage)[0])
    measures = [exact("captured twice", *again, "nothing is drawn: bit for bit")]
    if not examinee.dropout:
        return measures, ["this model has no dropout to switch off"]
    with examinee.training():
        trained = apart(run.maps, examinee.observe(examinee.passage)[0])
    measures.append(exact("captured in training mode", *trained, "dropout is off: bit for bit"))
    return measures, [f"dropout of up to {examinee.dropout:g} while training"]


def _padding_ignored(run: ObservedRun) -> _Tested:
    """Test that padding gets no attention weight and does not change the real tokens."""
    padded, reason = run.examinee.padded()
    measures = []
    for padding in padded:
        # An encoder–decoder's decoder is not padded, so its rows stay in place as well.
        measures += [
            exact(f"weight on padding, {padding.side}", *padding.on_padding, _HIDDEN),
            run.weights(f"change of weights, {padding.side}", padding.maps),
            run.output(f"change of outputs, {padding.side}", padding.outputs),
        ]
    return measures, [reason] if reason else []


def _unchanged(run: ObservedRun) -> _Tested:
    """Test that the runs have changed no part of the model."""
    before, after = run.state, run.examinee.state()
    parts = dict.fromkeys((*before, *after))
    other = [part for part in parts if before.get(part) != after.get(part)]
    measure = exact("parts that changed", len(other), ", ".join(other), "digests (SHA-256) agree")
    return [measure], [f"compared: {', '.join(parts)}"]


PROPERTIES: Mapping[str, tuple[str, Callable[[ObservedRun], _Tested]]] = {
    "rows sum to one": ("the weights of each query are shares of one", _rows_sum),
    "causality": ("changing later tokens changes nothing before them", _causality),
    "heads sum to the output": ("Σ_h z_h W_O^h + b_O is the module's output", _heads_sum),
    "weights match an unhooked run": (
        "captured weights equal those of an unhooked run",
        _eager_weights,
    ),
    "outputs unchanged": ("outputs with capture equal those without it", _outputs_kept),
    "dropout off": ("captures agree, also in training mode", _dropout_off),
    "padding ignored": ("padding gets no weight and changes no real token", _padding_ignored),
    "model unchanged": ("all of these runs leave the model as it was", _unchanged),
}
"""The claim and the test of each property, by its name in the report; the last one comes last."""
