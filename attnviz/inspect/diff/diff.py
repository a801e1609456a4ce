"""``diff``: from two sides to a report; two models are measured in turn, then compared.

A side may be a result that was saved earlier, which has scores of heads and no maps. Then a head
counts as changed if two 95 % intervals do not overlap: those of the score behind its label, then
and now.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attnviz.draw.numbers import counted
from attnviz.engine.head_run import Head
from attnviz.engine.probing import Probing, open_probing
from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.inspect.diff import compare
from attnviz.inspect.diff.compare import (
    LiveSide,
    ModelMaps,
    SavedResult,
    Side,
    model_maps,
    require_alike,
    side_inputs,
)
from attnviz.inspect.diff.report import (
    ChangedMaps,
    DiffReport,
    Floor,
    HeadChange,
    HeadState,
    Move,
    Noise,
    Predictions,
)
from attnviz.inspect.diff.request import DiffRequest
from attnviz.inspect.patterns.score import score_patterns
from attnviz.measures.bootstrap import LEAST_TEXTS, benjamini_hochberg, sign_flip_p
from attnviz.models.model import Model
from attnviz.models.resolve import in_other_numbers
from attnviz.progress import UNWATCHED, Advance
from attnviz.records import Floats, Input

Open = Callable[[LiveSide], Model]

Scanning = Callable[[], AbstractContextManager[Advance]]
"""Opens a progress bar; not while a model is loaded, which shows its own."""

_RATE = 0.05  # the false-discovery rate of the changes that are called significant
_SEEDS = 3  # how many draws of random tokens are used, the same as in patterns
_LARGEST = 40  # the most tokens of a text whose maps are shown, if one is that short


class MeasuredSide(NamedTuple):
    """The measurements of one of the two compared models over its texts."""

    maps: ModelMaps
    inputs: tuple[Input, ...]
    heads: Mapping[Head, HeadState]


def diff(
    a: Side,
    b: Side,
    request: DiffRequest,
    *,
    opening: Open = LiveSide.opened,
    scanning: Scanning = lambda: nullcontext(UNWATCHED),
) -> DiffReport:
    """Compare two models head by head, beyond a noise floor that is measured in the same run.

    a, b: the two sides, as ``compare.both_sides`` returns them; the second model is loaded after
        the first is measured.
    scanning: returns a context manager, which gives a function to be called with the share of the
    work that is done.

    Raises UsageError if the sides cannot be compared, LoadError for a model that cannot be read,
    UnsupportedError if its attention cannot be observed.
    """
    began = time.monotonic()
    if isinstance(a, LiveSide) and isinstance(b, LiveSide):
        report = _of_models(request, a, b, opening, scanning)
    else:
        report = _with_saved(request, a, b, opening, scanning)
    return replace(
        report,
        matched=request.match,
        seed=request.seed,
        top=request.top,
        index_base=request.index_base,
        seconds=time.monotonic() - began,
    )


def _of_models(
    request: DiffRequest, a: LiveSide, b: LiveSide, opening: Open, scanning: Scanning
) -> DiffReport:
    same = a.of_model(b) and a.options == b.options
    two_texts = a.texts is not b.texts
    pairs: dict[tuple[str, str], int] = {}
    for number, pair in enumerate(zip(a.texts.texts, b.texts.texts, strict=True)):
        pairs.setdefault(pair, number)
    repeated = len(a.texts.texts) - len(pairs)  # which would make intervals too narrow
    a, b = (side.taken([*pairs.values()]) for side in (a, b))
    notes = [*a.texts.notes, *(b.texts.notes if two_texts else ())]
    notes += [f"{counted(repeated, 'repeated text')} left out"] if repeated else []
    condition = _condition(request, a, b, two_texts)
    model = opening(a)
    if same and a.texts.texts == b.texts.texts:  # every number would be zero
        probing = open_probing(model, request.kind)
        inputs = side_inputs(probing, a, request.truncate)
        sizes = [len(given.queries(probing.kind)) for given in inputs]
        return DiffReport(
            a=model.info,
            b=replace(model.info, name=b.name),
            kind=probing.kind,
            causal=probing.causal,
            source=a.texts.source,
            texts=len(sizes),
            tokens=sum(sizes),
            changes=(),
            same=True,
            of_pictures=_are_pictures(inputs),
            notes=(*model.info.notes, *notes),
            condition=condition,
        )
    with scanning() as advance:
        first = _measured(request, a, model, None, lambda done: advance(0.4 * done))
        noise = _noise(request, "A", first, model)
    del model
    other = opening(b)
    with scanning() as advance:
        advance(0.5)
        second = _measured(
            *(request, b, other, first),
            lambda done: advance(0.5 + 0.4 * done),
            same=same,
            two_texts=two_texts,
        )
        lacking: list[str] = []
        if not same:
            try:
                noise = noise.or_more(_noise(request, "B", second, other))
            except (LoadError, UnsupportedError) as error:  # a quantised one, or no memory for it
                lacking.append(f"the noise floor is that of A alone: {error}")
        report = _held(request, first, second, noise)
    apart, why = (None, ()) if two_texts else _comparable(first, second)
    return replace(
        report,
        source=a.texts.source,
        notes=(*report.notes, *lacking, *why, *notes),
        condition=condition,
        predictions=apart,
    )


def _condition(request: DiffRequest, a: LiveSide, b: LiveSide, two_texts: bool) -> str:
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
    """Measure one side. first: A, if this is B. same: B is loaded as A. two_texts: not A's."""
    probing = open_probing(model, request.kind)
    inputs = side_inputs(probing, side, request.truncate)
    if first is not None:
        require_alike(first.inputs, inputs, probing.kind, two_texts=two_texts)
    stride = None if first is None else first.maps.stride
    maps = model_maps(
        probing, inputs, stride, lambda done: advance(0.6 * done), reduce=request.reduce
    )
    if first is not None and same:
        states = first.heads
    elif _are_pictures(inputs):
        states = _on_pictures(probing.model, side.texts.texts)
    else:
        states = _scored(probing, request.seed)
    return MeasuredSide(maps, tuple(inputs), states)


