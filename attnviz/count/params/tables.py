"""Tables of one model: its parameters, what it costs to run, other lengths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from attnviz.count.params.cache import STATES, CacheCount, CacheLine, bits, byte_count
from attnviz.count.params.cost import BuiltCount, CostReport
from attnviz.count.params.parts import PROJECTIONS, Case, PartLine, part_lines
from attnviz.count.params.specs import AttentionSpec, ExpertsSpec, shares_of
from attnviz.count.params.wording import (
    bytes_text,
    count,
    experts_words,
    layer_span,
    operations,
    percentage,
    run_words,
    short,
)
from attnviz.draw import document as doc
from attnviz.draw.numbers import counted
from attnviz.draw.palette import series_tint

LENGTHS = (-4, -2, -1, 0, 1, 2, 3, 4)
FEW_LENGTHS = (-2, 0, 1, 2)
"""The lengths next to the requested one, as powers of two to multiply it with."""

LM_HEAD = "LM head"
"""The name of the matrix onto the vocabulary; "head" alone means an attention head."""

_ROLES = ("attention", "feed_forward", "embedding", "norm", "head", "other")
TINTS = {role: series_tint(number) for number, role in enumerate(_ROLES)}
"""The colours of the bars by role."""

_EXACT_BESIDE = 100_000


# Parameters -----------------------------------------------------------------------------------


def parameter_table(cost: CostReport, formulas: bool = False) -> doc.Table:
    """Return the table of parameters; lines that are not indented add up to the total.

    A single attention has a line for each projection, a model of one stack one for each matrix.
    formulas: True puts the arithmetic of each line under it, in models of several stacks too.
    """
    spec = cost.spec
    alone, several, depth = spec.attention_only, len(spec.stacks) > 1, spec.main.depth
    held = "in all" if several or depth == 1 else f"{count(depth)} layers"
    columns = (
        doc.Column("part", right=False),
        doc.Column("shape", right=False, keep=5 if alone else 2, tone="faint"),
        doc.Column("one head", keep=3 if alone else 1, tone="faint"),
        doc.Column("one layer", keep=5, tone="faint"),
        doc.Column("parameters" if alone else held),
        doc.Column("share", keep=6),
    )
    lines = list(part_lines(spec))
    if alone:
        lines = [line._replace(detail=False, layers=0) for line in lines if line.detail]
    elif several and not formulas:
        lines = [line for line in lines if not line.detail]
    rows, stack = list[doc.Row](), ""
    for line in lines:
        if several and line.stack not in ("", stack):
            stack = line.stack
            rows.append(doc.Row([stack, *[""] * 5], tone="strong"))
        row = _part_row(line, cost.total, formulas, alone)
        rows.append(row._replace(depth=row.depth + bool(several and line.stack)))
    added = " + ".join(count(line.number) for line in lines if not line.detail)
    below = [f"{added} = {count(cost.total)}"] if formulas else ()
    sums = {"total": cost.total}
    if spec.active != cost.total:
        sums["active per token"] = spec.active
    for label, number in sums.items():
        cells = (label, "", "", "", count(number), percentage(number, cost.total))
        whole = label == "total"
        rows.append(doc.Row(cells, tone="strong", ruled=whole, below=below if whole else ()))
    buffers: Counter[str] = Counter()
    for term in spec.buffers:
        buffers[term.label] += term.number
    for label, number in buffers.items():
        rows.append(doc.Row((label, "", "", "", count(number), "buffer"), tone="faint"))
    return doc.Table(columns, rows)


def _part_row(line: PartLine, whole: int, formulas: bool, alone: bool) -> doc.Row:
    inner = line.role in ("attention", "feed_forward") and not line.detail and not alone
    biased = len(line.terms) == 2 and line.terms[1].role == "bias" and not line.layers
    several = not line.terms or (len(line.terms) > 1 and not biased)
    one_layer = "differs" if line.one_layer is None else count(line.one_layer)
    cells = (
        LM_HEAD if line.label == "head" else line.label.replace("feed-forward", "MLP"),
        "" if inner or several else " × ".join(map(str, line.terms[0].factors)),
        "" if line.per_head is None else count(line.per_head),
        one_layer if line.layers else "",
        count(line.number),
        percentage(line.number, whole),
    )
    return doc.Row(
        cells,
        bar=None if line.detail else (line.number, whole),
        tint=TINTS[line.role],
        tone="faint" if line.detail else "plain",
        below=_below(line) if formulas and not inner else (),
        depth=int(line.detail),
    )


def _below(line: PartLine) -> list[str]:
    """Return strings with a line's arithmetic: of each term, of their sum, and over all layers."""
    several, once = len(line.terms) > 1, line.one_layer if line.layers else line.number
    texts = []
    for term in line.terms:
        label = f"{term.label.replace('feed-forward', 'MLP')}: " if several else ""
        texts.append(label + (f"{term.symbols} = " if term.symbols else "") + term.formula)
    if once is not None and several:
        texts.append(f"{' + '.join(count(term.number) for term in line.terms)} = {count(once)}")
    if line.one_layer is not None and line.layers > 1:
        texts.append(
            f"{count(line.one_layer)} × {count(line.layers)} layers = {count(line.number)}"
        )
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
            shares = shares_of(group.layer.placed)
            counts = (shares["attention"], shares["feed_forward"], shares["norm"] + shares["other"])
            numbers = map(count, (*counts, sum(shares.values())))
            rows.append(doc.Row((name + layer_span(group), group.kind, *numbers)))
    return doc.Table(columns, rows, [("Layers", True)])


