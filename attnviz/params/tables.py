"""The tables of one architecture: where its parameters are, its layers, what running it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from attnviz.draw.document import Column, Row, Table, Tint
from attnviz.params.counting.cache import CacheCount, CacheLine
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
from attnviz.params.words import bytes_text, count, layer_span, run_words, share, short

_MANY = 3
_TOGETHER = {"embedding": "embeddings", "norm": "outer norms", "other": "other parts"}

_TINTS = {
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

    formulas: each line's arithmetic with the numbers in place stands under it.
    """
    made = _one_attention if attention_only(cost) else _whole_model
    return made(cost, formulas)


def _one_attention(cost: CostReport, formulas: bool) -> Table:
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
            _cells(line, whole, each=False),
            bar=(line.number, whole),
            tint=_TINTS["attention"],
            below=_below(line) if formulas else (),
        )
        for line in part_lines(cost.parameters)
        if line.detail
    ]
    below = (_sum(cost),) if formulas else ()
    last = ("total", "", "", count(whole), share(whole, whole))
    return Table(columns, [*rows, Row(last, tone="strong", ruled=True, below=below)])


def _whole_model(cost: CostReport, formulas: bool) -> Table:
    """The parts of every stack, in one layer and in the whole model."""
    parameters = cost.parameters
    several = len(parameters.stacks) > 1
    depth = main_stack(cost).spec.depth
    columns = (
        Column("part", right=False),
        Column("shape", right=False, keep=2, tone="faint"),
        Column("one head", keep=1, tone="faint"),
        Column("one layer", keep=5, tone="faint"),
        Column("in all" if several or depth == 1 else f"{count(depth)} layers"),
        Column("share", keep=6),
    )
    rows: list[Row] = []
    name = ""
    lines = part_lines(parameters)
    for line in _brief(lines) if several and not formulas else lines:
        if several and line.stack not in ("", name):
            name = line.stack
            rows.append(Row([name, *[""] * 5], tone="strong"))
        rows.append(_part_row(line, parameters.total, formulas, several))
    below = (_sum(cost),) if formulas else ()
    last = ("total", "", "", "", count(parameters.total), share(1, 1))
    rows.append(Row(last, tone="strong", ruled=True, below=below))
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


def _part_row(line: PartLine, whole: int, formulas: bool, several: bool) -> Row:
    inner = line.role in ("attention", "feed_forward") and not line.detail
    return Row(
        _cells(line, whole),
        bar=None if line.detail else (line.number, whole),
        tint=_TINTS[line.role],
        tone="faint" if line.detail else "plain",
        below=_below(line) if formulas and not inner else (),
        depth=line.detail + bool(several and line.stack),
    )


def _cells(line: PartLine, whole: int, each: bool = True) -> list[str]:
    """Label, shape, what one head holds and, if wanted, one layer, count and share."""
    cells = [line.label, _shape(line), "" if line.per_head is None else count(line.per_head)]
    if each:  # a word where the layers do not agree
        one = "differs" if line.each is None else count(line.each)
        cells.append(one if line.layers else "")
    return [*cells, count(line.number), share(line.number, whole)]


def _shape(line: PartLine) -> str:
    """The shape of a lone matrix or vector, such as ``4096 × 4096``; empty for several."""
    inner = line.role in ("attention", "feed_forward") and not line.detail
    biased = len(line.terms) == 2 and line.terms[1].role == "bias" and not line.layers
    if inner or not line.terms or (len(line.terms) > 1 and not biased):
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


def running_table(cost: CostReport, formulas: bool = False) -> Table:
    """Memory of the weights, the cache, operations of a forward pass, the attention maps."""
    sections = {
        "Weights": _weights(cost),
        "KV cache": cache_facts(cost.cache, main_attention(cost).spec),
        "Forward pass, floating-point operations": _flops(cost, formulas),
        "Attention maps": [_maps(cost)] if cost.maps.values else [],
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


def _weights(cost: CostReport) -> list[Row]:
    made = f"{count(cost.parameters.total)} × {_size(cost.bits)} ({cost.dtype})"
    facts = [fact("all parameters", bytes_text(cost.weight_bytes), made)]
    if cost.buffer_bytes:
        size, note = bytes_text(cost.buffer_bytes), "stored beside them, not trained"
        facts.append(fact("buffers, apart", size, note))
    return facts


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
        inner = f"{count(spec.kv_heads)} kv head{'s' * (spec.kv_heads > 1)} × {pair}"
    window = f" (at most {count(line.window)} tokens)" if line.window is not None else ""
    return f"{layers}{inner}{window}"


def _flops(cost: CostReport, formulas: bool) -> list[Row]:
    flops = cost.flops
    facts = []
    if flops.per_token:
        scores = short(flops.scores_per_token)
        note = f"+ {scores} of scores over {count(cost.tokens)} tokens"
        facts.append(fact("one token", short(flops.per_token), note))
    facts.append(fact(run_words(cost), short(flops.total), "a multiply-add is two"))
    lines = [
        ("projections", flops.attention_projections, ""),
        ("scores", flops.attention_scores, _square(cost)),
        ("feed-forward", flops.ffn, ""),
        ("head", flops.head, ""),
        ("other", flops.other, ""),
    ]
    for label, number, note in lines:
        if number:
            note = share(number, flops.total) + note
            if formulas:
                written = [term.formula for term in flops.terms if term.role == label]
                note = "; ".join([note, *written])
            facts.append(fact(label, short(number), note, 2))
    return facts


def _square(cost: CostReport) -> str:
    """What is to be said of the part that grows with the square of the length."""
    flops = cost.flops
    if main_attention(cost).spec.linear:
        return ""
    if flops.attention_scores_visible == flops.attention_scores:
        return ", the part that grows with n²"
    seen = short(flops.attention_scores_visible)
    skipped = "causal" if main_attention(cost).spec.window is None else "masks are used"
    return f", grows with n²; {seen} if {skipped}"


def _maps(cost: CostReport) -> Row:
    maps, products = cost.maps, []
    for layers, heads, queries, keys in maps.shapes:
        size = f"{count(queries)}²" if queries == keys else f"{count(queries)} × {count(keys)}"
        depth = f"{count(layers)} layers × " if layers > 1 else ""
        products.append(f"{depth}{count(heads)} head{'s' * (heads > 1)} × {size}")
    made = f"({' + '.join(products)})" if len(products) > 1 else products[0]
    if cost.batch > 1:
        made = f"{count(cost.batch)} × {made}"
    label = f"{count(maps.maps)} map{'s' * (maps.maps > 1)}, if kept"
    return fact(label, bytes_text(maps.bytes), f"{made} × {_size(maps.bits)}")
