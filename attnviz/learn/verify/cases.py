"""The five cases in which the library's own attention is compared with others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import attention_scores, repeat_kv_heads
from attnviz.attention.numpy_attention import NumpyAttention
from attnviz.draw.numbers import counted
from attnviz.learn.verify.report import Sizes, Tolerance

Answer: TypeAlias = tuple[NDArray[Any], NDArray[Any] | None]
"""Output (text, query, width) and weights (text, head, query, key), None if not returned."""

PROJECTIONS = ("query", "key", "value", "output")
PARTS = ("weight", "bias")


@dataclass(frozen=True, eq=False)
class AttentionCase:
    """One call of the library's own attention, which several implementations compute.

    name: ``self``, ``cross``, ``causal``, ``padding`` or ``grouped``. words: a description of it.
    attention: has the parameters, the heads and whether later keys are hidden.
    query, key: (text, token, d_model); the same array if a text attends to itself.
    real_keys: number of keys of each text that are not padding.
    """

    name: str
    words: str
    attention: NumpyAttention
    query: NDArray[Any]
    key: NDArray[Any]
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
        seen: NDArray[np.bool_] = (j < real) & ((j <= i) | (not self.attention.causal))
        return seen

    @property
    def multiplications(self) -> int:
        """Return roughly how many multiplications the naive loop makes."""
        (batch, tokens, width), keys = self.query.shape, self.key.shape[1]
        return int(batch * width * ((tokens + keys) * 2 * width + 2 * tokens * keys))

    @property
    def tolerances(self) -> dict[str, Tolerance]:
        """Return the tolerances of the outputs and the weights.

        A weight is rounded in projection, score, scale and softmax; an output in mixing and the
        output projection as well. The largest number is an input, a projection or a scaled score.
        """
        width, keys, shape = self.query.shape[2], self.key.shape[1], self.attention.shape
        query, key, value = self.attention.heads_of(self.query, self.key, self.key)
        scores = attention_scores(query, repeat_kv_heads(key, query.shape[1] // key.shape[1]))
        arrays = (self.query, self.key, query, key, value, scores)
        largest = max(1.0, *(float(np.abs(array).max()) for array in arrays))
        epsilon = float(np.finfo(self.query.dtype).eps)
        weight = (width + 1) + shape.head_dim + 1 + (keys + 2)
        roundings = {"outputs": weight + keys + width + 1, "weights": weight}
        return {name: Tolerance(epsilon, count, largest) for name, count in roundings.items()}


def attention_cases(sizes: Sizes, dtype: str) -> Iterator[AttentionCase]:
    """Yield the cases in the order of the report; the grouped one only if heads can share keys.

    sizes: of the attention. dtype: such as ``float32``.
    """
    own, other = counted(sizes.tokens, "token"), sizes.keys
    texts = f"{counted(sizes.batch, 'text')} of {own}"
    yield _case(sizes, dtype, "self", f"{texts}, all visible")
    yield _case(sizes, dtype, "cross", f"{own} attend to {other} of another text", keys=other)
    yield _case(sizes, dtype, "causal", f"{texts}, causal mask", causal=True)
    real = max(1, sizes.tokens - 2)
    words = f"{sizes.tokens - real} of {own} in one text are padding"
    yield _case(sizes, dtype, "padding", words, real=real)
    if sizes.kv_heads is not None:
        words = f"{sizes.heads} query heads share {counted(sizes.kv_heads, 'key/value head')}"
        yield _case(sizes, dtype, "grouped", words, kv_heads=sizes.kv_heads)


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
    arrays: dict[str, Any] = {}
    for projection, out in zip(PROJECTIONS, (width, narrow, narrow, width), strict=True):
        bound = math.sqrt(6 / (width + out))  # Glorot & Bengio 2010
        drawn = generator.uniform(-bound, bound, (out, width))
        arrays[f"{projection}_weight"] = drawn.astype(dtype)
        arrays[f"{projection}_bias"] = generator.normal(size=out).astype(dtype)
    query = generator.normal(size=(sizes.batch, sizes.tokens, width)).astype(dtype)
    key = query
    if keys is not None:
        key = generator.normal(size=(sizes.batch, keys, width)).astype(dtype)
    real_keys = [key.shape[1]] * sizes.batch
    real_keys[-1] = real or real_keys[-1]
    attention = NumpyAttention(**arrays, heads=sizes.heads, kv_heads=shared, causal=causal)
    return AttentionCase(name, words, attention, query, key, tuple(real_keys))
