"""The five cases in which the library's own attention is compared with others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import attention_scores, project, repeat_kv_heads, split_heads
from attnviz.learn.verify.records import Sizes

Answer: TypeAlias = tuple[NDArray[Any], NDArray[Any] | None]
"""Output (text, query, width) and weights (text, head, query, key), None if not returned."""


@dataclass(frozen=True, eq=False)
class AttentionCase:
    """One call of the library's own attention, which several implementations compute.

    name: ``self``, ``cross``, ``causal``, ``padding`` or ``grouped``. words: a description of the
        case. state: parameters: weights (out, in) and biases by the names of
        ``MultiHeadAttention.state_dict()``.
    query, key: (text, token, d_model); the same array if a text attends to itself. heads, kv_heads:
        how many query heads and key/value heads. causal: whether later keys are hidden.
    real_keys: number of keys of each text that are not padding.
    """

    name: str
    words: str
    state: dict[str, NDArray[Any]]
    query: NDArray[Any]
    key: NDArray[Any]
    heads: int
    kv_heads: int
    causal: bool
    real_keys: tuple[int, ...]

    @property
    def padding(self) -> NDArray[np.bool_] | None:
        """Return a mask (text, key), True at keys that are not padding; None without padding."""
        keys = self.key.shape[1]
        if all(count == keys for count in self.real_keys):
            return None
        return np.arange(keys) < np.array(self.real_keys)[:, None]

    @property
    def visible(self) -> NDArray[np.bool_]:
        """Return a mask (text, query, key) of the keys that each query may see.

        It is computed without the library's own mask functions.
        """
        i, j = np.ogrid[: self.query.shape[1], : self.key.shape[1]]
        real = np.array(self.real_keys)[:, None, None]
        seen: NDArray[np.bool_] = (j < real) & ((j <= i) | (not self.causal))
        return seen

    @property
    def weight_roundings(self) -> int:
        """Return how many roundings one attention weight has: projection, score, scale, softmax."""
        width: int = self.query.shape[2]
        keys: int = self.key.shape[1]
        return (width + 1) + (width // self.heads) + 1 + (keys + 2)

    @property
    def output_roundings(self) -> int:
        """Return how many roundings one output has: the weight's, mixing, output projection."""
        keys: int = self.key.shape[1]
        width: int = self.query.shape[2]
        return self.weight_roundings + keys + width + 1

    @property
    def largest(self) -> float:
        """Return the largest absolute input, projection or scaled attention score; at least 1."""

        def projected(name: str, x: NDArray[Any], parts: int) -> NDArray[Any]:
            weight, bias = (self.state[f"{name}_projection.{part}"] for part in ("weight", "bias"))
            heads: NDArray[Any] = split_heads(project(x, weight, bias), parts)
            return heads

        query = projected("query", self.query, self.heads)
        key = projected("key", self.key, self.kv_heads)
        value = projected("value", self.key, self.kv_heads)
        scores = attention_scores(query, repeat_kv_heads(key, self.heads // self.kv_heads))
        met = (self.query, self.key, query, key, value, scores)
        return max(1.0, *(float(np.abs(array).max()) for array in met))


def attention_cases(sizes: Sizes, dtype: str) -> Iterator[AttentionCase]:
    """Yield the cases in the order of the report; the grouped one only if heads can share keys.

    sizes: of the attention. dtype: such as ``float32``.
    """
    own, other = sizes.tokens, sizes.keys
    texts = "1 text" if sizes.batch == 1 else f"{sizes.batch} texts"
    yield _case(sizes, dtype, "self", f"{texts} of {_count(own)}, all visible")
    words = f"{_count(own)} attend to {other} of another text"
    yield _case(sizes, dtype, "cross", words, keys=other)
    yield _case(sizes, dtype, "causal", f"{texts} of {_count(own)}, causal mask", causal=True)
    real = max(1, own - 2)
    words = f"{own - real} of {_count(own)} in one text are padding"
    yield _case(sizes, dtype, "padding", words, real=real)
    if sizes.kv_heads is not None:
        shared = f"{sizes.kv_heads} key/value head{'s' * (sizes.kv_heads != 1)}"
        words = f"{sizes.heads} query heads share {shared}"
        yield _case(sizes, dtype, "grouped", words, kv_heads=sizes.kv_heads)


def _count(tokens: int) -> str:
    return f"{tokens} token{'s' * (tokens != 1)}"


def _case(
    sizes: Sizes,
    dtype: str,
    name: str,
    words: str,
    *,
    keys: int | None = None,
    causal: bool = False,
    real: int | None = None,
    kv_heads: int | None = None,
) -> AttentionCase:
    generator = np.random.default_rng((sizes.seed, len(name), ord(name[0])))
    shared = kv_heads or sizes.heads
    width, narrow = sizes.d_model, shared * sizes.head_dim
    outs = {"query": width, "key": narrow, "value": narrow, "output": width}
    state = {}
    for projection, out in outs.items():
        bound = math.sqrt(6 / (width + out))  # Glorot & Bengio 2010
        drawn = generator.uniform(-bound, bound, (out, width))
        state[f"{projection}_projection.weight"] = drawn.astype(dtype)
        state[f"{projection}_projection.bias"] = generator.normal(size=out).astype(dtype)
    query = generator.normal(size=(sizes.batch, sizes.tokens, width)).astype(dtype)
    key = query
    if keys is not None:
        key = generator.normal(size=(sizes.batch, keys, width)).astype(dtype)
    every = [key.shape[1]] * sizes.batch
    if real is not None:
        every[-1] = real
    return AttentionCase(
        name=name,
        words=words,
        state=state,
        query=query,
        key=key,
        heads=sizes.heads,
        kv_heads=shared,
        causal=causal,
        real_keys=tuple(every),
    )
