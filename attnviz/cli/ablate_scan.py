"""Runs a scan piece by piece: what is done is kept, whenever and however it ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from attnviz.ablation import Scores, Variant
from attnviz.capture.scan import Scan
from attnviz.cli.amounts import Budget
from attnviz.cli.resume_file import Piece, ResumeFile
from attnviz.cli.scan_progress import Advance
from attnviz.cli.stored_scores import restore_scores, store_scores

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

    def done(self, text: int) -> set[int]:
        """The removals that are measured over one text."""
        return {index for piece in self.pieces if piece.text == text for index in piece.variants}


class ScanRun:
    """A scan over several texts.

    variants: every removal that may be asked for; pieces name them by their place.
    texts: how many there are.
    file: where pieces are kept, or None.
    """

    def __init__(
        self, variants: Sequence[Variant], texts: int, file: ResumeFile | None = None
    ) -> None:
        self._variants = variants
        self._texts = texts
        self._file = file

    def part(self, name: str, scan: Scan) -> Part:
        """A part with the pieces that an earlier run left of it."""
        known = self._file.done if self._file is not None else []
        pieces = [
            restore_scores(piece.text, piece.result, "the resume file")
            for piece in known
            if piece.part == name
        ]
        return Part(name, scan, pieces)

    def cover(self, part: Part, wanted: Sequence[int], advance: Advance) -> None:
        """Measure the ``wanted`` removals over every text, but for those that are done."""
        total = max(len(wanted) * self._texts, 1)
        finished = 0
        for text in range(self._texts):
            done = part.done(text)
            missing = [index for index in wanted if index not in done]
            finished += len(wanted) - len(missing)
            if not missing:
                continue
            for scores in part.scan.scan(text, self._variants, missing):
                if self._file is not None:
                    self._file.append(Piece(part.name, text, store_scores(scores)))
                part.pieces.append(scores)
                finished += len(scores.variants)
                advance(finished / total)

    def spend(self, part: Part, ranked: Sequence[int], budget: Budget, advance: Advance) -> None:
        """Measure the removals in this order as far as the budget goes, at least one."""
        if budget.count is not None:
            self.cover(part, ranked[: budget.count], advance)
            return
        assert budget.seconds is not None
        start, done = time.monotonic(), 0
        size = _FIRST_CHUNK
        while done < len(ranked):
            chunk = ranked[done : done + size]
            self.cover(part, chunk, lambda share: None)
            done += len(chunk)
            spent = time.monotonic() - start
            advance(min(spent / budget.seconds, 1.0))
            # Half of what is left: the pace is an estimate, and the budget is not to be overrun.
            size = int((budget.seconds - spent) / 2 * done / max(spent, 1e-3))
            if size < 1:
                return
