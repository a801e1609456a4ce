"""What a design costs when it runs: its weights' bytes, its cache, its arithmetic, its maps."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.params.accounts.account import CostReport
from attnviz.params.accounts.running import CacheCount, CacheLine
from attnviz.params.accounts.terms import Term
from attnviz.params.numbers import bytes_text, count, share, short
from attnviz.params.sheet import Fact
from attnviz.params.specs import AttentionSpec
from attnviz.params.subject import main_attention

__all__ = ["cache_facts", "run_words", "running"]

_EXACT_BESIDE = 100_000
_STATES = {"linear": "states", "convolution": "convolutions"}
"""What does not grow, by its kind."""

_ENDS = {
    "projections": "attention projections",
    "scores": "attention scores and mixing",
    "feed-forward": "feed-forward",
    "head": "head",
    "other": "other",
}
"""How the terms of each line of the forward pass end, whatever their tower."""


def running(cost: CostReport, formulas: bool = False) -> dict[str, list[Fact]]:
    """Memory of the weights, the cache, operations of a forward pass, the attention maps."""
    sections = {
        "Weights": _weights(cost),
        "KV cache": cache_facts(cost.cache, main_attention(cost).spec),
        "Forward pass, floating-point operations": _flops(cost, formulas),
        "Attention maps": [_maps(cost)] if cost.maps.values else [],
    }
    return {name: facts for name, facts in sections.items() if facts}


def run_words(counted: CostReport | CacheCount) -> str:
    """The length and the batch that was counted for: ``4,096 tokens``, ``8 × 4,096 tokens``."""
    words = f"{count(counted.tokens)} token{'s' * (counted.tokens > 1)}"
    return words if counted.batch == 1 else f"{count(counted.batch)} × {words}"


def _size(bits: int) -> str:
    """How much memory a number takes."""
    return f"{bits // 8} byte{'s' * (bits > 8)}" if bits % 8 == 0 else f"{bits} bits"


def _weights(cost: CostReport) -> list[Fact]:
    made = f"{count(cost.parameters.total)} × {_size(cost.bits)} ({cost.dtype})"
    facts = [Fact("all parameters", bytes_text(cost.weight_bytes), made)]
    if cost.buffer_bytes:
        size, note = bytes_text(cost.buffer_bytes), "stored beside them, not trained"
        facts.append(Fact("buffers, apart", size, note))
    return facts


def cache_facts(cache: CacheCount, spec: AttentionSpec | None = None) -> list[Fact]:
    """What a token, a state and the whole length take; none where nothing is kept.

    design: the attention that most layers have, to write its cache as a product.
    """
    if not cache.lines:
        return []
    facts = []
    if cache.bytes_per_token:
        growing = [line for line in cache.lines if line.kind not in ("cross", *_STATES)]
        made = " + ".join(_kept(line, spec) for line in growing)
        made = f"({made})" if len(growing) > 1 else made
        made += f" × {_size(cache.bits)}"
        facts.append(Fact("one token", bytes_text(cache.bytes_per_token), made))
    if cache.bytes_per_token_late != cache.bytes_per_token:
        late = bytes_text(cache.bytes_per_token_late)
        facts.append(Fact("one token later on", late, "once all sliding windows are full"))
    if cache.cross_bytes_per_token:
        size = bytes_text(cache.cross_bytes_per_token)
        facts.append(Fact("one source token", size, "kept by the cross attention"))
    if cache.constant_bytes:
        size = bytes_text(cache.constant_bytes)
        made = " + ".join(_state(line) for line in cache.lines if line.kind in _STATES)
        facts.append(Fact("constant", size, f"{made}, at any length"))
    notes = [f"{count(cache.bytes)} bytes"] if cache.bytes >= _EXACT_BESIDE else []
    if cache.cross_bytes:
        source = f"{count(cache.source_tokens)} source tokens"
        notes.append(f"{bytes_text(cache.cross_bytes)} of it for {source}")
    facts.append(Fact(run_words(cache), bytes_text(cache.bytes), ", ".join(notes)))
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


def _flops(cost: CostReport, formulas: bool) -> list[Fact]:
    flops = cost.flops
    facts = []
    if flops.per_token:
        scores = short(flops.scores_per_token)
        note = f"+ {scores} of scores over {count(cost.tokens)} tokens"
        facts.append(Fact("one token", short(flops.per_token), note))
    facts.append(Fact(run_words(cost), short(flops.total), "a multiply-add is two"))
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
                written = [
                    term.formula for term in flops.terms if term.label.endswith(_ENDS[label])
                ]
                note = "; ".join([note, *written])
            facts.append(Fact(label, short(number), note, 1))
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


def _maps(cost: CostReport) -> Fact:
    maps = cost.maps
    made = _map_words(maps.terms)
    if cost.batch > 1:
        made = f"{count(cost.batch)} × {made}"
    label = f"{count(maps.maps)} map{'s' * (maps.maps > 1)}, if kept"
    return Fact(label, bytes_text(maps.bytes), f"{made} × {_size(maps.bits)}")


def _map_words(terms: Sequence[Term]) -> str:
    """``80 × 64 × 4096 × 4096 = …`` as layers, heads, queries and keys; equal layers together."""
    depths: dict[tuple[int, int, int], int] = {}
    for term in terms:
        factors = [int(number) for number in term.formula.partition(" = ")[0].split(" × ")]
        layers, heads, queries, keys = factors
        place = heads, queries, keys
        depths[place] = depths.get(place, 0) + layers
    products = []
    for (heads, queries, keys), layers in depths.items():
        size = f"{count(queries)}²" if queries == keys else f"{count(queries)} × {count(keys)}"
        depth = f"{count(layers)} layers × " if layers > 1 else ""
        products.append(f"{depth}{count(heads)} head{'s' * (heads > 1)} × {size}")
    made = " + ".join(products)
    return f"({made})" if len(products) > 1 else made
