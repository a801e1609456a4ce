"""Words for counts: numbers, sizes, the title of a model.

Counts, shares, sizes and factors are computed with integers only, and so are exact however large.
"""

from __future__ import annotations

from attnviz.count.params.cache import CacheCount
from attnviz.count.params.cost import BuiltCount, CostReport
from attnviz.count.params.specs import AttentionSpec, ExpertsSpec, LayerGroup
from attnviz.draw.numbers import counted, spans

_SIZES = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")
_SCALES = ("", "k", "M", "G", "T", "P", "E")
_NUMBERS = ("", "k", "M", "B", "T")
_OPERATIONS = tuple(f"{scale}FLOP" for scale in _SCALES)
_EXACT_BYTES = 1_000_000


def count(number: int) -> str:
    """Return a whole number as an exact string: ``16,777,216``."""
    return f"{number:,}"


def _rounded(part: int, whole: int, decimals: int) -> str:
    """Return ``part / whole`` with so many decimals, rounded half up, exact for any size."""
    scaled = (2 * part * 10**decimals + whole) // (2 * whole)
    left, right = divmod(scaled, 10**decimals)
    return f"{left:,}.{right:0{decimals}d}" if decimals else f"{left:,}"


def percentage(part: int, whole: int) -> str:
    """Return a part of a whole as a string such as ``25.0%``; a dash if the whole is zero."""
    if not whole:
        return "–"
    shown = _rounded(100 * part, whole, 1)
    return "<0.1%" if part and shown == "0.0" else f"{shown}%"


