"""The data of the interactive page, ``attnviz.page/1``: small JSON, and blocks of packed numbers.

A block is base64 of a zlib stream in a script element of its own, which no browser runs. Weights
are kept as √w, where the eye compares them: one byte each, and a second one for exact numbers. The
page writes "≈" where a head has only the first.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.labels import running_pieces, token_label, token_labels, token_name, visible
from attnviz.draw.maps import pool, pool_signed, signed_limit
from attnviz.draw.palette import DEFAULT, DIVERGING, anchors_of, full_weight, to_hex, written_on
from attnviz.records import REST, SINKS, Floats, HeadLabel, Tokens

SCHEMA = "attnviz.page/1"

FINE = 2_000_000
"""The most weights of a page that all have two bytes; of a larger page only the chosen heads do."""

LARGEST = 19_000_000
"""The most bytes of a page's blocks, as they are written; words and tables have the rest of 20 MB.
"""

_BASE64 = 4 / 3

MISSING = 65535
"""Stands for a weight that is not there (NaN); √w is a share of the number below."""

_GROUNDS = ((245, 246, 248), (22, 27, 34))  # --panel of page.css, light and dark
_TRIED = 16  # heads from which the size of all is reckoned
_AXIS = 1024  # the most tokens on an axis whose maps are kept whole where even one is too large


class PageMeasure(NamedTuple):
    """A number of every head, by which heads can be sorted. unit: such as ``nats``, or empty.

    signed: whether a sign is written even for numbers above zero.
    """

    key: str
    title: str
    unit: str = ""
    signed: bool = False


class PageLabel(NamedTuple):
    """A label of heads, in full (``title``) and short. means: what such a head does.

    source: where it comes from, ``none`` for a description. colour: as RRGGBB; empty for grey.
    """

    title: str
    short: str
    source: str
    means: str
    colour: str


def page_label(label: HeadLabel, means: str, colour: str) -> PageLabel:
    """Return a label as a page shows it; only a finding that is no attention sink has a colour."""
    coloured = label.is_finding and label.name not in SINKS
    return PageLabel(label.said, label.short, label.source, means, colour if coloured else "")


UNLABELLED = PageLabel("", "", "none", "", "")


@dataclass(frozen=True)
class PageHead:
    """One head as a page shows it.

    name: such as ``L1H2``. label, score: its label, and its score for that label.
    facts: further words. values: a number for each measure, None if it was not measured.
    """

    layer: int
    head: int
    name: str
    label: PageLabel = UNLABELLED
    score: float = math.nan
    facts: str = ""
    values: Mapping[str, float | None] = field(default_factory=dict)


class PageStep(NamedTuple):
    """A token that a model wrote. query: the index of the one that predicted it. likely: the
    likeliest tokens as (token, probability), the largest first.
    """

    query: int
    wrote: str
    probability: float
    likely: Sequence[tuple[str, float]] = ()


class QueryKey(NamedTuple):
    """The queries and keys of all heads, (head, token, d), and the factor of their product."""

    queries: Floats
    keys: Floats
    factor: float


@dataclass(frozen=True)
class PageCapture:
    """The maps of one pass over one text.

    name: in the selector of texts, if there are several captures. weights: (query, key) of each
        head; NaN is not there. given: what the weights are, such as ``raw``.
    of_heads: whether the maps are those of heads, of which a layer, or all, have a mean.
    limit: 0 for weights; for values of either sign, the size with the full colour.
    queries, keys: the tokens, the same object for one text; where the layout of the keys has
        pictures, the page shows these. texts: the text of queries, of keys.
    sink: the indices of the keys that are the attention sink. order: the indices of the heads, the
        most distinctive first. fine: how many of these always have exact numbers.
    verbs: what a query does to a key, and a key of a query, in words. steps: the generated tokens.
    norms: (head, key), the norm of what each key's value writes. notes: why ``norms`` or
        ``query_key`` are missing. query, key, head: indices of those shown first; -1 for no key.
    """

    name: str
    kind: str
    causal: bool
    heads: Sequence[PageHead]
    weights: Sequence[Floats]
    queries: Tokens
    keys: Tokens
    texts: tuple[str, str]
    order: Sequence[int]
    given: str = "raw"
    of_heads: bool = True
    limit: float = 0.0
    fine: int = 8
    sink: Sequence[int] = ()
    verbs: tuple[str, str] = ("attends to", "is attended by")
    steps: Sequence[PageStep] = ()
    norms: Floats | None = None
    query_key: QueryKey | None = None
    notes: Sequence[str] = ()
    query: int = 0
    key: int = -1
    head: int = 0

    def link(self, query: int, key: int) -> str:
        """Return the tokens of a query and a key in words, such as ``it (8) → cat``."""
        ends = (self.queries, query), (self.keys, key)
        return " → ".join(token_name(token_labels(tokens), at) for tokens, at in ends)

    def of(self, chosen: Sequence[int]) -> PageCapture:
        """Return the capture with some of its heads only. chosen: the indices of these heads."""
        rank, pair = {head: at for at, head in enumerate(chosen)}, self.query_key
        return replace(
            self,
            heads=[self.heads[at] for at in chosen],
            weights=[self.weights[at] for at in chosen],
            order=[rank[at] for at in self.order if at in rank],
            norms=None if self.norms is None else self.norms[chosen],
            query_key=pair and QueryKey(pair.queries[chosen], pair.keys[chosen], pair.factor),
            head=rank.get(self.head, 0),
        )

    @property
    def cells(self) -> int:
        """Return how many weights each head has."""
        queries, keys = len(self.queries), len(self.keys)
        return queries * (queries + 1) // 2 if self.causal else queries * keys


MAPS_ALONE: dict[str, Any] = {
    **dict.fromkeys(("steps", "sink"), ()),
    **dict.fromkeys(("norms", "query_key")),
}
"""What belongs to the weights as they were measured, left out."""


class Look(NamedTuple):
    """A cell that the page recommends, by indices. says: the reason in words."""

    capture: int
    head: int
    query: int
    key: int
    says: str


@dataclass(frozen=True)
class Page:
    """Everything that an interactive page shows besides the words of its document.

    model: in the names of saved files. more: how to get what a page has to leave out.
    link: the view that is shown first, as in an address; empty for that of the first capture.
    """

    model: str
    captures: Sequence[PageCapture]
    measures: Sequence[PageMeasure] = ()
    look: Sequence[Look] = ()
    more: str = ""
    link: str = ""


Panes = Callable[[Tokens], list[dict[str, Any]]]


def page_data(
    page: Page, palette: str = DEFAULT, panes: Panes = lambda tokens: []
) -> tuple[str, Sequence[str], Sequence[PageCapture], Sequence[str]]:
    """Return the data of a page, without what would make it larger than ``LARGEST``.

    That is its facts as JSON, escaped for a script element; the compressed arrays that they name by
    index; the captures that are left; and notes on what is left out.
    palette: the name of the colours of weights, with their contrast. panes: returns the pictures of
    the keys as a page shows them.
    """
    fine = sum(len(capture.heads) * capture.cells for capture in page.captures) <= FINE
    room = LARGEST // len(page.captures)
    fitted = [_fitted(capture, fine, room) for capture in page.captures]
    notes = [f"{part.note}{page.more}" for part in fitted if part.note]
    kept = [{head: at for at, head in enumerate(part.places)} for part in fitted]
    labels, blocks = dict[PageLabel, int](), list[str]()
    data = {
        "schema": SCHEMA,
        "model": visible(page.model),
        "link": page.link,
        "ramps": {  # on a light ground, then on a dark one
            name: [[f"#{anchor}" for anchor in anchors_of(kind, paper)] for paper in (True, False)]
            for name, kind in (("map", palette), ("signed", DIVERGING))
        },
        "full": f"{full_weight(palette):.4g}".removeprefix("0"),
        "measures": [
            {"key": key, "said": title, "unit": unit, "signed": signed}
            for key, title, unit, signed in page.measures
        ],
        "look": [
            {**look._asdict(), "head": kept[look.capture][look.head], "says": visible(look.says)}
            for look in page.look
            if look.head in kept[look.capture]
        ],
        "captures": [
            {**_record(part, labels, blocks), "panes": panes(part.capture.keys)} for part in fitted
        ],
        "labels": [_label(label) for label in labels],
    }
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c")  # it cannot end the element that holds it
    return text, blocks, [part.capture for part in fitted], notes


# What fits -----------------------------------------------------------------------------------


class _Fitted(NamedTuple):
    """A capture as it fits on a page.

    places: where its heads stood in the whole one. exact: the heads that have second bytes.
    content: their weights, see ``_packed``. note: what was left out, if anything.
    """

    capture: PageCapture
    places: Sequence[int]
    exact: Sequence[int]
    content: bytes
    note: str = ""


def _fitted(capture: PageCapture, fine: bool, room: int) -> _Fitted:
    """Return the capture with as many heads as fit, and as many exact ones among them.

    fine: whether all heads are to be exact. If not even one head fits, its tokens are pooled, and
        cells show the largest weight.
    """
    count, order, note = len(capture.heads), capture.order, ""
    kept, exact = count, count if fine else min(capture.fine, count)
    pair, norms = capture.query_key, capture.norms
    vectors = 0 if pair is None else 2 * (pair.queries.size + pair.keys.size)
    beside = (vectors + (0 if norms is None else 4 * norms.size)) / count
    if (count * (capture.cells + beside) + exact * capture.cells) * _BASE64 > room:
        tried = order[:: max(1, count // _TRIED)]
        few = tried[:4]  # second bytes are noise: their size hardly differs
        first = (len(_packed(capture, tried, ())) / len(tried) + beside) * _BASE64
        without, both = (len(_packed(capture, few, some)) for some in ((), few))
        second = (both - without) / len(few) * _BASE64
        whole = count * first + exact * second
        kept = min(count, int((room - second) / first))
        if kept < 1:
            step = max(2, math.ceil(max(len(capture.queries), len(capture.keys)) / _AXIS))
            smaller = _fitted(_pooled(capture, step), fine, room)
            pooled = f"each cell is the largest weight of {step} × {step} tokens: more do not fit"
            return smaller._replace(note=f"{pooled}; {smaller.note}" if smaller.note else pooled)
        exact = min(exact, kept, int((room - kept * first) / second))
    while True:
        places = sorted(order[:kept])
        part = capture.of(places)
        content = _packed(part, range(kept), some := sorted(part.order[:exact]))
        if kept == 1 or (len(content) + beside * kept) * _BASE64 <= room:
            break
        kept, exact = (kept, exact - 1) if exact > 1 else (kept - 1, exact)
    if kept < count:
        note = (
            f"{count - kept:,} of {count:,} heads are left out, the least distinctive ones: the "
            f"page would have {whole / 1e6:,.0f} MB"
        )
    return _Fitted(part, places, some, content, note)


def _pooled(capture: PageCapture, step: int) -> PageCapture:
    """Return the capture with ``step`` tokens in one, each cell the largest weight among them."""
    together = pool_signed if capture.limit else pool

    def tokens(axis: Tokens) -> Tokens:
        firsts = range(0, len(axis), step)
        names = [f"{at}–{min(at + step, len(axis)) - 1}" for at in firsts]
        return Tokens(tuple(firsts), tuple(names), (False,) * len(names))

    keys = tokens(capture.keys)
    return replace(
        capture,
        weights=[together(weights, (step, step)) for weights in capture.weights],
        queries=keys if capture.keys is capture.queries else tokens(capture.queries),
        keys=keys,
        texts=("", ""),
        query=capture.query // step,
        key=capture.key // step,  # -1 stays
        **MAPS_ALONE,
    )


# Records -------------------------------------------------------------------------------------


def _added(blocks: list[str], content: bytes) -> int:
    """Append the base64 of ``content`` to ``blocks``, and return its index there."""
    blocks.append(base64.b64encode(content).decode("ascii"))
    return len(blocks) - 1


def _label(label: PageLabel) -> dict[str, Any]:
    """Return the JSON object of a label, with its text colours on the light and the dark page."""
    red, green, blue = bytes.fromhex(label.colour or "000000")
    colours = [to_hex(written_on((red, green, blue), ground)) for ground in _GROUNDS]
    return {
        "name": label.title if label.colour else f"{label.title} here",
        "said": visible(label.title),
        "short": visible(label.short),
        "source": label.source,
        "colours": colours if label.colour else None,
        "means": label.means,
    }


def _record(fitted: _Fitted, labels: dict[PageLabel, int], blocks: list[str]) -> dict[str, Any]:
    """Return the JSON object of a capture, and add what is new to the page's labels and blocks."""
    capture, heads = fitted.capture, fitted.capture.heads
    keys = {name: None for head in heads for name in head.values}
    same = ("kind", "causal", "given", "of_heads", "limit")
    record = {
        "name": visible(capture.name),
        **{name: getattr(capture, name) for name in same},
        "queries": _axis(capture.queries, capture.texts[0]),
        "sink": [int(at) for at in capture.sink],
        "verbs": capture.verbs,
        "notes": [visible(note) for note in capture.notes],
        "steps": [
            (
                step.query,
                *_entry(step.wrote, step.probability),
                [_entry(*token) for token in step.likely],
            )
            for step in capture.steps
        ],
        "view": {"head": capture.head, "query": capture.query, "key": capture.key},
        "heads": {
            "layer": [head.layer for head in heads],
            "head": [head.head for head in heads],
            "name": [visible(head.name) for head in heads],
            "label": [labels.setdefault(head.label, len(labels)) for head in heads],
            "score": [_number(head.score, 4) for head in heads],
            "facts": [visible(head.facts) for head in heads],
            "values": {key: [_number(head.values.get(key), 5) for head in heads] for key in keys},
        },
        "weights": {
            "block": _added(blocks, fitted.content),
            "fine": None if len(fitted.exact) == len(heads) else fitted.exact,
        },
    }
    if capture.keys is not capture.queries:
        record["keys"] = _axis(capture.keys, capture.texts[1])
    if capture.norms is not None:
        content = capture.norms.astype("<f4").tobytes()
        record["norms"] = _added(blocks, zlib.compress(content, 9))
    if capture.query_key is not None:
        (first, of_query), (second, of_key) = map(_shorts, capture.query_key[:2])
        record["query_key"] = {
            "block": _added(blocks, zlib.compress(first + second, 9)),
            "dimensions": capture.query_key.queries.shape[-1],
            "factor": capture.query_key.factor,
            "scale": np.stack([of_query, of_key], 1).round(6).tolist(),
        }
    return record