def _scored(probing: Probing, seed: int, text: str | None = None) -> dict[Head, HeadState]:
    model = probing.model
    given = None if text is None else Input(model.encode(text, model.context))
    seeds = range(seed, seed + _SEEDS)
    heads = score_patterns(model, given, seeds=seeds, probing=probing).heads
    return {
        head.place: HeadState(head.label, head.scores, head.intervals, head.by_text)
        for head in heads
    }


def _are_pictures(inputs: Sequence[Input]) -> bool:
    layout = inputs[0].text.layout
    return layout is not None and "text" not in layout.kinds


def _on_pictures(model: Any, names: Sequence[str]) -> dict[Head, HeadState]:
    """Return the label and scores of every head over pictures, by (layer, head).

    A score is the number behind the label of its name on each picture: the share of the attention
    of all patches on a sink, or by how much a local head is nearer than uniform attention.
    """
    from attnviz.inspect.picture.picture import label_over, on_each  # imports torch

    reports = [*on_each(model, names)]
    states = {}
    for seen in zip(*(report.measured for report in reports), strict=True):
        scores: dict[str, tuple[float, ...]] = {
            "local": tuple(
                1.0 - head.distance / report.uniform
                for head, report in zip(seen, reports, strict=True)
            ),
            "sink: one patch": tuple(head.peak_share for head in seen),
        }
        for name, shares in (
            ("sink: CLS", [head.cls for head in seen]),
            ("sink: registers", [head.register for head in seen]),
        ):
            known = tuple(value for value in shares if value is not None)
            scores |= {name: known} if known else {}
        means = {name: float(np.mean(values)) for name, values in scores.items()}
        label, _ = label_over(seen)
        states[seen[0].layer, seen[0].head] = HeadState(label or None, means, by_text=scores)
    return states


