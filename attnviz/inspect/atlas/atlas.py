"""From a corpus to a report: what adds up over its texts, and what that says of each head.

The record of a corpus has sums over texts, and of each head the places where it fires most and a
random sample of its strongest links; see ``attnviz.mergeable``.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.corpus import Shard, TextBlock, TextCorpus
from attnviz.draw.values import json_values, model_facts, model_of
from attnviz.engine.probing import Probing, open_probing
from attnviz.errors import UsageError
from attnviz.inspect.atlas.report import (
    BINS,
    FARTHEST,
    FIRES,
    HALF,
    NAMES,
    AtlasReport,
    Fired,
    HeadAtlas,
    Preference,
    Side,
    distances,
    edges,
)
from attnviz.inspect.atlas.request import AtlasRequest
from attnviz.inspect.head.report import Firing
from attnviz.inspect.heads.links import between_words, linking
from attnviz.inspect.patterns.measure import Beside, measure
from attnviz.inspect.patterns.probes import OWN, ProbeText
from attnviz.inspect.patterns.score import stacked
from attnviz.measures.exact_sums import exact_sum, known_exact, mean
from attnviz.measures.registry import OF_ONE_TEXT
from attnviz.measures.rows import Conditions, Weights
from attnviz.measures.sinks import even_weights, visible_keys
from attnviz.mergeable import CorpusRecord, Form, Tallies, best_of, recorded
from attnviz.models.model import Model, model_identity
from attnviz.models.work import CORPUS_WORK, Work
from attnviz.progress import UNWATCHED, Watch
from attnviz.reading import WHOLE
from attnviz.records import AttentionRecord, Bools, Input, Kind, Tokens
from attnviz.texts import empty_note, encode_texts

Table = NDArray[np.float64]


class TextFound(NamedTuple):
    """The measurements of all heads over one text.

    queries, keys: its tokens; they differ for cross attention only. heads: (layer, head), in the
        order of the arrays' head axis.
    scores, chance: (score, head), in the order of ``NAMES``; NaN if the text cannot show it. chance
        is the score of uniform attention, or of the head over shuffled tokens for measures that ask
        if tokens are equal; for ``fires`` it is the weight of uniform attention at that link.
    places: (head, 2), the query and the key of the strongest link; -1 without one.
    weight, even: (head, distance), the summed weight of a head's links at each distance, and that
        of uniform attention. links: (head, distance), the number of links.
    """

    queries: Tokens
    keys: Tokens
    heads: tuple[tuple[int, int], ...]
    scores: Table
    chance: Table
    places: NDArray[np.int64]
    weight: Table
    even: Table
    links: NDArray[np.int64]


def distance_group(distance: NDArray[np.int64], kind: Kind) -> NDArray[np.int64]:
    """Return for each distance, which is not 0, the index of its group in ``FARTHEST``.

    In cross attention, between two texts, there is no distance: every index is 0.
    """
    if kind == "cross":
        return np.zeros_like(distance)
    distance = np.abs(distance)
    return np.minimum(np.searchsorted(FARTHEST, distance), len(FARTHEST) - 1)


def scan(probing: Probing, texts: Sequence[Input]) -> list[TextFound]:
    """Run the model over every text; return what each shows, in the order of ``texts``.

    Raises UsageError if whole matrices of a layer do not fit into memory, UnsupportedError if the
    attention cannot be observed.
    """
    kind = probing.kind
    attention = Conditions(kind, probing.causal, ranked=probing.ranked)
    probes = [ProbeText(OWN, text) for text in texts]

    def links_of(text: ProbeText) -> Beside:
        return _TextLinks(text.passage, attention, probing)

    scanned = list[TextFound]()
    results = measure(probing, probes, attention, None, beside=links_of)
    for text, result in zip(texts, results, strict=True):
        stack, links = stacked([result], OF_ONE_TEXT), dict(result.beside)
        scores = np.vstack([links.pop("fires"), stack.scores[0]])
        scores[:, [head in result.lost for head in result.places]] = np.nan
        chance = np.vstack([links.pop("fires_even"), stack.base[0]])
        queries, keys = text.queries(kind), text.keys(kind)
        scanned.append(TextFound(queries, keys, result.places, scores, chance, **links))
    return scanned


class _Links(NamedTuple):
    """The links that a text has under one mask, in the order of their queries and keys.

    cells: their places in a flat matrix. ends: (2, link), queries and keys. group: of the distance
    of each. even: the weight of uniform attention on each.
    """

    cells: NDArray[np.intp]
    ends: NDArray[np.intp]
    group: NDArray[np.int64]
    even: Table

    def by_distance(self, weights: Table | None = None) -> Table:
        """Return for each group of distances the sum of ``weights``, or the number of links."""
        return np.bincount(self.group, weights, len(FARTHEST)).astype(np.float64)


class _TextLinks:
    """Measures the links of heads over one text."""

    def __init__(self, text: Input, attention: Conditions, probing: Probing) -> None:
        queries, keys = text.queries(attention.kind), text.keys(attention.kind)
        info = probing.model.info
        self._whole = AttentionRecord(info, attention.kind, attention.causal, queries, keys, ())
        self._known: dict[bytes, _Links] = {}

    def __call__(self, weights: Weights, mask: Bools | None) -> dict[str, NDArray[Any]]:
        """Return the links of heads with the given attention weights (head, query, key).

        mask: boolean (query, key), which keys each query sees; None for the plain mask. Besides
            the arrays of ``TextFound``: ``fires``, the weight of the strongest link, and that of
            uniform attention there.
        """
        heads, links = len(weights), self._links(mask)
        lost = np.isnan(weights).any((-2, -1))
        strong = np.take(weights.reshape(heads, -1), links.cells, 1).astype(np.float64)
        strong[lost] = 0
        (fires, even), ends = np.full((2, heads), np.nan), np.full((heads, 2), -1)
        if len(links.cells):
            best = strong.argmax(-1)
            fires, even, ends = strong.max(-1), links.even[best], links.ends.T[best]
        ends[lost] = -1
        by_distance = {
            "weight": np.array([links.by_distance(row) for row in strong]),
            "even": np.tile(links.by_distance(links.even), (heads, 1)),
            "links": np.tile(links.by_distance().astype(np.int64), (heads, 1)),
        }
        for sums in by_distance.values():
            sums[lost] = 0
        return {"fires": fires, "fires_even": even, "places": ends, **by_distance}

    def _links(self, mask: Bools | None) -> _Links:
        key = b"" if mask is None else mask.tobytes()
        if key not in self._known:
            shape = len(self._whole.queries), len(self._whole.keys)
            seen = visible_keys(*shape, self._whole.causal) if mask is None else mask
            linked = linking(self._whole, sink=False) & between_words(self._whole) & seen
            cells = np.flatnonzero(linked)
            ends = np.stack(np.divmod(cells, shape[1]))
            group = distance_group(ends[0] - ends[1], self._whole.kind)
            even = even_weights(seen).reshape(-1)[cells]
            self._known[key] = _Links(cells, ends, group, even)
        return self._known[key]


SAMPLE = 200
"""The texts from which tenths are taken: those with the smallest hashes, a random sample."""

_BEFORE = 2  # the tokens before a query and before a key by which two places are told apart
_HASH = 6  # bytes: whole numbers that a float holds exactly
_TENTHS = 10
_LEAST = 8  # the fewest places from which something is said of a head, as for labels of one text
_DOUBT = 0.05


def work(corpus: TextCorpus, request: AtlasRequest) -> Work:
    """Return the planned work over a corpus, from which the loader chooses NumPy or torch."""
    return CORPUS_WORK


def atlas(
    model: Model,
    corpus: TextCorpus,
    request: AtlasRequest,
    shard: Shard,
    file: Path | None = None,
    advance: Watch = UNWATCHED,
) -> AtlasReport:
    """Measure at which tokens each head attends most, over one shard of a corpus's texts.

    The decoder of an encoder–decoder reads the text too, and for cross attention what the model
    itself writes.
    Raises UsageError for a text or option that does not fit, UnsupportedError if the attention of
    the model cannot be observed, KeyboardInterrupt after the record was written.
    """
    if request.out is not None and shard.of > 1:
        raise UsageError(
            "--out is of all texts: leave it or --shard out; in Python attnviz.merge(…).write "
            "makes the directory of all shards"
        )
    probing, truncate = open_probing(model, request.kind), request.truncate
    run = {"kind": probing.kind, "top": request.top, "sample": SAMPLE, "truncate": truncate}
    shown = {"source": corpus.source, "index_base": request.index_base}
    shown |= {"model": model_facts(model.info)}
    begun = CorpusRecord("atlas", model_identity(model) | run, shown, (), Tallies())

    def measured(block: TextBlock) -> Tallies:
        tokens = encode_texts(model, block.texts, truncate, 1)
        inputs = probing.inputs_of(block.texts.texts, tokens, truncate)
        return _tallies(probing, inputs, block.first, request.top)

    return report_of(recorded(corpus, shard, begun, measured, FORM, file=file, watch=advance))


# What adds up --------------------------------------------------------------------------------


def _tallies(probing: Probing, texts: Sequence[Input], first: int, top: int) -> Tallies:
    scanned = scan(probing, texts)
    scores = np.stack([text.scores for text in scanned])
    chance = np.stack([text.chance for text in scanned])
    best = {
        "places": best_of(_entries(scanned, first, ranked=True), top),
        "sample": best_of(_entries(scanned, first, ranked=False), SAMPLE),
    }
    named = {int(at) for rows in best.values() for at in rows[..., 1].ravel() if at >= 0}
    return Tallies(
        sums={
            "texts": np.array([len(scanned), sum(len(text.queries) for text in scanned)]),
            "measured": np.isfinite(scores).sum(0),
            "scores": known_exact(scores).sum(0),
            "compared": np.isfinite(chance).sum(0),
            "chance": known_exact(chance).sum(0),
            "histogram": _histogram(scores),
            "links": np.sum([text.links for text in scanned], 0),
            "weight": exact_sum([text.weight for text in scanned]),
            "even": exact_sum([text.even for text in scanned]),
        },
        most={"heads": np.array(scanned[0].heads)},
        best=best,
        texts={index: _kept(texts[index - first]) for index in named},
    )


def _histogram(scores: Table) -> NDArray[np.int64]:
    """Return the number of texts in each bin, (score, head, bin). scores: (text, score, head)."""
    counts = np.zeros((*scores.shape[1:], BINS), np.int64)
    for at, name in enumerate(NAMES):
        values = np.clip(np.searchsorted(edges(name), scores[:, at], "right") - 1, 0, BINS - 1)
        for number in range(BINS):
            counts[at, :, number] = ((values == number) & np.isfinite(scores[:, at])).sum(0)
    return counts


def _entries(scanned: Sequence[TextFound], first: int, *, ranked: bool) -> Table:
    """Return an entry (head, text, column) for the strongest link of each text.

    Its columns: rank, text, query, key, weight, even, what it is. ranked: True if the weight is the
    rank, and two links are the same if query, key and the tokens before them are; False for a
    random rank, by which each different text has its link.
    """
    columns = []
    for index, text in enumerate(scanned, first):
        weight, even = text.scores[0], text.chance[0]
        queries, keys = text.queries.ids, text.keys.ids
        drawn = _number(*((queries,) if queries == keys else (queries, keys)))
        rank = weight if ranked else np.full(len(weight), -drawn, np.float64)
        kinds = [drawn] * len(weight)
        if ranked:
            ends = text.places.tolist()
            kinds = [_number(_near(queries, query), _near(keys, key)) for query, key in ends]
        rows = np.column_stack(
            [rank, np.full(len(weight), index), *text.places.T, weight, even, kinds]
        )
        rows[np.isnan(weight)] = np.nan
        columns.append(rows)
    return np.stack(columns, 1)


def _near(ids: Sequence[int], token: int) -> Sequence[int]:
    return ids[max(token - _BEFORE, 0) : token + 1]


def _number(*ids: Sequence[int]) -> int:
    """Return a hash of token ids as a whole number."""
    content = repr([*map(tuple, ids)]).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=_HASH).digest(), "big")


def _kept(given: Input) -> list[list[object]]:
    """Return a text as JSON values, then the decoder's text if it has one; see ``_input_of``."""
    kept: list[list[object]] = []
    for tokens in (given.text, *(() if given.target is None else (given.target,))):
        kept += [*tokens.ids], [*tokens.texts], [*map(int, tokens.special)]
    return kept


