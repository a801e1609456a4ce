"""The document of ``atlas``: which heads fire on what, each number next to its control."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from attnviz.draw import document as doc
from attnviz.draw.labels import cut, token_label
from attnviz.draw.numbers import counted, listed, percent, whole_percent
from attnviz.draw.page.data import Look, Page, PageCapture
from attnviz.draw.palette import STEPS
from attnviz.draw.provenance import fits_two_lines, model_words, named, share
from attnviz.inspect.atlas.report import (
    BINS,
    FIRES,
    HALF,
    AtlasReport,
    Fired,
    HeadAtlas,
    Preference,
    distances,
    edges,
)
from attnviz.inspect.head.report import Hurt, around, link_ends, link_words
from attnviz.inspect.heads.look import measures, page_capture
from attnviz.measures.registry import said_name
from attnviz.records import HeadsRecord

_NAMED, _DRAWN, _LISTED = 3, 4, 64
"""The most heads in the finding, with a histogram, and with tables of their own on a page."""

_SIDES = {"key": "to", "query": "from"}
_WIDE, _WIDEST, _FRAMES, _NEAR = 108, 160, 6, 4


def document(report: AtlasReport) -> doc.Document:
    """Return the document: the ranking of heads, their scores, and where each fires most."""
    info, sizes, shown = report.model, _sizes(report), report.ranking[:_LISTED]
    hints = [f"attnviz head {_name(report, head)}" for head in shown[:1]]
    parts, tables = list[doc.Part](), [table for head in shown for table in _places(report, head)]
    if shown:
        parts = [_ranking(report), _grid(report), _histograms(report), _by_distance(report, shown)]
    return doc.Document(
        f"atlas of {info.name}",
        f"What the heads of {info.name} fire on",
        [
            doc.Group([doc.Facts([*model_words(info), *sizes])]),
            doc.Group([doc.Note(note) for note in (*info.notes, *report.notes)]),
            *(doc.Group([part]) for part in parts),
            *([doc.Group(tables, full=True)] if shown else []),
        ],
        doc.Explanation("atlas", f"measured on {' and '.join(word for word, _ in sizes[-2:])}."),
        doc.next_steps(["--out DIR: save as web pages", *hints, "--explain"]),
        heading=[*named(info), *sizes],
        finding=finding(report),
        first=partial(_first, report),
        page=partial(_page, report) if report.maps else None,
    )


def _sizes(report: AtlasReport) -> doc.Words:
    texts = "" if report.source.endswith("built-in texts") else counted(report.texts, "text")
    kind = "" if report.kind in ("self", "encoder") else f"{report.kind} attention"
    words = (kind, report.source, texts, counted(report.tokens, "token"))
    return [(word, False) for word in words if word]


def _name(report: AtlasReport, head: HeadAtlas) -> str:
    return report.head_name((head.layer, head.head))


def finding(report: AtlasReport) -> str:
    """Return the finding: which heads fire on which token, and its share of all tokens."""
    lead = "" if report.complete else f"Incomplete: {counted(report.texts, 'text')}. "
    if report.model.weights == "random":
        return f"{lead}Random weights: where these heads fire is an accident of their seed."
    firing = [(head, head.prefers) for head in report.ranking if head.prefers is not None]
    if not firing:
        return lead + _strongest(report)
    sentence, fire = "", "fires" if len(firing) == 1 else "fire"
    for most in range(_NAMED, 0, -1):
        words = list[str]()
        for head, known in firing[:most]:
            share, base = whole_percent(known.share), percent(known.base_rate, whole=True)
            texts, tokens = ("", "") if words else (" of texts", " of tokens")
            words.append(
                f"{_name(report, head)} {_quoted(known)} in {share}{texts} ({base}{tokens})"
            )
        sentence = (
            f"{lead}{len(firing)} of {counted(len(report.heads), 'head')} {fire} most on one "
            f"token, beyond chance: {listed(words)}."
        )
        if fits_two_lines(sentence):
            break
    return sentence


def _quoted(known: Preference) -> str:
    return f"{_SIDES[known.side]} “{cut(token_label(known.token), 12)}”"


def _strongest(report: AtlasReport) -> str:
    if not report.heads:
        return "This shard has no text."
    best = report.ranking[0]
    if (fired := best.strongest) is None:
        return "No text has two words: no head can fire."
    query, key = link_ends(fired.link)
    weight, base, even = map(share, (fired.link.weight, fired.usual, fired.even))
    return (
        "No head attends to any token significantly more than expected by chance. "
        f"{_name(report, best)} exceeds its control most: {weight} from “{query}” to “{key}” "
        f"(control {base}, uniform {even})."
    )


def _first(report: AtlasReport, columns: int, lines: int) -> Sequence[doc.Group]:
    """Return the first screen: the ranking, and the share of texts on which each head fires."""
    if not report.heads:
        return []
    table = _ranking(report, columns < _WIDE)._replace(title=(), least=3)
    grid = _grid(report)._replace(scale=None)
    if columns >= _WIDEST and len(report.heads) > 1:
        distances = _by_distance(report, report.ranking[:_LISTED])
        return [doc.beside([table, _histograms(report)], [grid, distances])]
    if columns >= _WIDE:
        heads = report.ranking[: max(min(lines, len(report.heads)) - len(grid.rows) - _FRAMES, 0)]
        near = [_by_distance(report, heads, _NEAR)] if heads else []
        return [doc.beside(table, [grid, *near])]
    return [doc.Group([table]), doc.Group([grid], yields=1)]


# Parts ---------------------------------------------------------------------------------------


def _ranking(report: AtlasReport, brief: bool = False) -> doc.Table:
    """Return the heads with what they prefer and their strongest place; fewer columns if brief."""
    preferring = any(head.prefers is not None for head in report.heads)

    def preferred(write: Callable[[Preference], str], absent: str = "") -> Callable[..., str]:
        return lambda head: absent if head.prefers is None else write(head.prefers)

    columns = [doc.ColumnOf[HeadAtlas]("head", partial(_name, report), right=False)]
    if preferring:
        columns += [
            doc.ColumnOf("fires", preferred(_quoted, "–"), right=False),
            doc.ColumnOf("texts", preferred(lambda known: whole_percent(known.share))),
            doc.ColumnOf("tokens", preferred(lambda known: percent(known.base_rate, whole=True))),
        ]
    if not brief:
        columns.append(
            doc.ColumnOf(f"≥{share(HALF)}", lambda head: whole_percent(head.share), keep=4)
        )
    columns += _place_columns(lambda head: head.strongest, "strongest", cuts=brief)
    if not (brief and preferring):
        columns.append(doc.ColumnOf("label (chance)", _pattern, right=False, keep=3))
    return doc.table(
        report.ranking,
        *columns,
        row=lambda head: {"tone": "faint" if preferring and head.prefers is None else "plain"},
        title=[("Ranking", True)],
    )


def _pattern(head: HeadAtlas) -> str:
    if (name := head.pattern) is None:
        return ""
    pair = (head.scores[name], head.base_rate[name])
    score, chance = (share(value if value is not None else math.nan) for value in pair)
    return f"{said_name(name)} {score} ({chance})"


def _place_columns(
    fired_of: Callable[[Any], Fired | None], title: str, cuts: bool = False
) -> list[doc.ColumnOf[Any]]:
    """Return the columns of a link, its weight, its control and that of uniform attention."""

    def of_link(write: Callable[[Fired], str]) -> Callable[[Any], str]:
        return lambda entry: "" if (fired := fired_of(entry)) is None else write(fired)

    return [
        doc.ColumnOf(title, of_link(lambda fired: link_words(fired.link)), right=False, cuts=cuts),
        doc.ColumnOf("weight", of_link(lambda fired: share(fired.link.weight))),
        doc.ColumnOf("control", of_link(lambda fired: share(fired.usual))),
        doc.ColumnOf("uniform", of_link(lambda fired: share(fired.even)), keep=5),
    ]


def _grid(report: AtlasReport) -> doc.HeadGrid:
    """Return a grid of all heads: the share of texts on which each fires."""

    def cell(head: HeadAtlas) -> doc.Cell:
        values = {name: value for name, value in head.scores.items() if value is not None}
        return doc.Cell(
            head.share,
            doc.Tint(round(head.share * (STEPS - 1))),
            whole_percent(head.share),
            tip=f"{_name(report, head)}: fires on {whole_percent(head.share)} of texts",
            values={"share of texts": head.share, **values},
            label="" if head.prefers is None else _quoted(head.prefers),
        )

    return doc.head_grid(
        {(head.layer, head.head): cell(head) for head in report.heads},
        report.index_base,
        title=[(f"Share of texts with an attention weight of at least {share(HALF)}", True)],
        scale=doc.Scale([(at / 4, whole_percent(at / 4)) for at in range(5)], "share of texts"),
    )


def _histograms(report: AtlasReport) -> doc.Plot:
    """Return the distributions of the strongest weights of some heads over the texts."""
    drawn = []
    for head in report.ranking[:_DRAWN]:
        shares = [count / max(head.texts[FIRES], 1) for count in head.histogram[FIRES]]
        histogram = doc.Histogram(
            _name(report, head),
            shares,
            [edge + 1e-9 for edge in edges(FIRES).tolist()],
            max(*shares, 1e-9),
            doc.Tint(STEPS - 1),
            words="" if head.median is None else f"median {share(head.median)}",
            ticks=[(0.0, "0"), (BINS / 2, ".5"), (BINS - 1.0, "1")],
        )
        drawn.append(histogram)
    title = [("Strongest link in each text", True), ("share of texts by its weight", False)]
    return doc.Plot(title, histograms=drawn)


def _by_distance(
    report: AtlasReport, heads: Sequence[HeadAtlas], most: int | None = None
) -> doc.Table:
    """Return the mean weight at the nearest ``most`` distances, and that of uniform attention."""

    def cell(at: int) -> Callable[[tuple[str, Sequence[float | None]]], str]:
        return lambda row: "" if (weight := row[1][at]) is None else share(weight)

    names = [*distances(report.kind)]
    filled = [at for at in range(len(names)) if any(head.even[at] is not None for head in heads)]
    filled = filled[:most]
    title: doc.Words = [("Mean weight", True), ("of a link, no sink", False)]
    if len(names) > 1:
        title = [("Mean weight by distance", True), ("token distance, no sink", False)]
    rows: list[tuple[str, Sequence[float | None]]] = [("uniform", heads[0].even)]
    rows += [(_name(report, head), head.by_distance) for head in heads]
    return doc.table(
        rows,
        doc.ColumnOf("head", lambda row: row[0], right=False),
        *(doc.ColumnOf(names[at], cell(at)) for at in filled),
        row=lambda row: {"tone": "faint" if row[0] == "uniform" else "plain"},
        title=title,
    )


def _places(report: AtlasReport, head: HeadAtlas) -> list[doc.Table]:
    """Return two tables of a head: where it fires most, and a link of each tenth of the texts."""

    def context(fired: Fired) -> str:
        return around(Hurt(fired.link.text, fired.link.queries, fired.link.query, 0.0))

    name = _name(report, head)
    tenths = [(n, t[len(t) // 2]) for n, t in enumerate(head.tenths, 1) if t]
    return [
        doc.table(
            head.fires,
            *_place_columns(lambda fired: fired, "link"),
            doc.ColumnOf("text", context, right=False, cuts=True),
            title=[(f"{name} fires most", True), ("each kind of place once", False)],
        ),
        doc.table(
            reversed(tenths),
            doc.ColumnOf("tenth", lambda tenth: f"{tenth[0]}", right=False),
            *_place_columns(lambda tenth: tenth[1], "link"),
            doc.ColumnOf("text", lambda tenth: context(tenth[1]), right=False, cuts=True),
            title=[(f"{name} by tenths of the sampled texts", True)],
        ),
    ]


_SHARE = "share"
_SAID = {FIRES: "strongest link, mean over texts", _SHARE: "share of texts that fire"}
_LOOK = 2  # the most places of one text that are offered for a look


def _page(report: AtlasReport) -> Page:
    """Return the page of all heads over the texts of which the report has maps."""
    captures, look = list[PageCapture](), list[Look]()
    for text, maps in report.maps.items():
        capture, cells = _capture(report, text, maps)
        look += [cell._replace(capture=len(captures)) for cell in cells]
        captures.append(capture)
    known = measures(captures[0].heads) if captures else []
    known = [measure._replace(title=_SAID.get(measure.key, measure.title)) for measure in known]
    return Page(report.model.name, captures, known, look)


def _capture(report: AtlasReport, text: int, maps: HeadsRecord) -> tuple[PageCapture, list[Look]]:
    """Return the maps of a text, and the cells worth a look; the heads of these come first."""
    capture = page_capture(maps, f"text {text}")
    index = {(head.layer, head.head): at for at, head in enumerate(capture.heads)}
    look, heads = list[Look](), list(capture.heads)
    for head in report.ranking:
        at, fired = index[head.layer, head.head], head.strongest
        values = {**heads[at].values, FIRES: head.scores[FIRES], _SHARE: head.share}
        heads[at] = replace(heads[at], values=values)
        if fired is not None:
            link = fired.link
            words = f"{link_words(link)} {share(link.weight)}, control {share(fired.usual)}"
            heads[at] = replace(heads[at], facts=f"fires most {words} · {heads[at].facts}")
            if link.text == text:
                look.append(Look(0, at, link.query, link.key, words))
    order = [*dict.fromkeys([*(cell.head for cell in look), *capture.order])]
    query = look[0].query if look else capture.query
    shown = replace(capture, heads=heads, order=order, head=order[0], query=query)
    return shown, look[:_LOOK]
