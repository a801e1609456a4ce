"""What was counted, in a line or two: the name, the shape, where its numbers come from."""

from __future__ import annotations

from attnviz.params.accounts.account import Account
from attnviz.params.numbers import count
from attnviz.params.specs import ExpertsDesign
from attnviz.params.subject import attention_only, main_attention, main_group

__all__ = ["origin_lines", "title_words"]


def title_words(account: Account) -> tuple[str, ...]:
    """The name, then the shape and the dtype, one fact each."""
    attention = main_attention(account).design
    name = account.design.name
    if not name:
        name = "attention of one layer" if attention_only(account) else "transformer"
    words = [] if attention_only(account) else [_towers(account)]
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
    forward = main_group(account).layer.design.feed_forward
    if isinstance(forward, ExpertsDesign):
        words.append(f"{count(forward.experts)} experts of {count(forward.expert.d_ff)}")
    elif forward is not None:
        words.append(f"d_ff {count(forward.d_ff)}")
    dtype = account.dtype
    if account.cache_dtype != dtype:
        dtype += f", cache {account.cache_dtype}"
    return (name, *words, dtype)


def _towers(account: Account) -> str:
    """How many layers there are, tower by tower."""
    stacks = account.design.stacks
    if len(stacks) == 1:
        depth = stacks[0].depth
        return f"{count(depth)} layer{'s' * (depth > 1)}"
    return " + ".join(f"{count(stack.depth)} {stack.name}" for stack in stacks) + " layers"


def origin_lines(account: Account) -> tuple[str, ...]:
    """Where the numbers come from, and what a person should read beside them."""
    design = account.design
    lines = []
    if design.source:
        lines.append(f"source: {design.source}")
    if design.architecture:
        lines.append(f"counted as: {design.architecture}")
    return (*lines, *(f"note: {note}" for note in design.notes))
