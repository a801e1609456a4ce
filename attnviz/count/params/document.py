"""The document of ``attnviz params``, for the terminal and for files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from attnviz.count.params.cases import Case, CountedCases
from attnviz.count.params.compare import (
    MARK,
    change_finding,
    change_reasons,
    changed,
    compared_table,
    model_table,
    side_by_side_table,
    size_sentences,
    telling_metrics,
)
from attnviz.count.params.counting.built import BuiltCount
from attnviz.count.params.counting.cost import CostReport
from attnviz.count.params.params import ParamsReport
from attnviz.count.params.parts import attention_only
from attnviz.count.params.request import ParamsRequest
from attnviz.count.params.running import (
    FEW_LENGTHS,
    LENGTHS,
    cache_facts,
    detail_table,
    facts_table,
    length_table,
    overview_table,
)
from attnviz.count.params.tables import brief_parameter_table, layer_table, parameter_table
from attnviz.count.params.words import (
    count,
    explanation,
    finding,
    heading_words,
    origin_lines,
    percentage,
    readings,
    run_words,
    title_words,
)
from attnviz.draw.document import (
    Beside,
    Column,
    Document,
    Explanation,
    Facts,
    First,
    Group,
    Note,
    Row,
    Say,
    Table,
    next_steps,
)

_BESIDE = Beside(58)
"""How the tables of a first screen stand side by side on a wide terminal."""

_LEAST_BELOW = 10
"""The lines below the table of cards from which on a first screen shows what else was counted."""

_LEAST_SAID = 3
"""The sentences about the cards that every first screen has."""


class _Content(NamedTuple):
    """The content of the document of ``attnviz params``.

    title: a name, and remarks after it. notes: sources and cautions. tables: the counts. sentences:
        what the numbers mean. heading: the words of the first line.
    finding: the answer in a sentence. first: returns the first screen for a terminal's size.
    explanation: for newcomers.
    """

    title: Sequence[str]
    notes: Sequence[str]
    tables: Sequence[Table | Group]
    sentences: Sequence[str]
    heading: Sequence[str]
    finding: str
    first: First
    explanation: Explanation


def params_document(report: ParamsReport) -> Document:
    """Return the document of ``attnviz params``: parameters, costs, and what they mean."""
    counted, view = report.counted, report.request
    costs = [case.counts for case in counted.cases if case.counts is not None]
    if counted.options:
        content = _compared(counted, costs)
    elif len(costs) > 1:
        content = _side_by_side(counted.cases, costs)
    elif isinstance(costs[0], BuiltCount):
        content = _built(counted.cases[0], costs[0])
    else:
        content = _single(counted.cases[0], costs[0], view)
    if view.gpu:
        content = _on_cards(content, counted, view)
    name, *words = content.title
    asked = f"what {name} cost{'s' * (len(costs) < 2 or bool(counted.options))}"
    facts = Facts([(name, True), *((word, False) for word in words)])
    return Document(
        asked,
        f"W{asked[1:]}",
        [
            Group([facts, *map(Note, content.notes)]),
            *(table if isinstance(table, Group) else Group([table]) for table in content.tables),
            Group([Say(text) for text in content.sentences]),
        ],
        content.explanation,
        next_steps(_hints(report), tone="faint"),
        heading=[(word, not place) for place, word in enumerate(content.heading)],
        finding=content.finding,
        first=content.first,
    )


def _hints(report: ParamsReport) -> Iterator[str]:
    """Yield hints for options of ``params`` that were not given."""
    request, counts = report.request, [case.counts for case in report.counted.cases]
    told = all(count is None or count.needed_bytes is not None for count in counts)
    if request.memory is None and not request.gpu and told:
        yield "--memory 24GB: does it fit"
    if report.models < 2 and not request.compare:
        yield "--compare dtype=float32,int8" if report.models else "--compare heads=8,16,32"
        if not request.formula and report.counted.built is None:
            yield "--formula: the arithmetic"
    yield "--explain: how to read this"


def _single(case: Case, cost: CostReport, view: ParamsRequest) -> _Content:
    layers = [layer_table(cost)] if view.per_layer else []
    revision = [f"revision: {case.revision}"] if case.revision else []
    return _Content(
        title=title_words(cost),
        notes=[*revision, *origin_lines(cost)],
        tables=[
            overview_table(case, cost),
            parameter_table(cost, view.formula),
            *layers,
            detail_table(cost, view.formula),
            *length_table(case, cost, LENGTHS),
        ],
        sentences=list(readings(cost)),
        heading=heading_words(cost),
        finding=finding(cost, case.fit),
        first=partial(_first_groups, case, cost, view),
        explanation=explanation(cost),
    )


def _first_groups(
    case: Case, cost: CostReport, view: ParamsRequest, columns: int, lines: int
) -> list[Group]:
    """Return the tables of the first screen; wide terminals show them side by side.

    case, cost: the counts. view: the display options. columns, lines: the size of the terminal.
    """
    overview = overview_table(case, cost)
    parameters = parameter_table(cost, view.formula)._replace(least=3)
    more = [layer_table(cost)._replace(least=3)] if view.per_layer else []
    if columns >= 2 * _BESIDE.columns + _BESIDE.gap:
        lengths = length_table(case, cost, LENGTHS)
        tables = [parameters, *lengths, *more]
        return [Group([overview]), Group(tables, beside=_BESIDE._replace(most=len(tables)))]
    if view.formula or view.per_layer:
        shown = [*more, parameters if view.formula else brief_parameter_table(cost)]
        taken = sum(len(row.below) + 1 for table in shown for row in table.rows)
        shown += [overview] if taken + 4 * len(shown) + len(overview.rows) <= lines else []
        return [Group([table]) for table in shown]
    lengths = length_table(case, cost, FEW_LENGTHS, across=True)
    rest = lines - len(overview.rows) - sum(len(table.rows) + 2 for table in lengths) - 1
    if rest < _height(parameters) and not attention_only(cost):
        parameters = brief_parameter_table(cost)
    if rest < _height(parameters):
        overview = overview_table(case, cost, maps=False)
    groups = [Group([overview]), Group([parameters])]
    return groups + [Group([table], yields=1) for table in lengths]


def _height(table: Table) -> int:
    return 1 + sum(1 + row.ruled for row in table.rows)


def _on_cards(content: _Content, counted: CountedCases, view: ParamsRequest) -> _Content:
    """Return the content with finding, table and notes on the GPUs put first."""
    from attnviz.count.params import serving_table  # most runs name no card

    cases = [case for case in counted.cases if case.counts is not None]
    cards = serving_table.card_table(cases, counted.options, "all" in view.gpu)
    notes = serving_table.card_notes(cases)

    def first(columns: int, lines: int) -> list[Group]:
        rest = lines - len(cards.rows) - len(notes) - 3
        said = notes if rest > 0 else notes[:_LEAST_SAID]
        more = content.first(columns, rest) if rest >= _LEAST_BELOW else []
        return [Group([cards, *said]), *(group._replace(yields=1) for group in more)]

    return content._replace(
        tables=[Group([cards, *notes]), *content.tables],
        finding=serving_table.card_finding(cases),
        first=first,
    )


def _built(case: Case, built: BuiltCount) -> _Content:
    """Return the content for a model that was built: its parts, which add up to the total."""
    made = built.made
    columns = (Column("part", right=False), Column("parameters"), Column("share", keep=6))
    rows = [
        Row((name, count(number), percentage(number, built.total)), bar=(number, built.total))
        for name, number in made.parts
    ]
    rest = built.total - sum(number for _, number in made.parts)
    if rest:
        rows.append(Row(("outside these", count(rest), percentage(rest, built.total))))
    total = (count(built.total), percentage(built.total, built.total))
    rows.append(Row(("total", *total), tone="strong", ruled=True))
    parts = Table(columns, rows)
    kept = [] if built.cache is None else cache_facts(built.cache)
    running = [overview_table(case, built), facts_table({"KV cache and states": kept})]
    buffers = f"note: {count(made.buffers)} numbers of buffers, not trained"
    size = finding(built, case.fit)
    unknown = "operations and activations are not counted."
    unknown = unknown if built.cache is not None else f"its cache is not known, {unknown}"
    told, how = "from the header of the file", "Counted from its header:"
    if made.way == "building":
        told = "by building the model"
        how = (
            f"Counted by building {made.architecture}: the arithmetic does not know this class, so"
        )
    title = title_words(built)
    return _Content(
        title=(title[0], title[1], run_words(built), *title[2:]),
        notes=(*origin_lines(built), *[buffers] * bool(made.buffers)),
        tables=(parts, *running),
        sentences=(),
        heading=("/".join(built.name.rsplit("/", 2)[-2:]), *title[1:]),
        finding=f"{size} {how} {unknown}",
        first=lambda columns, lines: [
            Group([running[0], *map(Note, made.notes)]),
            Group([parts._replace(least=3)]),
        ],
        explanation=Explanation("params", f"counted exactly, {told}."),
    )


def _sources(cost: CostReport | BuiltCount) -> list[str]:
    source = cost.source if isinstance(cost, BuiltCount) else cost.spec.source
    return [source] if source else []


def _compared(counted: CountedCases, costs: Sequence[CostReport | BuiltCount]) -> _Content:
    """Return the content for a comparison of cases, at least one of which could be counted."""
    options, cases = counted.options, counted.cases
    metrics = telling_metrics(cases)
    brief = [metric for metric in metrics if changed(metric, cases)]
    titles = [(*title_words(cost), run_words(cost)) for cost in costs]
    shared = [word for word in titles[0][1:] if all(word in title for title in titles)]
    title = (titles[0][0], f"by {' and '.join(options)}", *shared)
    notes = [f"{MARK} changes from row to row"] if brief else []
    if isinstance(costs[0], CostReport) and not attention_only(costs[0]):
        notes.append("attention and MLP: of one layer")
    reasons = change_reasons(options, cases)
    return _Content(
        title=title,
        notes=(*origin_lines(costs[0]), *notes),
        tables=(compared_table(options, cases, metrics),),
        sentences=reasons,
        heading=title,
        finding=change_finding(options, cases, metrics),
        first=lambda columns, lines: [
            Group([compared_table(options, cases, brief or metrics, True)]),
            Group([Say(text) for text in reasons]),
        ],
        explanation=explanation(*costs),
    )


def _side_by_side(cases: Sequence[Case], costs: Sequence[CostReport | BuiltCount]) -> _Content:
    pairs = zip(cases, costs, strict=True)
    title = (
        f"{len(cases)} models",
        *sorted({cost.storage.scheme if cost.storage else cost.dtype for cost in costs}),
    )
    assumed = [case.name for case, cost in zip(cases, costs, strict=True) if not cost.stated]
    note = [f"dtype not stated, counted as bfloat16: {', '.join(assumed)}"] if assumed else []
    full = model_table(cases) if any(case.built for case in cases) else side_by_side_table(cases)
    return _Content(
        title=title,
        notes=[
            *(f"{case.name}: {line}" for case, cost in pairs for line in _sources(cost)),
            *note,
        ],
        tables=(full,),
        sentences=(),
        heading=title,
        finding=" ".join(size_sentences(cases)),
        first=lambda columns, lines: [
            Group([full if len(full.rows) < lines else model_table(cases), *map(Note, note)])
        ],
        explanation=explanation(*costs),
    )
