"""What people read of ``attnviz params``: parameters, costs, and what they mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from attnviz.count.params import compare
from attnviz.count.params.cost import BuiltCount, CostReport, MemoryFit
from attnviz.count.params.parts import Case
from attnviz.count.params.report import ParamsReport
from attnviz.count.params.request import ParamsRequest
from attnviz.count.params.tables import (
    FEW_LENGTHS,
    LENGTHS,
    brief_parameter_table,
    built_table,
    detail_table,
    layer_table,
    length_table,
    overview_table,
    parameter_table,
)
from attnviz.count.params.wording import (
    beyond,
    bytes_text,
    count,
    dtype_words,
    heading_words,
    run_words,
    short,
    title_words,
)
from attnviz.draw import document as doc

_WIDE = 119  # the columns from which on the tables of a first screen stand side by side
_LEAST_BELOW = 10  # lines below the table of cards from which on other counts stand there
_LEAST_SAID = 3  # the sentences about the cards that every first screen has
_Counts = CostReport | BuiltCount


def document(report: ParamsReport) -> doc.Document:
    """Return the document of ``attnviz params``."""
    cases, request = report.cases, report.request
    costs = [case.counts for case in cases if case.counts is not None]
    if report.options:
        made = _compared(report, costs)
    elif len(costs) > 1:
        made = _side_by_side(cases, costs)
    elif isinstance(costs[0], BuiltCount):
        made = _built(cases[0], costs[0])
    else:
        made = _single(cases[0], costs[0], request)
    if request.gpu:
        made = _on_cards(made, report)
    return made._replace(hints=doc.next_steps(_hints(report), tone="faint"))


def _hints(report: ParamsReport) -> Iterator[str]:
    request, cases = report.request, report.cases
    told = all(case.counts is None or case.counts.needed_bytes is not None for case in cases)
    if request.memory is None and not request.gpu and told:
        yield "--memory 24GB: does it fit?"
    if report.models < 2 and not request.compare:
        yield "--compare dtype=float32,int8" if report.models else "--compare heads=8,16,32"
        if not request.formula and cases[0].built is None:
            yield "--formula: the arithmetic"
    yield "--explain: how to read this"


def _made(
    title: Sequence[str],
    notes: Sequence[str],
    tables: Sequence[doc.Table],
    *,
    heading: Sequence[str],
    finding: str,
    first: doc.First,
    counted: str,
    sentences: Sequence[str] = (),
    several: bool = False,
) -> doc.Document:
    """Return a document of these parts. several: whether it is about several models."""
    name, *words = title
    asked = f"hat {name} cost{'s' * (not several)}"
    facts = doc.Facts([(name, True), *((word, False) for word in words)])
    return doc.Document(
        f"w{asked}",
        f"W{asked}",
        [
            doc.Group([facts, *map(doc.Note, notes)]),
            *(doc.Group([table]) for table in tables),
            doc.Group(list(map(doc.Say, sentences))),
        ],
        doc.Explanation("params", counted),
        heading=[(word, not index) for index, word in enumerate(heading)],
        finding=finding,
        first=first,
    )


def _single(case: Case, cost: CostReport, view: ParamsRequest) -> doc.Document:
    layers = [layer_table(cost)] if view.per_layer else []
    revision = [f"revision: {case.revision}"] if case.revision else []
    return _made(
        title_words(cost),
        [*revision, *_origin_lines(cost)],
        [
            overview_table(case, cost),
            parameter_table(cost, view.formula),
            *layers,
            detail_table(cost, view.formula),
            *length_table(case, cost, LENGTHS),
        ],
        heading=heading_words(cost),
        finding=_need(cost, case.fit) + beyond(cost),
        first=partial(_first, case, cost, view),
        counted=_counted_for(cost),
    )


def _first(
    case: Case, cost: CostReport, view: ParamsRequest, columns: int, lines: int
) -> list[doc.Group]:
    overview = overview_table(case, cost)
    parameters = parameter_table(cost, view.formula)._replace(least=3)
    more = [layer_table(cost)._replace(least=3)] if view.per_layer else []
    if columns >= _WIDE:
        if len(cost.spec.stacks) > 1 and _height(parameters) > lines - len(overview.rows) - 5:
            parameters = brief_parameter_table(cost)
        return [doc.beside([overview, *length_table(case, cost, LENGTHS)], parameters, *more)]
    if view.formula or view.per_layer:
        shown = [*more, parameters if view.formula else brief_parameter_table(cost)]
        taken = sum(len(row.below) + 1 for table in shown for row in table.rows)
        shown += [overview] if taken + 4 * len(shown) + len(overview.rows) <= lines else []
        return [doc.Group([table]) for table in shown]
    lengths = length_table(case, cost, FEW_LENGTHS, across=True)
    rest = lines - len(overview.rows) - sum(len(table.rows) + 2 for table in lengths) - 1
    if rest < _height(parameters) and not cost.spec.attention_only:
        parameters = brief_parameter_table(cost)
    if rest < _height(parameters):
        overview = overview_table(case, cost, maps=False)
    groups = [doc.Group([overview]), doc.Group([parameters])]
    return groups + [doc.Group([table], yields=1) for table in lengths]


def _height(table: doc.Table) -> int:
    return 1 + sum(1 + row.ruled for row in table.rows)


def _on_cards(made: doc.Document, report: ParamsReport) -> doc.Document:
    """Return the document with finding, table and notes on the GPUs put first."""
    cases = [case for case in report.cases if case.counts is not None]
    cards = compare.card_table(cases, report.options, "all" in report.request.gpu)
    notes = list(map(doc.Note, compare.card_notes(cases)))

    def first(columns: int, lines: int) -> list[doc.Group]:
        rest = lines - len(cards.rows) - len(notes) - 3
        shown = notes if rest > 0 else notes[:_LEAST_SAID]
        more = made.first(columns, rest) if made.first and rest >= _LEAST_BELOW else []
        return [doc.Group([cards, *shown]), *(group._replace(yields=1) for group in more)]

    about, *groups = made.groups
    return made._replace(
        groups=[about, doc.Group([cards, *notes]), *groups],
        finding=compare.card_finding(cases),
        first=first,
    )


def _built(case: Case, built: BuiltCount) -> doc.Document:
    """Return the document of a model that was built: its parts, which add up to the total."""
    made, title = built.made, title_words(built)
    parts, overview = built_table(built), overview_table(case, built)
    buffers = f"note: {count(made.buffers)} numbers of buffers, not trained"
    unknown = "its cache is not known, " * (built.cache is None)
    told, how = "from the header of the file", "Counted from its header:"
    if made.way == "building":
        told = "by building the model"
        how = (
            f"Counted by building {made.architecture}: the arithmetic does not know this class, so"
        )
    return _made(
        (*title[:2], run_words(built), *title[2:]),
        [*_origin_lines(built), *[buffers] * bool(made.buffers)],
        [parts, overview, detail_table(built)],
        heading=("/".join(built.name.rsplit("/", 2)[-2:]), *title[1:]),
        finding=f"{_need(built, case.fit)}{beyond(built)} {how} {unknown}operations and "
        "activations are not counted.",
        first=lambda columns, lines: [
            doc.Group([overview, *map(doc.Note, made.notes)]),
            doc.Group([parts._replace(least=3)]),
        ],
        counted=f"counted exactly, {told}.",
    )


def _compared(report: ParamsReport, costs: Sequence[_Counts]) -> doc.Document:
    options, cases = report.options, report.cases
    metrics = compare.telling_metrics(cases)
    brief = [metric for metric in metrics if metric.changes(cases)]
    titles = [(*title_words(cost), run_words(cost)) for cost in costs]
    shared = [word for word in titles[0][1:] if all(word in title for title in titles)]
    title = (titles[0][0], f"by {' and '.join(options)}", *shared)
    notes = [f"{compare.MARK} changes from row to row"] if brief else []
    if isinstance(costs[0], CostReport) and not costs[0].spec.attention_only:
        notes.append("attention and MLP: of one layer")
    reasons = compare.change_reasons(options, cases)
    return _made(
        title,
        [*_origin_lines(costs[0]), *notes],
        [compare.compared_table(options, cases, metrics)],
        sentences=reasons,
        heading=title,
        finding=compare.change_finding(options, cases, metrics),
        first=lambda columns, lines: [
            doc.Group([compare.compared_table(options, cases, brief or metrics, True)]),
            doc.Group(list(map(doc.Say, reasons))),
        ],
        counted=_counted_for(*costs),
    )


def _side_by_side(cases: Sequence[Case], costs: Sequence[_Counts]) -> doc.Document:
    kinds = sorted({cost.storage.scheme if cost.storage else cost.dtype for cost in costs})
    title, table = (f"{len(cases)} models", *kinds), compare.model_table(cases)
    pairs = list(zip(cases, costs, strict=True))
    assumed = [case.name for case, cost in pairs if not cost.stated]
    note = [f"dtype not given; bfloat16 assumed: {', '.join(assumed)}"] if assumed else []
    sources = [(case.name, _source(cost)) for case, cost in pairs]
    return _made(
        title,
        [*(f"{name}: {source}" for name, source in sources if source), *note],
        [table],
        heading=title,
        finding=" ".join(compare.size_sentences(cases)),
        first=lambda columns, lines: [doc.Group([table, *map(doc.Note, note)])],
        counted=_counted_for(*costs),
        several=True,
    )


def _source(cost: _Counts) -> str:
    return cost.source if isinstance(cost, BuiltCount) else cost.spec.source


def _origin_lines(cost: _Counts) -> Iterator[str]:
    """Yield lines with the source of the numbers and the notes that belong to them."""
    if source := _source(cost):
        yield f"source: {source}"
    if isinstance(cost, CostReport) and cost.spec.architecture:
        yield f"counted as: {cost.spec.architecture}"
    if not cost.stated:
        yield f"dtype not given; {cost.dtype} assumed (--dtype sets it)"
    for note in cost.made.notes if isinstance(cost, BuiltCount) else cost.spec.notes:
        yield f"note: {note}"


def _need(cost: _Counts, fit: MemoryFit | None) -> str:
    """Return a sentence on the memory that is needed, and, with a fit, whether it is there."""
    needed = bytes_text(cost.needed_bytes)
    if fit is not None and cost.needed_bytes is not None:
        memory, over = bytes_text(fit.memory), cost.needed_bytes - fit.memory
        if over <= 0:
            return f"Fits in {memory}: needs {needed}."
        return f"Does not fit in {memory}: needs {needed}, {bytes_text(over)} too much."
    if isinstance(cost, CostReport) and cost.spec.attention_only:
        return f"{count(cost.total)} parameters{_why_so_many(cost)}."
    many = f"{short(cost.total)} parameters: "
    if cost.weight_bytes is None and cost.storage is not None:
        return f"{many}quantised as {cost.storage.scheme}, whose bytes are not known."
    weights = bytes_text((cost.weight_bytes or 0) + cost.buffer_bytes)
    if cost.cache is None:
        return f"{many}{weights} of weights."
    if not cost.cache.bytes:
        return f"{many}{weights} of weights, and no KV cache."
    return f"{many}{weights} of weights + {bytes_text(cost.cache.bytes)} of KV cache = {needed}."


def _why_so_many(cost: CostReport) -> str:
    spec = cost.spec.attention
    product = f"{count(spec.heads)} × {count(spec.head_dim)}"
    if spec.latent is not None or spec.linear:
        return " in one attention layer"
    if spec.heads * spec.head_dim != spec.d_model:
        return f" at {product} = {count(spec.heads * spec.head_dim)} columns of heads"
    if spec.kv_heads != spec.heads:
        return f": {count(spec.heads // spec.kv_heads)} query heads share one key/value head"
    return f", whatever the number of heads: {product} = {count(spec.d_model)} = d_model"


def _counted_for(*costs: _Counts) -> str:
    """Return for beginners how, and for what lengths and dtype was counted."""
    words = {f", for {run_words(cost)} ({dtype_words(cost)})" for cost in costs}
    told = words.pop() if len(words) == 1 else ""
    return f"nothing was run: counted exactly from the shape{told}."