def _axis(tokens: Tokens, text: str) -> dict[str, Any]:
    layout, names = tokens.layout, ("grid", "row", "column")  # of patches
    patches = {} if layout is None else {name: getattr(layout, name).tolist() for name in names}
    return {
        **patches,
        "tokens": token_labels(tokens),
        "pieces": running_pieces(tokens, text),
        "special": [at for at, added in enumerate(tokens.special) if added],
        "regions": [
            ("" if name in REST else visible(name), at)
            for at, name in enumerate(tokens.regions)
            if not at or tokens.regions[at - 1] != name
        ],
    }


def _entry(token: str, probability: float) -> tuple[str, float | None]:
    return token_label(token), _number(probability, 4)


def _number(value: float | None, digits: int) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), digits)


# Numbers -------------------------------------------------------------------------------------


def _packed(capture: PageCapture, heads: Iterable[int], exact: Sequence[int]) -> bytes:
    """Return a zlib stream: the first byte of each weight of the heads, then those of ``exact``."""
    triangle = np.tri(len(capture.queries), dtype=bool) if capture.causal else None
    packer = zlib.compressobj(6, zlib.DEFLATED, 15, 9, zlib.Z_FILTERED)  # long runs, few repeats
    lows, parts = list[bytes](), list[bytes]()
    for at in heads:
        weights = capture.weights[at]
        seen = weights.ravel() if triangle is None else weights[triangle]
        numbers = whole_numbers(seen, capture.limit)
        if at in exact:
            parts.append(packer.compress((numbers >> 8).astype(np.uint8).tobytes()))
            lows.append((numbers & 255).astype(np.uint8).tobytes())
        else:
            coarse = np.where(numbers == MISSING, 255, np.rint(numbers / (MISSING - 1) * 254))
            parts.append(packer.compress(coarse.astype(np.uint8).tobytes()))
    parts += [packer.compress(low) for low in lows]
    return b"".join([*parts, packer.flush()])


