"""What fits into a memory, said in words."""

from __future__ import annotations

from attnviz.params.accounts.account import CostReport
from attnviz.params.accounts.running import Fit
from attnviz.params.numbers import bytes_text, count, factor

__all__ = ["fit_words", "longest_words"]


def fit_words(fit: Fit, cost: CostReport) -> str:
    """The longest context that a memory holds beside the weights, and what ends it."""
    memory, weights = bytes_text(fit.memory), bytes_text(fit.weights)
    head = f"In {memory}: "
    if fit.binds == "weights":
        short_of = bytes_text(-fit.left)
        return (
            f"{head}the weights alone take {weights} in {cost.dtype}, {short_of} more than "
            "there is; a smaller --dtype or more memory is needed."
        )
    many = "a context" if fit.batch == 1 else f"{count(fit.batch)} sequences"
    room = f"beside {weights} of weights ({cost.dtype})"
    if fit.tokens == 0:
        return f"{head}the weights ({weights}) fit, but not one token of cache beside them."
    if fit.binds == "nothing" or fit.tokens is None:
        return f"{head}{many} of any length fits {room}: its cache does not grow."
    tokens = f"{count(fit.tokens)} tokens"
    if fit.batch > 1:
        tokens += " each"
    cache = f"{bytes_text(fit.cache)} of cache"
    if cost.cache_dtype != cost.dtype:
        cache += f" ({cost.cache_dtype})"
    left = f"{bytes_text(fit.left)} stay free"
    if fit.binds == "positions":
        more = ""
        if fit.by_memory is not None:
            more = f" The cache alone would have room for {count(fit.by_memory)}."
        return (
            f"{head}{many} of {tokens}, as long as its positions reach, fits {room}, with {cache}; "
            f"{left}.{more}"
        )
    beyond = ""
    if fit.max_positions is not None:
        times = factor(fit.tokens, fit.max_positions)
        beyond = f" Its positions would reach {count(fit.max_positions)} ({times} of that fits)."
    return f"{head}{many} of up to {tokens} fits {room}, with {cache}.{beyond}"


def longest_words(fit: Fit) -> str:
    """The longest context in a cell of a table."""
    if fit.tokens is None:
        return "any"
    return count(fit.tokens) if fit.tokens else "none"
