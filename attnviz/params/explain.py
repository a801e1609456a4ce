"""A reading of the screen for someone new to attention."""

from __future__ import annotations

from attnviz.params.accounts.account import CostReport
from attnviz.params.numbers import count
from attnviz.params.subject import attention_only, main_attention

__all__ = ["comparison_explanation", "explanation"]

_RUNNING = (
    "KV cache: while a model writes, the keys and values of all earlier tokens are kept, so that "
    "they are not computed again. It grows with the length; fewer key/value heads make it smaller.",
    "floating-point operations: additions and multiplications. Projections cost the same for every "
    "token; scores compare each token with every other one, so twice the length costs four times "
    "as much.",
    "attention maps: the weights of every head, one number for each pair of tokens. Fast programs "
    "never hold them all at once; to see them, as with attnviz heads, they are kept.",
    "units: GB is 1,000,000,000 bytes, M a million, G (or billion) a thousand millions.",
)
"""What a design costs when it runs."""


def comparison_explanation() -> tuple[str, ...]:
    """What a table of one design under several values of an option says, in plain words."""
    return (
        "How to read this: each row is the same design with another value of what is compared. A "
        "column with a star changes from row to row; the sentence below the table goes from the "
        "first value to the last, where × 2 is twice as much and ÷ 2 half.",
        "attention, feed-forward: the learned numbers (parameters) of one layer; total: those of "
        "all layers and of what stands around them.",
        *_RUNNING,
    )


def explanation(cost: CostReport) -> tuple[str, ...]:
    """What each section counts, in plain words."""
    spec = main_attention(cost).spec
    width = count(spec.d_model)
    texts = [
        "How to read this: a parameter is one learned number. A share says how much of all "
        "parameters a line holds; indented lines are parts of the line above.",
        f"query, key, value: three matrices turn each token's {width} numbers into what it looks "
        f"for, what it offers, and what it hands on. Each head owns {count(spec.head_dim)} "
        "columns of them.",
        f"output: one matrix mixes what all heads found back into {width} numbers a token.",
        *_RUNNING,
    ]
    if not attention_only(cost):
        texts.insert(
            3,
            "feed-forward: the part of a layer that works on each token alone; in most models it "
            "holds more parameters than attention.",
        )
    return tuple(texts)
