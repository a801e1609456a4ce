"""What must be true of a model's attention: one function a property."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from attnviz.records import Input, Kind, Tokens
from attnviz.verify.examinee import Examinee, Outputs
from attnviz.verify.maps import Maps, apart, furthest
from attnviz.verify.records import Check, Measure
from attnviz.verify.rounding import Rounding, exact

__all__ = ["causality", "heads_sum", "rows_sum"]


def rows_sum(examinee: Examinee, maps: Maps, rounding: Rounding) -> Check:
    """Weights are shares: from zero on, each row one, or one less what a learned sink takes."""
    sinks = examinee.sinks()
    sums = {
        place: weights.sum(-1, dtype=np.float64)
        + (sinks[place][..., 0].astype(np.float64) if place in sinks else 0.0)
        for place, weights in maps.items()
    }
    off, where = furthest((place, np.abs(total - 1)) for place, total in sums.items())
    terms = max(weights.shape[-1] for weights in maps.values()) + bool(sinks)
    least = min(float(weights.min()) for weights in maps.values())
    negative = math.nan if math.isnan(least) else max(0.0, -least)
    name = "row and sink, off one by" if sinks else "rows, off one by"
    measures = (
        Measure(name, off, *rounding.of_sum(terms, 1.0), where),
        exact("below zero by", negative, reason="a share is never negative"),
    )
    return Check("", "rows sum to one", claim=_ROWS, measures=measures, notes=_sink_notes(sinks))


_ROWS = "the weights of each query are shares of one"


def _sink_notes(sinks: Maps) -> tuple[str, ...]:
    if not sinks:
        return ()
    shares = np.concatenate([taken.ravel() for taken in sinks.values()])
    return (
        f"a learned sink takes {shares.min():.3f} to {shares.max():.3f} of a row; tokens get the "
        "rest",
    )


def causality(examinee: Examinee, maps: Maps, outputs: Outputs, rounding: Rounding) -> Check:
    """Later tokens change nothing of what came before; tried by changing them."""
    name, claim = "causality", "other tokens from a place on change nothing before it"
    kinds = examinee.causal
    if not kinds:
        return Check("", name, claim=claim, skipped="its tokens see later ones by design")
    length = len(examinee.passage.predicted)
    if length < 2:
        return Check("", name, claim=claim, skipped="one token has no later one")
    causal = {place: weights for place, weights in maps.items() if place[0] in kinds}
    ahead = furthest((place, np.triu(weights, 1)) for place, weights in causal.items())
    seen, moved = (0.0, ""), 0.0
    places = sorted({int(place) for place in np.linspace(1, length - 1, _PLACES).round()})
    for place in places:
        changed = _changed(examinee, place)
        after = examinee.capture(changed)
        earlier = apart(_until(causal, place), _until(after, place, kinds))
        seen = max(seen, earlier, key=_size)
        before = np.abs(examinee.outputs(changed)[:place] - outputs[:place]).max()
        moved = max(moved, float(before), key=_number)
    measures = (
        exact("weights on later tokens", ahead[0], ahead[1], "hidden means none at all"),
        Measure("earlier weights move by", seen[0], *rounding.of_weights(maps), seen[1]),
        Measure("earlier outputs move by", moved, *rounding.of_outputs(outputs)),
    )
    tried = ", ".join(map(str, places))
    notes = (f"changed from token {tried} on, of tokens 0 … {length - 1}",)
    return Check("", name, claim=claim, measures=measures, notes=notes)


_PLACES = 4


def _size(difference: tuple[float, str]) -> float:
    return _number(difference[0])


def _number(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _until(maps: Maps, place: int, kinds: tuple[Kind, ...] | None = None) -> Maps:
    """The rows of the queries before ``place``."""
    return {
        key: weights[:, :place] for key, weights in maps.items() if kinds is None or key[0] in kinds
    }


def _changed(examinee: Examinee, place: int) -> Input:
    """The text that is predicted with other tokens from ``place`` on."""
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


def heads_sum(examinee: Examinee, rounding: Rounding) -> Check:
    """A module's output is what its heads put out, each through its part of W_O, and b_O."""
    name, claim = "heads sum to the output", "Σ_h z_h W_O^h + b_O is what the module puts out"
    sums, reason = examinee.head_sums()
    if not sums:
        return Check("", name, claim=claim, skipped=reason)

    def off(entry: int) -> float:
        return _number(float(np.abs(sums[entry].summed - sums[entry].output).max()))

    # Modules differ in size: the one nearest to its tolerance tells, or far beyond it.
    bounds = [rounding.of_sum(one.terms, one.largest) for one in sums]

    def beyond(entry: int) -> float:
        allowed = bounds[entry][0].value
        # Where all outputs are zero, nothing is allowed.
        return off(entry) / allowed if allowed else math.inf if off(entry) else 0.0

    worst = max(range(len(sums)), key=beyond)
    place = sums[worst]
    where = f"L{place.layer}" + ("" if place.kind == "self" else f" {place.kind}")
    measure = Measure("outputs, apart by", off(worst), *bounds[worst], where)
    said = (f"{len(sums)} module{'s' * (len(sums) != 1)} added up", reason)
    notes = tuple(words for words in said if words)
    return Check("", name, claim=claim, measures=(measure,), notes=notes)