def _noise(request: DiffRequest, name: str, side: MeasuredSide, model: Model) -> Noise:
    """Return the given noise floor, or that of A or B (``name``) in other numbers than its own."""
    if request.noise_floor is not None:
        return Noise(Floor(request.noise_floor), "given")
    whole, other = side.maps, in_other_numbers(model)
    probing = Probing(other.model, whole.kind, whole.causal)
    rounded = model_maps(probing, side.inputs, whole.stride, reduce=request.reduce)
    pairs = compare.pairs_by_index(whole.heads, whole.heads)
    floor = compare.noise_floor(compare.divergences(whole, rounded, pairs, bare=False))
    return Noise(floor, f"{name} {other.words}", compare.predictions(whole, rounded))


def _comparable(
    first: MeasuredSide, second: MeasuredSide
) -> tuple[Predictions | None, tuple[str, ...]]:
    """Return how far the predictions of two models differ, and what a reader must know of that."""
    ids = [[given.predicted.predictable for given in side.inputs] for side in (first, second)]
    if ids[0] != ids[1]:
        return None, ("predictions are not compared: A and B number the same tokens differently",)
    apart = compare.predictions(first.maps, second.maps)
    rows = [[text.predictions for text in side.maps.texts] for side in (first, second)]
    if apart is None:
        without = [
            name + "'s encoder" * (side.maps.kind == "encoder")
            for name, side, own in zip("AB", (first, second), rows, strict=True)
            if any(row is None for row in own)
        ]
        verb = "predict" if len(without) > 1 else "predicts"
        why = f"{' and '.join(without)} {verb} no tokens" if without else "some are not finite"
        return None, (f"predictions are not compared: {why}",)
    if apart.outside is None:
        return apart, ()
    a, b = (side[0].shape[-1] for side in rows if side[0] is not None)
    return apart, (
        f"A predicts {a:,} tokens, B {b:,}: KL and the likeliest token are of the first "
        f"{min(a, b):,}, rescaled; up to {apart.outside:.1%} of the probability lies on others",
    )


# The comparison ------------------------------------------------------------------------------


def _held(
    request: DiffRequest, first: MeasuredSide, second: MeasuredSide, noise: Noise
) -> DiffReport:
    a, b, seed = first.maps, second.maps, request.seed
    by_index = compare.pairs_by_index(a.heads, b.heads)
    pairs = compare.matched_pairs(a, b) if request.match else by_index
    if not pairs:
        raise UsageError("the models share no layer with heads: add --match to pair them")
    apart = compare.divergences(a, b, pairs)
    js, output = compare.over_texts(apart.js, seed), compare.over_texts(apart.output, seed)
    no_sink = compare.known_mean(apart.no_sink.T)
    changes = [
        HeadChange(
            left,
            right,
            first.heads.get(left, HeadState()),
            second.heads.get(right, HeadState()),
            js=own_js.mean,
            ends=own_js.ends,
            no_sink=float(bare),
            output=own_output.mean,
            output_ends=own_output.ends,
            changed=own_js.above(noise.floor.js),
            output_changed=own_output.above(noise.floor.output),
        )
        for (left, right), own_js, own_output, bare in zip(pairs, js, output, no_sink, strict=True)
    ]
    moved, family = _with_moves(changes, seed)
    notes = [*a.info.notes, *b.info.notes, *a.notes, *b.notes]
    if a.heads != b.heads:
        notes.append("the models differ in shape: heads without a partner are left out")
    lefts, rights = (set(heads) for heads in zip(*pairs, strict=True))
    report = DiffReport(
        a=a.info,
        b=b.info,
        kind=a.kind,
        causal=a.causal,
        texts=len(a.texts),
        tokens=sum(len(text.queries) for text in a.texts),
        changes=moved,
        noise=noise,
        unmatched_a=tuple(head for head in compare.heads_of(a.heads) if head not in lefts),
        unmatched_b=tuple(head for head in compare.heads_of(b.heads) if head not in rights),
        family=family,
        stride=a.stride,
        of_pictures=_are_pictures(first.inputs),
        notes=tuple(dict.fromkeys(notes)),
    )
    return replace(report, example=_example(report, a, b, apart.js))