def _input_of(kept: Sequence[Sequence[Any]]) -> Input:
    return Input(
        *(
            Tokens(tuple(ids), tuple(texts), tuple(map(bool, special)))
            for ids, texts, special in zip(kept[::3], kept[1::3], kept[2::3], strict=True)
        )
    )


_MARKS = list[Literal[0, 1]]
_TEXT = tuple[list[WHOLE], list[str], _MARKS]
_TEXTS = tuple[list[WHOLE], list[str], _MARKS, list[WHOLE], list[str], _MARKS]


FORM = Form(
    {"kind": Kind, "top": WHOLE, "sample": WHOLE},
    lambda facts: (
        {"pair": 2, "score": len(NAMES), "distance": len(FARTHEST), "bin": BINS, "column": 7}
        | {name: facts[name] for name in ("top", "sample")}
    ),
    {
        "pair": "texts",
        "head pair": "most.heads",
        "score head": "measured compared",
        "score head exact": "scores chance",
        "score head bin": "histogram",
        "head distance": "links",
        "head distance exact": "weight even",
        "head top column": "best.places",
        "head sample column": "best.sample",
    },
    _TEXT | _TEXTS,
)
"""What the record of a shard may hold; see ``_tallies``."""


# What it says --------------------------------------------------------------------------------


