"""Multi-head attention in NumPy alone: what ``MultiHeadAttention`` computes, without torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ParamSpec, Self

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import (
    Floats,
    Score,
    attention_output,
    causal_mask,
    combine_masks,
    masked_softmax,
    merge_heads,
    project,
    scores_by,
)
from attnviz.attention.rotary import Rotary, apply_rotary, counted_tables
from attnviz.attention.shape import AttentionShape, as_rotary

_FIRST = 64  # tokens that the cache has room for at first; the room doubles when it is full


class KeyValues:
    """The cached, rotated keys and values of the ``tokens`` read so far, for each query head.

    Pope et al. 2022, "Efficiently Scaling Transformer Inference", section 2: the KV cache.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._room: tuple[Floats, Floats] | None = None

    def grown(self, key: Floats, value: Floats) -> tuple[Floats, Floats]:
        """Append a text's further keys and values; return all of them, (head, token, dim) each."""
        stop = self.tokens + key.shape[-2]
        if self._room is None or stop > self._room[0].shape[-2]:
            self._room = self._larger(key, stop, 0), self._larger(value, stop, 1)
        keys, values = self._room
        keys[:, self.tokens : stop], values[:, self.tokens : stop] = key, value
        self.tokens = stop
        return keys[:, :stop], values[:, :stop]

    def cut(self, tokens: int) -> None:
        """Remove all but the first ``tokens`` tokens from the cache."""
        self.tokens = min(self.tokens, tokens)

    def _larger(self, like: Floats, tokens: int, part: int) -> Floats:
        heads, _, dim = like.shape
        room = np.empty((heads, max(2 * tokens, _FIRST), dim), like.dtype)
        if self._room is not None:
            room[:, : self.tokens] = self._room[part][:, : self.tokens]
        return room


