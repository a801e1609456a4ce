"""A reading of a verification in plain words, for someone new to attention."""

from __future__ import annotations

from collections.abc import Iterator

from attnviz.verification import Verification

__all__ = ["explanation"]


def explanation(found: Verification) -> tuple[str, ...]:
    """Paragraphs; what stands before the first colon is what they are about."""
    return tuple(_of_model(found) if found.model is not None else _of_own(found))


def _of_own(found: Verification) -> Iterator[str]:
    yield (
        "How to read this: each row computes the same attention twice, by this library and by "
        "another way, and shows the largest difference of any two numbers: of the outputs, and of "
        "the attention weights. PASS means that no difference is larger than rounding explains."
    )
    yield (
        "ours: NumPy and torch are the library's own two ways; fused is its torch module while "
        "nobody looks at the weights, when a kernel computes the output without them."
    )
    yield (
        "against: the naive loop is the textbook's formula as three nested loops over plain "
        "numbers, written apart from the library; torch and Keras bring layers of their own, into "
        "which the same numbers were put. F.scaled_dot_product_attention returns no weights: they "
        "are read off by letting it mix the rows of an identity matrix."
    )
    yield (
        "rounding: computers keep a limited number of digits, so the same sum in another order "
        "ends a little differently. A mistake in the formula is thousands of times larger."
    )
    if found.steps:
        yield (
            "the steps: each head compares the query of a token (Q) with the key of every token "
            "(K), turns the scores into shares of one (A), and mixes the values (V) by them."
        )


def _of_model(found: Verification) -> Iterator[str]:
    yield (
        "How to read this: each block is a property that must hold if what attnviz shows of this "
        "model is to be trusted. A line is one measured number, its tolerance, and why it may be "
        "that large. PASS means that every number of the block is within its tolerance."
    )
    yield "rows: a query spreads exactly one over what it sees; a learned sink may take a part."
    yield (
        "causality: a language model must not see the future. Later tokens are changed for real, "
        "and everything before them has to stay."
    )
    yield (
        "heads: what each head puts out (z_h), sent through its own part of the output projection "
        "(W_O^h), adds up to what the module puts out; so removing a head is well defined."
    )
    yield (
        "bit for bit: where the same operations run on the same numbers, not even the last digit "
        "may differ; there the tolerance is 0."
    )
