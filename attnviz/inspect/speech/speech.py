"""Measures where in a sound each head of a speech model looks."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.backend import backend_of
from attnviz.engine.capture import Choice, target_tokens
from attnviz.engine.observer import BlockFacts
from attnviz.engine.selection import choose_heads
from attnviz.errors import UsageError
from attnviz.inspect.speech.report import HeadOnSound, SpeechReport
from attnviz.inspect.speech.request import SpeechRequest
from attnviz.measures.bootstrap import spearman
from attnviz.models.speech import HeardSound, SpeechModel, loudness
from attnviz.progress import UNWATCHED, Advance, share_read
from attnviz.records import Floats, Input, Kind, Tokens

_BINS = 60  # the most rows of a map of the encoder: parts of the sound of one length
_ORDERS, _SEED = 999, 0  # random orders of words with which the order of peaks is compared
_LEAST_WORDS = 4  # the fewest words whose order says anything


def speech(
    model: SpeechModel, heard: HeardSound, request: SpeechRequest, advance: Advance = UNWATCHED
) -> SpeechReport:
    """Return where each head looks in a sound: from its words, or from the sound itself.

    heard: the sound, as ``model`` hears it. advance: is called with the share of layers read.

    Raises UsageError for a choice or a transcript that does not fit the model.
    """
    kind, info = request.kind, model.info
    layers, heads = model.stack_shape(kind)
    chosen = choose_heads(request.layer, request.head, layers, heads, request.index_base)
    target = None
    if kind == "encoder":
        edges = np.linspace(0, heard.heard, min(_BINS, heard.heard) + 1).round().astype(int)
        spans = [range(*pair) for pair in pairwise(edges.tolist())]
        names = [heard.tokens.texts[span[0]] for span in spans]
        rows = spans
    else:
        given = request.transcript
        target = target_tokens(model, heard.tokens, Choice(target=given, kind=kind))
        spans = word_rows(target, len(heard.starts))
        names = ["".join(target.texts[at] for at in span).strip() for span in spans]
        if not spans:
            raise UsageError(f"{info.name!r} hears no word: give a transcript with --text")
        # The row of a token writes the next one.
        rows = [range(span.start - 1, span.stop - 1) for span in spans]
    wanted = range(layers) if chosen is None else sorted(chosen)
    watch = _Watch(
        kind, rows, heard.heard, chosen, lambda layer: advance(share_read(layer, wanted))
    )
    backend_of(model).observe(watch, [Input(heard.tokens, target)])
    orders = _orders(model, heard, request, watch, spans, target) if kind == "cross" else {}
    measured = [
        HeadOnSound(layer, head, *watch.of(layer, head), *orders.get((layer, head), ()))
        for layer in sorted(watch.rows)
        for head in range(heads)
        if chosen is None or head in chosen[layer]
    ]
    return SpeechReport(
        model=info,
        name=heard.file.name,
        seconds=heard.file.seconds,
        kind=kind,
        words=tuple(names),
        heads=tuple(measured),
        frame=model.frame_seconds,
        loudness=loudness(heard.file, heard.heard, heard.heard * model.frame_seconds),
        transcribed=target is not None and request.transcript is None,
        chance=_chance(len(names), layers * heads) if orders else float("nan"),
        notes=heard.file.notes,
        index_base=request.index_base,
        selected=chosen is not None,
    )


def word_rows(target: Tokens, starts: int) -> list[range]:
    """Return the indices of the tokens of each word, which begins with a blank.

    Where no token has a blank, each is a word. starts: how many start tokens stand before them.
    """
    words: list[range] = []
    spaced = any(text.startswith(" ") for text in target.texts)
    for at in range(starts, len(target)):
        if spaced and words and not target.texts[at].startswith(" "):
            words[-1] = range(words[-1].start, at + 1)
        else:
            words.append(range(at, at + 1))
    return words


@dataclass
class _Watch:
    """An observer that keeps the mean of the rows of each word, on the frames that are heard."""

    kind: Kind
    spans: Sequence[range]
    heard: int
    chosen: Mapping[int, Container[int]] | None
    advance: Callable[[int], None]
    rows: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    padding: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    norms = False

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self.kind and (self.chosen is None or layer in self.chosen)

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Floats, beside: BlockFacts
    ) -> None:
        heads, count, _ = weights.shape
        if layer not in self.rows:
            self.rows[layer] = np.zeros((heads, len(self.spans), self.heard), np.float32)
            self.padding[layer] = np.zeros((heads, len(self.spans)))
        for at, span in enumerate(self.spans):
            first, last = max(span.start - start, 0), min(span.stop - start, count)
            if first < last:
                part = weights[:, first:last].sum(axis=1, dtype=np.float64) / len(span)
                self.rows[layer][:, at] += part[:, : self.heard]
                self.padding[layer][:, at] += part[:, self.heard :].sum(-1)
        if start + count >= self.spans[-1].stop:
            self.advance(layer)

    def of(self, layer: int, head: int) -> tuple[Floats, float]:
        """Return the map (row, frame) of a head, and its share of weight on padding."""
        return self.rows[layer][head], float(self.padding[layer][head].mean())


def _orders(
    model: SpeechModel,
    heard: HeardSound,
    request: SpeechRequest,
    watch: _Watch,
    spans: Sequence[range],
    target: Tokens | None,
) -> dict[tuple[int, int], tuple[float, float]]:
    """Return how far the peaks of each head follow the order of the words: Spearman's correlation.

    The second number is the control: the words are shuffled, and their peaks are compared with the
    new order. A head that only moves on with every word has it there too, one that hears does not.
    """
    assert target is not None
    if len(spans) < _LEAST_WORDS:
        return {}
    order = np.random.default_rng(_SEED).permutation(len(spans))
    words = [[target.ids[at] for at in spans[word]] for word in order]
    mixed = model.transcript(heard.starts, words)
    edges = np.cumsum([len(heard.starts) - 1, *map(len, words)]).tolist()
    rows = [range(*pair) for pair in pairwise(edges)]
    layers, heads = model.decoder_shape
    chosen = choose_heads(request.layer, request.head, layers, heads, request.index_base)
    other = _Watch("cross", rows, heard.heard, chosen, lambda layer: None)
    backend_of(model).observe(other, [Input(heard.tokens, mixed)])
    return {
        (layer, head): (_in_order(maps[head]), _in_order(other.rows[layer][head]))
        for layer, maps in watch.rows.items()
        for head in range(heads)
    }


def _in_order(rows: Floats) -> float:
    """Return Spearman's correlation of the rows of a map (row, frame) and the frames they peak."""
    return spearman(range(len(rows)), rows.argmax(-1).tolist()) or 0.0


def _chance(words: int, heads: int) -> float:
    """Return the correlation that the best of so many heads passes by chance in 5% of all texts."""
    draws = np.random.default_rng(_SEED)
    ranks = np.arange(words) - (words - 1) / 2
    size = float((ranks**2).sum())
    best = [
        max(float(draws.permutation(ranks) @ ranks) / size for _ in range(heads))
        for _ in range(_ORDERS)
    ]
    return float(np.quantile(best, 0.95))
