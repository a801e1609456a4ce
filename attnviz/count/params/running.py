"""Tables of one architecture's running costs: memory, operations, cache, longest context."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attnviz.count.params.cache import STATES, CacheCount, CacheLine, bits, byte_count
from attnviz.count.params.cost import BuiltCount, CostReport, MemoryFit
from attnviz.count.params.report import Case
from attnviz.count.params.specs import AttentionSpec
from attnviz.count.params.tables import LM_HEAD, TINTS
from attnviz.count.params.wording import bytes_text, count, operations, percentage, run_words
from attnviz.draw import document as doc
from attnviz.draw.numbers import counted

LENGTHS = (-4, -2, -1, 0, 1, 2, 3, 4)
FEW_LENGTHS = (-2, 0, 1, 2)
"""The lengths next to the requested one, as powers of two to multiply it with."""

_EXACT_BESIDE = 100_000


def overview_table(case: Case, cost: CostReport | BuiltCount, maps: bool = True) -> doc.Table:
    """Return a table with a line each for memory, operations and the longest context.

    case, cost: the counts. maps: whether to include attention maps, which few programs store.
    """
    sections = {
        "memory": _memory(case, cost, maps),
        "compute": _compute(cost) if isinstance(cost, CostReport) else (),
        "context": _context(case, cost),
    }
    lines = [
        (name * (not index), *line)
        for name, section in sections.items()
        for index, line in enumerate(section)
    ]
    needed = cost.needed_bytes
    return doc.table(
        lines,
        doc.ColumnOf("", lambda line: line[0], right=False, tone="faint"),
        doc.ColumnOf("", lambda line: line[1], right=False),
        doc.ColumnOf("", lambda line: line[2], tone="strong"),
        doc.ColumnOf("", lambda line: line[3], right=False, tone="faint", wraps=True),
        row=lambda line: {
            "bar": (line[4], needed) if line[4] and needed else None,
            "tint": TINTS["feed_forward"],
        },
    )


_Line = tuple[str, str, str, int]
"""Label, value, note, and the bytes of memory that a bar shows, 0 for no bar."""


def _memory(case: Case, cost: CostReport | BuiltCount, maps: bool) -> Iterator[_Line]:
    cache, total = cost.cache, cost.needed_bytes
    weights = None if cost.weight_bytes is None else cost.weight_bytes + cost.buffer_bytes
    made = f"{count(cost.total)} × {_size(bits(cost.dtype))} ({cost.dtype})"
    if cost.storage is not None:
        made = cost.storage.scheme + ", as its files have them" * cost.storage.buffered
        made += "" if cost.stated else f", {cost.dtype} assumed"
    elif cost.others:
        made = "as stored"
    elif not cost.stated:
        made = f"dtype not stated, counted as {cost.dtype}"
    yield "weights", bytes_text(weights), made, weights or 0
    yield from _stored_lines(cost)
    if cache is not None and cache.bytes:
        per_token = cache.bytes_per_token
        kept = f"{bytes_text(per_token)} a token" if per_token else "at any length"
        spec = cost.spec.attention if isinstance(cost, CostReport) else None
        if spec is not None and spec.latent is not None:
            kept += f", latent {count(spec.latent.kv_lora + spec.latent.rope_dim)}"
        elif spec is not None and spec.kv_heads != spec.heads:
            kept += f", {count(spec.kv_heads)} KV heads"
        yield "KV cache", bytes_text(cache.bytes), kept, cache.bytes
    if cache is not None and total is not None and (cache.bytes or case.fit is not None):
        free = ""
        if case.fit is not None:
            left, memory = case.fit.memory - total, bytes_text(case.fit.memory)
            beyond = "left for activations" if left >= 0 else f"more than {memory}"
            free = f"{bytes_text(abs(left))} {beyond}"
        yield "total", bytes_text(total), free, 0
    if maps and isinstance(cost, CostReport) and cost.maps.values:
        yield "attention", bytes_text(cost.maps.bytes), "weights if materialised, else none", 0


def _stored_lines(cost: CostReport | BuiltCount) -> Iterator[_Line]:
    """Yield a line for each way in which parameters are stored; none if all are stored alike."""
    if cost.storage is not None:
        for line in cost.storage.lines:
            if line.bytes:
                many = "" if line.numbers is None else f"{count(line.numbers)} numbers"
                yield f"  {line.label}", bytes_text(line.bytes), many, 0
    elif cost.others:
        rest = cost.total - sum(cost.others.values())
        for kind, number in {cost.dtype: rest, **cost.others}.items():
            size = bytes_text(byte_count(number, kind))
            yield f"  {kind}", size, f"{count(number)} numbers", 0


def _compute(cost: CostReport) -> Iterator[_Line]:
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
    yield _pass_name(cost), operations(total), " · ".join(shares), 0
    if causal and flops.per_token:
        both = (flops.per_token, flops.scores_per_token)
        once, scores = (operations(number).removesuffix("FLOP") for number in both)
        yield "decode", operations(sum(both)), f"a token: {once} + {scores} attention", 0


def _pass_name(cost: CostReport) -> str:
    return "prefill" if cost.spec.main.causal else "forward pass"


def _context(case: Case, cost: CostReport | BuiltCount) -> Iterator[_Line]:
    if case.fit is not None:
        yield _longest(case.fit)
    elif cost.limit:
        yield "limit", count(cost.limit), "tokens that its positions allow", 0


def _longest(fit: MemoryFit) -> _Line:
    """Return the longest context that fits next to the parameters, and what limits it."""
    tokens, why = f"{count(fit.by_memory or 0)} tokens{' each' * (fit.batch > 1)}", ""
    if fit.binds == "weights":
        tokens, why = "none", ", the weights alone do not fit"
    elif fit.tokens == 0:
        tokens, why = "none", ", no cache fits beside the weights"
    elif fit.binds == "nothing":
        tokens, why = "any", ", the cache does not grow"
    elif fit.max_positions is not None:
        why = f", its positions end at {count(fit.max_positions)}"
        tokens = f"{count(fit.max_positions)} tokens" if fit.by_memory is None else tokens
    return "longest", tokens, f"in {bytes_text(fit.memory)}{why}", 0


# In detail --------------------------------------------------------------------------------------


def detail_table(cost: CostReport, formulas: bool = False) -> doc.Table:
    """Return a table with the arithmetic of the cache and of the operations.

    formulas: True adds the arithmetic of each line of the operations.
    """
    sections = {
        "KV cache": cache_facts(cost.cache, cost.spec.attention),
        "Forward pass (1 MAC = 2 FLOPs)": _flops(cost, formulas),
    }
    return facts_table(sections)


def facts_table(sections: Mapping[str, Sequence[doc.Row]]) -> doc.Table:
    """Return a table of rows (label, value, note) under headings; empty sections are left out."""
    columns = [
        doc.Column("", right=False),
        doc.Column("", tone="strong"),
        doc.Column("", right=False, tone="faint", wraps=True),
    ]
    rows: list[doc.Row] = []
    for heading, facts in sections.items():
        if facts:
            rows += [doc.Row([heading], tone="strong", spaced=True), *facts]
    return doc.Table(columns, rows)


def _fact(label: str, value: str, note: str = "", depth: int = 1) -> doc.Row:
    return doc.Row((label, value, note), depth=depth)


def _size(bits: int) -> str:
    return f"{bits // 8} byte{'s' * (bits > 8)}" if bits % 8 == 0 else f"{bits} bits"


def cache_facts(cache: CacheCount, spec: AttentionSpec | None = None) -> list[doc.Row]:
    """Return rows with the cache of a token, a state and the whole length; empty without a cache.

    spec: the attention of most layers, for showing its cache as a product.
    """
    if not cache.lines:
        return []
    facts = []
    if cache.bytes_per_token:
        kinds = ("cross", *STATES)
        growing = [_kept(line, spec) for line in cache.lines if line.kind not in kinds]
        made = f"({' + '.join(growing)})" if len(growing) > 1 else "".join(growing)
        made += f" × {_size(cache.bits)}"
        facts.append(_fact("one token", bytes_text(cache.bytes_per_token), made))
    if cache.bytes_per_token_late != cache.bytes_per_token:
        late = bytes_text(cache.bytes_per_token_late)
        facts.append(_fact("one token later on", late, "once all sliding windows are full"))
    if cache.cross_bytes_per_token:
        size = bytes_text(cache.cross_bytes_per_token)
        facts.append(_fact("one source token", size, "kept by the cross attention"))
    if cache.constant_bytes:
        states = [
            f"{STATES[line.kind]}: {_layers(line)}{count(line.per_token)} ({line.dtype})"
            for line in cache.lines
            if line.kind in STATES
        ]
        made = f"{' + '.join(states)}, at any length"
        facts.append(_fact("constant", bytes_text(cache.constant_bytes), made))
    notes = [f"{count(cache.bytes)} bytes"] if cache.bytes >= _EXACT_BESIDE else []
    if cache.cross_bytes:
        source = f"{count(cache.source_tokens)} source tokens"
        notes.append(f"{bytes_text(cache.cross_bytes)} of it for {source}")
    facts.append(_fact(run_words(cache), bytes_text(cache.bytes), ", ".join(notes)))
    return facts


def _layers(line: CacheLine) -> str:
    return f"{count(line.layers)} layers × " if line.layers > 1 else ""


def _kept(line: CacheLine, spec: AttentionSpec | None) -> str:
    """Return in words what equal layers cache for a token, as a product of ``spec``'s sizes."""
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
    return f"{_layers(line)}{inner}{window}"


