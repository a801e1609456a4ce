"""Draws regions: as bands along the axes of a map, under a text, and their shares as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from rich.segment import Segment

from attnviz.draw import document as doc
from attnviz.draw.blocks import DIM, Line
from attnviz.draw.labels import cut, visible, width
from attnviz.draw.numbers import counted
from attnviz.draw.palette import Tint, series_tint
from attnviz.draw.provenance import share
from attnviz.draw.theme import Theme
from attnviz.records import REST, RegionShares, Tokens

HeadName = Callable[[tuple[int, int]], str]
"""Returns the name of a head (layer, head)."""

_LONGEST, _SHARE = 14, 11
"""The most columns of a region's name in a table, and those of a share next to uniform's."""

_USUAL = ("system", "user", "assistant", "written", "developer", "tool")
"""The regions that have the same colour in every part of a screen, by its number."""

_NAMES = "123456789"


class RegionMark(NamedTuple):
    """The sign of a region in drawings.

    letter: its character. tint: its colour; None for the rest of a text, which has no colour.
    """

    letter: str
    tint: Tint | None


def region_marks(regions: Sequence[str]) -> dict[str, RegionMark]:
    """Return each region's letter and colour, by its name. regions: the region of each token."""
    marks: dict[str, RegionMark] = {}
    for name in dict.fromkeys(regions):
        if name in REST:
            marks[name] = RegionMark(" ", None)
            continue
        used = {mark.letter for mark in marks.values()}
        free = (sign for sign in (*name, *_NAMES) if sign.isalnum() and width(sign) == 1)
        letter = next((sign for sign in free if sign not in used), "+")
        number = _USUAL.index(name) if name in _USUAL else len(used - {" "})
        marks[name] = RegionMark(letter, series_tint(number))
    return marks


def runs_of(regions: Sequence[str]) -> Iterator[tuple[str, range]]:
    """Yield each run of consecutive tokens of one region: its name and the token indices."""
    at = 0
    for name, same in groupby(regions):
        start, at = at, at + len([*same])
        yield name, range(start, at)


def band_line(
    cells: Sequence[tuple[str, int]], marks: Mapping[str, RegionMark], theme: Theme
) -> Line:
    """Return a line with the names of regions, each over or under its tokens.

    cells: for each token its region, and its width in characters. marks: by region.
    """
    line: Line = []
    for name, same in groupby(cells, key=itemgetter(0)):
        room = sum(columns for _, columns in same)
        tint = marks[name].tint
        style = DIM if tint is None else theme.ground(tint) if theme.colour else None
        start = "" if theme.colour and tint is not None else "|" if room > 1 else ""
        text = start + visible(name, theme.encoding)
        text = text if width(text) < room else (start + marks[name].letter)[:room]
        line.append(Segment(text + " " * (room - width(text)), style))
    return line


# Shares --------------------------------------------------------------------------------------


def clearest(regions: RegionShares) -> tuple[int, int, int]:
    """Return the indices of the head, query region and key region whose share is reported first.

    Preferred are two regions that a person named, in a head with a share clearly above uniform;
    then the last region of the text as the query, such as an answer; then the regions with the
    largest sum of shares that are clearly above uniform, or else with the largest difference to
    uniform.
    """
    over = np.nan_to_num(regions.share - regions.uniform, nan=-1.0)
    named = {name for name in (*regions.queries, *regions.keys) if name not in REST}
    pairs = [
        (row, column)
        for row, query in enumerate(regions.queries)
        for column, key in enumerate(regions.keys)
        if key in named and query != key and (query in named or len(named) < 2)
    ] or [(0, 0)]
    gained = np.where(regions.clear, over, 0)
    last = max(query for query, _ in pairs)

    def telling(pair: tuple[int, int]) -> tuple[float, ...]:
        sums = float(gained[:, *pair].sum())
        return sums > 0, pair[0] == last, sums, float(over[:, *pair].max())

    pair = max(pairs, key=telling)
    best = gained if gained[:, *pair].any() else over
    return int(best[:, *pair].argmax()), *pair


def region_table(regions: RegionShares) -> doc.Table:
    """Return a table of the mean attention between each two regions, next to uniform's."""
    values, even = regions.share.mean(0), regions.uniform.mean(0)
    rows = [
        doc.Row([cut(visible(name), _LONGEST), str(size), *map(_two_shares, values[at], even[at])])
        for at, (name, size) in enumerate(regions.queries.items())
    ]
    title = f"attention between regions, mean of {counted(len(regions.heads), 'head')} (uniform)"
    return doc.Table(_columns("from ↓ to →", regions, "tokens"), rows, [(title, True)], least=2)


