"""Decoders and encoders in NumPy, for inference: they start in milliseconds and need no torch.

One forward pass for all of them. What a layer does with its parts is said by a ``StackShape``, the
parts are tensors named by their role:

    tokens, positions, types, embedding_norm, embedding_projection, final_norm
    layers.N.attention_norm, .query, .key, .value, .output, .query_norm, .key_norm
    layers.N.feed_norm, .gate, .up, .down
    prediction, prediction_norm, unembedding

each with ``.weight`` and, where the model has one, ``.bias``. A role without a tensor is left out:
a model without learned positions has no ``positions.weight``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from attnviz.attention.activations import ACTIVATE
from attnviz.attention.converted_tensors import ConvertedTensors
from attnviz.attention.functional import project
from attnviz.attention.key_values import KeyValues
from attnviz.attention.numpy_attention import NumpyAttention
from attnviz.attention.stack_shape import LayerTrace, StackShape, Trace
from attnviz.errors import UsageError

Floats = NDArray[np.floating]

_PROJECTIONS = ("query", "key", "value", "output")


class NumpyStack:
    """A model of one stack over tensors named by their roles.

    tensors: of any float type; each is read from the mapping and converted when it is first
        needed. Tensors of files are kept mapped, copies of them as long as they are small.
    dtype: of the computation.
    finite: whether all that attention added, and all scores of tokens, were numbers so far.
    """

    def __init__(
        self, shape: StackShape, tensors: Mapping[str, Floats], dtype: DTypeLike = np.float32
    ) -> None:
        self.shape = shape
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.tensors = ConvertedTensors(tensors, dtype)
        self.finite = True
        self._removed: Mapping[int, tuple[int, ...]] = {}

    def without(self, heads: Collection[tuple[int, int]]) -> Self:
        """Return the same where the outputs of these (layer, head) count as zero, whatever is
        run.
        """
        changed = copy(self)
        changed._removed = {
            layer: tuple(sorted(head for at, head in heads if at == layer)) for layer, _ in heads
        }
        return changed

    def logits(self, ids: ArrayLike) -> Floats:
        """Scores of the next token at every position: ids (..., token) to (..., token, vocabulary).

        Raises UsageError for no token, an unknown one, or more of them than the context holds.
        """
        return self.unembed(self.run_outputs(ids, lambda layer, weights, outputs: None))

    def run_outputs(
        self,
        ids: ArrayLike,
        observe: Callable[[int, Floats, Floats], None],
        past: Sequence[KeyValues] = (),
    ) -> Floats:
        """Return the residual after the last layer; ``observe(layer, weights, outputs)`` gets each
        one's.

        Outputs are (..., head, token, dim), before the output projection joins them.
        past: of each layer of a causal stack, what it has read of ``ids`` (token,) already; only
            the tokens behind that run, all of them see the past.
        """
        residual = self._embed(self._check(ids), past[0].tokens if past else 0)
        for layer in range(self.shape.layers):
            attention, read = self._attention(layer), self._read(layer, residual)
            outputs, weights = (
                attention.continued(read, past[layer]) if past else attention.head_outputs(read)
            )
            observe(layer, weights, outputs)
            residual = self._layer(layer, residual, attention.joined(outputs))
        return residual

    def unembed(self, residual: Floats) -> Floats:
        """Scores of tokens (..., vocabulary) by a residual (..., d_model) after the last layer."""
        residual = self.hidden(residual)
        if "prediction.weight" in self.tensors:
            activate = ACTIVATE[self.shape.head_activation]
            residual = self._norm(
                "prediction_norm", activate(self._project("prediction", residual))
            )
        # a tied unembedding is the embedding
        tied = "unembedding.weight" not in self.tensors
        weight = self.tensors["tokens.weight" if tied else "unembedding.weight"]
        scores: Floats = project(residual, weight, self.tensors.optional("unembedding.bias"))
        self.finite = self.finite and bool(np.isfinite(scores).all())
        return scores

    def hidden(self, residual: Floats) -> Floats:
        """Return the final hidden states: the residual after the last layer, through the last
        norm.
        """
        has_norm = "final_norm.weight" in self.tensors
        return self._norm("final_norm", residual) if has_norm else residual

    def removals(self, ids: ArrayLike, most: int) -> Iterator[tuple[int, int, Floats]]:
        """Return what one text ends in without each head: (layer, first head, residuals), layer by
        layer.

        The residuals (head, token, width) after the last layer are those without the first head,
        the next one and so on, at most ``most`` at once. What lies before a layer is run once: a
        removal changes nothing there. Raises UsageError as ``logits``.
        """
        residual = self._embed(self._check(ids))
        for layer in range(self.shape.layers):
            attention = self._attention(layer)
            outputs, _ = attention.head_outputs(self._read(layer, residual))
            for first in range(0, len(outputs), most):
                heads = np.arange(first, min(first + most, len(outputs)))
                without = np.repeat(outputs[None], len(heads), 0)
                without[heads - first, heads] = 0
                ends = self._layer(layer, residual, attention.joined(without))
                for later in range(layer + 1, self.shape.layers):
                    read = self._read(later, ends)
                    ends = self._layer(later, ends, self._attention(later)(read)[0])
                yield layer, first, ends
            residual = self._layer(layer, residual, attention.joined(outputs))

    @property
    def is_sum(self) -> bool:
        """Return whether logits are read from a sum of what the layers add, through one norm
        alone.
        """
        return self.shape.order != "after" and "prediction.weight" not in self.tensors

    def traced(self, ids: ArrayLike, keep: Callable[[int, Floats], Floats]) -> Trace:
        """Return one pass over one text, with what each layer adds to the residual.

        keep: of a layer's weights (head, query, key) those that are wanted.
        Raises UsageError as ``logits``, and ValueError where the residual is no sum of these.
        """
        if not self.is_sum:
            raise ValueError("the residual is no sum where norms stand behind each part")
        embedded = residual = self._embed(self._check(ids))
        layers = []
        for layer in range(self.shape.layers):
            attention = self._attention(layer)
            attended, weights, values = attention.parts(self._read(layer, residual))
            fed = self._fed(layer, residual, attended)
            residual = residual + attended + fed
            output, bias = attention.output_by_head, attention.output_bias
            layers.append(LayerTrace(keep(layer, weights), values, output, bias, fed))
        return Trace(embedded, layers, residual)

    def direction(
        self, residual: Floats, answer: int, foil: int | None
    ) -> tuple[Floats, float | None]:
        """Return how logit(answer) − logit(foil) is read from the final residual (token, width).

        The direction (token, width) whose product with the residual, plus the number, is that of
        each token's prediction, the final norm's scale held; None where there is no bias behind the
        layers. foil: None for the answer alone.
        """
        row, bias = _unembedding_row(self.tensors, answer)
        if foil is not None:
            other, less = _unembedding_row(self.tensors, foil)
            row, bias = row - other, bias - less
        shift = self.tensors.optional("final_norm.bias")
        added = shift is not None or "unembedding.bias" in self.tensors
        bias += 0.0 if shift is None else float(row @ shift)
        row = row * self._gain("final_norm")
        if self.shape.norm == "layer":
            row = row - row.mean()
            residual = residual - np.mean(residual, axis=-1, keepdims=True)
        square = np.mean(residual * residual, axis=-1, keepdims=True)
        return row / np.sqrt(square + self.dtype.type(self.shape.norm_eps)), bias if added else None

    def run(
        self, ids: ArrayLike, wants: Callable[[int], bool], observe: Callable[[int, Floats], None]
    ) -> None:
        """Hand the weights (..., head, query, key) of each wanted layer to ``observe(layer, …)``.

        Nothing after the last wanted layer's weights is computed. Raises UsageError as ``logits``.
        """

        def look(layer: int, attention: NumpyAttention, read: Floats) -> Floats:
            attended, weights = attention(read)
            observe(layer, weights)
            return attended

        self._run(ids, wants, look)

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
        queries from ``start`` on, where causal without the keys after its last query, and if
        ``norms`` is set what ``NumpyAttention.moved_norms`` gives, (..., head, token).
        """

        def look(layer: int, attention: NumpyAttention, read: Floats) -> Floats:
            moved = attention.moved_norms(read) if norms else None
            return attention.in_rows(read, rows, partial(_observe_block, observe, layer, moved))

        self._run(ids, wants, look, lambda attention, read: attention.in_rows(read, rows))

    def run_queries_keys(
        self,
        ids: ArrayLike,
        wants: Callable[[int], bool],
        observe: Callable[[int, Floats, Floats, NDArray[np.bool_] | None], None],
    ) -> None:
        """As ``run``, but ``observe(layer, query, key, seen)`` gets what the weights are made of.

        Both are (..., head, token, head_dim), as ``NumpyAttention.queries_and_keys`` gives them;
        seen is (query, key), None where each query sees every key.
        """

        def look(layer: int, attention: NumpyAttention, read: Floats) -> Floats:
            observe(layer, *attention.queries_and_keys(read), attention.seen(read))
            return attention(read)[0]

        self._run(ids, wants, look)

    def _run(
        self,
        ids: ArrayLike,
        wants: Callable[[int], bool],
        look: Callable[[int, NumpyAttention, Floats], Floats],
        pass_by: Callable[[NumpyAttention, Floats], Floats] = lambda attend, read: attend(read)[0],
    ) -> None:
        """Every layer up to the last wanted one.

        look: what attention adds to the residual of a wanted layer, seen on the way; pass_by: of
            another one.
        """
        checked = self._check(ids)
        wanted = [layer for layer in range(self.shape.layers) if wants(layer)]
        if not wanted:
            return
        residual = self._embed(checked)
        for layer in range(wanted[-1] + 1):
            attention, read = self._attention(layer), self._read(layer, residual)
            attended = look(layer, attention, read) if layer in wanted else pass_by(attention, read)
            self.finite = self.finite and bool(np.isfinite(attended).all())
            if layer < wanted[-1]:
                residual = self._layer(layer, residual, attended)

    def _check(self, ids: ArrayLike) -> NDArray[np.integer]:
        checked = np.asarray(ids)
        if checked.ndim == 0 or checked.size == 0:
            raise UsageError("expected at least one token, got none")
        if checked.shape[-1] > self.shape.context:
            raise UsageError(
                f"the text has {checked.shape[-1]} tokens, "
                f"but the model's context ends at {self.shape.context}"
            )
        # A negative index would silently count from the vocabulary's end.
        if checked.min() < 0 or checked.max() >= self.shape.vocabulary:
            raise UsageError(
                f"token ids run from 0 to {self.shape.vocabulary - 1}, "
                f"got {checked.min()} to {checked.max()}"
            )
        return checked

    def _embed(self, ids: NDArray[np.integer], start: int = 0) -> Floats:
        """Return the residual before the first layer, of the tokens from ``start`` on."""
        residual = self.tensors.rows("tokens.weight", ids[..., start:])
        if self.shape.embedding_scale != 1.0:
            residual = residual * self.dtype.type(self.shape.embedding_scale)
        if "positions.weight" in self.tensors:
            residual = residual + self.tensors.rows("positions.weight", self._places(ids, start))
        if "types.weight" in self.tensors:
            residual = residual + self.tensors.rows("types.weight", slice(0, 1))
        if "embedding_norm.weight" in self.tensors:
            residual = self._norm("embedding_norm", residual)
        if "embedding_projection.weight" in self.tensors:
            residual = self._project("embedding_projection", residual)
        return residual

    def _places(self, ids: NDArray[np.integer], start: int) -> NDArray[np.integer] | slice:
        """Return the rows of ``positions``."""
        padding = self.shape.padding
        if padding is None:
            return slice(start, ids.shape[-1])
        counted = ids != padding
        places: NDArray[np.integer] = np.cumsum(counted, axis=-1) * counted + padding
        return places[..., start:]

    def _read(self, layer: int, residual: Floats) -> Floats:
        """Return what a layer's attention reads."""
        if self.shape.order == "after":
            return residual
        return self._norm(f"layers.{layer}.attention_norm", residual)

    def _attention(self, layer: int) -> NumpyAttention:
        name, shape = f"layers.{layer}", self.shape
        parts: dict[str, Any] = {
            f"{part}_{kind}": self.tensors[stored]
            for part in _PROJECTIONS
            for kind in ("weight", "bias")
            if (stored := f"{name}.{part}.{kind}") in self.tensors
        }
        gains: dict[str, Any] = {
            f"{part}_gain": self.tensors[stored]
            for part in ("query", "key")
            if (stored := f"{name}.{part}_norm.weight") in self.tensors
        }
        return NumpyAttention(
            **parts,
            **gains,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            causal=shape.causal,
            window=shape.windows[layer] if shape.windows else None,
            rotary=None if layer in shape.unturned else shape.rotary,
            norm_eps=shape.norm_eps,
            query_factor=1.0 if shape.scaled else math.sqrt(shape.head_dim),
            removed=self._removed.get(layer, ()),
        )

    def _layer(self, layer: int, residual: Floats, attended: Floats) -> Floats:
        """Return the residual after a layer whose attention adds ``attended``."""
        name = f"layers.{layer}"
        if self.shape.order == "after":
            between = self._norm(f"{name}.attention_norm", residual + attended)
            return self._norm(f"{name}.feed_norm", between + self._feed_forward(layer, between))
        return residual + attended + self._fed(layer, residual, attended)

    def _fed(self, layer: int, residual: Floats, attended: Floats) -> Floats:
        """Return what the feed-forward of a layer adds, where norms stand before it."""
        read = residual if self.shape.order == "parallel" else residual + attended
        return self._feed_forward(layer, self._norm(f"layers.{layer}.feed_norm", read))

    def _feed_forward(self, layer: int, read: Floats) -> Floats:
        name = f"layers.{layer}"
        activate = ACTIVATE[self.shape.activation]
        if f"{name}.gate.weight" in self.tensors:
            inner = activate(self._project(f"{name}.gate", read))
            inner = inner * self._project(f"{name}.up", read)
        else:
            inner = activate(self._project(f"{name}.up", read))
        return self._project(f"{name}.down", inner)

    def _norm(self, name: str, residual: Floats) -> Floats:
        """Return the residual at a root mean square of one, times a gain per dimension.

        ``layer`` takes the mean off first, and adds a bias.
        """
        if self.shape.norm == "layer":
            residual = residual - np.mean(residual, axis=-1, keepdims=True)
        square = np.mean(residual * residual, axis=-1, keepdims=True)
        normed: Floats = residual / np.sqrt(square + self.dtype.type(self.shape.norm_eps))
        normed, bias = normed * self._gain(name), self.tensors.optional(f"{name}.bias")
        return normed if bias is None else normed + bias

    def _gain(self, name: str) -> Floats:
        """Return what a norm multiplies each dimension with."""
        gain = self.tensors[f"{name}.weight"]
        return 1 + gain if self.shape.norm == "rms-from-one" else gain

    def _project(self, name: str, x: Floats) -> Floats:
        weight, bias = self.tensors[f"{name}.weight"], self.tensors.optional(f"{name}.bias")
        projected: Floats = project(x, weight, bias)
        return projected


def _observe_block(
    observe: Callable[[int, int, Floats, Floats | None], None],
    layer: int,
    norms: Floats | None,
    start: int,
    weights: Floats,
) -> None:
    observe(layer, start, weights, norms)


def _unembedding_row(tensors: ConvertedTensors, token: int) -> tuple[Floats, float]:
    """Return the row of a token in the unembedding, and its bias."""
    tied = "unembedding.weight" not in tensors
    table = "tokens.weight" if tied else "unembedding.weight"
    row = tensors.rows(table, slice(token, token + 1))[0]
    bias = tensors.optional("unembedding.bias")
    return row, 0.0 if bias is None else float(bias[token])
