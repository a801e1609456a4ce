"""The sizes of an attention layer, and how its vectors are split into heads.

Grouped key/value heads: Ainslie et al. 2023, "GQA"; multi-query, with one of them: Shazeer 2019.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import get_args

import numpy as np

from attnviz.attention.functional import Array, Score, check_mask, repeat_kv_heads, split_heads
from attnviz.attention.rotary import Rotary, apply_rotary, counted_tables


@dataclass(frozen=True)
class AttentionShape:
    """The sizes of one attention layer; neighbouring query heads share a key/value head.

    d_model, key_width, value_width, output_width: widths of its inputs and its output. head_dim: of
    a query and key; value_dim: of a value. Raises ValueError for sizes that do not fit together.
    """

    d_model: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    key_width: int
    value_width: int
    output_width: int

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(
                    f"{field.name} must be at least 1, got {getattr(self, field.name)}"
                )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"{self.heads} heads do not divide into groups over {self.kv_heads} key/value "
                "heads: choose kv_heads that divides heads"
            )

    @classmethod
    def of(
        cls,
        d_model: int,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        value_dim: int | None = None,
        key_width: int | None = None,
        value_width: int | None = None,
        output_width: int | None = None,
    ) -> AttentionShape:
        """Return the sizes with the usual value for each size that is not given.

        ``kv_heads`` is ``heads``, ``head_dim`` is ``d_model / heads``, ``value_dim`` is
        ``head_dim``, ``key_width`` and ``output_width`` are ``d_model``, and ``value_width`` is
        ``key_width``, as key and value are mostly the same text.
        """
        if head_dim is None:
            if heads < 1 or d_model % heads:
                raise ValueError(
                    f"a d_model of {d_model} does not divide into {heads} heads: "
                    "choose heads that divides it, or give head_dim"
                )
            head_dim = d_model // heads
        key_width = d_model if key_width is None else key_width
        return cls(
            d_model=d_model,
            heads=heads,
            kv_heads=heads if kv_heads is None else kv_heads,
            head_dim=head_dim,
            value_dim=head_dim if value_dim is None else value_dim,
            key_width=key_width,
            value_width=key_width if value_width is None else value_width,
            output_width=d_model if output_width is None else output_width,
        )

    @property
    def groups(self) -> int:
        """Return how many query heads share one key/value head."""
        return self.heads // self.kv_heads

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """Return the shape (out, in) of the weight of each projection, by name."""
        return {
            "query": (self.heads * self.head_dim, self.d_model),
            "key": (self.kv_heads * self.head_dim, self.key_width),
            "value": (self.kv_heads * self.value_dim, self.value_width),
            "output": (self.output_width, self.heads * self.value_dim),
        }

    def check_scoring(self, rotary: float | Rotary | None, score: Score) -> None:
        """Raise ValueError for an unknown score, or rotary positions that do not fit the heads."""
        if rotary is not None:
            as_rotary(rotary).frequencies(self.head_dim)
        if score not in get_args(Score):
            raise ValueError(f"a score is one of {', '.join(get_args(Score))}, got {score!r}")

    def check_inputs(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | None,
        rotary: float | Rotary | None,
    ) -> None:
        """Raise ValueError if inputs (..., token, width) or the mask do not fit together."""
        expected = {"query": self.d_model, "key": self.key_width, "value": self.value_width}
        for (name, width), x in zip(expected.items(), (query, key, value), strict=True):
            if len(x.shape) < 2 or x.shape[-1] != width:
                raise ValueError(
                    f"expected a {name} of shape (..., token, {width}), got {tuple(x.shape)}"
                )
        if key.shape[:-1] != value.shape[:-1] or key.shape[:-2] != query.shape[:-2]:
            raise ValueError(
                "query, key and value must agree in their batch axes, key and value in their "
                f"tokens: got {tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
            )
        weights = (*query.shape[:-2], self.heads, query.shape[-2], key.shape[-2])
        axes = () if mask is None else tuple(mask.shape)
        aligned = zip(reversed(axes), reversed(weights), strict=False)
        if len(axes) > len(weights) or any(size not in (1, full) for size, full in aligned):
            raise ValueError(
                f"a mask of shape {axes} does not broadcast over the weights "
                f"(batch, heads, query, key) of shape {weights}"
            )
        if mask is not None:
            check_mask(mask)
        if rotary is not None and key is not query:
            raise ValueError("rotary positions are those of one text: leave key out, or be query")

    def separate_heads(
        self,
        query: Array,
        key: Array,
        value: Array,
        rotary: float | Rotary | None = None,
        positions: Array | range | None = None,
    ) -> tuple[Array, Array, Array]:
        """Split projected query, key and value into heads, rotate them, repeat key and value heads.

        In: (..., token, heads · dim). Out: query (..., heads, query, head_dim), key (..., heads,
        key, head_dim), value (..., heads, key, value_dim). positions: (token,) or (..., token), of
        the one text that is query and key, or their range; by default counted from 0.
        """
        query = split_heads(query, self.heads)
        key = split_heads(key, self.kv_heads)
        value = split_heads(value, self.kv_heads)
        if rotary is not None:
            turning = as_rotary(rotary)
            places = range(query.shape[-2]) if positions is None else positions
            if isinstance(places, range) and isinstance(query, np.ndarray):
                cos, sin = counted_tables(turning, places, self.head_dim, query.dtype)
            else:
                cos, sin = turning.tables(places, self.head_dim, like=query)
            cos, sin = cos[..., None, :, :], sin[..., None, :, :]  # the same for every head
            query, key = apply_rotary(query, cos, sin), apply_rotary(key, cos, sin)
        return query, repeat_kv_heads(key, self.groups), repeat_kv_heads(value, self.groups)


def as_rotary(rotary: float | Rotary) -> Rotary:
    return rotary if isinstance(rotary, Rotary) else Rotary(rotary)