def region_heads(regions: RegionShares, name: HeadName, most: int = 0) -> doc.Table:
    """Return a table of heads, with the share that each gives to every region from one region.

    The query region is the one that ``clearest`` finds, with a key region. Heads clearly above
    uniform between these two come first and stand out, the one furthest above first.
    name: returns the displayed name of a head. most: how many heads, 0 for all.
    """
    pair = clearest(regions)[1:]
    over = np.nan_to_num(regions.share - regions.uniform, nan=-1.0)[:, *pair]
    order = np.lexsort((-over, ~regions.clear[:, *pair])).tolist()[: most or len(over)]
    rows = []
    for at in order:
        shares = map(_two_shares, regions.share[at, pair[0]], regions.uniform[at, pair[0]])
        tone: doc.Tone = "plain" if regions.clear[at, *pair] else "faint"
        rows.append(doc.Row([name(regions.heads[at]), *shares], tone=tone))
    query = cut(visible([*regions.queries][pair[0]]), _LONGEST)
    title = [(f"from {query}, each head (uniform)", True)]
    return doc.Table(_columns("head", regions), rows, title, least=3)


def _columns(first: str, regions: RegionShares, *more: str) -> list[doc.Column]:
    names = (cut(visible(name), _LONGEST) for name in regions.keys)
    columns = [doc.Column(first, right=False), *map(doc.Column, more)]
    return [*columns, *(doc.Column(name, keep=9 - min(at, 8)) for at, name in enumerate(names))]


def _two_shares(value: float, even: float) -> str:
    return "–" if math.isnan(value) else f"{share(value)} ({share(even)})"


def region_group(
    regions: RegionShares, name: HeadName, max_width: int = 0, lines: int = 0
) -> doc.Group:
    """Return two tables: the attention shares between regions, and the shares of each head.

    name: returns the displayed name of a head. max_width, lines: the size of the terminal, on
        which heads are shown only if they fit beside; 0 shows everything.
    """
    mean = region_table(regions)
    heads = region_heads(regions, name, max(len(mean.rows), lines - 2) if lines else 0)
    if not max_width:
        return doc.Group([mean, heads], spaced=True)
    wide = _SHARE * (len(regions.keys) + 2)
    if len(regions.heads) == 1 or 2 * wide > max_width:
        return doc.Group([mean])
    return doc.Group([mean, heads], beside=doc.Beside(max(wide, max_width // 2 - 1), 2, 2))


def region_finding(regions: RegionShares, name: HeadName) -> str:
    """Return the finding: which region attends to which more than uniform, and in which heads."""
    at = clearest(regions)
    head, query, key = at
    asking, asked = [*regions.queries][query], [*regions.keys][key]
    from_name, to_name = (cut(visible(region), _LONGEST) for region in (asking, asked))
    ends = f"Region “{from_name}” attends to region “{to_name}”"
    sink = regions.on_sink[at]
    rest = f", {share(sink)} of it on the sink" if sink >= 0.05 else ""
    best = f"{name(regions.heads[head])} {share(regions.share[at])}{rest}"
    even, mean = share(regions.uniform[at]), share(float(regions.share[:, query, key].mean()))
    clear, heads = int(regions.clear[:, query, key].sum()), len(regions.heads)
    if clear and heads == 1:
        return f"{ends} more than uniform attention: {best} (uniform {even})."
    if clear:
        most = ", most in " if clear > 1 else ": "
        return (
            f"{ends} more than uniform attention in {clear} of {heads} heads{most}{best} "
            f"(uniform {even}); mean of all {mean}."
        )
    if (few := regions.queries[asking]) < regions.least_queries:
        why = f"“{from_name}” has {counted(few, 'token')}: too few to tell from chance."
    else:
        why = f"{'In no head' if heads > 1 else 'Not'} clearly more than uniform attention."
    most = f"most in {best} (uniform {even}); mean of all {mean}"
    return f"{ends} {most if heads > 1 else f'in {best} (uniform {even})'}. {why}"


# For programs --------------------------------------------------------------------------------


def region_facts(tokens: Tokens) -> list[dict[str, Any]]:
    """Return each region of a text as JSON values: its name and the ranges of its tokens."""
    ranges: dict[str, list[list[int]]] = {}
    for name, places in runs_of(tokens.regions):
        ranges.setdefault(name, []).append([places.start, places.stop])
    return [{"name": name, "ranges": of_name} for name, of_name in ranges.items()]


def read_regions(facts: Sequence[Mapping[str, Any]], tokens: int) -> tuple[str, ...]:
    """Return the name of the region of each token, as ``region_facts`` wrote them.

    tokens: how many there are. Raises ValueError if a token is in no region or in several.
    """
    names: dict[int, str] = {}
    for region in facts:
        for start, end in region["ranges"]:
            if not 0 <= start < end <= tokens:
                raise ValueError(f"a region from {start} to {end} of {tokens} tokens")
            names.update(dict.fromkeys(range(start, end), str(region["name"])))
    if facts and sorted(names) != [*range(tokens)]:
        raise ValueError("regions that are not those of the tokens")
    return tuple(names[at] for at in range(len(names)))


def share_facts(regions: RegionShares, head: tuple[int, int]) -> dict[str, Any]:
    """Return the shares of one head (layer, head) as JSON values."""
    at = regions.heads.index(head)
    names = ("share", "uniform", "on_sink", "above", "clear")
    arrays = {name: getattr(regions, name)[at] for name in names}
    return {"queries": [*regions.queries], "keys": [*regions.keys], **arrays}