def _scaled(number: int, names: tuple[str, ...]) -> str:
    """Return a number as 3 or 4 digits and a unit, each 1000 times the last, or a power of ten."""
    step = max((len(str(number)) - 1) // 3, 0)
    if step >= len(names):
        power = len(str(number)) - 1
        shown = _rounded(number, 10**power, 2)
        if shown == "10.00":
            shown, power = "1.00", power + 1
        return f"{shown}e{power} {names[0]}".strip()
    unit = 1000**step
    for decimals in (2, 1, 0) if number % unit else (0,):
        shown = _rounded(number, unit, decimals)
        if len(shown) <= 5 or not decimals:
            break
    if shown == "1,000" and step and step + 1 < len(names):
        return _scaled(1000 * unit, names)
    return f"{shown} {names[step]}".strip()


def short(number: int) -> str:
    """Return a large number as a string of three or four digits and a unit: ``8.03 B``."""
    return _scaled(number, _NUMBERS)


def operations(number: int) -> str:
    """Return a number of floating-point operations as a string, such as ``137.9 GFLOP``."""
    return _scaled(number, _OPERATIONS)


def bytes_text(number: int | None) -> str:
    """Return a size: exact up to six digits, then ``1.34 GB`` of 10⁹ bytes; None is unknown."""
    if number is None:
        return "unknown"
    if number < _EXACT_BYTES:
        return f"{number:,} byte{'s' * (number != 1)}"
    return _scaled(number, _SIZES)


def factor(part: int, whole: int) -> str:
    """Return ``part / whole`` as a string: ``× 4``, ``÷ 8``, ``× 1.5``; a dash if one is 0."""
    if not part or not whole:
        return "–"
    large, small, sign = (part, whole, "×") if part >= whole else (whole, part, "÷")
    exact = large % small == 0
    return f"{sign} {large // small:,}" if exact else f"{sign} {_rounded(large, small, 2)}"


def layer_span(group: LayerGroup) -> str:
    """Return the indices of a group's layers as a string: ``0–2``, ``0, 2, 4 … 30``, ``all 12``."""
    if group.indices is None:
        return f"all {group.repeat:,}" if group.repeat > 1 else "the only one"
    return spans(group.indices)


def dtype_words(cost: CostReport | BuiltCount) -> str:
    """Return the counted dtypes as a string: ``bfloat16 assumed``, ``int4, cache bfloat16``."""
    words = " and ".join([cost.dtype, *cost.others]) + (" assumed" if not cost.stated else "")
    if cost.storage is not None:
        words = cost.storage.scheme
    same = cost.cache is None or (cost.cache_dtype == cost.dtype and not cost.odd_cache)
    assumed = f", not {cost.odd_cache}, which is not known" * bool(cost.odd_cache)
    return words if same else f"{words}, cache {cost.cache_dtype}{assumed}"


def title_words(cost: CostReport | BuiltCount) -> tuple[str, ...]:
    """Return the model's name, its sizes and the dtype, each as one string, for a title."""
    if isinstance(cost, BuiltCount):
        return (cost.name, cost.made.architecture, dtype_words(cost))
    attention = cost.spec.attention
    heads = f"{counted(attention.heads, 'head')} × {count(attention.head_dim)}"
    if attention.value_dim != attention.head_dim:
        heads += f" (value {count(attention.value_dim)})"
    words = [f"d_model {count(attention.d_model)}", heads + _kv_words(attention)]
    if not cost.spec.attention_only:
        words.insert(0, _depths(cost))
    if attention.latent is not None:
        words.append(f"latent keys and values of {count(attention.latent.kv_lora)}")
    forward = cost.spec.common.layer.feed_forward
    if isinstance(forward, ExpertsSpec):
        words.append(experts_words(forward))
    elif forward is not None:
        words.append(f"d_ff {count(forward.d_ff)}")
    return (_name(cost), *words, dtype_words(cost))


def experts_words(spec: ExpertsSpec) -> str:
    """Return the numbers of experts as a string: ``8 experts of 14,336, 2 active``."""
    experts = f"{count(spec.experts)} experts of {count(spec.expert.d_ff)}"
    return f"{experts}, {count(spec.active)} active"


def heading_words(cost: CostReport) -> tuple[str, ...]:
    """Return the model's name, its sizes and the counted lengths, each as one string."""
    spec = cost.spec.attention
    heads = counted(spec.heads, "head") + _kv_words(spec)
    shape = f"{_depths(cost, brief=True)} × {heads}"
    if cost.spec.attention_only:
        shape = f"d_model {count(spec.d_model)} · {heads}"
    name = "/".join(_name(cost).rsplit("/", 2)[-2:])
    return (name, shape, run_words(cost), dtype_words(cost))


def _name(cost: CostReport) -> str:
    return cost.spec.name or ("attention layer" if cost.spec.attention_only else "transformer")


def _kv_words(spec: AttentionSpec) -> str:
    """Return ``, 8 KV heads`` if query heads share key/value heads; else an empty string."""
    shared = spec.kv_heads != spec.heads and spec.latent is None
    return f", {counted(spec.kv_heads, 'KV head')}" if shared else ""


def _depths(cost: CostReport, brief: bool = False) -> str:
    """Return the number of layers, stack by stack. brief: True leaves out the stacks' names."""
    stacks = cost.spec.stacks
    if len(stacks) == 1:
        return counted(stacks[0].depth, "layer")
    depths = [f"{count(stack.depth)} {'' if brief else stack.name}".strip() for stack in stacks]
    return f"{' + '.join(depths)} layers"


def run_words(counted_for: CostReport | BuiltCount | CacheCount) -> str:
    """Return the counted length and batch as a string: ``4,096 tokens``, ``8 × 4,096 tokens``."""
    words = counted(counted_for.tokens, "token")
    return words if counted_for.batch == 1 else f"{count(counted_for.batch)} × {words}"


def beyond(cost: CostReport | BuiltCount) -> str:
    """Return a warning for a length beyond the model's positions; else an empty string."""
    limit = cost.limit
    if limit is None or cost.tokens <= limit:
        return ""
    if isinstance(cost, BuiltCount) or cost.spec.source or cost.spec.architecture:
        return f" ! The model was trained for {count(limit)} tokens only."
    return f" ! Its positions end at {count(limit)} tokens."