@dataclass(frozen=True, eq=False)
class NumpyAttention:
    """Self- or cross-attention over arrays (..., token, width).

    query_weight: (heads · head_dim, d_model). key_weight: (kv_heads · head_dim, key_width).
    value_weight: (kv_heads · value_dim, value_width).
    output_weight: (output_width, heads · value_dim).
    heads, kv_heads: number of query heads, and of key/value heads (None: as many).
    query_bias, key_bias, value_bias, output_bias: one number for each row of the weight, or None.
    causal: whether a query sees no later key; the two texts are aligned at their ends.
    window: how many keys a query of causal attention sees, itself included; None for all. rotary:
        rotary positions on query and key, or their theta, or None; for self-attention only.
    query_gain, key_gain: (head_dim,), gains of an RMS norm of each head's query and key before they
        are rotated (Henry et al. 2020, "Query-Key Normalization"), None for no norm. norm_eps: its
        ε.
    query_factor: a number that multiplies the queries; √head_dim undoes the division of the scores.
    score: how a query and a key are compared. score_weight: (heads, head_dim), the v of
        ``additive_scores``; None for all ones, and for the other scores.
    removed: ablated heads: their outputs are set to zero, their attention weights are unchanged.
    Raises ValueError if the arrays do not fit together.
    """

    query_weight: Floats
    key_weight: Floats
    value_weight: Floats
    output_weight: Floats
    heads: int
    kv_heads: int | None = None
    query_bias: Floats | None = None
    key_bias: Floats | None = None
    value_bias: Floats | None = None
    output_bias: Floats | None = None
    causal: bool = False
    window: int | None = None
    rotary: float | Rotary | None = None
    query_gain: Floats | None = None
    key_gain: Floats | None = None
    norm_eps: float = 1e-6
    query_factor: float = 1.0
    score: Score = "scaled-dot"
    score_weight: Floats | None = None
    removed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        shape = self.shape
        for name, rows_and_columns in shape.projections.items():
            _check(f"{name}_weight", getattr(self, f"{name}_weight"), rows_and_columns)
            _check(f"{name}_bias", getattr(self, f"{name}_bias"), rows_and_columns[:1])
        shape.check_scoring(self.rotary, self.score)
        if self.score_weight is not None and self.score != "additive":
            raise ValueError(f"a score_weight belongs to additive scores, not to {self.score}")
        _check("score_weight", self.score_weight, (shape.heads, shape.head_dim))
        _check("query_gain", self.query_gain, (shape.head_dim,))
        _check("key_gain", self.key_gain, (shape.head_dim,))

    @property
    def shape(self) -> AttentionShape:
        """Return the sizes of the attention, derived from its arrays."""
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        return AttentionShape(
            d_model=self.query_weight.shape[1],
            heads=self.heads,
            kv_heads=kv_heads,
            head_dim=self.query_weight.shape[0] // max(self.heads, 1),
            value_dim=self.value_weight.shape[0] // max(kv_heads, 1),
            key_width=self.key_weight.shape[1],
            value_width=self.value_weight.shape[1],
            output_width=self.output_weight.shape[0],
        )

    @classmethod
    def random(
        cls,
        d_model: int,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        seed: int = 0,
        bias: bool = True,
        causal: bool = False,
        rotary: float | None = None,
        score: Score = "scaled-dot",
    ) -> NumpyAttention:
        """Return self-attention with random float32 parameters: Xavier-uniform, biases zero.

        Weights (out, in) are drawn from ±√(6 / (in + out)) (Glorot & Bengio 2010), the same on
        every machine: query, key, value, output, then the vectors of additive scores.
        """
        shape = AttentionShape.of(d_model, heads, kv_heads, head_dim)
        generator = np.random.default_rng(seed)
        state: dict[str, Floats] = {}
        for name, size in shape.projections.items():
            state[f"{name}_projection.weight"] = _xavier_uniform(generator, size)
            if bias:
                state[f"{name}_projection.bias"] = np.zeros(size[0], np.float32)
        if score == "additive":
            vectors = [_xavier_uniform(generator, (1, shape.head_dim)) for _ in range(heads)]
            state["score_weight"] = np.concatenate(vectors)
        return cls.from_state(state, heads, kv_heads, causal=causal, rotary=rotary, score=score)

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Any],
        heads: int,
        kv_heads: int | None = None,
        *,
        causal: bool = False,
        rotary: float | None = None,
        score: Score = "scaled-dot",
    ) -> NumpyAttention:
        """Return the attention with the tensors of a ``MultiHeadAttention.state_dict()``."""

        arrays = {"score_weight": state.get("score_weight")}
        for name in ("query", "key", "value", "output"):
            arrays[f"{name}_weight"] = state[f"{name}_projection.weight"]
            arrays[f"{name}_bias"] = state.get(f"{name}_projection.bias")
        given: dict[str, Any] = {
            name: np.asarray(array) for name, array in arrays.items() if array is not None
        }
        return cls(
            **given, heads=heads, kv_heads=kv_heads, causal=causal, rotary=rotary, score=score
        )

    def __call__(self, query: Floats, *given: Any, **named: Any) -> tuple[Floats, Floats]:
        """Return the output (..., query, output_width) and the weights; see ``head_outputs``."""
        outputs, weights = self.head_outputs(query, *given, **named)
        return self.joined(outputs), weights

    def head_outputs(
        self,
        query: Floats,
        key: Floats | None = None,
        value: Floats | None = None,
        mask: NDArray[Any] | None = None,
        *,
        positions: NDArray[np.integer] | None = None,
    ) -> tuple[Floats, Floats]:
        """Return each head's output (..., heads, query, value_dim), and the attention weights.

        query, key, value: the inputs (..., token, width); by default key is query and value is key.
        mask: boolean (True: the query may see the key), or added to the scores, besides ``causal``.
        positions: (query,) or (..., query) for rotary positions; by default counted from 0.
        """
        key = query if key is None else key
        value = key if value is None else value
        self.shape.check_inputs(query, key, value, mask, self.rotary)
        if self.causal:
            seen = causal_mask(query.shape[-2], key.shape[-2], query, self.window)
            mask = combine_masks(mask, seen)
        return self.attend(*self.heads_of(query, key, value, positions), mask)

    def in_rows(
        self, x: Floats, rows: int, observe: Callable[[int, Floats], None] | None = None
    ) -> Floats:
        """Return self-attention over x (..., token, d_model), computed ``rows`` queries at a time.

        The output (..., token, output_width) is that of attention computed at once, but only one
        block of weights is stored. ``observe(start, weights)`` gets each, (..., heads, rows, keys),
        of the queries from ``start`` on; if causal, without the keys after its last query.
        """
        query, key, value = self.heads_of(x, x, x)
        tokens = x.shape[-2]
        outputs = np.empty((*query.shape[:-1], value.shape[-1]), x.dtype)
        for start in range(0, tokens, rows):
            stop = min(start + rows, tokens)
            seen = stop if self.causal else tokens
            mask = causal_mask(stop - start, seen, x, self.window) if self.causal else None
            outputs[..., start:stop, :], weights = self.attend(
                query[..., start:stop, :], key[..., :seen, :], value[..., :seen, :], mask
            )
            if observe is not None:
                observe(start, weights)
        return self.joined(outputs)

    def joined(self, outputs: Floats) -> Floats:
        """Return the output (..., query, output_width) of (..., heads, query, value_dim)."""
        if self.removed:
            outputs = outputs.copy()
            outputs[..., self.removed, :, :] = 0
        return project(merge_heads(outputs), self.output_weight, self.output_bias)

    def inputs(self, x: Floats) -> tuple[Floats, Floats, Floats]:
        """Return queries, keys and values (..., heads, token, dim) of self-attention over x.

        They are projected and rotated, not scaled; keys and values are those of key/value heads.
        """
        return self._once(self.heads_of(x, x, x))

    def alone(self, head: int) -> NumpyAttention:
        """Return the attention of one query head and its key/value head."""
        shape = self.shape
        rows = [("query", head, shape.heads)]
        rows += [(name, head // shape.groups, shape.kv_heads) for name in ("key", "value")]
        parts: dict[str, Any] = {"output_weight": self.output_by_head[:, head]}
        for name, at, heads in rows:
            for part in (f"{name}_weight", f"{name}_bias"):
                if (array := getattr(self, part)) is not None:
                    parts[part] = array.reshape(heads, -1, *array.shape[1:])[at]
        return replace(self, **parts, heads=1, kv_heads=1, removed=())

    def moved_inputs(
        self, x: Floats, change: Floats, *, biases: bool = False
    ) -> tuple[Floats, Floats, Floats]:
        """Return the change of queries, keys and values that a change of the input x makes.

        The result is linear in ``change`` (..., token, d_model): norms of queries and keys keep the
        scale that they have for x. biases: add what the biases of the projections make.
        """

        def moved(part: str) -> Floats:
            bias = getattr(self, f"{part}_bias") if biases else None
            projected: Floats = project(change, getattr(self, f"{part}_weight"), bias)
            held = self._held(part, x)
            return projected if held is None else projected * held

        query, key, value = (moved(part) for part in ("query", "key", "value"))
        query = query * x.dtype.type(self.query_factor)
        return self._once(self.shape.separate_heads(query, key, value, self.rotary))

    def moved_back(self, x: Floats, query: Floats, key: Floats) -> tuple[Floats, Floats]:
        """Return the derivatives of ⟨query, q⟩ and of ⟨key, k⟩ by x, each of the shape of x.

        q and k are what ``moved_inputs`` makes of x, the layer's input (..., token, d_model), with
        the scale of their norms fixed. query, key: vectors (..., heads, token, head_dim).
        """
        query = query * x.dtype.type(self.query_factor)
        if self.rotary is not None:
            tables = as_rotary(self.rotary), range(x.shape[-2]), self.shape.head_dim
            cos, sin = counted_tables(*tables, x.dtype)
            query, key = apply_rotary(query, cos, -sin), apply_rotary(key, cos, -sin)

        def back(part: str, vectors: Floats) -> Floats:
            held, merged = self._held(part, x), merge_heads(vectors)
            return (merged if held is None else merged * held) @ getattr(self, f"{part}_weight")

        return back("query", query), back("key", key)

    def seen(self, x: Floats) -> NDArray[np.bool_] | None:
        """Return the causal mask (query, key), True where a query sees a key; None if all are."""
        if not self.causal:
            return None
        return causal_mask(x.shape[-2], x.shape[-2], x, self.window)

    def parts(self, x: Floats) -> tuple[Floats, Floats, Floats]:
        """Return output, weights and values (..., query head, token, value_dim) over x."""
        query, key, value = self.heads_of(x, x, x)
        outputs, weights = self.attend(query, key, value, self.seen(x))
        return self.joined(outputs), weights, value

    @property
    def output_by_head(self) -> Floats:
        """Return the output projection split by head: (output_width, heads, value_dim)."""
        return np.reshape(self.output_weight, (self.shape.output_width, self.heads, -1))

    def moved_norms(self, x: Floats) -> Floats:
        """Return the norms ‖v_j W_O^h‖₂, (..., heads, token) (Kobayashi et al. 2020)."""
        value = self.heads_of(x, x, x)[2]
        moved = np.matmul(value, np.moveaxis(self.output_by_head, 0, -1))
        return np.sqrt(np.square(moved).sum(-1))

    def attend(
        self,
        query: Floats,
        key: Floats,
        value: Floats,
        mask: NDArray[Any] | None,
        edit: Callable[[Floats], Floats] | None = None,
    ) -> tuple[Floats, Floats]:
        """Return each head's output (..., heads, query, value_dim), and the attention weights.

        query, key, value: split into heads, (..., heads, token, dim). mask: boolean (True: the
        query may see the key), or added to the scores. edit: returns the attention weights to
        continue with.
        """
        weights: Floats = masked_softmax(scores_by(self.score, query, key, self.score_weight), mask)
        weights = weights if edit is None else edit(weights)
        return attention_output(weights, value), weights

    def heads_of(
        self,
        query: Floats,
        key: Floats,
        value: Floats,
        positions: NDArray[np.integer] | range | None = None,
    ) -> tuple[Floats, Floats, Floats]:
        """Return projected query, key and value, split into heads: (..., heads, token, dim).

        query, key, value: the inputs (..., token, width). positions: (token,) or (..., token) for
        rotary positions, or their range; by default counted from 0.
        """
        queries = self._normed(project(query, self.query_weight, self.query_bias), self.query_gain)
        if self.query_factor != 1.0:
            queries = queries * query.dtype.type(self.query_factor)
        return self.shape.separate_heads(
            queries,
            self._normed(project(key, self.key_weight, self.key_bias), self.key_gain),
            project(value, self.value_weight, self.value_bias),
            self.rotary,
            positions,
        )

    def _once(self, parts: tuple[Floats, Floats, Floats]) -> tuple[Floats, Floats, Floats]:
        """Return query, key and value with each key/value head once, not for each query head."""
        query, key, value = parts
        every = self.shape.groups
        return query, key[..., ::every, :, :], value[..., ::every, :, :]

    def _held(self, part: str, x: Floats) -> Floats | None:
        """Return a norm's gain over its scale for x, as wide as all heads; None without a norm."""
        gain = getattr(self, f"{part}_gain", None)
        if gain is None:
            return None
        given = project(x, getattr(self, f"{part}_weight"), getattr(self, f"{part}_bias"))
        held: Floats = gain / self._scale(given, gain)
        return held.reshape(*x.shape[:-1], -1)

    def _scale(self, x: Floats, gain: Floats) -> Floats:
        """Return by what an RMS norm divides each head of x, (..., token, heads, 1)."""
        parts = x.reshape(*x.shape[:-1], -1, len(gain))
        square = np.mean(parts * parts, axis=-1, keepdims=True)
        return np.sqrt(square + x.dtype.type(self.norm_eps))

    def _normed(self, x: Floats, gain: Floats | None) -> Floats:
        """Return x (..., token, heads · head_dim) with an RMS norm of each head; x if no gain."""
        if gain is None:
            return x
        parts = x.reshape(*x.shape[:-1], -1, len(gain))
        normed: Floats = parts / self._scale(x, gain) * gain
        return normed.reshape(x.shape)


def _xavier_uniform(generator: np.random.Generator, size: tuple[int, int]) -> Floats:
    bound = math.sqrt(6 / sum(size))
    return generator.uniform(-bound, bound, size).astype(np.float32)


def _check(name: str, array: Floats | None, expected: tuple[int, ...]) -> None:
    if array is not None and array.shape != expected:
        raise ValueError(f"expected {name} of shape {expected}, got {array.shape}")


# Rounded to bfloat16, a type that NumPy lacks -----------------------------------------------------

_Given = ParamSpec("_Given")


def to_bfloat16(numbers: Floats) -> Floats:
    """Return each number rounded to bfloat16: eight significant bits, ties to even."""
    bits = numbers.astype(np.float32, copy=False).view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)  # halfway, and one more where the last kept bit is odd
    rounded += bits
    rounded &= np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(numbers.dtype, copy=False)


def rounding(compute: Callable[_Given, Floats]) -> Callable[_Given, Floats]:
    """Return a method that rounds the result of another one to bfloat16."""

    def rounded(*given: _Given.args, **named: _Given.kwargs) -> Floats:
        return to_bfloat16(compute(*given, **named))

    return rounded


class NarrowAttention(NumpyAttention):
    """NumPy attention that rounds all arrays to bfloat16 as torch does, but inside the softmax."""

    @classmethod
    def of(cls, attention: NumpyAttention) -> Self:
        """Return a rounding attention with the parameters of ``attention``, not yet rounded."""
        return cls(**{part.name: getattr(attention, part.name) for part in fields(attention)})

    joined = rounding(NumpyAttention.joined)

    def attend(
        self,
        query: Floats,
        key: Floats,
        value: Floats,
        mask: NDArray[Any] | None,
        edit: Callable[[Floats], Floats] | None = None,
    ) -> tuple[Floats, Floats]:
        scaled = self.score == "scaled-dot"
        score = "dot" if scaled else self.score
        scores = to_bfloat16(scores_by(score, query, key, self.score_weight))
        if scaled:
            scores = to_bfloat16(scores / query.dtype.type(math.sqrt(query.shape[-1])))
        weights = to_bfloat16(masked_softmax(scores, mask))
        weights = weights if edit is None else edit(weights)
        return to_bfloat16(attention_output(weights, value)), weights

    def heads_of(self, *given: Any, **named: Any) -> tuple[Floats, Floats, Floats]:
        query, key, value = super().heads_of(*given, **named)
        return to_bfloat16(query), to_bfloat16(key), to_bfloat16(value)

    def _normed(self, x: Floats, gain: Floats | None) -> Floats:
        return to_bfloat16(super()._normed(to_bfloat16(x), gain))
