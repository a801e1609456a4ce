"""``heads --cut``: cuts one attention edge in chosen heads and compares the predictions.

Attention knockout, from Geva et al. 2023, "Dissecting Recall of Factual Associations in
Auto-Regressive Language Models". The measurements are in ``engine.edges``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.report import Report
from attnviz.engine.backend import backend_of
from attnviz.engine.capture import Choice, capture_text, encoded, written_targets
from attnviz.engine.edges import CutScan, EdgePrediction
from attnviz.engine.known_labels import known_labels
from attnviz.engine.likely import Likely, likeliest
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.heads.report import heads_report
from attnviz.measures.words import Word, find_word, joined
from attnviz.models.model import Model, require_number
from attnviz.models.own import OwnAttention
from attnviz.models.resolve import reckoned_tokens
from attnviz.records import AttentionRecord, Floats, HeadsRecord, Input, Kind, ModelInfo, Tokens

if TYPE_CHECKING:
    from attnviz.draw.document import Document


MOST_ALONE = 64
"""Up to this many heads are each cut alone; if there are more, each layer's heads together."""

_RUNS = 26
"""About how often the model runs: whole, cut, and cut in each layer or each of a few heads."""


class CutPrediction(NamedTuple):
    """The predictions at one position of the text, before and after the cut.

    place: the position; the token after it is predicted, by a masked model the token itself.
    before, after: the most likely tokens, the likeliest first. kept: the probability, after the
        cut, of the token that was likeliest before. kl: KL(before ‖ after) in nats.
    """

    place: int
    before: tuple[Likely, ...]
    after: tuple[Likely, ...]
    kept: float
    kl: float


class CutAlone(NamedTuple):
    """The effect of the cut in one head alone, or in the chosen heads of one layer.

    heads: (layer, head) of each. weight: their attention weight from the query word to the key
        word, mean over heads. kl: the KL divergence at the first compared position, in nats.
        loss_delta: nats per token; None if not measured.
    """

    heads: tuple[tuple[int, int], ...]
    weight: float
    kl: float
    loss_delta: float | None


@dataclass(frozen=True, repr=False)
class CutReport(Report):
    """The report of ``heads --cut``: the effect of cutting the attention from one word to another.

    This cut is called knockout, and the connection from query to key an edge. model, kind, causal,
    text, target: of the run. queries, keys: the tokens of the axes.
    predicted: the text whose tokens are predicted; masked: whether each is hidden in its turn.
    query, key: the words at the ends of the edge. edges: its (query, key) positions.
    heads: (layer, head) in which it is cut; every: whether these are all heads. weight: their
        attention weight on the edge before the cut, mean over heads.
    loss_before, loss_after: nats per token over ``measured`` tokens. loss_deltas: (token,) the
        change of each token's loss, NaN if not measured.
    predictions: at the query first, if something is predicted there, and at the end of a causal
        text. alone: the cut in one head or layer at a time, the largest KL first.
    maps: the attention of all heads without the cut and with it; None if a page does not need them.
    """

    model: ModelInfo
    kind: Kind
    causal: bool
    text: str
    target: str | None
    queries: Tokens
    keys: Tokens
    predicted: Tokens
    masked: bool
    query: Word
    key: Word
    edges: tuple[tuple[int, int], ...]
    heads: tuple[tuple[int, int], ...]
    every: bool
    weight: float
    loss_before: float
    loss_after: float
    measured: int
    loss_deltas: NDArray[np.float64]
    predictions: tuple[CutPrediction, ...]
    alone: tuple[CutAlone, ...]
    index_base: int = 0
    maps: tuple[HeadsRecord, HeadsRecord] | None = None

    command = "cut"
    lists = None

    def data(self) -> dict[str, Any]:
        from attnviz.inspect.heads.cut_data import cut_data

        return cut_data(self)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.inspect.heads.cut_data import cut_rows

        return cut_rows(self)

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.inspect.heads.cut_document import cut_document

        return cut_document(self).shown(explain=explain, hints=hints)

    def name(self, heads: Sequence[tuple[int, int]]) -> str:
        """Return the name of one entry of ``alone``: ``L2H5`` for a head, ``L2`` for a whole layer.

        heads: the (layer, head) of the entry.
        """
        layer, head = heads[0]
        layer_name = f"L{layer + self.index_base}"
        return layer_name if self.by_layer else f"{layer_name}H{head + self.index_base}"

    @property
    def by_layer(self) -> bool:
        """Return whether ``alone`` has an entry for each layer, because heads are too many."""
        return len(self.heads) > MOST_ALONE


