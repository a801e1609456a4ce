"""The comparison of two models: one is measured after the other, then both are compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.numbers import counted
from attnviz.engine.head_run import Head
from attnviz.engine.probing import Probing, open_probing
from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.inspect.diff.compare import (
    Divergences,
    Floor,
    Noise,
    Pair,
    Predictions,
    divergences,
    known_mean,
    matched_pairs,
    noise_floor,
    over_texts,
    pairs_by_index,
    predictions,
)
from attnviz.inspect.diff.maps import ModelMaps, model_maps
from attnviz.inspect.diff.records import ChangedMaps, DiffReport, HeadChange, HeadState, Move
from attnviz.inspect.diff.request import DiffRequest
from attnviz.inspect.diff.same import are_same, unmeasured
from attnviz.inspect.diff.sides import LiveSide, distinct, require_alike, side_inputs
from attnviz.inspect.patterns.score import score_patterns
from attnviz.measures.bootstrap import LEAST_TEXTS, benjamini_hochberg, sign_flip_p
from attnviz.models.model import Model
from attnviz.models.other_numbers import in_other_numbers
from attnviz.progress import Advance
from attnviz.records import Input, Kind

Open = Callable[[LiveSide], Model]

Scanning = Callable[[], AbstractContextManager[Advance]]
"""Opens a progress bar; not while a model is loaded, which shows its own."""

_RATE = 0.05
"""The false-discovery rate of the changes that are called significant."""

_SEEDS = 3
"""How many draws of random tokens are used, the same as in ``patterns``."""

_LARGEST = 40
"""The most tokens of a text whose maps are shown, if one is that short."""


@dataclass(frozen=True, eq=False)
class MeasuredSide:
    """The measurements of one model of a comparison over its texts.

    maps: its attention. inputs: its texts. heads: the label and scores of each (layer, head).
        effects: the loss increase from ablating each head, (text, head) in the order of ``heads``;
        None if not requested.
    """

    maps: ModelMaps
    inputs: tuple[Input, ...]
    heads: dict[Head, HeadState]
    effects: NDArray[np.float64] | None = None


def head_states(probing: Probing, seed: int, text: str | None = None) -> dict[Head, HeadState]:
    """Return the label and pattern scores of every head, by (layer, head).

    probing: the model. seed: of the probes' random tokens, the first of several. text: used in
        place of the probes of ``patterns``, if given.
    """
    model = probing.model
    tokens = None if text is None else (model.encode(text, model.context),)
    seeds = range(seed, seed + _SEEDS)
    report = score_patterns(model, tokens, seeds=seeds, examples=False, probing=probing)
    return {
        (entry.layer, entry.head): HeadState(
            entry.label, entry.scores, entry.intervals, entry.by_text
        )
        for entry in report.heads
    }


def loss_increases(
    model: Model, inputs: Sequence[Input], kind: Kind, advance: Advance
) -> tuple[list[Head], NDArray[np.float64]]:
    """Return all heads, and the loss increase from ablating each, (text, head), nats per token.

    inputs: the texts. kind: of attention. advance: is called with the share that is done.
    Raises UsageError for a model without a loss, UnsupportedError if heads cannot be ablated.
    """
    from attnviz.engine.effects import Variant
    from attnviz.engine.scan.run import open_scan  # few comparisons ablate heads

    scan = open_scan(model, inputs, kind=kind)
    heads = [(layer, head) for layer, count in scan.heads.items() for head in range(count)]
    variants = [Variant((head,)) for head in heads]
    found = np.full((len(inputs), len(heads)), np.nan)
    every = range(len(variants))
    for piece in scan.scan_all(dict.fromkeys(range(len(inputs)), every), variants):
        if "loss_delta" not in piece.metrics:
            raise UsageError(
                f"{model.info.name!r} predicts no words: it has no loss that ablation could "
                "change, leave out --importance"
            )
        found[piece.text, list(piece.variants)] = piece.metrics["loss_delta"]
        advance((piece.text + 1) / len(inputs))
    return heads, found


def with_effects(
    states: Mapping[Head, HeadState], heads: Sequence[Head], effects: NDArray[np.float64], seed: int
) -> dict[Head, HeadState]:
    """Return the states of the heads with their ablation effects and confidence intervals added.

    effects: (text, head) in the order of ``heads``. seed: of the bootstrap.
    """
    doubt = over_texts(effects, seed, positive=False)
    return {
        head: replace(
            states.get(head, HeadState()),
            effect=float(doubt.mean[place]),
            effect_ends=doubt.ends(place),
        )
        for place, head in enumerate(heads)
    }


def compared(
    request: DiffRequest, a: LiveSide, b: LiveSide, open_model: Open, scanning: Scanning
) -> DiffReport:
    """Compare two models; each is loaded once, the second after the first is measured.

    a, b: the two sides. open_model: returns the model of a side. scanning: opens a progress bar,
        and gives the function that reports the share that is done.
    """
    began = time.monotonic()
    same = a.of_model(b) and a.options == b.options
    two_texts = a.texts is not b.texts
    a, b, repeated = distinct(a, b)
    notes = [f"{counted(repeated, 'repeated text')} left out"] if repeated else []
    model = open_model(a)
    if are_same(a, b):
        report = unmeasured(request, a, b, model)
        return replace(
            report,
            notes=(*report.notes, *notes),
            condition=_condition(request, a, b, two_texts=False),
            seconds=time.monotonic() - began,
        )
    with scanning() as advance:
        first = _measured(request, a, model, None, lambda done: advance(0.4 * done))
        noise = _noise(request, "A", first, model)
    del model
    other = open_model(b)
    with scanning() as advance:
        advance(0.5)
        second = _measured(
            *(request, b, other, first),
            lambda done: advance(0.5 + 0.4 * done),
            same=same,
            two_texts=two_texts,
        )
        alone: tuple[str, ...] = ()
        if not same:
            try:
                noise = noise.or_more(_noise(request, "B", second, other))
            except (LoadError, UnsupportedError) as error:  # a quantised one, or no memory for it
                alone = (f"the noise floor is that of A alone: {error}",)
        report = _held(request, first, second, noise.floor)
    apart, lacking = (None, ()) if two_texts else _comparable(first, second)
    return replace(
        report,
        source=a.texts.source,
        notes=(*report.notes, *alone, *lacking, *notes),
        condition=_condition(request, a, b, two_texts),
        floor_words=noise.words,
        floor_predictions=noise.predictions,
        predictions=apart,
        seconds=time.monotonic() - began,
    )


def _noise(request: DiffRequest, name: str, side: MeasuredSide, model: Model) -> Noise:
    """Return the noise floor: the given one, or one measured by comparing a model with itself.

    name: A or B. side: its measurements. model: a torch model that was loaded by name is converted
        to another number format.
    """
    if request.noise_floor is not None:
        return Noise(Floor(request.noise_floor), "given")
    whole, other = side.maps, in_other_numbers(model)
    probing = Probing(other.model, whole.kind, whole.causal)
    rounded = model_maps(probing, side.inputs, whole.stride, reduce=request.reduce)
    pairs = pairs_by_index(whole.heads, whole.heads)
    floor = noise_floor(divergences(whole, rounded, pairs, bare=False))
    return Noise(floor, f"{name} {other.words}", predictions(whole, rounded))


def _comparable(
    first: MeasuredSide, second: MeasuredSide
) -> tuple[Predictions | None, tuple[str, ...]]:
    """Return how far the predictions of two models differ, and what a reader must know of that."""
    ids = [[given.predicted.ids for given in each.inputs] for each in (first, second)]
    if ids[0] != ids[1]:
        return None, ("predictions are not compared: A and B number the same tokens differently",)
    found = predictions(first.maps, second.maps)
    sides = zip("AB", (first.maps, second.maps), strict=True)
    rows = {name: [text.predictions for text in maps.texts] for name, maps in sides}
    if found is None:
        without = [name for name, texts in rows.items() if any(each is None for each in texts)]
        why = f"{' and '.join(without)} predict no tokens" if without else "some are not finite"
        return None, (f"predictions are not compared: {why}",)
    if found.outside is None:
        return found, ()
    a, b = (texts[0].shape[-1] for texts in rows.values() if texts[0] is not None)
    return found, (
        f"A predicts {a:,} tokens, B {b:,}: KL and the likeliest token are of the first "
        f"{min(a, b):,}, rescaled; up to {found.outside:.1%} of the probability lies on others",
    )


def _condition(request: DiffRequest, a: LiveSide, b: LiveSide, two_texts: bool) -> str:
    """Return how B differs from A if both are the same model, as a string; else empty."""
    if not a.of_model(b):
        return ""
    words = [f"{name} {value}" for name, value in request.named_condition().items()]
    if two_texts:
        words.append("other texts" if b.texts.lines else "another text")
    return ", ".join(words) or "compared with itself"


def _measured(
    request: DiffRequest,
    side: LiveSide,
    model: Model,
    first: MeasuredSide | None,
    advance: Advance,
    *,
    same: bool = False,
    two_texts: bool = False,
) -> MeasuredSide:
    """Measure one side of a comparison: its attention maps, its heads and their effects.

    first: the measurements of A, if this is B. advance: is called with the share that is done.
    same: whether B is loaded as A is. two_texts: whether B runs on other texts than A.
    """
    probing = open_probing(model, request.kind)
    inputs = side_inputs(probing, side, request.truncate)
    if first is not None:
        require_alike(first.inputs, inputs, probing.kind, two_texts=two_texts)
    stride = None if first is None else first.maps.stride
    share = 0.3 if request.importance else 0.6
    maps = model_maps(
        probing, inputs, stride, lambda done: advance(share * done), reduce=request.reduce
    )
    known = first.heads if first is not None and same else None
    states = head_states(probing, request.seed) if known is None else known
    effects = None
    if request.importance:
        heads, effects = loss_increases(
            model, inputs, probing.kind, lambda done: advance(share + (1 - share) * done)
        )
        states = with_effects(states, heads, effects, request.seed)
    return MeasuredSide(maps, tuple(inputs), states, effects)


# The comparison ------------------------------------------------------------------------------


def _held(
    request: DiffRequest, first: MeasuredSide, second: MeasuredSide, floor: Floor
) -> DiffReport:
    """Return the report that compares two measured models.

    first, second: the measurements of A and B. floor: above which a change counts.
    """
    a, b, seed = first.maps, second.maps, request.seed
    pairs = matched_pairs(a, b) if request.match else pairs_by_index(a.heads, b.heads)
    if not pairs:
        raise UsageError("the models share no layer with heads: add --match to pair them")
    apart = divergences(a, b, pairs)
    found = _changes(first, second, pairs, apart, floor, seed)
    changes, family = _with_moves(found, _effect_moves(first, second, pairs), seed)
    report = DiffReport(
        a=a.info,
        b=b.info,
        kind=a.kind,
        causal=a.causal,
        texts=len(a.texts),
        tokens=sum(len(text.queries) for text in a.texts),
        changes=changes,
        floor=floor,
        unmatched_a=_without(a.heads, {left for left, _ in pairs}),
        unmatched_b=_without(b.heads, {right for _, right in pairs}),
        matched=request.match,
        family=family,
        stride=a.stride,
        importance=request.importance,
        notes=_notes(first, second),
        seed=seed,
        top=request.top,
        index_base=request.index_base,
    )
    return replace(report, example=_example(report, a, b, pairs, apart))


def _changes(
    first: MeasuredSide,
    second: MeasuredSide,
    pairs: Sequence[Pair],
    apart: Divergences,
    floor: Floor,
    seed: int,
) -> list[HeadChange]:
    js, output = over_texts(apart.js, seed), over_texts(apart.output, seed)
    no_sink = known_mean(apart.no_sink.T)
    return [
        HeadChange(
            left,
            right,
            first.heads.get(left, HeadState()),
            second.heads.get(right, HeadState()),
            js=float(js.mean[place]),
            ends=js.ends(place),
            no_sink=float(no_sink[place]),
            output=float(output.mean[place]),
            output_ends=output.ends(place),
            changed=js.above(place, floor.js),
            output_changed=output.above(place, floor.output),
        )
        for place, (left, right) in enumerate(pairs)
    ]


def _effect_moves(
    first: MeasuredSide, second: MeasuredSide, pairs: Sequence[Pair]
) -> NDArray[np.float64] | None:
    """Return the ablation effect in B minus that in A, (text, pair); None if not measured."""
    if first.effects is None or second.effects is None:
        return None
    places = [{head: place for place, head in enumerate(side.heads)} for side in (first, second)]
    one = first.effects[:, [places[0][left] for left, _ in pairs]]
    other = second.effects[:, [places[1][right] for _, right in pairs]]
    return np.asarray(other - one)


def _without(heads: dict[int, int], taken: set[Head]) -> tuple[Head, ...]:
    every = [(layer, head) for layer, count in heads.items() for head in range(count)]
    return tuple(head for head in every if head not in taken)


def _notes(first: MeasuredSide, second: MeasuredSide) -> tuple[str, ...]:
    a, b = first.maps, second.maps
    notes = [*a.info.notes, *b.info.notes, *a.notes, *b.notes]
    if a.heads != b.heads:
        notes.append("the models differ in shape: heads without a partner are left out")
    return tuple(dict.fromkeys(notes))


def _example(
    report: DiffReport, a: ModelMaps, b: ModelMaps, pairs: Sequence[Pair], apart: Divergences
) -> ChangedMaps | None:
    """Return the maps of the head that changed most, over a short text with a large change.

    a, b: the maps of both models. pairs: a head of A and a head of B each. apart: their
        divergences. None if nothing changed, or no text was recorded whole.
    """
    whole = [place for place, text in enumerate(a.texts) if text.whole]
    short = [place for place in whole if len(a.texts[place].queries) <= _LARGEST] or whole
    if not report.changed or not short:
        return None
    change = max(report.changed, key=lambda change: change.js)
    column = apart.js[:, pairs.index((change.place, change.other))]
    text = max(short, key=lambda place: column[place])
    one, other = a.texts[text], b.texts[text]
    (layer, head), (layer_b, head_b) = change.place, change.other
    maps = one.rows[layer][head], other.rows[layer_b][head_b]
    every = [
        (each, one.rows[each.place[0]][each.place[1]], other.rows[each.other[0]][each.other[1]])
        for each in report.changes
    ]
    return ChangedMaps(change, text, one.queries, one.keys, *maps, every)


# What went up or down -------------------------------------------------------------------------


def _with_moves(
    changes: Sequence[HeadChange], effects: NDArray[np.float64] | None, seed: int
) -> tuple[tuple[HeadChange, ...], int]:
    """Return the head changes with all their tested moves, and how many moves were tested.

    A move is the change of one number, such as a score. effects: change of the ablation effect,
    (text, change). Tested are the scores behind the labels, in A or B, of the heads that changed
    beyond the floor, and the effects of all heads, by sign flips over paired texts. All are one
    family, with a false-discovery rate of at most 5 %.
    """
    found: list[tuple[int, str, NDArray[np.float64]]] = []
    for place, change in enumerate(changes):
        if change.differs:
            found += [(place, name, values) for name, values in _paired(change)]
    if effects is not None and len(effects) >= LEAST_TEXTS:
        found += [(place, "loss_delta", effects[:, place]) for place in range(len(changes))]
    p = np.ones(len(found))
    for texts in {len(values) for _, _, values in found}:
        same = [place for place, (_, _, values) in enumerate(found) if len(values) == texts]
        p[same] = sign_flip_p(np.stack([found[place][2] for place in same], axis=1), seed)
    clear = benjamini_hochberg(p) <= _RATE
    moves: dict[int, list[Move]] = {}
    for (place, name, values), chance, significant in zip(found, p, clear, strict=True):
        move = Move(name, float(values.mean()), float(chance), len(values), bool(significant))
        moves.setdefault(place, []).append(move)
    told = (
        replace(change, moves=tuple(moves.get(place, ()))) for place, change in enumerate(changes)
    )
    return tuple(told), len(found)


def _paired(change: HeadChange) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield (score's name, B minus A over each paired text) for the labels of a head.

    Scores of fewer than five texts, or of unequal numbers of texts, are left out.
    """
    for name in change.labels:
        one, other = change.a.by_text.get(name, ()), change.b.by_text.get(name, ())
        if len(one) == len(other) >= LEAST_TEXTS:
            yield name, np.asarray(other) - np.asarray(one)
