"""The document of ``attnviz path``: what reads from a head, in three grids and a ranking."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.draw import document as doc
from attnviz.draw.grid import full_width
from attnviz.draw.numbers import NumberScale, counted, whole_percent
from attnviz.draw.provenance import fits_two_lines, model_words, named, notes_group
from attnviz.draw.signed import signed_scale
from attnviz.engine.patching import ATTENDED, SITES, Into
from attnviz.inspect.interventions.path.report import Listener, PathReport
from attnviz.inspect.interventions.study import base_rates, effect_grid, effect_table
from attnviz.measures.words import joined

_GAP = 3
_LEAST_ROWS = 3
_NAMED = 2
_LEAST = 0.005  # the least share that is not written as 0%

_METHOD = (
    "direct path, norms fixed: what the sender writes reaches the later head along the residual "
    "stream alone, with each norm scaled as in the corrupt run; paths through heads and MLPs "
    "between are not in it"
)


def document(report: PathReport) -> doc.Document:
    """Return the document of a report: a brief form for the terminal, and the whole."""
    info, tokens, pairs = report.model, report.pairs[0], counted(len(report.pairs), "pair")
    name, source = report.name(report.sender), report.source
    facts = [pairs, *[source] * bool(source)]
    inputs = [into for into in ATTENDED if _of(report, into)]
    *grids, last = [_grid(report, into) for into in inputs]
    last = last._replace(scale=signed_scale(_scale(report.listeners), "share", "share"))
    kind = f"' {SITES[report.into].words}" if report.into else ""
    hints = [f"--into {report.listeners[0].into}"] * (report.into is None)
    return doc.Document(
        f"what reads from a head of {info.name}",
        f"What reads from {name} of {info.name}",
        [
            doc.Group([
                doc.Facts([*model_words(info), *((fact, False) for fact in facts)]),
                doc.Quote("clean", report.text, 8),
                doc.Quote("corrupt", joined(tokens.corrupt), 8),
            ]),
            notes_group((*info.notes, *report.notes), tokens.clean),
            doc.Group([doc.Note(_METHOD, 100)]),
            doc.Group([*grids, last], beside=doc.Beside(0)),
            doc.Group([path_table(report, report.top)]),
            doc.Group([path_table(report, len(report.listeners))], full=True),
        ],
        doc.Explanation("path", f"measured over {pairs} of prompts."),
        doc.next_steps([*hints, "attnviz patch: what carries the answer", "--explain"]),
        heading=[
            *named(info),
            (f"what later heads{kind} read from {name}", False),
            (source or pairs, False),
        ],
        quoted=report.text if len(report.pairs) == 1 else "",
        finding=_finding(report),
        first=lambda columns, lines: _first(report, columns),
    )  # fmt: skip


def _first(report: PathReport, columns: int) -> list[doc.Group]:
    strongest = report.listeners[0].into
    order = [strongest, *(into for into in ATTENDED if into != strongest and _of(report, into))]
    grids, width = [_grid(report, into) for into in order], -_GAP
    for count, grid in enumerate(grids):
        width += max(full_width(grid), len(grid.title[0][0])) + _GAP
        if count and width > columns:
            grids = grids[:count]
            break
    table = path_table(report, len(report.listeners))._replace(least=_LEAST_ROWS)
    held = doc.Note("direct path, to first order · all parts: of all heads and MLPs, 1 = exact")
    return [doc.Group(grids, beside=doc.Beside(0)), doc.Group([table]), doc.Group([held])]


def _finding(report: PathReport) -> str:
    sender = report.name(report.sender)
    if report.model.weights == "random":
        return f"Untrained random weights: what later heads read from {sender} is arbitrary."
    clear = [listener for listener in report.listeners if listener.clear]
    first, *others = [own for own in clear if own.into == clear[0].into][:_NAMED] or [
        max(report.listeners, key=lambda listener: abs(listener.share.value))
    ]
    share, into = _percent(first.share.value), SITES[first.into].words
    reader = f"{report.name(first.reader, first.into)}'s {into}"
    words = f"{share} of the difference in {reader} between the prompts"
    for own in others:
        words += f", {_percent(own.share.value)} in {report.name(own.reader, own.into)}'s"
    usual = first.share.base_rate
    other = "" if usual is None else f"; other heads of its layer average {_percent(usual)}"
    if clear:
        return f"{sender} accounts for {words}{other}."
    if first.share.interval is None:
        pairs = counted(len(report.pairs), "pair")
        most = f"{sender} writes most into {reader}: {share} of their difference between prompts"
        return f"{most}{other}. {pairs}, not tested."
    words = f"No later head clearly reads from {sender}: its largest share is {words}"
    return f"{words}{other * fits_two_lines(words + other + '.')}."


def _percent(share: float) -> str:
    return whole_percent(share) if abs(share) >= _LEAST else "under 1%"


def _of(report: PathReport, into: Into) -> list[Listener]:
    return [listener for listener in report.listeners if listener.into == into]


def _scale(listeners: Sequence[Listener]) -> NumberScale:
    return NumberScale.over(listener.share.value for listener in listeners)


def _grid(report: PathReport, into: Into) -> doc.HeadGrid:
    grid = effect_grid(
        {listener.reader: listener.share for listener in _of(report, into)},
        _scale(report.listeners),
        f"share of their {SITES[into].words}",
        lambda column: f"{report.letter(into)}{column + report.index_base}",
        base=report.index_base,
    )
    return grid._replace(title=grid.title[:1])


def path_table(report: PathReport, most: int, brief: bool = False) -> doc.Table:
    """Return ``most`` rows of later heads: share, interval, other heads, all parts, difference."""
    shown = report.listeners[:most]
    names = [f"{report.name(own.reader, own.into)} {own.into}" for own in shown]
    return share_table(names, shown, _scale(report.listeners), brief=brief)


def share_table(
    names: Sequence[str],
    shown: Sequence[Listener],
    scale: NumberScale | None = None,
    *,
    brief: bool = False,
) -> doc.Table:
    """Return a table of shares as ``path_table``. scale: by default that of the shown ones."""
    scale = scale or _scale(shown)
    columns: list[doc.ColumnOf[tuple[str, Listener]]] = [
        doc.ColumnOf(f"share{scale.times}", lambda row: scale.text(row[1].share.value)),
        base_rates("other heads", lambda row: row[1].share, scale),
    ]
    if not brief:
        columns.append(doc.ColumnOf("all parts", lambda row: f"{row[1].explained:.2f}"))
        columns.append(doc.ColumnOf("difference", lambda row: whole_percent(row[1].moved)))
    rows = [*zip(names, shown, strict=True)]
    return effect_table(
        "", rows, *columns, scale=scale, name=lambda row: row[0], mean=lambda row: row[1].share
    )
