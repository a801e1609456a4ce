"""The table of parameters: each part's count, its share of the whole, and a bar."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.params.accounts.account import CostReport
from attnviz.params.accounts.terms import Term
from attnviz.params.numbers import count, share
from attnviz.params.parts import PartLine, part_lines
from attnviz.params.sheet import Column, Grid, Row
from attnviz.params.subject import attention_only, main_stack

__all__ = ["parameter_grid", "shape_of"]

_MANY = 3
_TOGETHER = {"embedding": "embeddings", "norm": "outer norms", "other": "other parts"}


def parameter_grid(cost: CostReport, formulas: bool = False) -> Grid:
    """Where the parameters are; lines that are not indented add up to the total.

    formulas: each line's arithmetic with the numbers in place stands under it.
    """
    grid = _one_attention if attention_only(cost) else _whole_model
    return grid(cost, formulas)


def _one_attention(cost: CostReport, formulas: bool) -> Grid:
    """The projections of a lone attention, with the shape of each matrix."""
    whole = cost.parameters.total
    columns = (
        Column("part", right=False),
        Column("shape", right=False, keep=5),
        Column("one head", tone="faint", keep=3),
        Column("parameters"),
        Column("share", keep=6),
    )
    rows = [
        Row(
            (line.label, shape_of(line), _head(line), count(line.count), share(line.count, whole)),
            bar=(line.count, whole),
            role="attention",
            below=_below(line) if formulas else (),
        )
        for line in part_lines(cost.parameters)
        if line.detail
    ]
    below = (_sum(cost),) if formulas else ()
    last = ("total", "", "", count(whole), share(whole, whole))
    return Grid(columns, (*rows, Row(last, "strong", ruled=True, below=below)))


def _whole_model(cost: CostReport, formulas: bool) -> Grid:
    """The parts of every tower, in one layer and in the whole model."""
    parameters = cost.parameters
    towers = len(parameters.stacks) > 1
    depth = main_stack(cost).spec.depth
    columns = (
        Column("part", right=False),
        Column("shape", right=False, keep=2, tone="faint"),
        Column("one head", keep=1, tone="faint"),
        Column("one layer", keep=5, tone="faint"),
        Column("in all" if towers or depth == 1 else f"{count(depth)} layers"),
        Column("share", keep=6),
    )
    rows: list[Row] = []
    tower = ""
    lines = part_lines(parameters)
    for line in _brief(lines) if towers and not formulas else lines:
        if towers and line.tower not in ("", tower):
            tower = line.tower
            rows.append(Row((tower, "", "", "", "", ""), "strong"))
        rows.append(_part_row(line, parameters.total, formulas, towers))
    below = (_sum(cost),) if formulas else ()
    last = ("total", "", "", "", count(parameters.total), share(1, 1))
    rows.append(Row(last, "strong", ruled=True, below=below))
    if parameters.active != parameters.total:
        active = share(parameters.active, parameters.total)
        cells = ("active a token", "", "", "", count(parameters.active), active)
        rows.append(Row(cells, "strong"))
    rows += [
        Row((label, "", "", "", count(number), "buffer"), "faint")
        for label, number in _buffers(parameters.buffers).items()
    ]
    return Grid(columns, tuple(rows))


def _brief(lines: Sequence[PartLine]) -> list[PartLine]:
    """Lines without details, and many small ones outside the layers of a tower as one."""
    groups: dict[tuple[str, str], list[PartLine]] = {}
    for line in lines:
        if not line.detail:
            alone = "" if not line.layers and line.role in _TOGETHER else line.label
            groups.setdefault((line.tower, alone or line.role), []).append(line)
    brief: list[PartLine] = []
    for group in groups.values():
        if len(group) < _MANY:
            brief += group
            continue
        first = group[0]
        count = sum(line.count for line in group)
        brief.append(PartLine(_TOGETHER[first.role], first.role, count, tower=first.tower))
    return brief


def _part_row(line: PartLine, whole: int, formulas: bool, towers: bool) -> Row:
    inner = line.role in ("attention", "feed_forward") and not line.detail
    return Row(
        (
            line.label,
            shape_of(line),
            _head(line),
            _each(line),
            count(line.count),
            share(line.count, whole),
        ),
        "faint" if line.detail else "plain",
        None if line.detail else (line.count, whole),
        line.role,
        _below(line) if formulas and not inner else (),
        depth=line.detail + bool(towers and line.tower),
    )


def _head(line: PartLine) -> str:
    return "" if line.per_head is None else count(line.per_head)


def _each(line: PartLine) -> str:
    """What one layer holds; a word where the layers do not agree."""
    if not line.layers:
        return ""
    return "differs" if line.each is None else count(line.each)


def shape_of(line: PartLine) -> str:
    """The shape of a lone matrix or vector, such as ``4096 × 4096``; empty for several."""
    inner = line.role in ("attention", "feed_forward") and not line.detail
    biased = len(line.terms) == 2 and line.terms[1].role == "bias" and not line.layers
    if inner or not line.terms or (len(line.terms) > 1 and not biased):
        return ""
    shape, equals, _ = line.terms[0].formula.partition(" = ")
    return shape if equals else str(line.terms[0].count)


def _below(line: PartLine) -> tuple[str, ...]:
    """The arithmetic of a line: of each term, of their sum, and over all layers."""
    several = len(line.terms) > 1
    texts = [(f"{term.label}: " if several else "") + _written(term) for term in line.terms]
    once = line.each if line.layers else line.count
    if once is not None and several:
        summed = " + ".join(count(term.count) for term in line.terms)
        texts.append(f"{summed} = {count(once)}")
    if line.each is not None and line.layers > 1:
        texts.append(f"{count(line.each)} × {count(line.layers)} layers = {count(line.count)}")
    return tuple(texts)


def _sum(cost: CostReport) -> str:
    """The lines of the table added up."""
    lines = part_lines(cost.parameters)
    added = [line.count for line in lines if line.detail == attention_only(cost)]
    return " + ".join(count(number) for number in added) + f" = {count(cost.parameters.total)}"


def _written(term: Term) -> str:
    return f"{term.symbols} = {term.formula}" if term.symbols else term.formula


def _buffers(terms: tuple[Term, ...]) -> dict[str, int]:
    """Buffers of the same name put together."""
    sums: dict[str, int] = {}
    for term in terms:
        sums[term.label] = sums.get(term.label, 0) + term.count
    return sums
