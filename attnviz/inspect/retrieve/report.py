"""The report of ``retrieve``: the scores of each head, its base rates, the loss without heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from attnviz.count.params.params import ShortCache
from attnviz.draw.report import Report, fields_of
from attnviz.draw.signed import Place
from attnviz.draw.values import model_facts, table_of
from attnviz.inspect.retrieve.haystacks import DEPTHS
from attnviz.records import ModelInfo, Provenance

if TYPE_CHECKING:
    from attnviz.draw.files import Writer
    from attnviz.mergeable import CorpusRecord

SINK, RECENT = 4, 64  # a streaming head attends to so many first tokens and so many last ones
STREAMS = 0.9  # the share of its weight on them from which a head is called streaming


class LossChange(NamedTuple):
    """A mean change of loss over haystacks, in nats, and its 95% CI; None for under five."""

    value: float
    ci_low: float | None
    ci_high: float | None


class HeadRetrieval(NamedTuple):
    """How often one head fetches the needle.

    score: the retrieval score, the share of the answer's tokens at which the head attends most to
        the same token of the needle; ci_low, ci_high: its 95% CI. unasked: the same share for
        a needle that is not asked for. shuffled: the score over shuffled haystacks.
    written: what the head writes towards the answer, read at the needle, in logits above an answer
        that is not asked for; None if it was not measured. near: the weight on the first and last
        tokens.
    retrieves: whether the score exceeds both base rates. streams: whether nearly all weight is
        near, of a head that does not retrieve.
    """

    layer: int
    head: int
    score: float
    ci_low: float | None
    ci_high: float | None
    unasked: float
    shuffled: float
    written: float | None
    near: float
    retrieves: bool
    streams: bool

    @property
    def place(self) -> Place:
        return self.layer, self.head


@dataclass(frozen=True, repr=False)
class RetrieveReport(Report, Provenance):
    """The report of ``attnviz retrieve``: which heads fetch a needle from a haystack.

    predicted: the share of these tokens that the model predicts. heads: the highest score first.
    cells: the first head's score by (length, index of the depth).
    without, random: the rise of the loss without the retrieval heads, and without as many random
        ones, others for each haystack; None if there are no such heads.
    caches: the sizes of the cache, for long texts, if only retrieval heads kept every token.
    ablated: the heads of ``without``, which over a corpus are those that its first haystacks name.
        texts: of a corpus, how many its haystacks are; None for one text. record: of a corpus, all
        numbers behind the report; it adds up with those of other shards. chat: whether a user asked
        and the assistant answered.
    """

    model: ModelInfo
    lengths: tuple[int, ...]
    haystacks: int
    questions: int
    tokens: int
    predicted: float
    loss: float
    heads: tuple[HeadRetrieval, ...]
    cells: Mapping[tuple[int, int], float]
    without: LossChange | None
    random: LossChange | None
    caches: tuple[ShortCache, ...]
    top: int = 8
    ablated: tuple[Place, ...] = ()
    texts: int | None = None
    record: CorpusRecord | None = None
    chat: bool = False

    command = "retrieve"

    @property
    def named(self) -> tuple[HeadRetrieval, ...]:
        """Return the retrieval heads, the highest score first."""
        return tuple(head for head in self.heads if head.retrieves)

    def data(self) -> dict[str, Any]:
        """Return the whole report as one JSON object."""
        changes = {"without": self.without, "random": self.random}
        return {
            "schema": "attnviz.retrieve/1",
            "model": model_facts(self.model),
            **fields_of(self, ("source", "seed", "texts", "haystacks", "questions")),
            **({"chat": True} if self.chat else {}),
            **fields_of(self, ("predicted", "loss")),
            "answer_tokens": self.tokens,
            **fields_of(self, ("notes", "lengths")),
            **{name: change and change._asdict() for name, change in changes.items()},
            "ablated": [{"layer": layer, "head": head} for layer, head in self.ablated],
            "heads": [head._asdict() for head in self.heads],
            "best_head": [
                {"length": length, "depth": DEPTHS[depth], "score": score}
                for (length, depth), score in self.cells.items()
            ],
            "caches": [cache._asdict() for cache in self.caches],
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Return the table: a row for each head, the highest score first."""
        return table_of(HeadRetrieval._fields, (head._asdict() for head in self.heads))

    def arrays(self) -> Mapping[str, Writer]:
        """Return a function that writes scores as DuoAttention's ``full_attention_heads.tsv``.

        A row for each layer, a column for each key/value head: the highest score of the query heads
        that share it, in [0, 1]; 0 for a head that the layer does not have.
        """
        info = self.model
        highest = np.zeros((info.layers, info.kv_heads))
        for head in self.heads:
            shared = head.layer, head.head * info.kv_heads // info.heads
            highest[shared] = max(highest[shared], head.score)

        def write(stream: BinaryIO) -> None:
            np.savetxt(stream, highest, "%.6f", delimiter="\t")

        return {".tsv": write}
