"""The report of an attention rollout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.report import Report, fields_of
from attnviz.draw.values import model_facts, shortest, token_facts
from attnviz.errors import UsageError
from attnviz.measures.sinks import sink_keys, without_sink
from attnviz.measures.words import is_mark, word_ranges, word_text
from attnviz.records import UNKNOWN, Floats, Kind, ModelInfo, Tokens

Matrix = NDArray[np.float64]


def last_word(tokens: Tokens, causal: bool) -> int:
    """Return the position of the last token of a word that is no sink.

    Unknown words and marks count only where there are no others; a text of sinks has the last
    token. Of a picture it is CLS. Raises UsageError for a picture of a model without CLS.
    """
    if tokens.layout is not None:
        if not len(classes := tokens.layout.of_kind("cls")):
            raise UsageError("this model has no CLS: name a patch with --token ROW,COLUMN")
        return int(classes[0])
    sink = sink_keys(tokens, causal)
    words = [word for word in reversed(word_ranges(tokens)) if not sink[word[-1]]]
    texts = {word: word_text(tokens, word) for word in words}
    plain = (
        word for word in words if texts[word] not in UNKNOWN and not all(map(is_mark, texts[word]))
    )
    return next((word[-1] for word in (*plain, *words)), len(tokens) - 1)


@dataclass(frozen=True, repr=False)
class RolloutReport(Report):
    """The report of an attention rollout through all layers (Abnar & Zuidema 2020).

    model: its facts. kind: the kind of attention; never cross attention. causal: whether a query
        sees no later key. tokens: of both axes. matrix: float64 (query, key): the share of each
        output that comes from each input token; rows sum to one.
    sampled: the queries that were followed, in growing order: the rows of both matrices. None if
        all were.
    raw: float64 (query, key): the mean over the heads of the last layer's attention weights.
    layers: how many the rollout covers. not_followed: the indices of the layers that mix tokens by
        something else than attention; the matrix is no share of the input then.
    text: the text. target: the decoder's text, if the rollout is of the decoder.
    values: whether the shares are written in the cells. keep_sink: whether the sink is shown.
    asked: the position of the token that was asked for; None for the last word.
    """

    model: ModelInfo
    kind: Kind
    causal: bool
    tokens: Tokens
    matrix: Matrix
    raw: Matrix
    layers: int
    text: str = ""
    target: str | None = None
    values: bool = False
    keep_sink: bool = False
    sampled: tuple[int, ...] | None = None
    not_followed: tuple[int, ...] = ()
    asked: int | None = None

    command = "rollout"
    lists = None

    def __post_init__(self) -> None:
        shape = (len(self.queries), len(self.tokens))
        if self.matrix.shape != shape or self.raw.shape != shape:
            raise ValueError(
                f"expected matrices of shape {shape}, got {self.matrix.shape}, {self.raw.shape}"
            )

    @property
    def at_sink(self) -> NDArray[np.bool_]:
        """Return a mask (token,) of the attention sink: special tokens, or the first if causal."""
        return sink_keys(self.tokens, self.causal)

    @property
    def queries(self) -> Sequence[int]:
        """Return the positions of the tokens that have a row in ``matrix`` and ``raw``."""
        return range(len(self.tokens)) if self.sampled is None else self.sampled

    @property
    def query(self) -> int:
        """Return the position of the token asked for; by default of the last word, or of CLS."""
        return last_word(self.tokens, self.causal) if self.asked is None else self.asked

    def without_sink(self) -> Matrix:
        """Return the rollout (query, key) without the sink's columns, rows rescaled to sum to one.

        NaN in these columns, and in rows that come from the sink alone.
        """
        return without_sink(self.matrix, self.at_sink).astype(np.float64)

    def uniform(self) -> Floats:
        """Return the shares (token,) that uniform attention in every layer would give the query.

        In a causal model early tokens get more, as every later token attends to them. The sink has
        no share unless it is kept.
        """
        row = np.zeros(len(self.tokens))
        row[self.query] = 1
        seen = np.arange(1, len(row) + 1) if self.causal else np.full(len(row), len(row))
        for _ in range(self.layers):
            spread = row / seen
            mixed = np.cumsum(spread[::-1])[::-1] if self.causal else spread.sum()
            row = (row + mixed) / 2
        kept = np.where(self.keep_sink | ~self.at_sink, row, 0)
        return np.asarray(kept / (kept.sum() or 1.0))

    def data(self) -> dict[str, Any]:
        """Return the report of a rollout as JSON values; its matrices are (query, key)."""
        return {
            "schema": "attnviz.rollout/1",
            "model": model_facts(self.model),
            **fields_of(self, ("text", "kind", "causal", "layers")),
            "layers_not_followed": self.not_followed,
            **token_facts(self.tokens),
            **({} if self.sampled is None else {"queries": self.sampled}),
            "rollout": shortest(self.matrix),
            "last_layer": shortest(self.raw),
            "sink": self.at_sink.nonzero()[0],
            "rollout_without_sink": shortest(self.without_sink()),
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the CSV header, then a row with both weights of each query and key it can see."""
        texts = self.tokens.texts
        yield ("query", "key", "query_token", "key_token", "rollout", "last_layer")
        matrices = zip(self.queries, self.matrix.tolist(), self.raw.tolist(), strict=True)
        for query, row, last in matrices:
            for key in range(query + 1 if self.causal else len(texts)):
                yield query, key, texts[query], texts[key], row[key], last[key]
