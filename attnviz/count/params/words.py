"""Turns counts into text: numbers, titles and sentences.

Counts, shares, sizes and factors are computed with integers only, and so are exact however large.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from attnviz.count.params.counting.built import BuiltCount
from attnviz.count.params.counting.cache import CacheCount
from attnviz.count.params.counting.cost import CostReport
from attnviz.count.params.counting.memory import MemoryFit
from attnviz.count.params.counting.parameters import GroupCount
from attnviz.count.params.parts import attention_only, main_attention, main_group
from attnviz.count.params.specs import AttentionSpec, ExpertsSpec
from attnviz.draw.document import Explanation
from attnviz.draw.numbers import counted

_SIZES = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")
_SCALES = ("", "k", "M", "G", "T", "P", "E")
_NUMBERS = ("", "k", "M", "B", "T")
_OPERATIONS = tuple(f"{scale}FLOP" for scale in _SCALES)
_EXACT_BYTES = 1_000_000


def count(number: int) -> str:
    """Return a whole number as an exact string: ``16,777,216``."""
    return f"{number:,}"


def _rounded(part: int, whole: int, decimals: int) -> str:
    """Return ``part / whole`` as a string with ``decimals`` decimals, rounded half up.

    The result is exact for any size.
    """
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
    """Return a number as three or four digits and a unit; as a power of ten if no unit is enough.

    names: the units, each a thousand times the one before.
    """
    place = max((len(str(number)) - 1) // 3, 0)
    if place >= len(names):
        power = len(str(number)) - 1
        shown = _rounded(number, 10**power, 2)
        if shown == "10.00":
            shown, power = "1.00", power + 1
        return f"{shown}e{power} {names[0]}".strip()
    unit = 1000**place
    for decimals in (2, 1, 0) if number % unit else (0,):
        shown = _rounded(number, unit, decimals)
        if len(shown) <= 5 or not decimals:
            break
    if shown == "1,000" and place and place + 1 < len(names):
        return _scaled(1000 * unit, names)
    return f"{shown} {names[place]}".strip()


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


def layer_span(group: GroupCount) -> str:
    """Return the indices of a group's layers as a string: ``0–2``, ``0, 2, 4 … 30``, ``all 12``."""
    if group.indices is None:
        return f"all {group.repeat:,}" if group.repeat > 1 else "the only one"
    return spans(group.indices)


def spans(indices: tuple[int, ...]) -> str:
    """Return ascending numbers as runs, such as ``0–2``.

    Numbers at equal distances are shortened.
    """
    if len(indices) > 3:
        steps = {after - before for before, after in pairwise(indices)}
        if len(steps) == 1 and (step := steps.pop()) > 1:
            return f"{indices[0]}, {indices[0] + step} … {indices[-1]}"
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


# Titles ----------------------------------------------------------------------------------------


def dtype_words(cost: CostReport | BuiltCount) -> str:
    """Return the counted dtypes as a string: ``bfloat16 assumed``, ``int4, cache bfloat16``."""
    words = " and ".join([cost.dtype, *cost.others]) + (" assumed" if not cost.stated else "")
    if cost.storage is not None:
        words = cost.storage.scheme
    same = cost.cache is None or cost.cache_dtype == cost.dtype
    return words if same else f"{words}, cache {cost.cache_dtype}"


def title_words(cost: CostReport | BuiltCount) -> tuple[str, ...]:
    """Return the model's name, its sizes and the dtype, each as one string, for a title."""
    if isinstance(cost, BuiltCount):
        return (cost.name, cost.made.architecture, dtype_words(cost))
    attention = main_attention(cost).spec
    heads = f"{counted(attention.heads, 'head')} of {count(attention.head_dim)}"
    if attention.value_dim != attention.head_dim:
        heads += f" (value {count(attention.value_dim)})"
    words = [f"d_model {count(attention.d_model)}", heads + _kv_words(attention)]
    if not attention_only(cost):
        words.insert(0, _depths(cost))
    if attention.latent is not None:
        words.append(f"latent keys and values of {count(attention.latent.kv_lora)}")
    forward = main_group(cost).layer.spec.feed_forward
    if isinstance(forward, ExpertsSpec):
        experts = f"{count(forward.experts)} experts of {count(forward.expert.d_ff)}"
        words.append(f"{experts}, {count(forward.active)} active")
    elif forward is not None:
        words.append(f"d_ff {count(forward.d_ff)}")
    return (_name(cost), *words, dtype_words(cost))


