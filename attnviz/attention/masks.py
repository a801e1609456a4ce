"""Masks of attention, for NumPy arrays and torch tensors alike.

A mask broadcasts over (batch, head, query, key). It is boolean, True where the query may see the
key, or an additive float, -inf where it may not.
"""

from __future__ import annotations

import math

from attnviz.attention.functional import Array, namespace

__all__ = ["causal_mask", "combine_masks", "padding_mask"]


def causal_mask(queries: int, keys: int, like: Array) -> Array:
    """Boolean (query, key): query i sees key j where j ≤ i + keys − queries.

    The two texts are aligned at their ends, so that the last query sees every key: with more keys
    than queries the surplus keys are the past, with fewer the first queries see nothing.
    ``like`` gives the library and the device.
    """
    xp = namespace(like)
    query = xp.arange(queries, device=like.device)[:, None]
    key = xp.arange(keys, device=like.device)[None, :]
    return key <= query + (keys - queries)


def padding_mask(visible_keys: Array) -> Array:
    """Boolean (batch, key), True at real tokens, to a mask of shape (batch, 1, 1, key).

    Raises ValueError for other types (an attention mask of 0 and 1 needs ``== 1`` first) and
    other numbers of axes.
    """
    boolean = namespace(visible_keys).isdtype(visible_keys.dtype, "bool")
    if not boolean or len(visible_keys.shape) != 2:
        raise ValueError(
            "expected the visible keys as booleans of shape (batch, key), "
            f"got {visible_keys.dtype} of shape {tuple(visible_keys.shape)}"
        )
    return visible_keys[:, None, None, :]


def combine_masks(*masks: Array | None) -> Array | None:
    """One mask that hides what any of these hides; None stands for a mask that hides nothing.

    Booleans alone give a boolean mask, anything additive gives the sum as an additive mask.
    """
    combined = None
    for mask in masks:
        if mask is not None:
            combined = mask if combined is None else _combine_two(combined, mask)
    return combined


def _combine_two(one: Array, other: Array) -> Array:
    xp = namespace(one, other)
    one_is_boolean = xp.isdtype(one.dtype, "bool")
    other_is_boolean = xp.isdtype(other.dtype, "bool")
    if one_is_boolean and other_is_boolean:
        return one & other
    if one_is_boolean:
        return xp.where(one, other, xp.full_like(other, -math.inf))
    if other_is_boolean:
        return xp.where(other, one, xp.full_like(one, -math.inf))
    return one + other
