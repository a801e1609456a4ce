"""Tables of one architecture's parameters: in full, by role, by kind of layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from attnviz.count.params.counting.cost import CostReport
from attnviz.count.params.parts import (
    PartLine,
    attention_only,
    layer_kind,
    main_attention,
    main_group,
    main_stack,
    part_lines,
)
from attnviz.count.params.specs import ExpertsSpec, FeedForwardSpec
from attnviz.count.params.words import count, layer_span, percentage, short
from attnviz.draw.document import Column, Row, Table, Tint

_MANY = 3
_PROJECTIONS = ("query", "key", "value", "output")
_TOGETHER = {"embedding": "embeddings", "norm": "outer norms", "other": "other parts"}

LM_HEAD = "LM head"
"""The name of the matrix onto the vocabulary; "head" alone means an attention head."""

TINTS = {
    "attention": Tint(225),
    "feed_forward": Tint(135),
    "embedding": Tint(185),
    "norm": Tint(110),
    "head": Tint(160),
    "other": Tint(95),
}
"""The colours of the bars by role, all bright enough for a dark ground."""


def parameter_table(cost: CostReport, formulas: bool = False) -> Table:
    """Return the table of parameters; lines that are not indented add up to the total.

    A single attention has a line for each projection, other architectures for each part of a stack.
    formulas: True puts the arithmetic of each line under it.
    """
    parameters, alone = cost.parameters, attention_only(cost)
    several = len(parameters.stacks) > 1
    depth = main_stack(cost).spec.depth
    held = (
        "parameters" if alone else "in all" if several or depth == 1 else f"{count(depth)} layers"
    )
    columns = (
        Column("part", right=False),
        Column("shape", right=False, keep=5 if alone else 2, tone="faint"),
        Column("one head", keep=3 if alone else 1, tone="faint"),
        Column("one layer", keep=5, tone="faint"),
        Column(held),
        Column("share", keep=6),
    )
    lines: Sequence[PartLine] = part_lines(parameters)
    if alone:
        lines = [line._replace(detail=False, layers=0) for line in lines if line.detail]
    elif several and not formulas:
        lines = _brief(lines)
    rows: list[Row] = []
    name = ""
    for line in lines:
        if several and line.stack not in ("", name):
            name = line.stack
            rows.append(Row([name, *[""] * 5], tone="strong"))
        rows.append(_part_row(line, parameters.total, formulas, several, alone))
    last = ("total", "", "", "", count(parameters.total), percentage(1, 1))
    rows.append(Row(last, tone="strong", ruled=True, below=(_sum(cost),) if formulas else ()))
    if parameters.active != parameters.total:
        active = percentage(parameters.active, parameters.total)
        cells = ("active a token", "", "", "", count(parameters.active), active)
        rows.append(Row(cells, tone="strong"))
    buffers: Counter[str] = Counter()
    for term in parameters.buffers:
        buffers[term.label] += term.number
    rows += [
        Row((label, "", "", "", count(number), "buffer"), tone="faint")
        for label, number in buffers.items()
    ]
    return Table(columns, rows)


def _brief(lines: Sequence[PartLine]) -> list[PartLine]:
    """Return a table's lines without details; many small ones outside the layers become one."""
    groups: dict[tuple[str, str], list[PartLine]] = {}
    for line in lines:
        if not line.detail:
            alone = "" if not line.layers and line.role in _TOGETHER else line.label
            groups.setdefault((line.stack, alone or line.role), []).append(line)
    brief: list[PartLine] = []
    for group in groups.values():
        if len(group) < _MANY:
            brief += group
            continue
        first = group[0]
        count = sum(line.number for line in group)
        brief.append(PartLine(_TOGETHER[first.role], first.role, count, stack=first.stack))
    return brief


def _part_row(line: PartLine, whole: int, formulas: bool, several: bool, alone: bool) -> Row:
    inner = line.role in ("attention", "feed_forward") and not line.detail and not alone
    each = "differs" if line.each is None else count(line.each)  # if the layers differ
    cells = (
        LM_HEAD if line.label == "head" else _said(line.label),
        "" if inner else _shape(line),
        "" if line.per_head is None else count(line.per_head),
        each if line.layers else "",
        count(line.number),
        percentage(line.number, whole),
    )
    return Row(
        cells,
        bar=None if line.detail else (line.number, whole),
        tint=TINTS[line.role],
        tone="faint" if line.detail else "plain",
        below=_below(line) if formulas and not inner else (),
        depth=line.detail + bool(several and line.stack),
    )


def _said(label: str) -> str:
    """Return the label of a part for people, who say MLP for JSON's feed-forward."""
    return label.replace("feed-forward", "MLP")


def _shape(line: PartLine) -> str:
    """Return the size of a line's single matrix or vector, such as ``4096 × 4096``.

    The string is empty for several.
    """
    biased = len(line.terms) == 2 and line.terms[1].role == "bias" and not line.layers
    if not line.terms or (len(line.terms) > 1 and not biased):
        return ""
    shape, equals, _ = line.terms[0].formula.partition(" = ")
    return shape if equals else str(line.terms[0].number)


