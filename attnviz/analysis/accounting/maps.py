"""The memory that all attention weights of a pass take where they are kept: L·H·n² numbers."""

from __future__ import annotations

from attnviz.accounts.running import MapCount
from attnviz.analysis.accounting.dtypes import bits
from attnviz.analysis.accounting.lengths import Lengths
from attnviz.analysis.accounting.terms import product
from attnviz.designs import Design

__all__ = ["count_maps"]


_FEWEST_BITS = 16


def count_maps(design: Design, length: Lengths, *, batch: int, dtype: str) -> MapCount:
    """Count layers × heads × queries × keys; linear attention has no maps.

    dtype: of the weights; where it has fewer than 16 bits, maps have 16.
    """
    maps, terms = 0, []
    for stack in design.stacks:
        tokens = length.of(stack)
        for group in stack.groups:
            for attention in group.layer.attentions:
                if attention.linear:
                    continue
                keys = length.source if attention.cross else tokens
                label = f"{stack.name}{' cross' if attention.cross else ''} maps"
                maps += group.repeat * attention.heads
                terms.append(product(label, (group.repeat, attention.heads, tokens, keys)))
    values = batch * sum(term.count for term in terms)
    size = max(bits(dtype), _FEWEST_BITS)
    return MapCount(values, values * size // 8, size, maps, tuple(terms))