def heading_words(cost: CostReport) -> tuple[str, ...]:
    """Return the model's name, its sizes and the counted lengths, each as one string."""
    spec = main_attention(cost).spec
    heads = counted(spec.heads, "head") + _kv_words(spec)
    shape = f"{_depths(cost, brief=True)} × {heads}"
    if attention_only(cost):
        shape = f"d_model {count(spec.d_model)} · {heads}"
    name = "/".join(_name(cost).rsplit("/", 2)[-2:])
    return (name, shape, run_words(cost), dtype_words(cost))


def _name(cost: CostReport) -> str:
    return cost.spec.name or ("attention layer" if attention_only(cost) else "transformer")


def _kv_words(spec: AttentionSpec) -> str:
    """Return ``, 8 KV heads`` if query heads share key/value heads; else an empty string."""
    shared = spec.kv_heads != spec.heads and spec.latent is None
    return f", {counted(spec.kv_heads, 'KV head')}" if shared else ""


def _depths(cost: CostReport, brief: bool = False) -> str:
    """Return the number of layers, stack by stack. brief: True leaves out the stacks' names."""
    stacks = cost.spec.stacks
    if len(stacks) == 1:
        return counted(stacks[0].depth, "layer")
    each = [f"{count(stack.depth)} {'' if brief else stack.name}".strip() for stack in stacks]
    return f"{' + '.join(each)} layers"


def origin_lines(cost: CostReport | BuiltCount) -> tuple[str, ...]:
    """Return lines with the source of the numbers and the notes that belong to them."""
    if isinstance(cost, BuiltCount):
        origin, notes = {"source": cost.source}, cost.made.notes
    else:
        spec = cost.spec
        origin, notes = {"source": spec.source, "counted as": spec.architecture}, spec.notes
    lines = [f"{what}: {where}" for what, where in origin.items() if where]
    return (*lines, *dtype_notes(cost), *(f"note: {note}" for note in notes))


def dtype_notes(cost: CostReport | BuiltCount) -> list[str]:
    """Return a note that the dtype is an assumption, or an empty list."""
    if cost.stated:
        return []
    return [f"dtype not stated, counted as {cost.dtype}; --dtype takes another"]


def run_words(counted_for: CostReport | BuiltCount | CacheCount) -> str:
    """Return the counted length and batch as a string: ``4,096 tokens``, ``8 × 4,096 tokens``."""
    words = counted(counted_for.tokens, "token")
    return words if counted_for.batch == 1 else f"{count(counted_for.batch)} × {words}"


# What a count answers --------------------------------------------------------------------------


def finding(cost: CostReport | BuiltCount, fit: MemoryFit | None) -> str:
    """Return a sentence on the needed memory, whether it is there, and a warning on the length.

    fit: what fits in the given memory; None if no memory was given.
    """
    return _need(cost, fit) + beyond(cost)


def _need(cost: CostReport | BuiltCount, fit: MemoryFit | None) -> str:
    needed = bytes_text(cost.needed_bytes)
    if fit is not None and cost.needed_bytes is not None:
        memory, over = bytes_text(fit.memory), cost.needed_bytes - fit.memory
        if over <= 0:
            return f"Fits in {memory}: needs {needed}."
        return f"Does not fit in {memory}: needs {needed}, {bytes_text(over)} too much."
    if isinstance(cost, CostReport) and attention_only(cost):
        return f"{count(cost.total)} parameters{_why_so_many(cost)}."
    many = f"{short(cost.total)} parameters: "
    if cost.weight_bytes is None and cost.storage is not None:
        return f"{many}quantised as {cost.storage.scheme}, whose bytes are not known."
    weights = bytes_text((cost.weight_bytes or 0) + cost.buffer_bytes)
    if cost.cache is None:
        return f"{many}{weights} of weights."
    if not cost.cache.bytes:
        return f"{many}{weights} of weights, and no KV cache."
    return f"{many}{weights} of weights + {bytes_text(cost.cache.bytes)} of KV cache = {needed}."


