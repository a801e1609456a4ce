"""Clips of known words: reads when these are spoken, and what heads say of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attnviz.errors import LoadError, UsageError
from attnviz.inspect.align.report import TimedWord
from attnviz.inspect.align.study import Example, Heads, HeadStudy, cross_weights
from attnviz.measures.divergence import SMOOTH, aligned, standardised
from attnviz.models.model import Model
from attnviz.models.speech import SpeechModel
from attnviz.progress import Advance
from attnviz.reading import TEXTS_BYTES, finite, read_bytes, text_lines
from attnviz.records import Floats
from attnviz.tables import layout_of, table_rows

_LATE = 0.2
"""The seconds from which a word is counted as badly timed."""

_CELLS = 20_000_000
"""The most cells of alignments that are computed at once."""


class Spoken(NamedTuple):
    """A word, and the seconds at which it begins and ends."""

    word: str
    start: float
    end: float


class Clips(NamedTuple):
    """Clips: the paths of their sounds and their words, by the names of the clips."""

    paths: Mapping[str, str]
    words: Mapping[str, Sequence[Spoken]]


_COLUMNS = ("clip", "word", "start", "end")
_EXPECTED = ", ".join(_COLUMNS)


def read_words(path: Path) -> dict[str, list[Spoken]]:
    """Return the words of each clip in the order in which they begin, by the name of the clip.

    Raises LoadError for a file that is no such table, with the line of the mistake.
    """
    source = repr(str(path))
    layout, lines = layout_of(path, text_lines(read_bytes(path, most=TEXTS_BYTES), source))
    if len(layout) > 1 and "json" not in layout:
        raise LoadError(f"{source} is not a table: expected .csv, .tsv or .json with {_EXPECTED}")
    clips: dict[str, list[Spoken]] = {}
    for number, row in table_rows(layout, lines, source):
        where = f"{source} line {number}" if len(layout) == 1 else f"{source} entry {number}"
        if not isinstance(row, dict) or not all(name in row for name in _COLUMNS):
            raise LoadError(f"{where} lacks a column: expected {_EXPECTED}")
        try:
            start, end = (finite(float(row[name])) for name in ("start", "end"))
        except (TypeError, ValueError) as error:
            raise LoadError(f"{where} has no seconds in start and end") from error
        word = str(row["word"]).strip()
        if not word or not 0 <= start < end < math.inf:
            raise LoadError(
                f"{where} has {word!r} from {start:g} to {end:g} s: expected a word, and an end "
                "after its start"
            )
        clips.setdefault(str(row["clip"]).strip(), []).append(Spoken(word, start, end))
    if not clips:
        raise LoadError(f"{source} has no words: expected {_EXPECTED}")
    return {name: sorted(words, key=lambda word: word.start) for name, words in clips.items()}


def find_clips(audio: Sequence[str], words: Mapping[str, list[Spoken]]) -> dict[str, str]:
    """Return the path of each clip's sound by the clip's name, in the order of the names.

    audio: files and directories. A clip is called as its file, with or without the ending.
    Raises LoadError for a missing file, UsageError for fewer than two clips with a sound.
    """
    paths: dict[str, str] = {}
    for given in audio:
        path = Path(given)
        if not path.exists():
            raise LoadError(f"no file or directory {given!r} here")
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        for file in files:
            for name in (file.name, file.stem, str(file)):
                if name in words:
                    paths.setdefault(name, str(file))
    if len(paths) < 2:
        first = next(iter(words))
        raise UsageError(
            f"{len(paths)} of {len(words)} clips have audio, such as {first!r}: expected two or "
            "more, one half to choose heads and one to report"
        )
    return dict(sorted(paths.items()))


# What the model hears ------------------------------------------------------------------------


@dataclass(frozen=True)
class Clip(Example):
    """A clip: its words, and the standardised weights (head, token, frame) of the recipe.

    firsts: the number of tokens before each word, and of all. frame: in seconds. ends: whether a
    row tells when its token ends, not when it begins.
    """

    spoken: Sequence[Spoken]
    firsts: Sequence[int]
    seconds: float
    frame: float
    ends: bool

    def read(self, sets: Sequence[Heads]) -> Floats:
        """Return the seconds (set, word + 1) at which words begin by sets of heads, and the end."""
        chunk = max(1, _CELLS // self.scores[0].size)
        parts = [sets[start : start + chunk] for start in range(0, len(sets), chunk)]
        tokens = np.concatenate([aligned(self.mean(some)) for some in parts])
        if self.ends:
            tokens = np.insert(tokens, 0, 0, axis=1)
        return tokens[:, list(self.firsts)] * self.frame

    def guess(self) -> Floats:
        """Return the same (1, word + 1) if tokens were spread evenly over the sound."""
        return (np.asarray(self.firsts) / self.firsts[-1] * self.seconds)[None]

    def facts(self, read: Floats) -> Floats:
        """Return how far in seconds the beginning of each word is from the truth: (set, word)."""
        return np.abs(read[:, :-1] - [word.start for word in self.spoken])

    def wrong(self, read: Floats) -> Floats:
        means = self.facts(read).mean(axis=1)
        return np.stack([means, np.ones_like(means)], axis=1)

    def words(self, read: Floats) -> list[TimedWord]:
        times = read.tolist()
        return [
            TimedWord(self.name, word.word, word.start, word.end, times[at], times[at + 1])
            for at, word in enumerate(self.spoken)
        ]


def _told(off: Floats) -> dict[str, float]:
    """Return the median of the errors of all words, and the share of badly timed ones."""
    return {"median": float(np.median(off)), "late": float(np.mean(off > _LATE))}


def heard(model: Model, clips: Clips, recipe: str, advance: Advance) -> HeadStudy:
    """Return what a model of speech is asked of clips.

    recipe: which rows of cross attention are aligned. ``openai`` takes those that write each token
    and the end; ``transformers`` those that read it. advance: see ``align``.
    """
    assert isinstance(model, SpeechModel)
    ends, examples, notes = recipe == "transformers", list[Clip](), list[str]()
    width = getattr(model.model.config, "median_filter_width", SMOOTH)
    for at, (name, path) in enumerate(clips.paths.items()):
        sound, words = model.hear(path), clips.words[name]
        ids = [model.word_ids(word.word) for word in words]
        target = model.transcript(sound.starts, ids)
        late = next((word for word in words if word.start >= sound.file.seconds), None)
        if late is not None:
            raise UsageError(
                f"{late.word!r} begins at {late.start:g} s, {name!r} ends at "
                f"{sound.file.seconds:.2f} s of what is read"
            )
        heads, weights = cross_weights(model, sound.tokens, target, name)
        weights = weights[:, len(sound.starts) - (not ends) :, : sound.heard]
        firsts = np.cumsum([0, *map(len, ids)]).tolist()
        scores = standardised(weights, width)
        sizes = {"seconds": sound.file.seconds, "frame": model.frame_seconds}
        examples.append(Clip(name, scores, words, firsts, ends=ends, **sizes))
        notes += sound.file.notes
        model.forget(sound)
        advance((at + 1) / len(clips.paths))
    return HeadStudy(
        heads,
        {recipe: examples},
        _told,
        "even spacing",
        frame=model.frame_seconds,
        published=model.published,
        notes=notes,
    )
