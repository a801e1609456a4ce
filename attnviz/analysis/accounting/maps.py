"""The memory that all attention weights of a pass take where they are kept: L·H·n² numbers."""

from __future__ import annotations

from attnviz.accounts.running import MapCount
from attnviz.analysis.accounting.dtypes import byte_count
from attnviz.analysis.accounting.lengths import Lengths
from attnviz.analysis.accounting.terms import product
from attnviz.designs import Design

__all__ = ["count_maps"]


def count_maps(design: Design, length: Lengths, *, batch: int, dtype: str) -> MapCount:
    """Count layers × heads × queries × keys; linear attention has no maps."""
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
    return MapCount(values, byte_count(values, dtype), maps, tuple(terms))