def _flops(cost: CostReport, formulas: bool) -> list[doc.Row]:
    """Return rows with the operations of a forward pass, first without masked pairs."""
    flops = cost.flops
    masked = flops.attention_scores_visible != flops.attention_scores
    written: dict[str, list[str]] = {}
    for term in flops.terms if formulas else ():
        written.setdefault(term.role, []).append(term.formula)
    note = "masked pairs left out" if masked else ""
    facts = [_fact(run_words(cost), operations(flops.total_visible), note)]
    grows = "" if cost.spec.attention.linear else ", grows as n²"
    for role, label, number in (
        ("projections", "projections", flops.attention_projections),
        ("scores", "attention", flops.attention_scores_visible),
        ("feed-forward", "MLP", flops.ffn),
        ("head", LM_HEAD, flops.head),
        ("other", "other", flops.other),
    ):
        if number:
            notes = [percentage(number, flops.total_visible) + grows * (role == "scores")]
            notes += [] if masked and role == "scores" else written.get(role, [])
            facts.append(_fact(label, operations(number), "; ".join(notes), 2))
    if masked:
        notes = [f"attention over all pairs: {operations(flops.attention_scores)}"]
        notes += written.get("scores", [])
        facts.append(_fact("without a mask", operations(flops.total), "; ".join(notes)))
    if flops.per_token:
        scores = operations(flops.scores_per_token)
        note = f"+ {scores} attention per token at {count(cost.tokens)}"
        facts.append(_fact("one token more", operations(flops.per_token), note))
    return facts


