"""From the numbers of a record to the report: means, places with their base rates, tenths."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.values import json_number, model_of
from attnviz.forms import Form
from attnviz.inspect.atlas.records import HALF, AtlasReport, Fired, HeadAtlas, Preference, Side
from attnviz.inspect.atlas.scan import FARTHEST, FIRES, NAMES, distance_group
from attnviz.inspect.atlas.tally import BINS, distances, edges, input_of
from attnviz.inspect.head.report import Firing
from attnviz.measures.exact_sums import mean
from attnviz.mergeable import CorpusRecord, Tallies
from attnviz.reading import WHOLE, fits
from attnviz.records import Input, Kind, Tokens

_TENTHS = 10
_LEAST = 8
"""The fewest places from which something is said of a head, as for labels of one text."""

_DOUBT = 0.05
_SIDES: tuple[Side, Side] = ("query", "key")

Table = NDArray[np.float64]


_MARKS = list[Literal[0, 1]]
_TEXT = tuple[list[int], list[str], _MARKS]
_TEXTS = tuple[list[int], list[str], _MARKS, list[int], list[str], _MARKS]


def _check(arrays: Mapping[str, Table], texts: Mapping[int, Any], measured: int) -> None:
    """Raise ValueError for a text that is none, or an entry that is no place of its text."""
    if measured and arrays["sums.texts"][0] != measured:
        raise ValueError(f"it counts {arrays['sums.texts'][0]:,} texts, and not {measured:,}")
    if not all(fits(kept, _TEXT) or fits(kept, _TEXTS) for kept in texts.values()):
        raise ValueError("a text is not its ids, tokens and marks")
    given: dict[float, Input] = {index: input_of(kept) for index, kept in texts.items()}
    for name in arrays.keys() & {"best.places", "best.sample"}:
        rows = arrays[name].reshape(-1, 7)
        if np.isinf(rows).any() or (np.isnan(rows).any(-1) != np.isnan(rows).all(-1)).any():
            raise ValueError(f"{name} has numbers that are not finite")
        for _, text, query, key, *shares, _ in _there(rows):
            sizes = len(given[text].target or given[text].text), len(given[text].text)
            inside = 0 <= query < sizes[0] and 0 <= key < sizes[1]
            if not inside or not all(-1e-5 <= share <= 1 + 1e-5 for share in shares):
                raise ValueError(f"{name} has an entry that is no place of text {text:g}")


FORM = Form(
    {"kind": Kind, "top": WHOLE, "sample": WHOLE},
    lambda facts: (
        {"score": NAMES, "distance": len(FARTHEST), "bin": BINS}
        | {name: facts[name] for name in ("top", "sample")}
    ),
    {
        "2": "+texts",
        "head 2 | texts": "+most.heads",
        "score head": "measured compared",
        "score head | measured": "~scores",
        "score head | compared": "~chance",
        "score head bin | measured": "histogram",
        "head distance": "+links",
        "head distance | links": "~weight ~even",
        "head top 7 | texts": "*best.places",
        "head sample 7 | texts": "*best.sample",
    },
    _check,
)
"""What the record of a shard may hold; see ``tally.tallies``."""


def report_of(record: CorpusRecord) -> AtlasReport:
    """Return the report of a record, which needs neither the model nor the texts."""
    tallies, shown = record.tallies, record.shown
    texts = {index: input_of(kept) for index, kept in tallies.texts.items()}
    sample = {int(row[1]) for rows in tallies.best.get("sample", ()) for row in _there(rows)}
    kind: Kind = record.run["kind"]
    places = tallies.most.get("heads", np.zeros((0, 2)))  # none in a shard without texts
    heads = _Heads(tallies, texts, kind, sample) if len(places) else None
    read, tokens = tallies.sums.get("texts", np.zeros(2, np.int64)).tolist()
    return AtlasReport(
        model=model_of(shown["model"]),
        kind=kind,
        texts=read,
        tokens=tokens,
        sampled=len(sample),
        heads=tuple(heads.head(at) for at in range(len(places)) if heads is not None),
        kept=texts,
        record=record,
        source=shown["source"],
        complete=not record.missing,
        index_base=shown["index_base"],
    )


class _Heads:
    """Makes the ``HeadAtlas`` of each head.

    texts: those that are kept, by their index. kind: of the attention. sample: the indices of those
    of which it is counted how often each token is among their queries and keys.
    """

    def __init__(
        self, tallies: Tallies, texts: Mapping[int, Input], kind: Kind, sample: Iterable[int]
    ) -> None:
        sums = tallies.sums
        self._tallies, self._texts, self._kind = tallies, texts, kind
        self._frequency: dict[Side, Counter[str]] = {
            # Links leave special tokens out, but for the queries of cross attention.
            "query": Counter(
                word for at in sample for word in _words(texts[at].queries(kind), kind == "cross")
            ),
            "key": Counter(word for at in sample for word in _words(texts[at].keys(kind))),
        }
        self._scores = mean(sums["scores"], sums["measured"])
        self._chance = mean(sums["chance"], sums["compared"])
        self._usual = mean(sums["weight"], sums["links"])
        self._even = mean(sums["even"], sums["links"])

    def head(self, at: int) -> HeadAtlas:
        """Return the ``HeadAtlas`` of the head with the index ``at``."""
        sums, best = self._tallies.sums, self._tallies.best
        measured = dict(zip(NAMES, sums["measured"][:, at].tolist(), strict=True))
        histogram = dict(zip(NAMES, map(tuple, sums["histogram"][:, at].tolist()), strict=True))
        fired = sum(histogram[FIRES][int(np.searchsorted(edges(FIRES), HALF)) :])
        sample = [self._fired(at, row) for row in _there(best["sample"][at])]
        sample.sort(key=lambda each: each.link.weight)
        tenths = np.array_split(np.arange(len(sample)), _TENTHS)
        layer, head = self._tallies.most["heads"][at].tolist()
        groups = len([*distances(self._kind)])
        return HeadAtlas(
            layer,
            head,
            scores=_by_name(self._scores[:, at]),
            base_rate=_by_name(self._chance[:, at]),
            texts=measured,
            histogram=histogram,
            share=fired / measured[FIRES] if measured[FIRES] else 0.0,
            fires=tuple(self._fired(at, row) for row in _there(best["places"][at])),
            tenths=tuple(tuple(sample[place] for place in tenth) for tenth in tenths),
            prefers=self._prefers([each.link for each in sample]),
            by_distance=tuple(map(json_number, self._usual[at, :groups].tolist())),
            even=tuple(map(json_number, self._even[at, :groups].tolist())),
        )

    def _fired(self, at: int, row: Sequence[float]) -> Fired:
        """Return a place of a head from an entry of the record; see ``tally``."""
        text, query, key = (int(each) for each in row[1:4])
        given, group = self._texts[text], int(distance_group(np.array(query - key), self._kind))
        queries, keys = given.queries(self._kind), given.keys(self._kind)
        link = Firing(text, queries, keys, query, key, row[4])
        return Fired(link, float(self._usual[at, group]), row[5])

    def _prefers(self, links: Sequence[Firing]) -> Preference | None:
        """Return the token that stands clearly more often at an end of links than among tokens.

        The chance that a random token is there so often is below Chernoff's bound, exp(−n·D) with D
        the divergence of the share from the base rate; it must be so small for all heads and all
        tokens at either end together.
        """
        found = list[Preference]()
        kinds = sum(len(counts) for counts in self._frequency.values())
        trials = kinds * len(self._tallies.most["heads"])
        for side in _SIDES:
            frequency = self._frequency[side]
            ends = Counter(_stripped(_end(each, side)) for each in links)
            for token, places in ends.items():
                base, share = frequency[token] / frequency.total(), places / len(links)
                if places < _LEAST or share <= base:
                    continue
                apart = share * math.log(share / base)
                apart += (1 - share) * math.log((1 - share) / (1 - base)) if share < 1 else 0.0
                if len(links) * apart > math.log(trials / _DOUBT):
                    found.append(Preference(side, token, places, share, base))
        return max(found, key=lambda each: each.share - each.base_rate, default=None)


def _there(rows: Table) -> list[list[float]]:
    """Return the entries of a head that are not NaN, which stands for a missing one."""
    found: list[list[float]] = rows[np.isfinite(rows[:, 0])].tolist()
    return found


def _end(link: Firing, side: Side) -> str:
    """Return the text of the token at one end of a link."""
    return link.queries.texts[link.query] if side == "query" else link.keys.texts[link.key]


def _words(tokens: Tokens, special: bool = False) -> Iterable[str]:
    """Yield the text of each token. special: True also yields those of special tokens."""
    pairs = zip(tokens.texts, tokens.special, strict=True)
    return (_stripped(text) for text, left_out in pairs if special or not left_out)


def _stripped(text: str) -> str:
    """Return a token without blanks around it, unless it has nothing else."""
    return text.strip() or text


def _by_name(values: Table) -> dict[str, Any]:
    return dict(zip(NAMES, map(json_number, values.tolist()), strict=True))
