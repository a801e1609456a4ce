"""Tables of one architecture's parameters: in full, by role, by kind of layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from attnviz.count.params.cost import CostReport
from attnviz.count.params.report import PROJECTIONS, PartLine, part_lines
from attnviz.count.params.specs import ExpertsSpec, Shares
from attnviz.count.params.wording import count, experts_words, layer_span, percentage, short
from attnviz.draw import document as doc

_MANY = 3
_TOGETHER = {"embedding": "embeddings", "norm": "outer norms", "other": "other parts"}

LM_HEAD = "LM head"
"""The name of the matrix onto the vocabulary; "head" alone means an attention head."""

TINTS = {
    "attention": doc.Tint(225),
    "feed_forward": doc.Tint(135),
    "embedding": doc.Tint(185),
    "norm": doc.Tint(110),
    "head": doc.Tint(160),
    "other": doc.Tint(95),
}
"""The colours of the bars by role, all bright enough for a dark ground."""


def parameter_table(cost: CostReport, formulas: bool = False) -> doc.Table:
    """Return the table of parameters; lines that are not indented add up to the total.

    A single attention has a line for each projection, other architectures for each part of a stack.
    formulas: True puts the arithmetic of each line under it.
    """
    parameters, alone = cost.spec, cost.spec.attention_only
    several, depth = len(parameters.stacks) > 1, cost.spec.main.depth
    held = "in all" if several or depth == 1 else f"{count(depth)} layers"
    columns = (
        doc.Column("part", right=False),
        doc.Column("shape", right=False, keep=5 if alone else 2, tone="faint"),
        doc.Column("one head", keep=3 if alone else 1, tone="faint"),
        doc.Column("one layer", keep=5, tone="faint"),
        doc.Column("parameters" if alone else held),
        doc.Column("share", keep=6),
    )
    lines: Sequence[PartLine] = list(part_lines(parameters))
    if alone:
        lines = [line._replace(detail=False, layers=0) for line in lines if line.detail]
    added = " + ".join(count(line.number) for line in lines if not line.detail)
    if several and not formulas:
        lines = _brief(lines)
    rows: list[doc.Row] = []
    name = ""
    for line in lines:
        if several and line.stack not in ("", name):
            name = line.stack
            rows.append(doc.Row([name, *[""] * 5], tone="strong"))
        rows.append(_part_row(line, cost.total, formulas, several, alone))
    below = [f"{added} = {count(cost.total)}"] if formulas else ()
    last = ("total", "", "", "", count(cost.total), percentage(1, 1))
    rows.append(doc.Row(last, tone="strong", ruled=True, below=below))
    if parameters.active != cost.total:
        active = (count(parameters.active), percentage(parameters.active, cost.total))
        rows.append(doc.Row(("active a token", "", "", "", *active), tone="strong"))
    buffers: Counter[str] = Counter()
    for term in parameters.buffers:
        buffers[term.label] += term.number
    for label, number in buffers.items():
        rows.append(doc.Row((label, "", "", "", count(number), "buffer"), tone="faint"))
    return doc.Table(columns, rows)


def _brief(lines: Sequence[PartLine]) -> list[PartLine]:
    """Return a table's lines without details; many small ones outside the layers become one."""
    groups: dict[tuple[str, str], list[PartLine]] = {}
    for line in lines:
        if not line.detail:
            joins = not line.layers and line.role in _TOGETHER
            groups.setdefault((line.stack, line.role if joins else line.label), []).append(line)
    brief: list[PartLine] = []
    for (stack, role), group in groups.items():
        if len(group) >= _MANY:
            number = sum(line.number for line in group)
            group = [PartLine(_TOGETHER[role], role, number, stack=stack)]
        brief += group
    return brief


