"""Tables of one architecture's running costs: memory, operations, cache, longest context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnviz.count.params.cases import Case
from attnviz.count.params.counting.built import BuiltCount
from attnviz.count.params.counting.cache import (
    CacheCount,
    CacheLine,
    bits,
    byte_count,
)
from attnviz.count.params.counting.cost import CostReport, count_cost
from attnviz.count.params.counting.memory import MemoryFit
from attnviz.count.params.parts import main_attention
from attnviz.count.params.specs import AttentionSpec
from attnviz.count.params.tables import LM_HEAD, TINTS
from attnviz.count.params.words import bytes_text, count, operations, percentage, run_words
from attnviz.draw.document import Column, Row, Table
from attnviz.draw.numbers import counted

LENGTHS = (-4, -2, -1, 0, 1, 2, 3, 4)
FEW_LENGTHS = (-2, 0, 1, 2)
"""The lengths next to the requested one, as powers of two to multiply it with."""

_EXACT_BESIDE = 100_000
_STATES = {"linear": "states", "convolution": "convolutions"}
"""The names of parts of the cache that do not grow, by kind."""


def overview_table(case: Case, cost: CostReport | BuiltCount, maps: bool = True) -> Table:
    """Return a table with a line each for memory, operations and the longest context.

    case, cost: the counts. maps: whether to include attention maps, which few programs store.
    """
    columns = [
        Column("", right=False, tone="faint"),
        Column("", right=False),
        Column("", tone="strong"),
        Column("", right=False, tone="faint", wraps=True),
    ]
    sections = {
        "memory": _memory(case, cost, maps),
        "compute": _compute(cost) if isinstance(cost, CostReport) else [],
        "context": _context(case, cost),
    }
    rows = []
    for name, found in sections.items():
        for place, (label, value, note, part) in enumerate(found):
            cells = (name if not place else "", label, value, note)
            bar = (part, cost.needed_bytes) if part and cost.needed_bytes else None
            rows.append(Row(cells, bar=bar, tint=TINTS["feed_forward"]))
    return Table(columns, rows)


_Line = tuple[str, str, str, int]
"""Label, value, note, and the bytes of memory that a bar shows, 0 for no bar."""


def _memory(case: Case, cost: CostReport | BuiltCount, maps: bool) -> list[_Line]:
    cache, total = cost.cache, cost.needed_bytes
    weights = None if cost.weight_bytes is None else cost.weight_bytes + cost.buffer_bytes
    made = f"{count(cost.total)} × {_size(bits(cost.dtype))} ({cost.dtype})"
    if cost.storage is not None:
        made = cost.storage.scheme + (", as its files have them" if cost.storage.buffered else "")
        made += "" if cost.stated else f", {cost.dtype} assumed"
    elif cost.others:
        made = "as stored"
    elif not cost.stated:
        made = f"dtype not stated, counted as {cost.dtype}"
    lines = [("weights", bytes_text(weights), made, weights or 0)]
    lines += _stored_lines(cost)
    if cache is not None and cache.bytes:
        per_token = cache.bytes_per_token
        kept = f"{bytes_text(per_token)} a token" if per_token else "at any length"
        spec = main_attention(cost).spec if isinstance(cost, CostReport) else None
        if spec is not None and spec.latent is not None:
            kept += f", latent {count(spec.latent.kv_lora + spec.latent.rope_dim)}"
        elif spec is not None and spec.kv_heads != spec.heads:
            kept += f", {count(spec.kv_heads)} KV heads"
        lines.append(("KV cache", bytes_text(cache.bytes), kept, cache.bytes))
    if cache is not None and total is not None and (cache.bytes or case.fit is not None):
        free = ""
        if case.fit is not None:
            left, memory = case.fit.memory - total, bytes_text(case.fit.memory)
            beyond = "left for activations" if left >= 0 else f"more than {memory}"
            free = f"{bytes_text(abs(left))} {beyond}"
        lines.append(("total", bytes_text(total), free, 0))
    if maps and isinstance(cost, CostReport) and cost.maps.values:
        note = "weights if materialised, else none"
        lines.append(("attention", bytes_text(cost.maps.bytes), note, 0))
    return lines


def _stored_lines(cost: CostReport | BuiltCount) -> list[_Line]:
    """Return a line for each way in which parameters are stored; empty if all are stored alike."""
    parts: list[tuple[str, int, int | None]] = []
    if cost.storage is not None:
        parts = [
            (line.label, line.bytes, line.numbers) for line in cost.storage.lines if line.bytes
        ]
    elif cost.others:
        rest = cost.total - sum(cost.others.values())
        dtypes = {cost.dtype: rest, **cost.others}
        parts = [(kind, byte_count(many, kind), many) for kind, many in dtypes.items()]
    return [
        (f"  {label}", bytes_text(size), "" if many is None else f"{count(many)} numbers", 0)
        for label, size, many in parts
    ]


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
    shares = [f"{name} {round(100 * parts[name] / total)}%" for name in largest if total]
    label = "prefill" if causal else "forward pass"
    lines = [(label, operations(total), " · ".join(shares), 0)]
    if causal and flops.per_token:
        step = flops.per_token + flops.scores_per_token
        both = f"{_bare(flops.per_token)} + {_bare(flops.scores_per_token)} attention"
        lines.append(("decode", operations(step), f"a token: {both}", 0))
    return lines


def _bare(number: int) -> str:
    return operations(number).removesuffix("FLOP")


def _context(case: Case, cost: CostReport | BuiltCount) -> list[_Line]:
    if case.fit is not None:
        return [_longest(case.fit)]
    limit = cost.limit
    return [("limit", count(limit), "tokens that its positions allow", 0)] if limit else []


def _longest(fit: MemoryFit) -> _Line:
    """Return the label, value and note of the longest context that fits next to the parameters.

    The note says what limits it.
    """
    found, why = f"{count(fit.by_memory or 0)} tokens{' each' * (fit.batch > 1)}", ""
    if fit.binds == "weights":
        found, why = "none", ", the weights alone do not fit"
    elif fit.tokens == 0:
        found, why = "none", ", no cache fits beside the weights"
    elif fit.binds == "nothing":
        found, why = "any", ", the cache does not grow"
    elif fit.max_positions is not None:
        why = f", its positions end at {count(fit.max_positions)}"
        found = f"{count(fit.max_positions)} tokens" if fit.by_memory is None else found
    return "longest", found, f"in {bytes_text(fit.memory)}{why}", 0


# In detail --------------------------------------------------------------------------------------


def detail_table(cost: CostReport, formulas: bool = False) -> Table:
    """Return a table with the arithmetic of the cache and of the operations.

    formulas: True adds the arithmetic of each line of the operations.
    """
    sections = {
        "KV cache": cache_facts(cost.cache, main_attention(cost).spec),
        "Forward pass (1 MAC = 2 FLOPs)": _flops(cost, formulas),
    }
    return facts_table(sections)


def facts_table(sections: Mapping[str, Sequence[Row]]) -> Table:
    """Return a table of rows (label, value, note) under headings; empty sections are left out."""
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
    """Return a row of ``facts_table``: a label, its value, and a note after it.

    depth: how many levels the label is indented.
    """
    return Row((label, value, note), depth=depth)


def _size(bits: int) -> str:
    return f"{bits // 8} byte{'s' * (bits > 8)}" if bits % 8 == 0 else f"{bits} bits"


def cache_facts(cache: CacheCount, spec: AttentionSpec | None = None) -> list[Row]:
    """Return rows with the cache of a token, a state and the whole length; empty without a cache.

    spec: the attention of most layers, for showing its cache as a product.
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
    """Return in words the cache of equal layers whose size does not depend on the length."""
    layers = f"{count(line.layers)} layers × " if line.layers > 1 else ""
    return f"{_STATES[line.kind]}: {layers}{count(line.per_token)} ({line.dtype})"


