"""The first screen of one architecture: memory, compute, context; parameters; other lengths."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.draw.document import Beside, Column, Group, Row, Table
from attnviz.params.cases import Case
from attnviz.params.counting.cost import CostReport, count_cost
from attnviz.params.options import View
from attnviz.params.parts import attention_only, main_attention, main_group, part_lines
from attnviz.params.specs import ExpertsSpec, FeedForwardSpec
from attnviz.params.tables import (
    LM_HEAD,
    TINTS,
    free_words,
    layer_table,
    parameter_table,
)
from attnviz.params.words import bytes_text, count, fit_words, operations, share, short

BESIDE = Beside(58)
"""How the tables of a first screen stand where a terminal is wide."""

LENGTHS = (-4, -2, -1, 0, 1, 2, 3, 4)
_FEW_LENGTHS = (-2, 0, 1, 2)
"""Lengths beside the one that was asked for, as powers of two of it."""

_PROJECTIONS = ("query", "key", "value", "output")


def first_groups(case: Case, cost: CostReport, view: View, columns: int, lines: int) -> list[Group]:
    """What ``lines`` of so many columns have room for; wide terminals show tables beside."""
    overview = _overview(case, cost)
    parameters = parameter_table(cost, view.formula)._replace(least=3)
    more = [layer_table(cost)._replace(least=3)] if view.per_layer else []
    if columns >= 2 * BESIDE.columns + BESIDE.gap:
        lengths = length_table(case, cost, LENGTHS)
        tables = [parameters, *lengths, *more]
        return [Group([overview]), Group(tables, beside=BESIDE._replace(most=len(tables)))]
    if view.formula or view.per_layer:
        shown = [*more, parameters if view.formula else _brief_parameters(cost)]
        taken = sum(len(row.below) + 1 for table in shown for row in table.rows)
        shown += [overview] * (taken + 4 * len(shown) + len(overview.rows) <= lines)
        return [Group([table]) for table in shown]
    lengths = length_table(case, cost, _FEW_LENGTHS, across=True)
    rest = lines - len(overview.rows) - sum(len(table.rows) + 2 for table in lengths) - 4
    if rest < len(parameters.rows) and not attention_only(cost):
        parameters = _brief_parameters(cost)
    if rest < len(parameters.rows):
        overview = _overview(case, cost, maps=False)
    groups = [Group([overview]), Group([parameters])]
    return groups + [Group([table], yields=1) for table in lengths]


def _overview(case: Case, cost: CostReport, maps: bool = True) -> Table:
    """What it takes and does, a line each: memory, compute, the longest context.

    maps: whether attention weights are told, which few programs materialise.
    """
    columns = [
        Column("", right=False, tone="faint"),
        Column("", right=False),
        Column("", tone="strong"),
        Column("", right=False, tone="faint", wraps=True),
    ]
    sections = {
        "memory": _memory(case, cost),
        "compute": _compute(cost),
        "context": _context(case, cost),
    }
    rows = []
    for name, found in sections.items():
        for place, (label, value, note, part) in enumerate(found):
            cells = (name if not place else "", label, value, note)
            bar = (part, cost.needed_bytes) if part else None
            rows.append(Row(cells, bar=bar, tint=TINTS["feed_forward"]))
        if name == "memory" and maps and cost.maps.values:
            size = bytes_text(cost.maps.bytes)
            told = f"attention weights, if materialised: {size} (FlashAttention: none)"
            rows[-1] = rows[-1]._replace(below=[told])
    return Table(columns, rows)


_Line = tuple[str, str, str, int]
"""Label, value, note, and the part of the memory that a bar shows; 0 for none."""


def _memory(case: Case, cost: CostReport) -> list[_Line]:
    weights, cache = cost.weight_bytes + cost.buffer_bytes, cost.cache
    told = f"{short(cost.parameters.total)} in {' and '.join([cost.dtype, *cost.others])}"
    if not cost.stated:
        told = f"dtype not stated, counted as {cost.dtype}"
    lines = [("weights", bytes_text(weights), told, weights)]
    if cache.bytes:
        per_token, spec = cache.bytes_per_token, main_attention(cost).spec
        kept = f"{bytes_text(per_token)} a token" if per_token else "at any length"
        if spec.latent is not None:
            kept += f", latent {count(spec.latent.kv_lora + spec.latent.rope_dim)}"
        elif spec.kv_heads != spec.heads:
            kept += f", {count(spec.kv_heads)} KV heads"
        lines.append(("KV cache", bytes_text(cache.bytes), kept, cache.bytes))
    if cache.bytes or case.fit is not None:
        lines.append(("total", bytes_text(cost.needed_bytes), free_words(case.fit, cost), 0))
    return lines


def _compute(cost: CostReport) -> list[_Line]:
    flops, causal = cost.flops, cost.spec.main.causal
    parts = {
        "attention": flops.attention_scores_visible,
        "projections": flops.attention_projections,
        "MLP": flops.ffn,
        LM_HEAD: flops.head,
    }
    largest = sorted((name for name in parts if parts[name]), key=lambda name: -parts[name])[:2]
    total = flops.total_visible
    shares = [f"{name} {round(100 * parts[name] / total)} %" for name in largest if total]
    label = "prefill" if causal else "forward pass"
    lines = [(label, operations(total), " · ".join(shares), 0)]
    if causal and flops.per_token:
        step = flops.per_token + flops.scores_per_token
        both = f"{_bare(flops.per_token)} + {_bare(flops.scores_per_token)} attention"
        lines.append(("decode", operations(step), f"a token: {both}", 0))
    return lines


def _bare(number: int) -> str:
    return operations(number).removesuffix("FLOP")


def _context(case: Case, cost: CostReport) -> list[_Line]:
    if case.fit is not None:
        longest, _, why = fit_words(case.fit).replace(":", ";", 1).partition("; ")
        return [("longest", longest, f"in {bytes_text(case.fit.memory)}{', ' * bool(why)}{why}", 0)]
    limit_of_model = cost.spec.main.max_positions
    if limit_of_model is None:
        return []
    return [("limit", count(limit_of_model), "tokens that its positions allow", 0)]


def _brief_parameters(cost: CostReport) -> Table:
    """A line for each role, under the total."""
    parameters = cost.parameters
    shares, total = parameters.shares, parameters.total
    columns = [
        Column("parameters", right=False),
        Column(short(total)),
        Column("", keep=6),
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
        Row((label, short(number), share(number, total), note), (number, total), TINTS[role])
        for role, label, number, note in roles
        if 1000 * number >= total  # what is less is left to --full
    ]
    if parameters.active != total:
        cells = ("active a token", short(parameters.active), share(parameters.active, total), "")
        rows.append(Row(cells, tone="strong"))
    return Table(columns, [row._replace(depth=1) for row in rows])


def _attention_note(cost: CostReport) -> str:
    """What the projections take, or self and cross attention."""
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
        f"{names} {short(number)}" + " each" * ("," in names) for number, names in together.items()
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
    return f"d_ff {count(spec.d_ff)}" + ", gated" * spec.gated


def length_table(
    case: Case, cost: CostReport, powers: Sequence[int], across: bool = False
) -> list[Table]:
    """What other lengths take, lengths from left to right or a row each; none where one is fixed.

    powers: of two, times the length that was asked for.
    """
    if cost.spec.main.tokens is not None:
        return []
    lengths = {max((cost.tokens << max(power, 0)) >> max(-power, 0), 1) for power in powers}
    counts = [_at(cost, tokens) for tokens in sorted(lengths)]
    rows = {"tokens": [count(one.tokens) for one in counts]}
    if cost.cache.bytes:
        rows["KV cache"] = [bytes_text(one.cache.bytes) for one in counts]
        rows["total"] = [bytes_text(one.needed_bytes) for one in counts]
    if not cost.cache.bytes or not across:
        label = "prefill" if cost.spec.main.causal else "forward pass"
        rows[label] = [operations(one.flops.total_visible) for one in counts]
        rows["attention weights"] = [bytes_text(one.maps.bytes) for one in counts]
    if case.fit is not None and not across:
        memory = case.fit.memory
        fits = ["yes" if one.needed_bytes <= memory else "no" for one in counts]
        rows[f"fits {bytes_text(memory)}"] = fits
    if across:
        titles, *others = [[name, *cells] for name, cells in rows.items()]
        columns = [Column(title, right=bool(place)) for place, title in enumerate(titles)]
        return [Table(columns, [Row(cells) for cells in others])]
    columns = [Column(title, keep=9 - place) for place, title in enumerate(rows)]
    return [
        Table(
            columns,
            [
                Row(cells, tone="strong" if one.tokens == cost.tokens else "plain")
                for one, *cells in zip(counts, *rows.values(), strict=True)
            ],
            least=3,
        )
    ]


def _at(cost: CostReport, tokens: int) -> CostReport:
    """The same architecture at another length."""
    return count_cost(
        cost.spec,
        tokens=tokens,
        source_tokens=None if cost.source_tokens == cost.tokens else cost.source_tokens,
        batch=cost.batch,
        dtype=cost.dtype,
        cache_dtype=cost.cache_dtype,
        others=cost.others,
    )