def brief_parameter_table(cost: CostReport) -> doc.Table:
    """Return a table of the total and the number of parameters of each role, such as attention."""
    spec, shares = cost.spec, shares_of(cost.spec.placed)
    tied = any(stack.head is not None and stack.head.tied for stack in spec.stacks)
    forward, mlp, inner = spec.common.layer.feed_forward, "MLP", ""
    if isinstance(forward, ExpertsSpec):
        mlp, inner = "experts", experts_words(forward)
    elif forward is not None:
        inner = f"d_ff {count(forward.d_ff)}" + ", gated" * forward.gated
    roles = [
        ("embedding", "embedding", shares["embedding"], f"also the {LM_HEAD} (tied)" * tied),
        ("attention", "attention", shares["attention"], _attention_note(cost)),
        ("feed_forward", mlp, shares["feed_forward"], inner),
        ("head", LM_HEAD, shares["head"], ""),
        ("other", "norms, other", shares["norm"] + shares["other"], ""),
    ]
    # Smaller details are shown by --full only.
    roles = [entry for entry in roles if 1000 * entry[2] >= cost.total]
    if spec.active != cost.total:
        roles.append(("", "active per token", spec.active, ""))
    return doc.table(
        roles,
        doc.ColumnOf("parameters", lambda entry: entry[1], right=False),
        doc.ColumnOf(short(cost.total), lambda entry: short(entry[2])),
        doc.ColumnOf("share", lambda entry: percentage(entry[2], cost.total), keep=6),
        doc.ColumnOf("", lambda entry: entry[3], right=False, tone="faint", wraps=True),
        row=lambda entry: (
            {"depth": 1, "bar": (entry[2], cost.total), "tint": TINTS[entry[0]]}
            if entry[0]
            else {"depth": 1, "tone": "strong"}
        ),
    )


def _attention_note(cost: CostReport) -> str:
    """Return the attention by its parts: latent ranks, or self and cross, or the projections."""
    latent = cost.spec.attention.latent
    if latent is not None:
        queries = f", of queries {count(latent.q_lora)}" if latent.q_lora else ""
        return f"latent {count(latent.kv_lora)}{queries}"
    lines = [line for line in part_lines(cost.spec) if line.role == "attention"]
    cross = sum(line.number for line in lines if line.label == "cross attention")
    if cross:
        own = sum(line.number for line in lines if not line.detail) - cross
        return f"self {short(own)} · cross {short(cross)}"
    together: dict[int, list[str]] = {}
    for line in lines:
        if line.label in PROJECTIONS:
            together.setdefault(line.number, []).append(line.label[0])
    return " · ".join(
        f"{', '.join(names)} {short(number)}" + " each" * (len(names) > 1)
        for number, names in together.items()
    )


