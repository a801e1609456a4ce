"""The kinds of sequences that a model learns from, in words."""

from __future__ import annotations

__all__ = ["KIND_WORDS"]

KIND_WORDS = {
    "text": "text",
    "repeated_tokens": "uniform random tokens that repeat",
    "repeated_passages": "passages of the text that repeat",
    "recalled_pairs": "pairs of uniform random tokens that come again in another order",
}
"""By the names that recipes have for them."""