# Other lengths ------------------------------------------------------------------------------------


def length_table(
    case: Case, cost: CostReport, powers: Sequence[int], across: bool = False
) -> list[doc.Table]:
    """Return tables of the costs at other lengths; empty for a model with one fixed length.

    powers: powers of two by which the requested length is multiplied. across: whether lengths go
        from left to right rather than from top to bottom.
    """
    if cost.spec.main.tokens is not None:
        return []
    lengths = {max((cost.tokens << max(power, 0)) >> max(-power, 0), 1) for power in powers}
    costs = [cost.at_length(tokens) for tokens in sorted(lengths)]
    columns = [doc.ColumnOf[CostReport]("tokens", lambda other: count(other.tokens))]
    if cost.cache.bytes:
        columns.append(doc.ColumnOf("KV cache", lambda other: bytes_text(other.cache.bytes)))
    if cost.cache.bytes and cost.needed_bytes is not None:
        columns.append(doc.ColumnOf("total", lambda other: bytes_text(other.needed_bytes)))
    if not cost.cache.bytes or not across:
        visible = doc.ColumnOf[CostReport](
            _pass_name(cost), lambda other: operations(other.flops.total_visible)
        )
        maps = doc.ColumnOf[CostReport](
            "attention weights", lambda other: bytes_text(other.maps.bytes)
        )
        columns += [visible, maps]
    if case.fit is not None and not across:
        memory = case.fit.memory
        columns.append(
            doc.ColumnOf(
                f"fits {bytes_text(memory)}",
                lambda other: "yes" if (other.needed_bytes or 0) <= memory else "no",
            )
        )
    if across:
        titles, *rows = ([column.title, *map(column.write, costs)] for column in columns)
        heads = [doc.Column(title, right=bool(index)) for index, title in enumerate(titles)]
        return [doc.Table(heads, list(map(doc.Row, rows)))]
    kept = [column._replace(keep=9 - index) for index, column in enumerate(columns)]

    def row(other: CostReport) -> Mapping[str, str]:
        return {"tone": "strong" if other.tokens == cost.tokens else "plain"}

    return [doc.table(costs, *kept, row=row, least=3)]
