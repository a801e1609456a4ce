"""The report of ``attnviz lens``: a reading after each block, and one of each head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnviz.draw.report import Report, fields_of
from attnviz.draw.values import input_facts, known_label_facts, model_facts, npz_file, table_of
from attnviz.engine.attribution.parts import BlockReading, HeadReading, LensReading
from attnviz.engine.likely import START_END
from attnviz.records import HeadKey, HeadLabel, Input, ModelInfo, Provenance

if TYPE_CHECKING:  # a screen starts without what writes files
    from attnviz.draw.files import Writer

FAR = 1.0  # KL to the end, in nats, from which a reading is said to be no prediction of the model


@dataclass(frozen=True, repr=False)
class LensReport(Report, Provenance):
    """The report of ``attnviz lens`` on one prompt.

    given: the tokens of the prompt, with those of a decoder. reading: what was read.
    words: the texts of the ids in it.
    asked: whether the user named the answer; else it is the model's own top prediction.
    rest: what the model goes on to write of the word that the answer begins; None if not known.
    chosen: the heads that the user chose, none for all. kinds: the attention whose heads are shown.
    labels: of heads that have one. classes: the labels of a classifier; empty for words.
    """

    model: ModelInfo
    given: Input
    reading: LensReading
    words: Mapping[int, str]
    asked: bool
    chosen: tuple[HeadKey, ...] = ()
    kinds: tuple[str, ...] = ("self",)
    labels: Mapping[HeadKey, HeadLabel] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    rest: str | None = None

    command = "lens"
    lists = ("layers", "heads")

    def data(self) -> dict[str, Any]:
        reading = self.reading
        return {
            "schema": "attnviz.lens/1",
            "model": model_facts(self.model),
            "prompt": self.text,
            "source": self.source or None,
            **input_facts(self.given),
            "position": reading.position,
            "answer": {"id": reading.answer, "token": self.answer, "rest_of_word": self.rest},
            **({"labels": self.classes} if self.classes else {}),
            **({} if reading.end is None else {"answer_end": START_END[reading.end]}),
            "entry": self.entry,
            **fields_of(reading, ("softcap", "apart", "tolerance")),
            "notes": self.notes,
            "layers": [_block(self, block) for block in reading.blocks],
            "heads": [_head(self, head) for head in self.shown],
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Return the table: a row for each reading before and after a block, then for each head."""
        names = ("part", "layer", "head", "probability", "rank", "kl", "answer", "most", "least")
        rows = [_block(self, block) | {"part": "block"} for block in self.reading.blocks]
        rows += [_head(self, head) for head in self.shown]
        for row in rows:
            row.setdefault("part", f"{row.get('attention')} head")
            for name, list_name in (("most", "top"), ("most", "raises"), ("least", "lowers")):
                if row.get(list_name):
                    row[name] = row[list_name][0]["token"]
        return table_of(names, rows)

    def arrays(self) -> Mapping[str, Writer]:
        """Return a function that writes the numbers and top words of readings and heads."""
        blocks, heads = self.reading.blocks, self.shown
        archive = npz_file(
            blocks=[self.block_name(block.block) for block in blocks],
            probability=[block.probability for block in blocks],
            rank=[block.rank for block in blocks],
            kl=[block.kl for block in blocks],
            top_ids=[[word for word, _ in block.top] for block in blocks],
            top_probability=[[p for _, p in block.top] for block in blocks],
            heads=[self.name(head.head) for head in heads],
            logits=[head.answer for head in heads],
        )
        return {".npz": archive}

    @property
    def answer(self) -> str:
        return self.words[self.reading.answer]

    @property
    def kind(self) -> str:
        """Return the kind of answer: ``word``, ``label``, or the ``start`` or ``end`` of a span."""
        if self.reading.end is not None:
            return self.classes[self.reading.end]
        return "label" if self.classes else "word"

    @property
    def end(self) -> BlockReading:
        """Return the reading after the last block: the model's own prediction."""
        return self.reading.blocks[-1]

    @property
    def entry(self) -> int | None:
        """Return the index of the reading from which on the answer stays the likeliest word.

        0 is before the first block. None if the answer is not the model's top prediction.
        """
        ranks = [block.rank for block in self.reading.blocks]
        if ranks[-1] > 1:
            return None
        return next(at for at in range(len(ranks)) if max(ranks[at:]) == 1)

    @property
    def far(self) -> int:
        """Return the number of readings before KL to the last one stays at most ``FAR``."""
        blocks = enumerate(self.reading.blocks, start=1)
        return max((number for number, block in blocks if block.kl > FAR), default=0)

    @property
    def shown(self) -> list[HeadReading]:
        """Return the heads of the attention that is shown."""
        return [head for head in self.reading.heads if head.head[0] in self.kinds]

    @property
    def ordered(self) -> list[HeadReading]:
        """Return the chosen heads, by default all: the largest change of the answer first."""
        chosen = [head for head in self.shown if head.head in self.chosen] or self.shown
        return sorted(chosen, key=lambda head: -abs(head.answer))

    def name(self, head: HeadKey) -> str:
        """Return a head's name, ``L2H5``; with two kinds of attention ``L2H5 cross``."""
        return self.head_name(head[1:]) + f" {head[0]}" * (len(self.kinds) > 1)

    def block_name(self, block: int | None) -> str:
        """Return the name of a block, such as ``L3``; ``embedding`` for None, the first input."""
        return "embedding" if block is None else f"L{block + self.index_base}"


def _block(report: LensReport, block: BlockReading) -> dict[str, Any]:
    return {
        "layer": block.block,
        **fields_of(block, ("probability", "rank", "kl")),
        "top": _words(report, block.top, "probability"),
    }


def _head(report: LensReport, head: HeadReading) -> dict[str, Any]:
    label = report.labels.get(head.head)
    return {
        **dict(zip(("attention", "layer", "head"), head.head, strict=True)),
        "answer": head.answer,
        "raises": _words(report, head.raises, "logits"),
        "lowers": _words(report, head.lowers, "logits"),
        **({} if label is None else {"label": known_label_facts(label)}),
    }


def _words(
    report: LensReport, words: Sequence[tuple[int, float]], unit: str
) -> list[dict[str, Any]]:
    return [{"id": id, "token": report.words[id], unit: value} for id, value in words]