def _part_row(line: PartLine, whole: int, formulas: bool, several: bool, alone: bool) -> doc.Row:
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
    return doc.Row(
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
    """Return the size of a line's single matrix or vector, ``4096 × 4096``; empty for several."""
    biased = len(line.terms) == 2 and line.terms[1].role == "bias" and not line.layers
    if not line.terms or (len(line.terms) > 1 and not biased):
        return ""
    return " × ".join(map(str, line.terms[0].factors))


def _below(line: PartLine) -> list[str]:
    """Return strings with a line's arithmetic: of each term, of their sum, and over all layers."""
    several, once = len(line.terms) > 1, line.each if line.layers else line.number
    texts = []
    for term in line.terms:
        label = f"{_said(term.label)}: " if several else ""
        texts.append(label + (f"{term.symbols} = " if term.symbols else "") + term.formula)
    if once is not None and several:
        summed = " + ".join(count(term.number) for term in line.terms)
        texts.append(f"{summed} = {count(once)}")
    if line.each is not None and line.layers > 1:
        texts.append(f"{count(line.each)} × {count(line.layers)} layers = {count(line.number)}")
    return texts


def layer_table(cost: CostReport) -> doc.Table:
    """Return a table with a row for each kind of layer: how many, attention, parameters."""
    columns = (
        doc.Column("layers", right=False),
        doc.Column("kind", right=False, keep=4),
        doc.Column("attention"),
        doc.Column("MLP"),
        doc.Column("norms", keep=3, tone="faint"),
        doc.Column("one layer", tone="strong"),
    )
    rows = []
    for stack in cost.spec.stacks:
        name = f"{stack.name}: " * (len(cost.spec.stacks) > 1)
        for group in stack.groups:
            shares = Shares.of(group.layer.placed)
            numbers = (shares.attention, shares.feed_forward, shares.norm + shares.other)
            counts = map(count, (*numbers, sum(shares)))
            rows.append(doc.Row((name + layer_span(group), group.kind, *counts)))
    return doc.Table(columns, rows, [("Layers", True)])


def brief_parameter_table(cost: CostReport) -> doc.Table:
    """Return a table of the total and the number of parameters of each role, such as attention."""
    shares, active = Shares.of(cost.spec.placed), cost.spec.active
    tied = any(stack.head is not None and stack.head.tied for stack in cost.spec.stacks)
    forward, mlp, inner = cost.spec.common.layer.feed_forward, "MLP", ""
    if isinstance(forward, ExpertsSpec):
        mlp, inner = "experts", experts_words(forward)
    elif forward is not None:
        inner = f"d_ff {count(forward.d_ff)}" + ", gated" * forward.gated
    roles = [
        ("embedding", "embedding", shares.embedding, f"also the {LM_HEAD} (tied)" * tied),
        ("attention", "attention", shares.attention, _attention_note(cost)),
        ("feed_forward", mlp, shares.feed_forward, inner),
        ("head", LM_HEAD, shares.head, ""),
        ("other", "norms, other", shares.norm + shares.other, ""),
    ]
    # Smaller details are shown by --full only.
    roles = [entry for entry in roles if 1000 * entry[2] >= cost.total]
    if active != cost.total:
        roles.append(("", "active a token", active, ""))
    return doc.table(
        roles,
        doc.ColumnOf("parameters", lambda entry: entry[1], right=False),
        doc.ColumnOf(short(cost.total), lambda entry: short(entry[2])),
        doc.ColumnOf("share", lambda entry: percentage(entry[2], cost.total), keep=6),
        doc.ColumnOf("", lambda entry: entry[3], right=False, tone="faint", wraps=True),
        row=lambda entry: {
            "depth": 1,
            **(
                {"bar": (entry[2], cost.total), "tint": TINTS[entry[0]]}
                if entry[0]
                else {"tone": "strong"}
            ),
        },
    )


def _attention_note(cost: CostReport) -> str:
    """Return the attention by its parts: latent ranks, or self and cross, or the projections."""
    latent = cost.spec.attention.latent
    if latent is not None:
        queries = f", of queries {count(latent.q_lora)}" if latent.q_lora else ""
        return f"latent {count(latent.kv_lora)}{queries}"
    lines = [line for line in list(part_lines(cost.spec)) if line.role == "attention"]
    cross = sum(line.number for line in lines if line.label == "cross attention")
    if cross:
        return f"self {short(Shares.of(cost.spec.placed).attention - cross)} · cross {short(cross)}"
    together: dict[int, list[str]] = {}
    for line in lines:
        if line.label in PROJECTIONS:
            together.setdefault(line.number, []).append(line.label[0])
    return " · ".join(
        f"{', '.join(names)} {short(number)}" + " each" * (len(names) > 1)
        for number, names in together.items()
    )
