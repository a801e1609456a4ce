"""Chooses the heads that time words best, on half of the clips, and measures them on the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.capture import capture
from attnviz.errors import UsageError
from attnviz.inspect.align.clips import Spoken
from attnviz.inspect.align.report import (
    AddedHead,
    AlignReport,
    HeadAlone,
    HeadSet,
    TimedWord,
)
from attnviz.inspect.align.request import AlignRequest
from attnviz.measures.alignment import SMOOTH, aligned, standardised
from attnviz.measures.bootstrap import intervals
from attnviz.models.speech import SpeechModel
from attnviz.progress import UNWATCHED, Advance
from attnviz.records import Floats

Head = tuple[int, int]

_RANDOM = 20
"""The number of random sets of heads."""

_LATE = 0.2
"""The seconds from which a word is counted as badly timed."""

_CELLS = 20_000_000
"""The most cells of alignments that are computed at once."""


@dataclass(frozen=True)
class _Clip:
    """A clip: its words, and what the recipe takes the mean of.

    scores: (head, token, frame). firsts: the number of tokens before each word, and of all. ends:
    whether a row tells when its token ends, not when it begins.
    """

    name: str
    words: Sequence[Spoken]
    scores: NDArray[np.float32]
    firsts: Sequence[int]
    seconds: float
    ends: bool

    def times(self, sets: Sequence[Sequence[int]], frame: float) -> Floats:
        """Return the seconds (set, word + 1) at which words begin by sets of heads, and the end.

        sets: indices of heads. frame: in seconds.
        """
        begun = []
        chunk = max(1, _CELLS // self.scores[0].size)
        for start in range(0, len(sets), chunk):
            some = sets[start : start + chunk]
            begun.append(
                aligned(np.stack([self.scores[list(heads)].mean(axis=0) for heads in some]))
            )
        tokens = np.concatenate(begun)
        if self.ends:
            tokens = np.insert(tokens, 0, 0, axis=1)
        return tokens[:, list(self.firsts)] * frame

    def errors(self, times: Floats) -> Floats:
        """Return how far in seconds the beginning of each word is from the truth: (set, word)."""
        return np.abs(times[:, :-1] - [word.start for word in self.words])


def align(
    model: SpeechModel,
    paths: Mapping[str, str],
    words: Mapping[str, Sequence[Spoken]],
    request: AlignRequest,
    advance: Advance = UNWATCHED,
) -> AlignReport:
    """Return which cross-attention heads time the words of clips, chosen and reported on halves.

    paths: the sounds by the names of their clips. words: those of each clip. advance: is called
    with the share of clips read. Every second clip chooses heads greedily, by the mean error of
    the beginnings of words; the others are measured.

    Raises LoadError or UsageError for a sound or words that the model cannot hear.
    """
    clips, notes = [], dict.fromkeys(model.info.notes)
    for at, (name, path) in enumerate(paths.items()):
        clip, own = _read(model, name, path, words[name], request)
        clips.append(clip)
        notes |= dict.fromkeys(own)
        advance((at + 1) / len(paths))
    layers, heads = model.decoder_shape
    frame, choosing, held = model.frame_seconds, clips[::2], clips[1::2]
    alone = [[head] for head in range(layers * heads)]
    single = [_clip_errors(part, alone, frame) for part in (choosing, held)]
    steps, chosen = _greedy(choosing, held, request.most, frame)
    names: dict[str, list[list[int]]] = {"chosen": [chosen]}
    listed = [layer * heads + head for layer, head in model.published]
    if listed and max(listed) < layers * heads:
        names["published list"] = [listed]
    names["all of the last half"] = [list(range(layers // 2 * heads, layers * heads))]
    draws = np.random.default_rng(request.seed)
    size = len(chosen)
    names["random heads"] = [
        draws.choice(layers * heads, size, replace=False).tolist() for _ in range(_RANDOM)
    ]
    # Per clip, (set, clip) in all: the mean over the random sets.
    measured = {name: _word_errors(held, sets, frame) for name, sets in names.items()}
    measured["even spacing"] = [_even(clip) for clip in held]
    by_clip = {
        name: np.array([clip.mean() for clip in errors]) for name, errors in measured.items()
    }
    around = intervals(np.stack(list(by_clip.values()), axis=1), request.seed)
    against = np.stack([by_clip["chosen"] - values for values in by_clip.values()], axis=1)
    apart = intervals(against[:, 1:], request.seed)

    def named(number: int) -> Head:
        return divmod(number, heads)

    sets = [
        HeadSet(
            name,
            tuple(map(named, names[name][0])) if len(names.get(name, ())) == 1 else (),
            error=float(by_clip[name].mean()),
            interval=around[at],
            median=float(np.median(np.concatenate([clip.ravel() for clip in errors]))),
            late=float(np.mean(np.concatenate([clip.ravel() for clip in errors]) > _LATE)),
            apart=apart[at - 1] if at else None,
        )
        for at, (name, errors) in enumerate(measured.items())
    ]
    return AlignReport(
        model=model.info,
        choosing=tuple(clip.name for clip in choosing),
        held=tuple(clip.name for clip in held),
        recipe=request.recipe,
        frame=frame,
        heads=tuple(
            HeadAlone(*named(at), float(single[0][at]), float(single[1][at]))
            for at in range(layers * heads)
        ),
        published=tuple(model.published),
        steps=tuple(AddedHead(*named(head), chose, kept) for head, chose, kept in steps),
        sets=tuple(sets),
        words=tuple(word for clip in held for word in _timed(clip, chosen, frame)),
        notes=tuple(notes),
        index_base=request.index_base,
    )


def _read(
    model: SpeechModel, name: str, path: str, words: Sequence[Spoken], request: AlignRequest
) -> tuple[_Clip, tuple[str, ...]]:
    """Return a clip with its standardised weights, and notes on how its sound was read."""
    heard = model.hear(path)
    ids = [model.word_ids(word.word) for word in words]
    target = model.transcript(heard.starts, ids)
    limit = model.target_context
    if limit is not None and len(target) > limit:
        raise UsageError(
            f"{name!r} has {len(target):,} tokens, the decoder takes {limit:,}: cut the clip"
        )
    late = next((word for word in words if word.start >= heard.file.seconds), None)
    if late is not None:
        raise UsageError(
            f"{late.word!r} begins at {late.start:g} s, {name!r} ends at "
            f"{heard.file.seconds:.2f} s of what is read"
        )
    record = capture(model, heard.tokens, kind="cross", target=target)
    ends = request.recipe == "transformers"
    first = len(heard.starts) - (not ends)
    weights = np.concatenate([layer.weights[:, first:, : heard.heard] for layer in record.layers])
    if not np.isfinite(weights).all():
        raise UsageError(f"the attention over {name!r} has weights that are not numbers (NaN)")
    width = getattr(model.model.config, "median_filter_width", SMOOTH)
    firsts = np.cumsum([0, *map(len, ids)]).tolist()
    model.forget(heard)
    clip = _Clip(name, words, standardised(weights, width), firsts, heard.file.seconds, ends)
    return clip, heard.file.notes


def _word_errors(
    clips: Sequence[_Clip], sets: Sequence[Sequence[int]], frame: float
) -> list[Floats]:
    """Return the errors (set, word) of each clip."""
    return [clip.errors(clip.times(sets, frame)) for clip in clips]


def _clip_errors(
    clips: Sequence[_Clip], sets: Sequence[Sequence[int]], frame: float
) -> NDArray[np.float64]:
    """Return the error (set,) in the mean of the clips, each the mean of its words."""
    means: NDArray[np.float64] = np.mean(
        [errors.mean(axis=1) for errors in _word_errors(clips, sets, frame)], axis=0
    )
    return means


def _greedy(
    choosing: Sequence[_Clip], held: Sequence[_Clip], most: int, frame: float
) -> tuple[list[tuple[int, float, float]], list[int]]:
    """Return (head, error where chosen, error elsewhere) of each step, and the best set.

    Each step adds the head that leaves the least error on ``choosing``; the size is chosen there,
    too.
    """
    count = len(choosing[0].scores)
    taken: list[int] = []
    steps = []
    while len(taken) < min(most, count):
        left = [head for head in range(count) if head not in taken]
        errors = _clip_errors(choosing, [[*taken, head] for head in left], frame)
        best = int(errors.argmin())
        taken.append(left[best])
        kept = float(_clip_errors(held, [taken], frame)[0])
        steps.append((left[best], float(errors[best]), kept))
    size = int(np.argmin([error for _, error, _ in steps])) + 1
    return steps, taken[:size]


def _even(clip: _Clip) -> Floats:
    """Return the errors (1, word) if tokens were spread evenly over the sound: no attention."""
    share = np.asarray(clip.firsts) / clip.firsts[-1] * clip.seconds
    return clip.errors(share[None])


def _timed(clip: _Clip, heads: Sequence[int], frame: float) -> list[TimedWord]:
    (times,) = clip.times([heads], frame).tolist()
    return [
        TimedWord(clip.name, word.word, word.start, word.end, times[at], times[at + 1])
        for at, word in enumerate(clip.words)
    ]