def built_table(built: BuiltCount) -> doc.Table:
    """Return the table of the parts of a ``BuiltCount``; they add up to the total."""
    parts, last = built.made.parts, ("total", built.total)
    rest = built.total - sum(number for _, number in parts)
    return doc.table(
        [*parts, *[("outside these", rest)] * bool(rest), last],
        doc.ColumnOf("part", lambda part: part[0], right=False),
        doc.ColumnOf("parameters", lambda part: count(part[1])),
        doc.ColumnOf("share", lambda part: percentage(part[1], built.total), keep=6),
        row=lambda part: (
            {"tone": "strong", "ruled": True}
            if part is last
            else {"bar": (part[1], built.total) if part in parts else None}
        ),
    )


# What it costs to run -------------------------------------------------------------------------

_Line = tuple[str, str, str, int]  # label, value, note, bytes that a bar shows (0 for no bar)


def overview_table(case: Case, cost: CostReport | BuiltCount, maps: bool = True) -> doc.Table:
    """Return memory, operations and the longest context. maps: whether with attention maps."""
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


def _memory(case: Case, cost: CostReport | BuiltCount, maps: bool) -> Iterator[_Line]:
    cache, total = cost.cache, cost.needed_bytes
    weights = None if cost.weight_bytes is None else cost.weight_bytes + cost.buffer_bytes
    stored = [(line.label, line.numbers, line.bytes) for line in getattr(cost.storage, "lines", ())]
    made = f"{count(cost.total)} × {_size(bits(cost.dtype))} ({cost.dtype})"
    if cost.storage is not None:
        made = cost.storage.scheme + ", as its files have them" * cost.storage.buffered
        made += "" if cost.stated else f", {cost.dtype} assumed"
    elif cost.others:
        made, rest = "as stored", cost.total - sum(cost.others.values())
        dtypes = {cost.dtype: rest, **cost.others}
        stored = [(kind, many, byte_count(many, kind)) for kind, many in dtypes.items()]
    elif not cost.stated:
        made = f"dtype not given; {cost.dtype} assumed"
    yield "weights", bytes_text(weights), made, weights or 0
    for label, numbers, size in stored:
        if size:
            many = "" if numbers is None else f"{count(numbers)} numbers"
            yield f"  {label}", bytes_text(size), many, 0
    if cache is not None and cache.bytes:
        per_token = cache.bytes_per_token
        kept = f"{bytes_text(per_token)}/token" if per_token else "at any length"
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
        yield "attn maps", bytes_text(cost.maps.bytes), "if materialised", 0


def _compute(cost: CostReport) -> Iterator[_Line]:
    flops, total = cost.flops, cost.flops.total_visible
    parts = {
        "attention": flops.attention_scores_visible,
        "projections": flops.attention_projections,
        "MLP": flops.ffn,
        LM_HEAD: flops.head,
    }
    largest = sorted((name for name in parts if parts[name]), key=lambda name: -parts[name])[:2]
    shares = [f"{name} {round(100 * parts[name] / total)}%" for name in largest if total]
    yield _pass_name(cost), operations(total), " · ".join(shares), 0
    if cost.spec.main.causal and flops.per_token:
        both = (flops.per_token, flops.scores_per_token)
        once, scores = (operations(number).removesuffix("FLOP") for number in both)
        yield "decode", operations(sum(both)), f"per token: weights {once} + attention {scores}", 0


def _pass_name(cost: CostReport) -> str:
    return "prefill" if cost.spec.main.causal else "forward pass"


def _context(case: Case, cost: CostReport | BuiltCount) -> Iterator[_Line]:
    """Yield the longest context that fits, and what limits it; else what the positions allow."""
    if (fit := case.fit) is None:
        if cost.limit:
            yield "limit", count(cost.limit), "tokens, from the config", 0
        return
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
    yield "longest", tokens, f"in {bytes_text(fit.memory)}{why}", 0


# In detail ------------------------------------------------------------------------------------


def detail_table(cost: CostReport | BuiltCount, formulas: bool = False) -> doc.Table:
    """Return the caches and operations, whose lines add up. formulas: with their arithmetic."""
    rows: list[doc.Row] = []

    def add(heading: str, facts: Iterable[tuple[str, str, str]]) -> None:
        rows.append(doc.Row([heading], tone="strong", spaced=True))
        rows.extend(doc.Row(fact, depth=1) for fact in facts)

    if cost.cache is not None and cost.cache.lines:
        add("KV cache", _cache_facts(cost, cost.cache))
    if isinstance(cost, CostReport):
        flops = cost.flops
        facts = [
            (term.label, operations(term.number), term.formula * formulas) for term in flops.terms
        ]
        facts.append((run_words(cost), operations(flops.total), "all query–key pairs"))
        if flops.total != flops.total_visible:
            facts.append(("masked", operations(flops.total_visible), "masked pairs left out"))
        add("Forward pass (1 MAC = 2 FLOPs)", facts)
    columns = [
        doc.Column("", right=False),
        doc.Column("", tone="strong"),
        doc.Column("", right=False, tone="faint", wraps=True),
    ]
    return doc.Table(columns, rows)