def _below(line: PartLine) -> tuple[str, ...]:
    """Return strings with a line's arithmetic: of each term, of their sum, and over all layers."""
    several = len(line.terms) > 1
    texts = [
        (f"{_said(term.label)}: " if several else "")
        + (f"{term.symbols} = " if term.symbols else "")
        + term.formula
        for term in line.terms
    ]
    once = line.each if line.layers else line.number
    if once is not None and several:
        summed = " + ".join(count(term.number) for term in line.terms)
        texts.append(f"{summed} = {count(once)}")
    if line.each is not None and line.layers > 1:
        texts.append(f"{count(line.each)} × {count(line.layers)} layers = {count(line.number)}")
    return tuple(texts)


def _sum(cost: CostReport) -> str:
    """Return the sum of the lines in the table of parameters as a string."""
    lines = part_lines(cost.parameters)
    added = [line.number for line in lines if line.detail == attention_only(cost)]
    return " + ".join(count(number) for number in added) + f" = {count(cost.parameters.total)}"


def layer_table(cost: CostReport) -> Table:
    """Return a table with a row for each kind of layer: how many, attention, parameters."""
    columns = (
        Column("layers", right=False),
        Column("kind", right=False, keep=4),
        Column("attention"),
        Column("MLP"),
        Column("norms", keep=3, tone="faint"),
        Column("one layer", tone="strong"),
    )
    several = len(cost.parameters.stacks) > 1
    rows = []
    for stack in cost.parameters.stacks:
        for group in stack.groups:
            shares, span = group.layer.shares, layer_span(group)
            cells = (
                f"{stack.spec.name}: {span}" if several else span,
                layer_kind(group),
                count(shares.attention),
                count(shares.feed_forward),
                count(shares.norm + shares.other),
                count(group.layer.total),
            )
            rows.append(Row(cells))
    return Table(columns, rows, [("Layers", True)])


def brief_parameter_table(cost: CostReport) -> Table:
    """Return a table of the total and the number of parameters of each role, such as attention."""
    parameters = cost.parameters
    shares, total = parameters.shares, parameters.total
    columns = [
        Column("parameters", right=False),
        Column(short(total)),
        Column("share", keep=6),
        Column("", right=False, tone="faint", wraps=True),
    ]
    mlp = "experts" if isinstance(_forward(cost), ExpertsSpec) else "MLP"
    roles = [
        ("embedding", "embedding", shares.embedding, ""),
        ("attention", "attention", shares.attention, _attention_note(cost)),
        ("feed_forward", mlp, shares.feed_forward, _forward_note(cost)),
        ("head", LM_HEAD, shares.head, ""),
        ("other", "norms, other", shares.norm + shares.other, ""),
    ]
    if any(stack.head is not None and stack.head.tied for stack in cost.spec.stacks):
        roles[0] = (*roles[0][:3], f"also the {LM_HEAD} (tied)")
    rows = [
        Row((label, short(number), percentage(number, total), note), (number, total), TINTS[role])
        for role, label, number, note in roles
        if 1000 * number >= total  # smaller details are shown by --full only
    ]
    if parameters.active != total:
        active = parameters.active
        cells = ("active a token", short(active), percentage(active, total), "")
        rows.append(Row(cells, tone="strong"))
    return Table(columns, [row._replace(depth=1) for row in rows])


def _attention_note(cost: CostReport) -> str:
    """Return a string with the parameters of the attention by its parts.

    These are the latent ranks, else self and cross attention, else the projections.
    """
    latent = main_attention(cost).spec.latent
    if latent is not None:
        queries = f", of queries {count(latent.q_lora)}" if latent.q_lora else ""
        return f"latent {count(latent.kv_lora)}{queries}"
    lines = [line for line in part_lines(cost.parameters) if line.role == "attention"]
    cross = sum(line.number for line in lines if line.label == "cross attention")
    if cross:
        return f"self {short(cost.parameters.shares.attention - cross)} · cross {short(cross)}"
    together: dict[int, str] = {}
    for line in lines:
        if line.label in _PROJECTIONS:
            known = together.get(line.number)
            together[line.number] = ", ".join(filter(None, [known, line.label[0]]))
    return " · ".join(
        f"{names} {short(number)}" + (" each" if "," in names else "")
        for number, names in together.items()
    )


def _forward(cost: CostReport) -> FeedForwardSpec | ExpertsSpec | None:
    return main_group(cost).layer.spec.feed_forward


def _forward_note(cost: CostReport) -> str:
    spec = _forward(cost)
    if isinstance(spec, ExpertsSpec):
        experts = f"{count(spec.experts)} experts of {count(spec.expert.d_ff)}"
        return f"{experts}, {count(spec.active)} active"
    if spec is None:
        return ""
    return f"d_ff {count(spec.d_ff)}" + (", gated" if spec.gated else "")