def _kept(line: CacheLine, spec: AttentionSpec | None) -> str:
    """Return in words what equal layers cache for a token, as a product.

    line: the cache of these layers. spec: the attention that most layers have, or None.
    """
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
    """Return table rows with the operations of a forward pass, first without masked pairs.

    formulas: True adds the arithmetic.
    """
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
        ("feed-forward", "MLP", flops.ffn, ""),
        ("head", LM_HEAD, flops.head, ""),
        ("other", "other", flops.other, ""),
    ):
        if number:
            notes = [percentage(number, flops.total_visible) + more]
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


# Other lengths ------------------------------------------------------------------------------------


def length_table(
    case: Case, cost: CostReport, powers: Sequence[int], across: bool = False
) -> list[Table]:
    """Return tables of the costs at other lengths; empty for a model with one fixed length.

    powers: powers of two by which the requested length is multiplied. across: whether lengths go
        from left to right rather than from top to bottom.
    """
    if cost.spec.main.tokens is not None:
        return []
    lengths = {max((cost.tokens << max(power, 0)) >> max(-power, 0), 1) for power in powers}
    counts = [_at_length(cost, tokens) for tokens in sorted(lengths)]
    rows = {"tokens": [count(one.tokens) for one in counts]}
    if cost.cache.bytes:
        rows["KV cache"] = [bytes_text(one.cache.bytes) for one in counts]
    if cost.cache.bytes and cost.needed_bytes is not None:
        rows["total"] = [bytes_text(one.needed_bytes) for one in counts]
    if not cost.cache.bytes or not across:
        label = "prefill" if cost.spec.main.causal else "forward pass"
        rows[label] = [operations(one.flops.total_visible) for one in counts]
        rows["attention weights"] = [bytes_text(one.maps.bytes) for one in counts]
    if case.fit is not None and not across:
        memory = case.fit.memory
        fits = ["yes" if (one.needed_bytes or 0) <= memory else "no" for one in counts]
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


def _at_length(cost: CostReport, tokens: int) -> CostReport:
    """Return the cost of the same architecture at another length."""
    return count_cost(
        cost.spec,
        tokens=tokens,
        source_tokens=None if cost.source_tokens == cost.tokens else cost.source_tokens,
        batch=cost.batch,
        dtype=cost.dtype,
        cache_dtype=cost.cache_dtype,
        others=cost.others,
        storage=cost.storage,
    )