def _size(bits: int) -> str:
    return f"{bits // 8} byte{'s' * (bits > 8)}" if bits % 8 == 0 else f"{bits} bits"


def _cache_facts(
    cost: CostReport | BuiltCount, cache: CacheCount
) -> Iterator[tuple[str, str, str]]:
    """Yield what each kind of layers caches for a token, or at any length, and the whole cache."""
    spec = cost.spec.attention if isinstance(cost, CostReport) else None
    for line in cache.lines:
        held = "at any length" if line.kind in STATES else "per token"
        made = f"{count(line.layers)} layers × " if line.layers > 1 else ""
        made += f"{_product(line, spec)} × {_size(bits(line.dtype))}"
        made += " with scales" * (line.dtype == "nvfp4")
        if line.window is not None:
            made += f", at most {count(line.window)} tokens"
        size = byte_count(line.layers * line.per_token, line.dtype)
        yield f"{line.kind}, {held}", bytes_text(size), made
    exact = f"{count(cache.bytes)} bytes" * (cache.bytes >= _EXACT_BESIDE)
    yield run_words(cache), bytes_text(cache.bytes), exact


def _product(line: CacheLine, spec: AttentionSpec | None) -> str:
    """Return the numbers that a layer caches, as a product of the sizes of its attention."""
    if spec is not None and line.kind == "latent" and spec.latent is not None:
        return f"({count(spec.latent.kv_lora)} + {count(spec.latent.rope_dim)})"
    if spec is None or line.per_token != spec.kv_heads * (spec.head_dim + spec.value_dim):
        return count(line.per_token)
    pair = f"({count(spec.head_dim)} + {count(spec.value_dim)})"
    if spec.head_dim == spec.value_dim:
        pair = f"2 × {count(spec.head_dim)}"
    return f"{counted(spec.kv_heads, 'KV head')} × {pair}"


def length_table(
    case: Case, cost: CostReport, powers: Sequence[int], across: bool = False
) -> list[doc.Table]:
    """Return a list with a table of the costs at other lengths; empty if the length is fixed.

    powers: exponents n; a length is the requested one times 2^n. across: whether lengths go from
        left to right rather than from top to bottom.
    """
    if cost.spec.main.tokens is not None:
        return []
    lengths = {max((cost.tokens << max(power, 0)) >> max(-power, 0), 1) for power in powers}
    costs = [
        replace(cost, tokens=tokens, source_tokens=cost.at(tokens).source)
        for tokens in sorted(lengths)
    ]
    columns = {"tokens": [count(other.tokens) for other in costs]}
    if cost.cache.bytes:
        columns["KV cache"] = [bytes_text(other.cache.bytes) for other in costs]
        if cost.needed_bytes is not None:
            columns["total"] = [bytes_text(other.needed_bytes) for other in costs]
    if not cost.cache.bytes or not across:
        columns[_pass_name(cost)] = [operations(other.flops.total_visible) for other in costs]
        columns["attention weights"] = [bytes_text(other.maps.bytes) for other in costs]
    if case.fit is not None and not across:
        fits = [(other.needed_bytes or 0) <= case.fit.memory for other in costs]
        columns[f"fits {bytes_text(case.fit.memory)}"] = [
            "yes" if fitting else "no" for fitting in fits
        ]
    if across:
        titles, *rows = ([title, *cells] for title, cells in columns.items())
        heads = [doc.Column(title, right=bool(index)) for index, title in enumerate(titles)]
        return [doc.Table(heads, list(map(doc.Row, rows)))]
    heads = [doc.Column(title, keep=9 - index) for index, title in enumerate(columns)]
    cells = zip(costs, *columns.values(), strict=True)
    rows_down = [
        doc.Row(row, tone="strong" if other.tokens == cost.tokens else "plain")
        for other, *row in cells
    ]
    return [doc.Table(heads, rows_down, least=3)]
