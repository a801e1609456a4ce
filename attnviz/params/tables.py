"""The tables of one architecture: where its parameters are, its layers, what running it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from attnviz.draw.document import Column, Row, Table, Tint
from attnviz.params.cases import Case
from attnviz.params.counting.cache import CacheCount, CacheLine, Fit, bits, byte_count
from attnviz.params.counting.cost import CostReport
from attnviz.params.parts import (
    PartLine,
    attention_only,
    layer_kind,
    main_attention,
    main_stack,
    part_lines,
)
from attnviz.params.specs import AttentionSpec
from attnviz.params.words import (
    bytes_text,
    count,
    counted,
    fit_words,
    layer_span,
    operations,
    run_words,
    share,
)

_MANY = 3
_TOGETHER = {"embedding": "embeddings", "norm": "outer norms", "other": "other parts"}

LM_HEAD = "LM head"
"""The matrix onto the vocabulary; a bare head is an attention head."""

TINTS = {
    "attention": Tint(225),
    "feed_forward": Tint(135),
    "embedding": Tint(185),
    "norm": Tint(110),
    "head": Tint(160),
    "other": Tint(95),
}
"""The colour of each role's bars; all bright enough for a dark ground."""

_EXACT_BESIDE = 100_000
_STATES = {"linear": "states", "convolution": "convolutions"}
"""What does not grow, by its kind."""


