"""The small decoder in NumPy, for inference: it starts in milliseconds and needs no torch.

Llama's layer: RMSNorm (Zhang & Sennrich 2019) before attention and before the feed-forward, rotary
positions, grouped key/value heads, SwiGLU (Shazeer 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from attnviz.attention.decoder_config import LLAMA_PROJECTIONS, DecoderConfig
from attnviz.attention.functional import project
from attnviz.attention.numpy_attention import NumpyAttention
from attnviz.errors import UsageError

Floats = NDArray[np.floating]


class NumpyDecoder:
    """A decoder language model over tensors with Llama's names.

    tensors: as ``DecoderConfig.tensor_shapes`` lists them, of any float type; each is read from
        the mapping and converted when it is first needed, then kept.
    dtype: of the computation.
    """

    def __init__(
        self,
        config: DecoderConfig,
        tensors: Mapping[str, Floats],
        dtype: DTypeLike = np.float32,
    ) -> None:
        self.config = config
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._stored = tensors
        self._names = frozenset(tensors)
        self._converted: dict[str, Floats] = {}

    def logits(self, ids: ArrayLike) -> Floats:
        """Scores of the next token at every position: ids (..., token) to (..., token, vocabulary).

        Raises UsageError for no token, an unknown one, or more of them than the context holds.
        """
        checked = self._check(ids)
        residual = self._embed(checked)
        for layer in range(self.config.layers):
            attended, _ = self._attend(layer, residual)
            residual = self._feed_forward(layer, residual + attended)
        # a tied vocabulary projection is the embedding
        name = "model.embed_tokens" if self.config.tied else "lm_head"
        return self._project(name, self._norm("model.norm", residual))

    def run(
        self, ids: ArrayLike, wants: Callable[[int], bool], observe: Callable[[int, Floats], None]
    ) -> None:
        """Hand the weights (..., head, query, key) of each wanted layer to ``observe(layer, …)``.

        Nothing after the last wanted layer's weights is computed. Raises UsageError as ``logits``.
        """
        checked = self._check(ids)
        wanted = [layer for layer in range(self.config.layers) if wants(layer)]
        if not wanted:
            return
        residual = self._embed(checked)
        for layer in range(wanted[-1] + 1):
            attended, weights = self._attend(layer, residual)
            if layer in wanted:
                observe(layer, weights)
            if layer < wanted[-1]:
                residual = self._feed_forward(layer, residual + attended)

    def run_rows(
        self,
        ids: ArrayLike,
        rows: int,
        wants: Callable[[int], bool],
        observe: Callable[[int, int, Floats, Floats | None], None],
        *,
        norms: bool = False,
    ) -> None:
        """As ``run``, but in blocks of ``rows`` queries: no layer's weights are there at once.

        ``observe(layer, start, weights, norms)`` gets each block (..., head, rows, keys) of the
        queries from ``start`` on, without the keys after its last query, and if ``norms`` is set
        what ``NumpyAttention.moved_norms`` gives, (..., head, token).
        """
        checked = self._check(ids)
        wanted = [layer for layer in range(self.config.layers) if wants(layer)]
        residual = self._embed(checked)
        for layer in range(wanted[-1] + 1 if wanted else 0):
            attention, normed = self._attention(layer), self._normed(layer, residual)
            look = None
            if layer in wanted:
                moved = attention.moved_norms(normed) if norms else None
                look = partial(_observe_block, observe, layer, moved)
            residual = residual + attention.in_rows(normed, rows, look)
            if layer < wanted[-1]:
                residual = self._feed_forward(layer, residual)

    def run_queries_keys(
        self,
        ids: ArrayLike,
        wants: Callable[[int], bool],
        observe: Callable[[int, Floats, Floats], None],
    ) -> None:
        """As ``run``, but ``observe(layer, query, key)`` gets what the weights are made of.

        Both are (..., head, token, head_dim), as ``NumpyAttention.queries_and_keys`` gives them.
        """
        checked = self._check(ids)
        wanted = [layer for layer in range(self.config.layers) if wants(layer)]
        residual = self._embed(checked)
        for layer in range(wanted[-1] + 1 if wanted else 0):
            attention, normed = self._attention(layer), self._normed(layer, residual)
            if layer in wanted:
                observe(layer, *attention.queries_and_keys(normed))
            if layer < wanted[-1]:
                residual = self._feed_forward(layer, residual + attention(normed)[0])

    def _check(self, ids: ArrayLike) -> NDArray[np.integer]:
        checked = np.asarray(ids)
        if checked.ndim == 0 or checked.size == 0:
            raise UsageError("expected at least one token, got none")
        if checked.shape[-1] > self.config.context:
            raise UsageError(
                f"the text has {checked.shape[-1]} tokens, "
                f"but the model's context ends at {self.config.context}"
            )
        # A negative index would silently count from the vocabulary's end.
        if checked.min() < 0 or checked.max() >= self.config.vocabulary:
            raise UsageError(
                f"token ids run from 0 to {self.config.vocabulary - 1}, "
                f"got {checked.min()} to {checked.max()}"
            )
        return checked

    def _embed(self, ids: NDArray[np.integer]) -> Floats:
        """Rows of the embedding, gathered before they are converted: a text uses few of them."""
        rows: Floats = self._embedding[ids].astype(self.dtype)
        return rows

    @cached_property
    def _embedding(self) -> Floats:
        return self._stored["model.embed_tokens.weight"]

    def _attend(self, layer: int, residual: Floats) -> tuple[Floats, Floats]:
        """What attention adds to the residual, and its weights (..., head, query, key)."""
        return self._attention(layer)(self._normed(layer, residual))

    def _normed(self, layer: int, residual: Floats) -> Floats:
        """What a layer's attention reads."""
        return self._norm(f"model.layers.{layer}.input_layernorm", residual)

    def _attention(self, layer: int) -> NumpyAttention:
        name = f"model.layers.{layer}"
        state = {
            f"{ours}.{part}": self._tensor(stored)
            for ours, llamas in LLAMA_PROJECTIONS.items()
            for part in ("weight", "bias")
            if (stored := f"{name}.self_attn.{llamas}.{part}") in self._names
        }
        return NumpyAttention.from_state(
            state,
            self.config.heads,
            self.config.kv_heads,
            causal=True,
            rotary=self.config.rope_theta,
        )

    def _feed_forward(self, layer: int, residual: Floats) -> Floats:
        """The residual with what the gated feed-forward adds to it."""
        name = f"model.layers.{layer}"
        normed = self._norm(f"{name}.post_attention_layernorm", residual)
        gate = _silu(self._project(f"{name}.mlp.gate_proj", normed))
        inner = gate * self._project(f"{name}.mlp.up_proj", normed)
        return residual + self._project(f"{name}.mlp.down_proj", inner)

    def _norm(self, name: str, residual: Floats) -> Floats:
        """The residual at a root mean square of one, times a gain per dimension."""
        square = np.mean(residual * residual, axis=-1, keepdims=True)
        normed: Floats = residual / np.sqrt(square + self.dtype.type(self.config.norm_eps))
        return normed * self._tensor(f"{name}.weight")

    def _project(self, name: str, x: Floats) -> Floats:
        bias = self._tensor(f"{name}.bias") if f"{name}.bias" in self._names else None
        projected: Floats = project(x, self._tensor(f"{name}.weight"), bias)
        return projected

    def _tensor(self, name: str) -> Floats:
        if name not in self._converted:
            self._converted[name] = self._stored[name].astype(self.dtype, copy=False)
        return self._converted[name]


def _observe_block(
    observe: Callable[[int, int, Floats, Floats | None], None],
    layer: int,
    norms: Floats | None,
    start: int,
    weights: Floats,
) -> None:
    observe(layer, start, weights, norms)


def _silu(x: Floats) -> Floats:
    """x / (1 + exp(−x)), written so that no exponent overflows."""
    power = np.exp(-np.abs(x))
    silu: Floats = x * np.where(x < 0, power, 1) / (1 + power)
    return silu
