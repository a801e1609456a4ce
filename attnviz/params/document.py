"""What ``attnviz params`` has to say, in parts that every outlet draws."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.draw.document import (
    Column,
    Document,
    Facts,
    Group,
    Note,
    Row,
    Say,
    Table,
)
from attnviz.params.cases import BuiltCount, Case, Counted
from attnviz.params.compare import (
    MARK,
    Metric,
    change_sentences,
    changed,
    compared_table,
    side_by_side_table,
    size_sentences,
    telling_metrics,
)
from attnviz.params.counting.cost import CostReport
from attnviz.params.options import View
from attnviz.params.parts import attention_only
from attnviz.params.tables import (
    cache_facts,
    fact,
    facts_table,
    layer_table,
    parameter_table,
    running_table,
)
from attnviz.params.words import (
    bytes_text,
    comparison_explanation,
    count,
    explanation,
    fit_words,
    origin_lines,
    readings,
    run_words,
    share,
    title_words,
)


def params_document(
    counted: Counted, view: View, hints: Sequence[str] = (), explain: bool = False
) -> Document:
    """Where the parameters are, what running costs, and what that means."""
    costs = [case.cost for case in counted.cases if case.cost is not None]
    told: Sequence[str] = ()
    if counted.built is not None:
        title, notes, tables, sentences = _built(counted.built)
    elif counted.options:
        title, notes, tables, sentences = _compared(counted, costs)
        told = comparison_explanation()
    elif len(costs) > 1:
        title, notes, tables, sentences = _side_by_side(counted.cases, costs)
        told = explanation(costs[0])
    else:
        title, notes, tables, sentences = _single(counted.cases[0], costs[0], view)
        told = explanation(costs[0])
    name, *words = title
    asked = f"what {name} cost{'s' * (len(costs) < 2 or bool(counted.options))}"
    return Document(
        asked,
        f"W{asked[1:]}",
        [
            Group([Facts([(name, True), *((word, False) for word in words)]), *map(Note, notes)]),
            *(Group([table]) for table in tables),
            Group([Say(text) for text in sentences]),
        ],
        [Say(text) for text in told] if explain else (),
        [Facts([(hint, False) for hint in hints], tone="faint")] if hints else (),
    )


_Said = tuple[Sequence[str], Sequence[str], Sequence[Table], Sequence[str]]
"""The name and what is to be said behind it, notes, tables, sentences."""


def _single(case: Case, cost: CostReport, view: View) -> _Said:
    tables = [parameter_table(cost, view.formula)]
    if view.per_layer:
        tables.append(layer_table(cost))
    revision = [f"revision: {case.revision}"] if case.revision else []
    fits = [fit_words(case.fit, cost)] if case.fit is not None else []
    return (
        title_words(cost),
        [*revision, *origin_lines(cost)],
        [*tables, running_table(cost, view.formula)],
        [*fits, *readings(cost)],
    )


def _built(built: BuiltCount) -> _Said:
    """A model that was built: its parts, which add up to the total, and what its weights take."""
    columns = (Column("part", right=False), Column("parameters"), Column("share", keep=6))
    rows = [
        Row((name, count(number), share(number, built.total)), bar=(number, built.total))
        for name, number in built.parts
    ]
    rest = built.total - sum(number for _, number in built.parts)
    if rest:
        rows.append(Row(("outside these", count(rest), share(rest, built.total))))
    total = (count(built.total), share(built.total, built.total))
    rows.append(Row(("total", *total), tone="strong", ruled=True))
    weights = [fact("all parameters", bytes_text(built.weight_bytes), built.dtype)]
    if built.buffers:
        weights.append(fact("buffers, apart", count(built.buffers), "numbers, not trained"))
    kept = [] if built.cache is None else cache_facts(built.cache)
    told = "operations and maps" if built.cache is not None else "cache, operations and maps"
    sentence = (
        f"Counted by building {built.architecture} without weights: the arithmetic does not know "
        f"this class, so {told} are not told."
    )
    return (
        (built.name, built.architecture, built.dtype),
        (f"source: {built.source}",) if built.source else (),
        (Table(columns, rows), facts_table({"Weights": weights, "KV cache and states": kept})),
        (sentence,),
    )


def _compared(counted: Counted, costs: Sequence[CostReport]) -> _Said:
    """The table of all cases, of which at least one has been counted."""
    metrics = telling_metrics(counted.cases)
    titles = [title_words(cost) for cost in costs]
    shared = [word for word in titles[0][1:] if all(word in title for title in titles)]
    return (
        (titles[0][0], f"by {' and '.join(counted.options)}", *shared),
        (*origin_lines(costs[0]), _caption(counted.cases, costs, metrics)),
        (compared_table(counted.options, counted.cases, metrics),),
        change_sentences(counted.options, counted.cases, metrics),
    )


def _caption(cases: Sequence[Case], costs: Sequence[CostReport], metrics: Sequence[Metric]) -> str:
    """What the numbers of the columns are counted for."""
    alone = attention_only(costs[0])
    parts = ["parameters"] if alone else ["attention and feed-forward of one layer"]
    runs = {run_words(cost) for cost in costs}
    if len(runs) == 1:
        parts.append(f"cache, FLOPs (scores are part of them), maps for {runs.pop()}")
    if any(changed(metric, cases) for metric in metrics):
        parts.insert(0, f"{MARK} changes from row to row")
    return "; ".join(parts)


def _side_by_side(cases: Sequence[Case], costs: Sequence[CostReport]) -> _Said:
    pairs = zip(cases, costs, strict=True)
    return (
        (f"{len(cases)} models", *sorted({cost.dtype for cost in costs})),
        [f"{case.name}: {cost.spec.source}" for case, cost in pairs if cost.spec.source],
        (side_by_side_table(cases),),
        list(size_sentences(cases)),
    )