def read_edge(typed: str) -> tuple[str, str]:
    """Return the query word and the key word of a string ``it→animal`` or ``it->animal``.

    Raises UsageError for anything else.
    """
    words = [word.strip() for word in re.split(r"→|->", typed)]
    if len(words) != 2 or not all(words):
        raise UsageError(
            f"cannot read --cut {typed!r}: expected two words of the text, query and key, "
            "such as --cut 'it→animal' or 'it->animal'"
        )
    return words[0], words[1]


def reckoned(text: str) -> tuple[int, int]:
    """Return about how many tokens ``--cut`` runs the model on, and the number of its runs."""
    return _RUNS * reckoned_tokens(text), _RUNS


def cut_report(
    model: Model,
    text: str,
    edge: tuple[str, str],
    choice: Choice,
    on_progress: Callable[[float], None] = lambda share: None,
    *,
    maps: bool = False,
) -> CutReport:
    """Cut the attention from one word to another in chosen heads, and measure the effect.

    edge: the words as typed, query and key. choice: the heads, and the kind of attention.
    on_progress: is called with the share that is done, from 0 to 1. maps: whether the attention
        of all heads is kept, without the cut and with it, for an interactive page.
    Raises UsageError if a word is not in the text or a query is left without a key,
    UnsupportedError if the model predicts nothing or its attention cannot be edited.
    """
    if isinstance(model, OwnAttention):
        raise UnsupportedError(
            f"{model.info.name!r} is attention alone: there is no prediction that a cut could "
            "change; choose a language model"
        )
    record, selected = capture_text(model, text, choice)
    query, key = _ends(record, edge)
    edges = _edges(record, query, key)
    weights = {
        (layer, head): float(_edge_weight(matrix, query, key)) for layer, head, matrix in record
    }
    heads = tuple(weights)
    for layer, head in heads:
        require_number(f"attention of L{layer}H{head}", weights[layer, head], model.info)
    tokens = encoded(model, text, choice.truncate)
    targets = written_targets(model, [tokens], choice)
    given = Input(tokens, *targets[:1])
    causal = record.causal or record.kind != "self"  # a decoder predicts in order
    cutter = backend_of(model).open_cutter(record.kind, given)
    scan = CutScan(cutter, given, causal)
    places = _places(given, record.kind, query, scan.causal)
    groups = _alone(heads)
    work = 2 * scan.passes(places, losses=True)
    work += len(groups) * scan.passes(places[:1], losses=scan.causal)
    done = 0

    def on_pass() -> None:
        nonlocal done
        done += 1
        on_progress(done / work)

    before = scan.outcome(places, on_pass=on_pass)
    require_number("prediction", float(before.log_probabilities.max()), model.info)
    after = scan.outcome(places, heads, edges, on_pass=on_pass)

    def cut_alone(group: tuple[tuple[int, int], ...]) -> CutAlone:
        first = EdgePrediction(places[:1], before.log_probabilities[:1], before.losses)
        found = scan.outcome(places[:1], group, edges, losses=scan.causal, on_pass=on_pass)
        delta = found.loss - before.loss if scan.causal else None
        weight = float(np.mean([weights[head] for head in group]))
        return CutAlone(group, weight, float(first.kl(found)[0]), delta)

    alone = sorted(map(cut_alone, groups), key=lambda each: -each.kl)
    kl = before.kl(after)
    both = None
    if maps:
        whole, _ = capture_text(model, text, replace(choice, heads=(), layers=None))
        with suppress(UnsupportedError):
            cut = with_weights(whole, cutter.maps(given, heads, edges))
            known = known_labels(model, record.kind, ignored=choice.no_known_labels)
            first, second = (
                heads_report(
                    one, False, choice.index_base, text=text, target=choice.target, known=known
                )
                for one in (whole, cut)
            )
            both = first, second
    return CutReport(
        model=record.model,
        kind=record.kind,
        causal=record.causal,
        text=text,
        target=joined(targets[0]) if targets else None,
        queries=record.queries,
        keys=record.keys,
        predicted=given.predicted,
        masked=not scan.causal,
        query=query,
        key=key,
        edges=edges,
        heads=heads,
        every=not selected,
        weight=float(np.mean(list(weights.values()))),
        loss_before=before.loss,
        loss_after=after.loss,
        measured=int((~np.isnan(before.losses)).sum()),
        loss_deltas=after.losses - before.losses,
        predictions=tuple(
            _prediction(model, place, old, new, float(moved))
            for place, old, new, moved in zip(
                places, before.log_probabilities, after.log_probabilities, kl, strict=True
            )
        ),
        alone=tuple(alone),
        index_base=choice.index_base,
        maps=both,
    )


