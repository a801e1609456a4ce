"""What was counted, in a line or two: the name, the shape, where its numbers come from."""

from __future__ import annotations

from attnviz.params.accounts.account import CostReport
from attnviz.params.numbers import count
from attnviz.params.specs import ExpertsSpec
from attnviz.params.subject import attention_only, main_attention, main_group

__all__ = ["origin_lines", "title_words"]


def title_words(cost: CostReport) -> tuple[str, ...]:
    """The name, then the shape and the dtype, one fact each."""
    attention = main_attention(cost).spec
    name = cost.spec.name
    if not name:
        name = "attention of one layer" if attention_only(cost) else "transformer"
    words = [] if attention_only(cost) else [_towers(cost)]
    words.append(f"d_model {count(attention.d_model)}")
    heads = f"{count(attention.heads)} head{'s' * (attention.heads > 1)}"
    heads += f" of {count(attention.head_dim)}"
    if attention.value_dim != attention.head_dim:
        heads += f" (value {count(attention.value_dim)})"
    if attention.kv_heads != attention.heads and attention.latent is None:
        heads += f" on {count(attention.kv_heads)} key/value head{'s' * (attention.kv_heads > 1)}"
    words.append(heads)
    if attention.latent is not None:
        words.append(f"latent keys and values of {count(attention.latent.kv_lora)}")
    forward = main_group(cost).layer.spec.feed_forward
    if isinstance(forward, ExpertsSpec):
        words.append(f"{count(forward.experts)} experts of {count(forward.expert.d_ff)}")
    elif forward is not None:
        words.append(f"d_ff {count(forward.d_ff)}")
    dtype = cost.dtype
    if cost.cache_dtype != dtype:
        dtype += f", cache {cost.cache_dtype}"
    return (name, *words, dtype)


def _towers(cost: CostReport) -> str:
    """How many layers there are, tower by tower."""
    stacks = cost.spec.stacks
    if len(stacks) == 1:
        depth = stacks[0].depth
        return f"{count(depth)} layer{'s' * (depth > 1)}"
    return " + ".join(f"{count(stack.depth)} {stack.name}" for stack in stacks) + " layers"


def origin_lines(cost: CostReport) -> tuple[str, ...]:
    """Where the numbers come from, and what a person should read beside them."""
    spec = cost.spec
    lines = []
    if spec.source:
        lines.append(f"source: {spec.source}")
    if spec.architecture:
        lines.append(f"counted as: {spec.architecture}")
    return (*lines, *(f"note: {note}" for note in spec.notes))