def report_of(record: CorpusRecord) -> AtlasReport:
    """Return the report made from a saved record; neither the model nor the texts are needed."""
    tallies, shown = record.tallies, record.shown
    texts = {index: _input_of(kept) for index, kept in tallies.texts.items()}
    sample = {int(row[1]) for rows in tallies.best.get("sample", ()) for row in _there(rows)}
    kind: Kind = record.run["kind"]
    read, tokens = tallies.sums.get("texts", np.zeros(2, np.int64)).tolist()
    return AtlasReport(
        model=model_of(shown["model"]),
        kind=kind,
        texts=read,
        tokens=tokens,
        sampled=len(sample),
        heads=tuple(_heads(tallies, texts, kind, sample)) if read else (),
        kept=texts,
        record=record,
        source=shown["source"],
        complete=not record.missing,
        notes=empty_note(shown.get("empty", 0)),
        index_base=shown["index_base"],
    )


def _heads(
    tallies: Tallies, texts: Mapping[int, Input], kind: Kind, sample: Iterable[int]
) -> Iterator[HeadAtlas]:
    sums, best = tallies.sums, tallies.best
    frequency: dict[Side, Counter[str]] = {
        # Links leave special tokens out, but for the queries of cross attention.
        "query": Counter(
            word for at in sample for word in _words(texts[at].queries(kind), kind == "cross")
        ),
        "key": Counter(word for at in sample for word in _words(texts[at].keys(kind))),
    }
    scores, chance = mean(sums["scores"], sums["measured"]), mean(sums["chance"], sums["compared"])
    groups = len([*distances(kind)])
    usual, even = (mean(sums[name], sums["links"])[:, :groups] for name in ("weight", "even"))
    heads = tallies.most["heads"].tolist()

    def fired(at: int, row: Sequence[float]) -> Fired:
        text, query, key = (int(number) for number in row[1:4])
        given, group = texts[text], int(distance_group(np.array(query - key), kind))
        link = Firing(text, given.queries(kind), given.keys(kind), query, key, row[4])
        return Fired(link, float(usual[at, group]), row[5])

    for at, (layer, head) in enumerate(heads):
        measured = dict(zip(NAMES, sums["measured"][:, at].tolist(), strict=True))
        histogram = dict(zip(NAMES, map(tuple, sums["histogram"][:, at].tolist()), strict=True))
        firing = sum(histogram[FIRES][int(np.searchsorted(edges(FIRES), HALF)) :])
        sampled = [fired(at, row) for row in _there(best["sample"][at])]
        sampled.sort(key=lambda shown: shown.link.weight)
        tenths = np.array_split(np.arange(len(sampled)), _TENTHS)
        yield HeadAtlas(
            layer,
            head,
            scores=dict(zip(NAMES, _numbers(scores[:, at]), strict=True)),
            base_rate=dict(zip(NAMES, _numbers(chance[:, at]), strict=True)),
            texts=measured,
            histogram=histogram,
            share=firing / measured[FIRES] if measured[FIRES] else 0.0,
            fires=tuple(fired(at, row) for row in _there(best["places"][at])),
            tenths=tuple(tuple(sampled[rank] for rank in tenth) for tenth in tenths),
            prefers=_prefers([shown.link for shown in sampled], frequency, len(heads)),
            by_distance=_numbers(usual[at]),
            even=_numbers(even[at]),
        )