def _example(report: DiffReport, a: ModelMaps, b: ModelMaps, js: Floats) -> ChangedMaps | None:
    """Return the maps of the head that changed most, over a short text; None without a change."""
    moved: Sequence[HeadChange] = report.changed
    if report.noise and report.texts < LEAST_TEXTS:
        moved = [change for change in report.changes if change.js > report.noise.floor.js]
    whole = [number for number, text in enumerate(a.texts) if text.whole]
    short = [number for number in whole if len(a.texts[number].queries) <= _LARGEST] or whole
    if not moved or not short:
        return None
    most = report.changes.index(max(moved, key=lambda change: change.js))
    text = max(short, key=lambda number: js[number, most])
    change, first = report.changes[most], a.texts[text]
    sides = (first, change.head), (b.texts[text], change.other)
    maps = (side.rows[layer][head] for side, (layer, head) in sides)
    return ChangedMaps(most, text, first.queries, first.keys, *maps)


def _with_moves(changes: Sequence[HeadChange], seed: int) -> tuple[tuple[HeadChange, ...], int]:
    """Return the head changes with all their tested moves, and how many moves were tested.

    Tested are the scores behind the labels, in A or B, of the heads that changed beyond the floor,
    by sign flips over at least five paired texts. All are one family, with a false-discovery rate
    of at most 5 %.
    """
    tests = [
        (pair, name, np.asarray(after) - np.asarray(before))
        for pair, change in enumerate(changes)
        for name in (change.labels if change.differs else ())
        if len(before := change.a.by_text.get(name, ()))
        == len(after := change.b.by_text.get(name, ()))
        >= LEAST_TEXTS
    ]
    p = np.ones(len(tests))
    for texts in {len(values) for _, _, values in tests}:
        same = [test for test, (_, _, values) in enumerate(tests) if len(values) == texts]
        p[same] = sign_flip_p(np.stack([tests[test][2] for test in same], axis=1), seed)
    clear = benjamini_hochberg(p) <= _RATE
    moved = list(changes)
    for (pair, name, values), chance, significant in zip(tests, p, clear, strict=True):
        move = Move(name, float(values.mean()), float(chance), len(values), bool(significant))
        moved[pair] = replace(moved[pair], moves=(*moved[pair].moves, move))
    return tuple(moved), len(tests)


def _with_saved(
    request: DiffRequest, a: Side, b: Side, opening: Open, scanning: Scanning
) -> DiffReport:
    saved = [side for side in (a, b) if isinstance(side, SavedResult)]
    first, last = saved[0], saved[-1]
    if (first.text, first.source) != (last.text, last.source):
        raise UsageError(f"{first.name} and {last.name} were measured over different texts")

    def scored(side: Side) -> SavedResult:
        if isinstance(side, SavedResult):
            return side
        if first.text is None and first.source:
            raise UsageError(
                f"{first.name} was scored on {first.source}: save one of the built-in probes"
            )
        model = opening(side)
        with scanning():
            heads = _scored(open_probing(model, first.kind), request.seed, first.text)
        return replace(first, info=model.info, heads=heads)

    before, after = scored(a), scored(b)
    if before.kind != after.kind:
        raise UsageError(f"nothing to compare: A has {before.kind} attention, B {after.kind}")
    changes = [
        HeadChange(head, head, before.heads[head], after.heads[head])
        for head in before.heads
        if head in after.heads
    ]
    if not changes:
        raise UsageError("the two sides share no head")
    return DiffReport(
        a=before.info,
        b=after.info,
        kind=before.kind,
        causal=False,
        source=first.source,
        texts=0,
        tokens=0,
        changes=tuple(replace(change, changed=_are_apart(change)) for change in changes),
        saved=True,
        unmatched_a=tuple(head for head in before.heads if head not in after.heads),
        unmatched_b=tuple(head for head in after.heads if head not in before.heads),
        notes=tuple(dict.fromkeys((*before.info.notes, *after.info.notes))),
    )


def _are_apart(change: HeadChange) -> bool:
    """Return whether the intervals of a score behind a label, in A and in B, do not overlap."""
    ends = ((change.a.intervals.get(name), change.b.intervals.get(name)) for name in change.labels)
    return any(a[1] < b[0] or b[1] < a[0] for a, b in ends if a and b)
