"""Reads which words are spoken when, and finds the sounds of their clips."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from attnviz.errors import LoadError, UsageError
from attnviz.reading import TEXTS_BYTES, finite, read_bytes, text_lines
from attnviz.tables import layout_of, table_rows


class Spoken(NamedTuple):
    """A word, and the seconds at which it begins and ends."""

    word: str
    start: float
    end: float


_COLUMNS = ("clip", "word", "start", "end")


def read_words(path: Path) -> dict[str, list[Spoken]]:
    """Return the words of each clip in the order in which they begin, by the name of the clip.

    Raises LoadError for a file that is no such table, with the line of the mistake.
    """
    source = repr(str(path))
    layout, lines = layout_of(path, text_lines(read_bytes(path, most=TEXTS_BYTES), source))
    if len(layout) > 1 and "json" not in layout:
        raise LoadError(f"{source} is no table: expected .csv, .tsv or .json with {_expected()}")
    clips: dict[str, list[Spoken]] = {}
    for number, row in table_rows(layout, lines, source):
        where = f"{source} line {number}" if len(layout) == 1 else f"{source} entry {number}"
        if not isinstance(row, dict) or not all(name in row for name in _COLUMNS):
            raise LoadError(f"{where} lacks a column: expected {_expected()}")
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
        raise LoadError(f"{source} has no words: expected {_expected()}")
    return {name: sorted(words, key=lambda word: word.start) for name, words in clips.items()}


def _expected() -> str:
    return "clip, word, start, end"


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
            f"{len(paths)} of {len(words)} clips have a sound, such as {first!r}: expected two or "
            "more, one half to choose heads and one to report"
        )
    return dict(sorted(paths.items()))