def with_weights(record: AttentionRecord, weights: Mapping[int, Floats]) -> AttentionRecord:
    """Return a record with other weights. weights: (head, query, key) of each layer."""
    layers = [
        replace(each, weights=weights[each.layer][list(each.heads)]) for each in record.layers
    ]
    return replace(record, layers=tuple(layers))


# The edge ------------------------------------------------------------------------------------


def _ends(record: AttentionRecord, edge: tuple[str, str]) -> tuple[Word, Word]:
    query, key = find_word(record, edge[0])[0], find_word(record, edge[1])[1]
    if query is None or key is None:
        missing, axis = (edge[0], "query") if query is None else (edge[1], "key")
        raise UsageError(f"--cut: {missing!r} is no {axis} of {record.kind} attention here")
    return query, key


def _edges(record: AttentionRecord, query: Word, key: Word) -> tuple[tuple[int, int], ...]:
    """Return the (query, key) positions between two words where the query sees the key.

    Raises UsageError if there are none, or if a query sees no other key.
    """
    names = [_quoted(record.queries, query), _quoted(record.keys, key)]
    edges = []
    for place in query.span:
        seen = range(place + 1) if record.causal else range(len(record.keys))
        cut = [other for other in key.span if other in seen]
        if cut and len(cut) == len(seen):
            raise UsageError(
                f"--cut: {names[0]} can attend to no other key than {names[1]}: nothing would be "
                "left, choose another edge"
            )
        edges += [(place, other) for other in cut]
    if not edges:
        raise UsageError(
            f"--cut: {names[0]} comes before {names[1]} and a causal query attends to "
            "no later key; write the later word first, or WORD:2 for a word's second place"
        )
    return tuple(edges)


def _quoted(tokens: Tokens, word: Word) -> str:
    first, last = word.span.start, word.span.stop - 1
    text = "".join(tokens.texts[first : last + 1]).strip()
    return f"{text!r} ({f'token {first}' if first == last else f'tokens {first}-{last}'})"


def _edge_weight(weights: Floats, query: Word, key: Word) -> np.floating:
    """Return a head's attention weight between two words: sum over keys, mean over queries.

    weights: (query, key) of one head.
    """
    total: np.floating = weights[np.ix_(query.span, key.span)].sum(-1).mean()
    return total


def _alone(heads: Sequence[tuple[int, int]]) -> list[tuple[tuple[int, int], ...]]:
    """Return the groups of heads in which the edge is cut alone.

    They are single heads, or whole layers if heads are many. heads: the (layer, head) of each.
    """
    if len(heads) <= MOST_ALONE:
        return [(head,) for head in heads]
    layers = sorted({layer for layer, _ in heads})
    return [tuple(head for head in heads if head[0] == layer) for layer in layers]


# What is predicted ---------------------------------------------------------------------------


def _places(given: Input, kind: Kind, query: Word, causal: bool) -> tuple[int, ...]:
    """Return the positions at which predictions with and without the cut are compared.

    They are the end of the query word, and the end of a causal text. given: the text. kind: of
    attention. query: the query word.
    causal: whether a query sees no later key.
    """
    read, last = given.predicted, query.span.stop - 1
    end = len(read) - 1
    if causal:
        return (end,) if kind == "encoder" else tuple(dict.fromkeys((last, end)))
    words = [place for place, special in enumerate(read.special) if not special] or [end]
    return (last if last in words else words[-1],)


def _prediction(
    model: Model, place: int, before: NDArray[np.float64], after: NDArray[np.float64], kl: float
) -> CutPrediction:
    texts = model.vocabulary().texts
    likely = likeliest(before, texts)
    kept = float(np.exp(after[likely[0].id]))
    return CutPrediction(place, likely, likeliest(after, texts), kept, kl)