def parameter_table(cost: CostReport, formulas: bool = False) -> Table:
    """Where the parameters are; lines that are not indented add up to the total.

    Of a lone attention its projections, else the parts of every stack, in a layer and in all.
    formulas: each line's arithmetic with the numbers in place stands under it.
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
    last = ("total", "", "", "", count(parameters.total), share(1, 1))
    rows.append(Row(last, tone="strong", ruled=True, below=(_sum(cost),) if formulas else ()))
    if parameters.active != parameters.total:
        active = share(parameters.active, parameters.total)
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
    """Lines without details, and many small ones outside the layers of a stack as one."""
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
    each = "differs" if line.each is None else count(line.each)  # where the layers do not agree
    cells = (
        LM_HEAD if line.label == "head" else line.label,
        "" if inner else _shape(line),
        "" if line.per_head is None else count(line.per_head),
        each if line.layers else "",
        count(line.number),
        share(line.number, whole),
    )
    return Row(
        cells,
        bar=None if line.detail else (line.number, whole),
        tint=TINTS[line.role],
        tone="faint" if line.detail else "plain",
        below=_below(line) if formulas and not inner else (),
        depth=line.detail + bool(several and line.stack),
    )


def _shape(line: PartLine) -> str:
    """The shape of a lone matrix or vector, such as ``4096 × 4096``; empty for several."""
    biased = len(line.terms) == 2 and line.terms[1].role == "bias" and not line.layers
    if not line.terms or (len(line.terms) > 1 and not biased):
        return ""
    shape, equals, _ = line.terms[0].formula.partition(" = ")
    return shape if equals else str(line.terms[0].number)


def _below(line: PartLine) -> tuple[str, ...]:
    """The arithmetic of a line: of each term, of their sum, and over all layers."""
    several = len(line.terms) > 1
    texts = [
        f"{term.label}: " * several + f"{term.symbols} = " * bool(term.symbols) + term.formula
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
    """The lines of the table added up."""
    lines = part_lines(cost.parameters)
    added = [line.number for line in lines if line.detail == attention_only(cost)]
    return " + ".join(count(number) for number in added) + f" = {count(cost.parameters.total)}"


def layer_table(cost: CostReport) -> Table:
    """One row for each kind of layer: which they are, what they do, what one of them holds."""
    columns = (
        Column("layers", right=False),
        Column("kind", right=False, keep=4),
        Column("attention"),
        Column("feed-forward"),
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


def running_table(case: Case, cost: CostReport, formulas: bool = False) -> Table:
    """Memory, the cache, operations of a forward pass, the attention weights."""
    sections = {
        "Memory": _memory(case.fit, cost),
        "KV cache": cache_facts(cost.cache, main_attention(cost).spec),
        "Forward pass (1 MAC = 2 FLOPs)": _flops(cost, formulas),
        "Attention weights": [_maps(cost)] if cost.maps.values else [],
    }
    return facts_table(sections)


def facts_table(sections: Mapping[str, Sequence[Row]]) -> Table:
    """What it is, how much, and how that comes about, under the headings that have something."""
    columns = [
        Column("", right=False),
        Column("", tone="strong"),
        Column("", right=False, tone="faint", wraps=True),
    ]
    rows: list[Row] = []
    for heading, facts in sections.items():
        if facts:
            rows += [Row([heading], tone="strong", spaced=True), *facts]
    return Table(columns, rows)


def fact(label: str, value: str, note: str = "", depth: int = 1) -> Row:
    """One line of such a table."""
    return Row((label, value, note), depth=depth)


def _size(bits: int) -> str:
    """How much memory a number takes."""
    return f"{bits // 8} byte{'s' * (bits > 8)}" if bits % 8 == 0 else f"{bits} bits"


def weight_facts(total: int, dtype: str, size: int, others: Mapping[str, int]) -> list[Row]:
    """What the weights take, by dtype where there are several."""
    made = f"{count(total)} × {_size(bits(dtype))} ({dtype})"
    if not others:
        return [fact("weights", bytes_text(size), made)]
    rest = max(total - sum(others.values()), 0)
    return [fact("weights", bytes_text(size), "as stored")] + [
        fact(
            kind, bytes_text(byte_count(number, kind)), f"{count(number)} × {_size(bits(kind))}", 2
        )
        for kind, number in {dtype: rest, **others}.items()
    ]


def _memory(fit: Fit | None, cost: CostReport) -> list[Row]:
    facts = weight_facts(cost.parameters.total, cost.dtype, cost.weight_bytes, cost.others)
    if cost.buffer_bytes:
        size, note = bytes_text(cost.buffer_bytes), "stored beside them, not trained"
        facts.append(fact("buffers", size, note))
    if cost.cache.bytes:
        facts.append(fact("KV cache", bytes_text(cost.cache.bytes), run_words(cost)))
    if len(facts) > 1 or fit is not None:
        facts.append(fact("total", bytes_text(cost.needed_bytes), free_words(fit, cost)))
    if fit is not None:
        facts.append(fact("longest context", "", fit_words(fit)))
    return facts


def free_words(fit: Fit | None, cost: CostReport) -> str:
    """What of a memory stays free, or is missing; empty where none was named."""
    if fit is None:
        return ""
    left, memory = fit.memory - cost.needed_bytes, bytes_text(fit.memory)
    return f"{bytes_text(abs(left))} {'free of' if left >= 0 else 'more than'} {memory}"


def cache_facts(cache: CacheCount, spec: AttentionSpec | None = None) -> list[Row]:
    """What a token, a state and the whole length take; none where nothing is kept.

    spec: the attention that most layers have, to write its cache as a product.
    """
    if not cache.lines:
        return []
    facts = []
    if cache.bytes_per_token:
        growing = [line for line in cache.lines if line.kind not in ("cross", *_STATES)]
        made = " + ".join(_kept(line, spec) for line in growing)
        made = f"({made})" if len(growing) > 1 else made
        made += f" × {_size(cache.bits)}"
        facts.append(fact("one token", bytes_text(cache.bytes_per_token), made))
    if cache.bytes_per_token_late != cache.bytes_per_token:
        late = bytes_text(cache.bytes_per_token_late)
        facts.append(fact("one token later on", late, "once all sliding windows are full"))
    if cache.cross_bytes_per_token:
        size = bytes_text(cache.cross_bytes_per_token)
        facts.append(fact("one source token", size, "kept by the cross attention"))
    if cache.constant_bytes:
        size = bytes_text(cache.constant_bytes)
        made = " + ".join(_state(line) for line in cache.lines if line.kind in _STATES)
        facts.append(fact("constant", size, f"{made}, at any length"))
    notes = [f"{count(cache.bytes)} bytes"] if cache.bytes >= _EXACT_BESIDE else []
    if cache.cross_bytes:
        source = f"{count(cache.source_tokens)} source tokens"
        notes.append(f"{bytes_text(cache.cross_bytes)} of it for {source}")
    facts.append(fact(run_words(cache), bytes_text(cache.bytes), ", ".join(notes)))
    return facts


def _state(line: CacheLine) -> str:
    """What equal layers keep at any length."""
    layers = f"{count(line.layers)} layers × " if line.layers > 1 else ""
    return f"{_STATES[line.kind]}: {layers}{count(line.per_token)} ({line.dtype})"


def _kept(line: CacheLine, spec: AttentionSpec | None) -> str:
    """What equal layers keep of a token, as a product."""
    layers = f"{count(line.layers)} layers × " if line.layers > 1 else ""
    inner = count(line.per_token)
    if spec is None:
        pass
    elif line.kind == "latent" and spec.latent is not None:
        inner = f"({count(spec.latent.kv_lora)} + {count(spec.latent.rope_dim)})"
    elif line.per_token == spec.kv_heads * (spec.head_dim + spec.value_dim):
        pair = f"({count(spec.head_dim)} + {count(spec.value_dim)})"
        if spec.head_dim == spec.value_dim:
            pair = f"2 × {count(spec.head_dim)}"
        inner = f"{counted(spec.kv_heads, 'KV head')} × {pair}"
    window = f" (at most {count(line.window)} tokens)" if line.window is not None else ""
    return f"{layers}{inner}{window}"


def _flops(cost: CostReport, formulas: bool) -> list[Row]:
    """The operations of a pass that leaves masked pairs out; then those without a mask."""
    flops = cost.flops
    masked = flops.attention_scores_visible != flops.attention_scores
    written: dict[str, list[str]] = {term.role: [] for term in flops.terms}
    for term in flops.terms:
        written[term.role].append(term.formula)
    note = "masked pairs left out" if masked else ""
    facts = [fact(run_words(cost), operations(flops.total_visible), note)]
    grows = "" if main_attention(cost).spec.linear else ", grows as n²"
    for role, label, number, more in (
        ("projections", "projections", flops.attention_projections, ""),
        ("scores", "attention", flops.attention_scores_visible, grows),
        ("feed-forward", "feed-forward", flops.ffn, ""),
        ("head", LM_HEAD, flops.head, ""),
        ("other", "other", flops.other, ""),
    ):
        if number:
            notes = [share(number, flops.total_visible) + more]
            notes += written[role] if formulas and not (masked and role == "scores") else []
            facts.append(fact(label, operations(number), "; ".join(notes), 2))
    if masked:
        notes = [f"attention over all pairs: {operations(flops.attention_scores)}"]
        notes += written["scores"] if formulas else []
        facts.append(fact("without a mask", operations(flops.total), "; ".join(notes)))
    if flops.per_token:
        scores = operations(flops.scores_per_token)
        note = f"+ {scores} attention per token at {count(cost.tokens)}"
        facts.append(fact("one token more", operations(flops.per_token), note))
    return facts


def _maps(cost: CostReport) -> Row:
    maps, products = cost.maps, []
    for layers, heads, queries, keys in maps.shapes:
        size = f"{count(queries)}²" if queries == keys else f"{count(queries)} × {count(keys)}"
        depth = f"{count(layers)} layers × " if layers > 1 else ""
        products.append(f"{depth}{counted(heads, 'head')} × {size}")
    made = f"({' + '.join(products)})" if len(products) > 1 else products[0]
    if cost.batch > 1:
        made = f"{count(cost.batch)} × {made}"
    return fact("if materialised", bytes_text(maps.bytes), f"{made} × {_size(maps.bits)}")
