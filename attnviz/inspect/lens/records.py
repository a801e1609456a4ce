"""The report of ``attnviz lens``: a reading after each block, and one of each head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from attnviz.draw.report import Report
from attnviz.engine.attribution.lens import BlockReading, HeadReading, LensReading
from attnviz.engine.attribution.parts import HeadKey
from attnviz.records import HeadLabel, Input, ModelInfo, Provenance

if TYPE_CHECKING:
    from attnviz.draw.document import Document
    from attnviz.draw.files import Writer

FAR = 1.0
"""KL to the end, in nats, from which a reading is said to be no prediction of the model."""


@dataclass(frozen=True, repr=False)
class LensReport(Report, Provenance):
    """The report of ``attnviz lens`` on one prompt.

    given: the tokens of the prompt, with those of a decoder. found: what was read.
    words: the texts of the ids in ``found``.
    asked: whether the user named the answer; else it is the model's own top prediction.
    chosen: the heads that the user chose, none for all. kinds: the attention whose heads are shown.
    labels: of heads that have one. classes: the labels of a classifier; empty for words.
    """

    model: ModelInfo
    given: Input
    found: LensReading
    words: Mapping[int, str]
    asked: bool
    chosen: tuple[HeadKey, ...] = ()
    kinds: tuple[str, ...] = ("self",)
    labels: Mapping[HeadKey, HeadLabel] = field(default_factory=dict)
    classes: tuple[str, ...] = ()

    command = "lens"
    lists = ("layers", "heads")

    def data(self) -> dict[str, Any]:
        from attnviz.inspect.lens.data import lens_data

        return lens_data(self)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.inspect.lens.data import lens_rows

        return lens_rows(self)

    def arrays(self) -> Mapping[str, Writer]:
        from attnviz.inspect.lens.data import write_lens_npz

        return {".npz": partial(write_lens_npz, self)}

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.inspect.lens.document import lens_document

        return lens_document(self).shown(explain=explain, hints=hints)

    @property
    def answer(self) -> str:
        return self.words[self.found.answer]

    @property
    def kind(self) -> str:
        """Return what is followed: ``word``, ``label``, or ``start`` or ``end`` of an answer."""
        if self.found.end is not None:
            return self.classes[self.found.end]
        return "label" if self.classes else "word"

    @property
    def end(self) -> BlockReading:
        """Return the reading after the last block: the model's own prediction."""
        return self.found.blocks[-1]

    @property
    def entry(self) -> int | None:
        """Return the index among the readings from which on the answer stays the likeliest word.

        0 is before the first block. None if the answer is not the model's top prediction.
        """
        ranks = [each.rank for each in self.found.blocks]
        if ranks[-1] > 1:
            return None
        return next(at for at in range(len(ranks)) if max(ranks[at:]) == 1)

    @property
    def far(self) -> int:
        """Return the number of readings up to the last one that is ``FAR`` from the end."""
        return max((at for at, each in enumerate(self.found.blocks, 1) if each.kl > FAR), default=0)

    @property
    def ordered(self) -> list[HeadReading]:
        """Return the chosen heads, by default all: the largest change of the answer first."""
        shown = [each for each in self.found.heads if each.head[0] in self.kinds]
        chosen = [each for each in shown if each.head in self.chosen] or shown
        return sorted(chosen, key=lambda each: -abs(each.answer))

    def name(self, head: HeadKey) -> str:
        """Return a head's name, ``L2H5``; with two kinds of attention ``L2H5 cross``.

        head: (kind of attention, layer, head).
        """
        kind, layer, number = head
        base = self.index_base
        return f"L{layer + base}H{number + base}" + (f" {kind}" if len(self.kinds) > 1 else "")

    def block_name(self, block: int | None) -> str:
        """Return the name of a block, ``L3``; of what enters the first one, ``embedding``."""
        return "embedding" if block is None else f"L{block + self.index_base}"
