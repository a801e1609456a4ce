"""The document of ``atlas``: which heads fire on what, each number next to its base rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from attnviz.draw import document as doc
from attnviz.draw.labels import cut, token_label
from attnviz.draw.numbers import counted, listed, percent, whole_percent
from attnviz.draw.palette import STEPS
from attnviz.draw.provenance import fits_two_lines, model_words, named, share
from attnviz.inspect.atlas.page import atlas_page
from attnviz.inspect.atlas.records import HALF, AtlasReport, Fired, HeadAtlas, Preference
from attnviz.inspect.atlas.scan import FIRES, NAMES
from attnviz.inspect.atlas.tally import BINS, distances, edges
from attnviz.inspect.head.report import Hurt, around, link_ends, link_words
from attnviz.measures.registry import said_name

_NAMED, _DRAWN, _LISTED = 3, 4, 64
"""The most heads in the finding, with a histogram, and with tables of their own on a page."""

_SCORED = 4096
"""The most heads in the table of scores."""

_SIDES = {"key": "to", "query": "from"}
_WIDE = 100


def atlas_document(report: AtlasReport) -> doc.Document:
    """Return the document: the ranking of heads, their scores, and where each fires most."""
    info, sizes = report.model, _sizes(report)
    page = partial(atlas_page, report) if report.maps else None
    return doc.Document(
        f"atlas of {info.name}",
        f"What the heads of {info.name} fire on",
        [
            doc.Group([doc.Facts([*model_words(info), *sizes])]),
            doc.Group([doc.Note(note) for note in (*info.notes, *report.notes)]),
            *(_groups(report) if report.heads else ()),
        ],
        doc.Explanation("atlas", f"measured on {' and '.join(word for word, _ in sizes[-2:])}."),
        doc.next_steps(_hints(report)),
        heading=[*named(info), *sizes],
        finding=finding(report),
        first=partial(_first, report),
        page=page,
    )


def _groups(report: AtlasReport) -> list[doc.Group]:
    shown = report.ranking[:_LISTED]
    return [
        doc.Group([_ranking(report)]),
        doc.Group([_grid(report)]),
        doc.Group([_histograms(report)]),
        doc.Group([_by_distance(report, shown)]),
        doc.Group([_scores(report)], full=True),
        doc.Group([each for one in shown for each in _places(report, one)], full=True),
    ]


def _sizes(report: AtlasReport) -> doc.Words:
    texts = "" if report.source.endswith("built-in texts") else counted(report.texts, "text")
    kind = "" if report.kind in ("self", "encoder") else f"{report.kind} attention"
    words = (kind, report.source, texts, counted(report.tokens, "token"))
    return [(word, False) for word in words if word]


def _hints(report: AtlasReport) -> list[str]:
    hints = ["--out DIR the page"]
    hints += [f"attnviz head {_name(report, one)}" for one in report.ranking[:1]]
    return [*hints, "--explain"]


def finding(report: AtlasReport) -> str:
    """Return the finding: which heads fire on which token, and its share of all tokens."""
    lead = "" if report.complete else f"Incomplete: {counted(report.texts, 'text')}. "
    if report.model.weights == "random":
        return f"{lead}Random weights: where these heads fire is an accident of their seed."
    found = [(one, one.prefers) for one in report.ranking if one.prefers is not None]
    if not found:
        return lead + _strongest(report)
    said = ""
    for most in range(_NAMED, 0, -1):
        words = [
            f"{_name(report, one)} {_preferred(known, not at)}"
            for at, (one, known) in enumerate(found[:most])
        ]
        fire = "fires" if len(found) == 1 else "fire"
        said = (
            f"{lead}{len(found)} of {counted(len(report.heads), 'head')} {fire} most on one token, "
            f"beyond chance: {listed(words)}."
        )
        if fits_two_lines(said):
            break
    return said


def _preferred(known: Preference, whole: bool) -> str:
    token, base = _quoted(known), percent(known.base_rate, whole=True)
    texts, tokens = (" of texts", " of tokens") if whole else ("", "")
    return f"{token} in {whole_percent(known.share)}{texts} ({base}{tokens})"


def _quoted(known: Preference) -> str:
    return f"{_SIDES[known.side]} “{cut(token_label(known.token), 12)}”"


def _strongest(report: AtlasReport) -> str:
    if not report.heads:
        return "This shard has no text."
    best = report.ranking[0]
    place = best.strongest
    if place is None:
        return "No text has two words: no head can fire."
    query, key = link_ends(place.link)
    weight, usual, even = _numbers(place)
    return (
        f"No head prefers a token beyond chance. {_name(report, best)} fires most above its usual "
        f"weight: “{query}” attends to “{key}”, {weight} (usual {usual}, even {even})."
    )


def _name(report: AtlasReport, one: HeadAtlas) -> str:
    return report.head_name((one.layer, one.head))


# Parts ---------------------------------------------------------------------------------------


def _first(report: AtlasReport, columns: int, lines: int) -> Sequence[doc.Group]:
    """Return the first screen: the ranking, and the share of texts on which each head fires."""
    if not report.heads:
        return []
    table = _ranking(report, columns < _WIDE)._replace(title=(), least=3)
    grid = _grid(report)._replace(scale=None)
    if columns >= _WIDE + len(grid.columns) * 7 + 6:
        return [doc.Group([table, grid], beside=doc.Beside(_WIDE, yields=True))]
    return [doc.Group([table]), doc.Group([grid], yields=1)]


def _ranking(report: AtlasReport, brief: bool = False) -> doc.Table:
    """Return the heads, each with the token that it prefers and its strongest place.

    brief: True leaves out the share of texts, which the grid has, and the pattern of heads that
        prefer a token.
    """
    preferring = any(one.prefers is not None for one in report.heads)
    rows = []
    for one in report.ranking:
        known, cells = one.prefers, [_name(report, one)]
        if known is not None:
            shares = whole_percent(known.share), percent(known.base_rate, whole=True)
            cells += [_quoted(known), *shares]
        elif preferring:
            cells += ["–", "", ""]
        cells += [] if brief else [whole_percent(one.share)]
        place = one.strongest
        cells += ["", "", "", ""] if place is None else [link_words(place.link), *_numbers(place)]
        cells += [] if brief and preferring else [_pattern(one)]
        faint = preferring and known is None
        rows.append(doc.Row(cells, tone="faint" if faint else "plain"))
    columns = [doc.Column("head", right=False)]
    if preferring:
        columns += [doc.Column("fires", right=False), doc.Column("texts"), doc.Column("tokens")]
    columns += [] if brief else [doc.Column(f"≥{share(HALF)}", keep=4)]
    columns += [doc.Column("strongest", right=False, cuts=brief), *_PLACE]
    pattern = doc.Column("pattern (chance)", right=False, keep=3)
    columns += [] if brief and preferring else [pattern]
    return doc.Table(columns, rows, [("Ranking", True)])


def _pattern(one: HeadAtlas) -> str:
    if (name := one.pattern) is None:
        return ""
    scores = (one.scores[name], one.base_rate[name])
    score, chance = (share(each if each is not None else math.nan) for each in scores)
    return f"{said_name(name)} {score} ({chance})"


_PLACE = (doc.Column("weight"), doc.Column("usual"), doc.Column("even", keep=5))


def _numbers(one: Fired) -> list[str]:
    return [share(one.link.weight), share(one.usual), share(one.even)]


def _grid(report: AtlasReport) -> doc.HeadGrid:
    """Return a grid of all heads: the share of texts on which each fires."""
    layers = sorted({one.layer for one in report.heads})
    heads = sorted({one.head for one in report.heads})
    cells = {}
    for one in report.heads:
        label = "" if one.prefers is None else _quoted(one.prefers)
        values = {name: value for name, value in one.scores.items() if value is not None}
        cells[layers.index(one.layer), heads.index(one.head)] = doc.Cell(
            one.share,
            doc.Tint(round(one.share * (STEPS - 1))),
            whole_percent(one.share),
            tip=f"{_name(report, one)}: fires on {whole_percent(one.share)} of texts",
            values={"share of texts": one.share, **values},
            label=label,
        )
    base = report.index_base
    legend = doc.Scale([(at / 4, whole_percent(at / 4)) for at in range(5)], "share of texts")
    title = f"Texts with a link of at least {share(HALF)}"
    rows, columns = [f"L{layer + base}" for layer in layers], [f"H{head + base}" for head in heads]
    return doc.HeadGrid(rows, columns, cells, [(title, True)], scale=legend)


def _histograms(report: AtlasReport) -> doc.Plot:
    """Return the distributions of the strongest weights of some heads over the texts."""
    drawn = []
    for one in report.ranking[:_DRAWN]:
        total = max(one.texts[FIRES], 1)
        shares = [count / total for count in one.histogram[FIRES]]
        median = "" if one.median is None else f"median {share(one.median)}"
        ticks = [(0.0, "0"), (BINS / 2, ".5"), (BINS - 1.0, "1")]
        ends, tint = [edge + 1e-9 for edge in edges(FIRES).tolist()], doc.Tint(STEPS - 1)
        name, top = _name(report, one), max(*shares, 1e-9)
        found = doc.Histogram(name, shares, ends, top, tint, words=median, ticks=ticks)
        drawn.append(found)
    title = [("Strongest link of a text", True), ("share of texts by its weight", False)]
    return doc.Plot(title, histograms=drawn)


def _by_distance(report: AtlasReport, heads: Sequence[HeadAtlas]) -> doc.Table:
    """Return the mean weight of a link at each distance, and that of uniform attention."""
    names = [*distances(report.kind)]
    filled = [at for at in range(len(names)) if any(one.even[at] is not None for one in heads)]

    def row(name: str, values: Sequence[float | None], faint: bool) -> doc.Row:
        cells = [share(value) if (value := values[at]) is not None else "" for at in filled]
        return doc.Row([name, *cells], tone="faint" if faint else "plain")

    rows = [row("even", heads[0].even, True)] if heads else []
    rows += [row(_name(report, one), one.by_distance, False) for one in heads]
    said = "tokens between two words, no sink" if len(names) > 1 else "of a link, no sink"
    title = [("Mean weight by distance" if len(names) > 1 else "Mean weight", True), (said, False)]
    columns = [doc.Column("head", right=False), *(doc.Column(names[at]) for at in filled)]
    return doc.Table(columns, rows, title)


def _scores(report: AtlasReport) -> doc.Table:
    """Return the mean of every score of each head, with its base rate."""
    known = [name for name in NAMES if any(one.scores[name] is not None for one in report.heads)]
    rows = []
    for one in report.heads[:_SCORED]:
        cells = [_name(report, one)]
        for name in known:
            pair = (one.scores[name], one.base_rate[name])
            cells.append(" / ".join("–" if each is None else f"{each:.3g}" for each in pair))
        rows.append(doc.Row(cells))
    columns = [doc.Column("head", right=False), *(doc.Column(said_name(name)) for name in known)]
    title = [("Means over texts", True), ("score / chance", False)]
    if len(report.heads) > _SCORED:
        title.append((f"the first {_SCORED:,} of {len(report.heads):,} heads", False))
    return doc.Table(columns, rows, title)


def _places(report: AtlasReport, one: HeadAtlas) -> list[doc.Table]:
    """Return two tables of a head: where it fires most, and the middle link of each tenth.

    The tenths are ten groups of sampled texts, by the weight of each text's strongest link.
    """
    place = [doc.Column("link", right=False), *_PLACE, doc.Column("text", right=False, cuts=True)]
    strongest = [doc.Row(_cells(each)) for each in one.fires]
    title = [(f"{_name(report, one)} fires most", True), ("each kind of place once", False)]
    found = [doc.Table(place, strongest, title)]
    from_strongest = zip(range(len(one.tenths), 0, -1), reversed(one.tenths), strict=True)
    tenths = [
        doc.Row([f"{number}", *_cells(tenth[len(tenth) // 2])])
        for number, tenth in from_strongest
        if tenth
    ]
    title = [(f"{_name(report, one)} by tenths of the sampled texts", True)]
    return [*found, doc.Table([doc.Column("tenth", right=False), *place], tenths, title)]


def _cells(one: Fired) -> list[str]:
    link = one.link
    context = around(Hurt(link.text, link.queries, link.query, 0.0))
    return [link_words(link), *_numbers(one), context]
