"""Runs a scan piece by piece: what is done is kept, whenever and however it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnviz.ablate.resume import Piece, ResumeFile
from attnviz.ablate.stored_scores import restore_scores, store_scores
from attnviz.cli.progress import Advance
from attnviz.engine.effects import Scores, Variant
from attnviz.engine.scan.run import Scan
from attnviz.errors import LoadError

__all__ = ["Part", "ScanRun"]

_FIRST_CHUNK = 4
"""Removals that a time budget begins with, to learn how long one takes."""


@dataclass
class Part:
    """One series of pieces: the removals, or random directions in their place.

    name: in the resume file.
    scan: the model, ready to be measured.
    pieces: what is done.
    """

    name: str
    scan: Scan
    pieces: list[Scores] = field(default_factory=list)
    _done: dict[int, set[int]] = field(default_factory=dict)

    def add(self, piece: Scores) -> None:
        """Raises ValueError for a removal that the text has already."""
        done = self._done.setdefault(piece.text, set())
        if done & set(piece.variants) or len(set(piece.variants)) < len(piece.variants):
            raise ValueError(f"text {piece.text + 1} has a removal twice")
        done.update(piece.variants)
        self.pieces.append(piece)

    def done(self, text: int) -> set[int]:
        """The removals that are measured over one text."""
        return self._done.get(text, set())


class ScanRun:
    """A scan over several texts.

    variants: every removal that may be asked for; pieces name them by their place.
    file: where pieces are kept, or None.
    """

    def __init__(self, variants: Sequence[Variant], file: ResumeFile | None = None) -> None:
        self._variants = variants
        self._file = file

    def kept(self, name: str) -> Any:
        """What ``keep`` stored under a name; None where it did not."""
        known = self._file.done if self._file is not None else []
        return next((piece.result for piece in known if piece.part == name), None)

    def keep(self, name: str, values: object) -> None:
        """Store JSON values that a run which goes on is to find."""
        if self._file is not None:
            self._file.append(Piece(name, 0, values))

    def part(self, name: str, scan: Scan) -> Part:
        """A part with the pieces that an earlier run left of it."""
        part = Part(name, scan)
        for piece in self._file.done if self._file is not None else []:
            if piece.part == name:
                scores = restore_scores(piece.text, piece.result, "the resume file")
                try:
                    part.add(scores)
                except ValueError as error:
                    raise LoadError(
                        f"the resume file is damaged: {error}; remove one of its lines"
                    ) from error
                new = (note for note in piece.result["notes"] if note not in scan.notes)
                scan.notes.extend(new)
        return part

    def cover(
        self, part: Part, wanted: Sequence[int], texts: Sequence[int], advance: Advance
    ) -> int:
        """Measure the ``wanted`` removals over the texts, but for those that are done.

        How many were measured, over whichever text.
        """
        total = max(len(wanted) * len(texts), 1)
        finished = measured = 0
        for text in texts:
            done = part.done(text)
            missing = [index for index in wanted if index not in done]
            finished += len(wanted) - len(missing)
            if not missing:
                continue
            for scores in part.scan.scan(text, self._variants, missing):
                if self._file is not None:
                    kept = {**store_scores(scores), "notes": list(part.scan.notes)}
                    self._file.append(Piece(part.name, text, kept))
                part.add(scores)
                finished += len(scores.variants)
                measured += len(scores.variants)
                advance(finished / total)
        return measured

    def spend(
        self,
        part: Part,
        ranked: Sequence[int],
        order: Sequence[int],
        until: float,
        advance: Callable[[], None],
    ) -> None:
        """Measure the removals, first ranked first, until the time is up; a few at least.

        A half of the time takes the first few over as many texts, in their order, as it allows, the
        other half further removals over these texts: all over the same.
        until: in seconds of the monotonic clock.
        """
        start = time.monotonic()
        size, measured, texts = _FIRST_CHUNK, 0, list[int]()
        for text in order:
            measured += self.cover(part, ranked[:size], [text], lambda share: advance())
            texts.append(text)
            if time.monotonic() > (start + until) / 2:
                break
        done = size
        while done < len(ranked):
            spent, left = time.monotonic() - start, until - time.monotonic()
            if measured:
                # Half of what is left: the pace is an estimate, the budget is not to be overrun.
                size = int(left / 2 * measured / max(spent, 1e-3) / len(texts))
            if size < 1 or left <= 0:
                return
            chunk = ranked[done : done + size]
            measured += self.cover(part, chunk, texts, lambda share: advance())
            done += len(chunk)