def whole_numbers(values: Floats, limit: float = 0.0) -> NDArray[np.uint16]:
    """Return weights w as whole numbers √w · 65534; values of either sign as shares of ±limit."""
    wide = values.astype(np.float64)
    share = np.clip(wide / limit / 2 + 0.5, 0, 1) if limit else np.sqrt(np.clip(wide, 0, 1))
    share = np.nan_to_num(share, nan=MISSING / (MISSING - 1))
    return np.asarray(np.rint(share * (MISSING - 1)), np.uint16)


def _shorts(vectors: Floats) -> tuple[bytes, Floats]:
    """Return vectors (head, token, d) as 16-bit numbers, and the largest number of each head."""
    scale = np.maximum(np.abs(vectors).max(axis=(1, 2)), 1e-12)
    return np.rint(vectors / scale[:, None, None] * 32767).astype("<i2").tobytes(), scale


LARGEST_CHANGE = PageMeasure("largest_change", "largest change")
"""What orders the heads of a difference: the largest change of an attention weight, in [0, 1]."""

_LOOK = 4


def largest_changes(captures: Sequence[PageCapture]) -> Iterator[Look]:
    """Yield the largest change of each head that differs most, in a third capture, if any."""
    for capture in captures[2:]:
        sizes = [float(np.nanmax(np.abs(map_), initial=0.0)) for map_ in capture.weights]
        order = sorted(range(len(sizes)), key=lambda at: -sizes[at])
        for head in [head for head in order[:_LOOK] if sizes[head]]:
            weights = np.nan_to_num(capture.weights[head])
            query, key = map(int, np.unravel_index(np.abs(weights).argmax(), weights.shape))
            change = f"{weights[query, key]:+.2f}".replace("-", "−").replace("0.", ".", 1)
            yield Look(2, head, query, key, f"{capture.link(query, key)} {change}")


def with_difference(a: PageCapture, b: PageCapture, name: str) -> Iterator[PageCapture]:
    """Yield two captures and, if their maps have equal shapes, the difference B − A under a name.

    Only heads that both have are in the difference, without the scores of A; colours are full at
    its largest value.
    """
    yield from (a, b)
    known = {head.name: at for at, head in enumerate(b.heads)}
    shared = [(at, known[head.name]) for at, head in enumerate(a.heads) if head.name in known]
    sizes = {(len(capture.queries), len(capture.keys), capture.causal) for capture in (a, b)}
    if not shared or len(sizes) > 1:
        return
    kept = replace(a, notes=(), **MAPS_ALONE).of([first for first, _ in shared])
    weights = [b.weights[second] - a.weights[first] for first, second in shared]
    changes = [float(np.nanmax(np.abs(map_), initial=0.0)) for map_ in weights]
    heads = [
        replace(head, facts="", values={LARGEST_CHANGE.key: change})
        for head, change in zip(kept.heads, changes, strict=True)
    ]
    limit = signed_limit(np.array(changes))
    verbs = "attends differently to", "is attended to differently by"
    kept = replace(kept, name=name, heads=heads, weights=weights, given="difference", limit=limit)
    yield replace(kept, verbs=verbs)