def _why_so_many(cost: CostReport) -> str:
    spec = main_attention(cost).spec
    product = f"{count(spec.heads)} × {count(spec.head_dim)}"
    if spec.latent is not None or spec.linear:
        return " in one attention layer"
    if spec.heads * spec.head_dim != spec.d_model:
        return f" at {product} = {count(spec.heads * spec.head_dim)} columns of heads"
    if spec.kv_heads != spec.heads:
        return f": {count(spec.heads // spec.kv_heads)} query heads share one key/value head"
    return f", whatever the number of heads: {product} = {count(spec.d_model)} = d_model"


def beyond(cost: CostReport | BuiltCount) -> str:
    """Return a warning for a length beyond the model's positions; else an empty string."""
    limit = cost.limit
    if limit is None or cost.tokens <= limit:
        return ""
    if isinstance(cost, BuiltCount) or cost.spec.source or cost.spec.architecture:
        return f" ! The model was trained for {count(limit)} tokens only."
    return f" ! Its positions end at {count(limit)} tokens."


def readings(cost: CostReport) -> Iterator[str]:
    """Yield sentences on what is noteworthy about this architecture."""
    spec = main_attention(cost).spec
    if spec.latent is None and not spec.linear:
        yield _width_sentence(spec)
    if cost.cache.bytes_per_token:
        yield from _sharing(spec)
    if not attention_only(cost):
        yield from _tied(cost)


def _width_sentence(spec: AttentionSpec) -> str:
    """Return a sentence on whether the count depends on the number of heads."""
    inner = spec.heads * spec.head_dim
    product = f"{count(spec.heads)} × {count(spec.head_dim)} = {count(inner)}"
    if inner != spec.d_model:
        return (
            f"The count depends on the number of heads: heads × head_dim = {product} is not "
            f"d_model = {count(spec.d_model)}."
        )
    if spec.kv_heads != spec.heads:
        return (
            "Query and output do not depend on the number of heads: heads × head_dim = "
            f"{product} = d_model. Key and value do: they have "
            f"{count(spec.kv_heads)} × {count(spec.head_dim)} = "
            f"{count(spec.kv_heads * spec.head_dim)} columns."
        )
    other = ""
    if spec.head_dim % 2 == 0:
        more, narrower = 2 * spec.heads, spec.head_dim // 2
        other = f", and {count(more)} heads of {count(narrower)} make the same matrices"
    return (
        f"The projections do not depend on the number of heads: heads × head_dim = {product} = "
        f"d_model{other}. The width of a head and the number of attention weights do."
    )


def _sharing(spec: AttentionSpec) -> Iterator[str]:
    """Yield sentences on what shared or latent keys and values save in the cache."""
    if spec.latent is not None:
        held = spec.latent.kv_lora + spec.latent.rope_dim
        full = spec.heads * (spec.head_dim + spec.value_dim)
        yield (
            f"A token is kept as one vector of {count(held)} numbers a layer instead of "
            f"{count(full)} for all heads: {percentage(full - held, full)} of the cache is saved."
        )
    elif spec.kv_heads != spec.heads:
        group = spec.heads // spec.kv_heads
        saved = percentage(spec.heads - spec.kv_heads, spec.heads)
        yield (
            f"{count(group)} query heads share one key/value head: the cache keeps "
            f"{count(spec.kv_heads)} heads instead of {count(spec.heads)}, {saved} less."
        )


def _tied(cost: CostReport) -> Iterator[str]:
    heads = [stack.head for stack in cost.spec.stacks if stack.head is not None]
    tables = sum(head.inputs * head.outputs for head in heads if head.tied)
    if tables:
        yield (
            "The LM head is tied to the token embedding, counted once; untied it would add "
            f"{count(tables)} parameters."
        )


def explanation(*costs: CostReport | BuiltCount) -> Explanation:
    """Return the explanation for beginners, which says for what lengths and dtype was counted."""
    words = {f", for {run_words(cost)} ({dtype_words(cost)})" for cost in costs}
    counted_for = words.pop() if len(words) == 1 else ""
    return Explanation("params", f"nothing was run: counted exactly from the shape{counted_for}.")
