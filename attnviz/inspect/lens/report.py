"""The report of ``attnviz lens``: a reading after each block, and one of each head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnviz.draw.files import Writer
from attnviz.draw.report import Report
from attnviz.draw.values import known_label_facts, model_facts, npz_file, table_of, token_facts
from attnviz.engine.answers import START_END
from attnviz.engine.attribution.lens import BlockReading, HeadReading, LensReading
from attnviz.engine.attribution.parts import HeadKey
from attnviz.records import HeadLabel, Input, ModelInfo, Provenance

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
        """Return the whole report as one JSON object."""
        found, target = self.found, self.given.target
        return {
            "schema": "attnviz.lens/1",
            "model": model_facts(self.model),
            "prompt": self.text,
            "source": self.source or None,
            **token_facts(self.given.text),
            **({} if target is None else {"target_tokens": target.texts, "target_ids": target.ids}),
            "position": found.position,
            "answer": {"id": found.answer, "token": self.answer},
            **({"labels": self.classes} if self.classes else {}),
            **({} if found.end is None else {"answer_end": START_END[found.end]}),
            "entry": self.entry,
            "softcap": found.softcap,
            "apart": found.apart,
            "tolerance": found.tolerance,
            "notes": self.notes,
            "layers": [_block(self, each) for each in found.blocks],
            "heads": [_head(self, each) for each in self.shown],
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Return the table: the readings before and after each block, then what heads write."""
        names = ("part", "layer", "head", "probability", "rank", "kl", "answer", "most", "least")
        found = [_block(self, each) | {"part": "block"} for each in self.found.blocks]
        found += [_head(self, each) for each in self.shown]
        for row in found:
            row.setdefault("part", f"{row.get('attention')} head")
            for name, list_name in (("most", "top"), ("most", "raises"), ("least", "lowers")):
                if row.get(list_name):
                    row[name] = row[list_name][0]["token"]
        return table_of(names, found)

    def arrays(self) -> Mapping[str, Writer]:
        """Return the writer of numbers and top words of each reading, and of each head."""
        blocks, heads = self.found.blocks, self.shown
        archive = npz_file(
            blocks=[self.block_name(each.block) for each in blocks],
            probability=[each.probability for each in blocks],
            rank=[each.rank for each in blocks],
            kl=[each.kl for each in blocks],
            top_ids=[[one for one, _ in each.top] for each in blocks],
            top_probability=[[p for _, p in each.top] for each in blocks],
            heads=[self.name(each.head) for each in heads],
            logits=[each.answer for each in heads],
        )
        return {".npz": archive}

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
    def shown(self) -> list[HeadReading]:
        """Return the heads of the attention that is shown."""
        return [each for each in self.found.heads if each.head[0] in self.kinds]

    @property
    def ordered(self) -> list[HeadReading]:
        """Return the chosen heads, by default all: the largest change of the answer first."""
        chosen = [each for each in self.shown if each.head in self.chosen] or self.shown
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


def _block(report: LensReport, each: BlockReading) -> dict[str, Any]:
    return {
        "layer": each.block,
        "probability": each.probability,
        "rank": each.rank,
        "kl": each.kl,
        "top": _words(report, each.top, "probability"),
    }


def _head(report: LensReport, each: HeadReading) -> dict[str, Any]:
    label = report.labels.get(each.head)
    return {
        **dict(zip(("attention", "layer", "head"), each.head, strict=True)),
        "answer": each.answer,
        "raises": _words(report, each.raises, "logits"),
        "lowers": _words(report, each.lowers, "logits"),
        **({} if label is None else {"label": known_label_facts(label)}),
    }


def _words(
    report: LensReport, words: Sequence[tuple[int, float]], what: str
) -> list[dict[str, Any]]:
    return [{"id": one, "token": report.words[one], what: value} for one, value in words]