def _prefers(
    links: Sequence[Firing], frequency: Mapping[Side, Counter[str]], heads: int
) -> Preference | None:
    """Return the token that stands clearly more often at an end of links than among tokens.

    The chance that a random token is there so often is below Chernoff's bound, exp(−n·D) with D
    the divergence of the share from the base rate; it must be so small for all heads and all
    tokens at either end together. frequency: how often each token is a query, and a key.
    """
    clear, trials = list[Preference](), heads * sum(map(len, frequency.values()))
    for side, known in frequency.items():
        at_end = (
            link.queries.texts[link.query] if side == "query" else link.keys.texts[link.key]
            for link in links
        )
        for token, count in Counter(map(_stripped, at_end)).items():
            base, share = known[token] / known.total(), count / len(links)
            if count < _LEAST or share <= base:
                continue
            apart = share * math.log(share / base)
            apart += (1 - share) * math.log((1 - share) / (1 - base)) if share < 1 else 0.0
            if len(links) * apart > math.log(trials / _DOUBT):
                clear.append(Preference(side, token, count, share, base))
    return max(clear, key=lambda token: token.share - token.base_rate, default=None)


def _there(rows: Table) -> list[list[float]]:
    """Return the entries of a head that are not NaN, which stands for a missing one."""
    there: list[list[float]] = rows[np.isfinite(rows[:, 0])].tolist()
    return there


def _words(tokens: Tokens, special: bool = False) -> Iterator[str]:
    """Yield the text of each token. special: True also yields those of special tokens."""
    pairs = zip(tokens.texts, tokens.special, strict=True)
    return (_stripped(text) for text, left_out in pairs if special or not left_out)


def _stripped(text: str) -> str:
    """Return a token without blanks around it, unless it has nothing else."""
    return text.strip() or text


def _numbers(values: Table) -> tuple[float | None, ...]:
    return tuple(json_values(values))
