"""A comparison with a result that was saved earlier, which has numbers of heads and no maps.

Heads are paired by index. A head counts as changed if two 95 % intervals do not overlap: those of
the score behind its label, then or now, or of its ablation effect.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from attnviz.engine.head_run import Head
from attnviz.engine.probing import open_probing
from attnviz.errors import UsageError
from attnviz.inspect.diff.live import Open, Scanning, head_states, loss_increases, with_effects
from attnviz.inspect.diff.records import DiffReport, HeadChange, HeadState
from attnviz.inspect.diff.request import DiffRequest
from attnviz.inspect.diff.saved import SavedResult
from attnviz.inspect.diff.sides import LiveSide, Side, side_inputs
from attnviz.measures.bootstrap import LEAST_TEXTS
from attnviz.records import Kind, ModelInfo


@dataclass(frozen=True)
class _Known:
    """The numbers of one side of a comparison with a saved result.

    info: the model's facts. kind: the kind of attention. heads: the label and scores of each
        (layer, head). texts, tokens: over how many they were measured, 0 if not known.
    """

    info: ModelInfo
    kind: Kind
    heads: Mapping[Head, HeadState]
    texts: int = 0
    tokens: int = 0


def compared_saved(
    request: DiffRequest, a: Side, b: Side, open_model: Open, scanning: Scanning
) -> DiffReport:
    """Compare two sides, at least one of them a saved result.

    open_model: returns the model of a side. scanning: opens a progress bar, and gives the function
    that reports the share that is done.
    Raises UsageError if they are results of different commands, or were measured over different
    texts.
    """
    began = time.monotonic()
    saved = [side for side in (a, b) if isinstance(side, SavedResult)]
    if len({side.command for side in saved}) > 1:
        raise UsageError(
            f"{saved[0].path} is of attnviz {saved[0].command}, {saved[1].path} of attnviz "
            f"{saved[1].command}: compare two of one kind"
        )
    if len(saved) == 2:
        _require_same_texts(saved[0], saved[1])
    one, other = (
        _of_file(side)
        if isinstance(side, SavedResult)
        else _of_model(request, side, saved[0], open_model, scanning)
        for side in (a, b)
    )
    shared = [head for head in one.heads if head in other.heads]
    if one.kind != other.kind or not shared:
        raise UsageError(
            f"nothing to compare: A has {one.kind} attention, B {other.kind}"
            if one.kind != other.kind
            else "the two sides share no head"
        )
    report = DiffReport(
        a=one.info,
        b=other.info,
        kind=one.kind,
        causal=False,
        source=saved[0].source,
        texts=max(one.texts, other.texts),
        tokens=max(one.tokens, other.tokens),
        changes=tuple(_change(head, one.heads[head], other.heads[head]) for head in shared),
        saved=True,
        unmatched_a=tuple(head for head in one.heads if head not in other.heads),
        unmatched_b=tuple(head for head in other.heads if head not in one.heads),
        importance=saved[0].command == "ablate",
        notes=tuple(dict.fromkeys((*one.info.notes, *other.info.notes))),
        seed=request.seed,
        top=request.top,
        index_base=request.index_base,
    )
    return replace(report, seconds=time.monotonic() - began)


def _of_file(side: SavedResult) -> _Known:
    tokens = sum(map(len, side.texts))
    return _Known(side.info, side.kind, side.heads, len(side.texts), tokens)


def _of_model(
    request: DiffRequest, side: LiveSide, saved: SavedResult, open_model: Open, scanning: Scanning
) -> _Known:
    """Measure a model in the way in which the saved result on the other side was measured.

    saved: that result. open_model: returns the model of the side. scanning: opens a progress bar,
    and gives the function that reports the share that is done.
    """
    if saved.command == "patterns" and saved.text is None and saved.source:
        raise UsageError(
            f"{saved.path} was scored on {saved.source}: save one of the built-in probes"
        )
    model = open_model(side)
    probing = open_probing(model, saved.kind)
    if saved.command == "patterns":
        with scanning():
            states = head_states(probing, request.seed, saved.text)
        return _Known(model.info, probing.kind, states)
    inputs = side_inputs(probing, side, request.truncate)
    if tuple(given.text.ids for given in inputs) != saved.texts:
        raise UsageError(
            f"{saved.path} was measured over other texts, or another tokenizer's tokens: give "
            "the same ones with --texts or --text"
        )
    with scanning() as advance:
        heads, effects = loss_increases(model, inputs, probing.kind, advance)
    states = with_effects({}, heads, effects, request.seed)
    return _Known(model.info, probing.kind, states, len(inputs), sum(map(len, saved.texts)))


def _require_same_texts(a: SavedResult, b: SavedResult) -> None:
    if (a.text, a.texts, a.source) != (b.text, b.texts, b.source):
        raise UsageError(f"{a.path} and {b.path} were measured over different texts")
    if a.command == "ablate" and len(a.texts) < LEAST_TEXTS:
        raise UsageError(
            f"{a.path} was measured over {len(a.texts)} texts, at least {LEAST_TEXTS} are needed "
            "for intervals"
        )


def _change(head: Head, a: HeadState, b: HeadState) -> HeadChange:
    change = HeadChange(head, head, a, b)
    apart = [
        _apart(a.intervals[name], b.intervals[name])
        for name in change.labels
        if name in a.intervals and name in b.intervals
    ]
    if a.effect_ends is not None and b.effect_ends is not None:
        apart.append(_apart(a.effect_ends, b.effect_ends))
    return replace(change, changed=any(apart))


def _apart(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[1] < other[0] or other[1] < one[0]
