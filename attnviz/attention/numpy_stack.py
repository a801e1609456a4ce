"""Decoders and encoders in NumPy, for inference. They start in milliseconds and need no torch.

One forward pass serves all of them. A ``StackShape`` says what a layer does with its parts, which
are tensors named by their role:

    tokens, positions, types, embedding_norm, embedding_projection, final_norm
    layers.N.attention_norm, .query, .key, .value, .output, .query_norm, .key_norm
    layers.N.feed_norm, .gate, .up, .down
    prediction, prediction_norm, unembedding

each with ``.weight`` and, if the model has one, ``.bias``. A role without a tensor is left out: a
model without learned positions has no ``positions.weight``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import product
from mmap import mmap
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from attnviz.attention.functional import ACTIVATE, Activation, Floats, causal_mask, project
from attnviz.attention.numpy_attention import (
    KeyValues,
    NarrowAttention,
    NumpyAttention,
    rounding,
    to_bfloat16,
)
from attnviz.attention.rotary import Rotary
from attnviz.errors import UsageError

_MOST_COPIED = 2**26  # bytes of converted tensors that are kept; others are converted in each run


class LazyTensors(Mapping[str, Floats]):
    """Tensors by name, each read again at every access."""

    def __init__(self, names: Collection[str], read: Callable[[str], Floats]) -> None:
        self._names = dict.fromkeys(names)
        self._read = read

    def __getitem__(self, name: str) -> Floats:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class ConvertedTensors:
    """Tensors by name, read and converted at first use; of copies so many bytes are kept."""

    def __init__(self, stored: Mapping[str, Floats], dtype: DTypeLike) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.stored = stored
        self._names = frozenset(stored)
        self._tables: dict[str, Floats] = {}
        self._kept: dict[str, Floats] = {}
        self._copied = 0
        self._most = _MOST_COPIED

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each tensor by its name."""
        return {name: tensor.shape for name, tensor in self.stored.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Floats:
        if name in self._kept:
            return self._kept[name]
        stored = self.stored[name]
        # Products are faster with columns in a row, and a conversion costs the same either way.
        order: Literal["K", "F"] = "K" if getattr(stored, "dtype", None) == self.dtype else "F"
        tensor = stored.astype(self.dtype, order=order, copy=False)
        copied = self._copied + (0 if _is_mapped(tensor) else tensor.nbytes)
        if copied <= self._most:
            self._copied = copied
            self._kept[name] = tensor
        return tensor

    def keeps(self, name: str) -> bool:
        """Return whether a tensor is already converted and stored in memory."""
        return name in self._kept

    def keep(self, most: int) -> None:
        """Raise the memory limit for converted tensors to ``most`` bytes, if that is larger."""
        self._most = max(self._most, most)

    def optional(self, name: str) -> Floats | None:
        """Return the tensor of this name, or None if there is none."""
        return self[name] if name in self._names else None

    def rows(self, name: str, rows: NDArray[np.integer] | slice) -> Floats:
        """Return some rows of a table of embeddings; the others are not converted."""
        if name not in self._tables:
            self._tables[name] = self.stored[name]
        return self._tables[name][rows].astype(self.dtype)


def _is_mapped(array: object) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap)


Norm = Literal["rms", "rms-from-one", "layer"]
"""The norm: RMS norm (Zhang & Sennrich 2019), RMS norm with one plus the stored gain (Gemma), or
LayerNorm (Ba et al. 2016)."""

Order = Literal["before", "after", "parallel"]
"""Norms stand before attention and feed-forward (GPT-2, Llama), after each of them (BERT), or
before both, which then read the same residual (GPT-NeoX)."""


@dataclass(frozen=True)
class StackShape:
    """The sizes of a NumPy model's stack of layers, and which variant of each part it uses.

    layers, heads, kv_heads: ``heads // kv_heads`` query heads share a key/value head.
    head_dim: width of one head's query and key. vocabulary: number of tokens in the vocabulary.
    context: the longest sequence of tokens that the stack accepts. norm, order, activation: see
        their types. The feed-forward is gated if the tensors have a ``gate`` (Shazeer 2020).
    norm_eps: added under the norm's root.
    causal: whether a query sees no later key. windows: for each layer the number of keys that a
        query sees, itself included, None for all of them; empty if no layer has a window.
    rotary: rotary positions of query and key, or None; unturned: layers without them.
    scaled: whether the scores are divided by √head_dim.
    embedding_scale: a number that multiplies the token embeddings.
    padding: the id of the padding token, if positions are counted from the row after it and padding
        tokens get that row itself (RoBERTa); None if they are counted from the first row.
    head_activation: the activation between ``prediction`` and ``prediction_norm``.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    norm: Norm
    norm_eps: float
    order: Order
    activation: Activation
    causal: bool
    rotary: Rotary | None = None
    unturned: frozenset[int] = frozenset()
    windows: tuple[int | None, ...] = ()
    scaled: bool = True
    embedding_scale: float = 1.0
    padding: int | None = None
    head_activation: Activation = "gelu"


class LayerTrace(NamedTuple):
    """The additions of one layer over a text: stored weights, and fed, (token, width).

    values: (head, key, value_dim). output: the projection (width, head, value_dim). bias: (width,)
    or None.
    """

    weights: Floats
    values: Floats
    output: Floats
    bias: Floats | None
    fed: Floats


class Trace(NamedTuple):
    """A pass as a sum: the embedding (token, width), each layer's additions, the residual after."""

    embedded: Floats
    layers: Sequence[LayerTrace]
    residual: Floats


# The stack -----------------------------------------------------------------------------------

_PARAMETERS = [*product(("query", "key", "value", "output"), ("weight", "bias"))]


class NumpyStack:
    """A decoder or encoder in NumPy: one stack of layers over tensors named by their roles.

    tensors: of any float type; each is read from the mapping and converted when it is first needed,
        see ``ConvertedTensors``. dtype: the number type of the computation.
    finite: whether all attention outputs and logits so far were finite.
    """

    def __init__(
        self, shape: StackShape, tensors: Mapping[str, Floats], dtype: DTypeLike = np.float32
    ) -> None:
        self.shape = shape
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.tensors = ConvertedTensors(tensors, dtype)
        self.finite = True
        self.segments: tuple[NDArray[np.integer], NDArray[np.integer]] | None = None
        """The ids of a pair of texts, and the text, 0 or 1, of each; others are one text."""
        self._removed: Mapping[int, tuple[int, ...]] = {}
        self._attentions: dict[int, NumpyAttention] = {}

    def without(self, heads: Collection[tuple[int, int]]) -> Self:
        """Return the same model with these (layer, head) ablated: their outputs are set to zero."""
        changed = copy(self)
        changed._attentions = {}
        changed._removed = {
            layer: tuple(sorted(head for at, head in heads if at == layer)) for layer, _ in heads
        }
        return changed

    def logits(self, ids: ArrayLike) -> Floats:
        """Return next-token logits (..., token, vocab) for ids (..., token); see ``checked``."""
        return self.unembed(self.run_outputs(ids, lambda layer, weights, outputs: None))

    def run_outputs(
        self,
        ids: ArrayLike,
        observe: Callable[[int, Floats, Floats], None],
        past: Sequence[KeyValues] = (),
        masks: Mapping[int, NDArray[np.bool_]] | None = None,
    ) -> Floats:
        """Run the model on token ids; return the residual after the last layer.

        ``observe(layer, weights, outputs)`` gets each layer's attention weights and its heads'
        outputs (..., head, token, dim), before the output projection. past: the cached keys and
        values of each layer of a causal stack for the first of ``ids`` (token,); only the later
        tokens are run, and see all. masks: by layer whether each head's queries see each key,
        (head, query, key), in addition to what the model itself hides; not together with ``past``.
        """
        residual = self.embed(self.checked(ids), past[0].tokens if past else 0)
        for layer in range(self.shape.layers):
            attention, read = self.attention(layer), self.read(layer, residual)
            if past:
                start, new = past[layer].tokens, read.shape[-2]
                query, key, value = attention.heads_of(read, read, read, range(start, start + new))
                key, value = past[layer].grown(key, value)
                is_last = new == 1 and attention.window is None  # a single new query sees all keys
                seen = None if is_last else causal_mask(new, key.shape[-2], read, attention.window)
                outputs, weights = attention.attend(query, key, value, seen)
            else:
                mask = None if masks is None else masks.get(layer)
                outputs, weights = attention.head_outputs(read, mask=mask)
            observe(layer, weights, outputs)
            residual = self.after_layer(layer, residual, attention.joined(outputs))
        return residual

    def unembed(self, residual: Floats) -> Floats:
        """Return the logits (..., vocab) of a residual (..., d_model) after the last layer."""
        scores: Floats = project(self.unembedded(self.hidden(residual)), *self.unembedding)
        self.finite = self.finite and bool(np.isfinite(scores).all())
        return scores

    @property
    def unembedding(self) -> tuple[Floats, Floats | None]:
        """Return the weight and the bias of the unembedding; tied, it is the embedding's weight."""
        tied = "unembedding.weight" not in self.tensors
        weight = self.tensors["tokens.weight" if tied else "unembedding.weight"]
        return weight, self.tensors.optional("unembedding.bias")

    def unembedded(self, hidden: Floats) -> Floats:
        """Return the unembedding's input (..., width) for final hidden states (..., d_model).

        Encoders apply their prediction layer (projection, activation, norm); others change nothing.
        """
        if "prediction.weight" not in self.tensors:
            return hidden
        activate = ACTIVATE[self.shape.head_activation]
        return self._norm("prediction_norm", activate(self._project("prediction", hidden)))

    @property
    def has_segments(self) -> bool:
        """Return whether a token's embedding depends on which of two texts it is in."""
        return "types.weight" in self.tensors and len(self.tensors.stored["types.weight"]) > 1

    def hidden(self, residual: Floats) -> Floats:
        """Return the final hidden states: the final norm of the residual after the last layer."""
        has_norm = "final_norm.weight" in self.tensors
        return self._norm("final_norm", residual) if has_norm else residual

    @property
    def is_sum(self) -> bool:
        """Return True if the final norm's input is exactly the sum of all layers' additions."""
        return self.shape.order != "after" and "prediction.weight" not in self.tensors

    def traced(self, ids: ArrayLike, keep: Callable[[int, Floats], Floats]) -> Trace:
        """Run the model on one text; return the pass with each layer's addition to the residual.

        keep: called with the layer and its attention weights (head, query, key), returns those to
        store. Raises UsageError for no token, an unknown one, or too many, and ValueError if the
        residual is no sum of these.
        """
        if not self.is_sum:
            raise ValueError("the residual is no sum where norms stand behind each part")
        embedded = residual = self.embed(self.checked(ids))
        layers = []
        for layer in range(self.shape.layers):
            attention = self.attention(layer)
            attended, weights, values = attention.parts(self.read(layer, residual))
            fed = self._fed(layer, residual, attended)
            residual = residual + attended + fed
            output, bias = attention.output_by_head, attention.output_bias
            layers.append(LayerTrace(keep(layer, weights), values, output, bias, fed))
        return Trace(embedded, layers, residual)

    def direction(
        self, residual: Floats, answer: int, foil: int | None
    ) -> tuple[Floats, float | None]:
        """Return the direction (token, width) in the final residual of logit(answer) − logit(foil).

        Its product with the residual, plus the returned number, is the difference, the final norm's
        scale held. The number is None without a bias; foil: None for the answer's logit alone.
        """
        row, bias = _unembedding_row(self.tensors, answer)
        if foil is not None:
            other, less = _unembedding_row(self.tensors, foil)
            row, bias = row - other, bias - less
        shift = self.tensors.optional("final_norm.bias")
        added = shift is not None or "unembedding.bias" in self.tensors
        bias += 0.0 if shift is None else float(row @ shift)
        row = _centred(self.shape, row * self._gain("final_norm"))
        return row / _scale(self, _centred(self.shape, residual)), bias if added else None

    def run_rows(
        self,
        ids: ArrayLike,
        rows: int,
        wants: Callable[[int], bool],
        observe: Callable[[int, int, Floats, Floats | None], None],
        *,
        norms: bool = False,
    ) -> None:
        """Run the model, and pass attention weights of wanted layers to ``observe`` in blocks.

        ``observe(layer, start, weights, norms)`` gets each block (..., head, rows, keys) of the
        queries from ``start`` on, if causal without the keys after its last query. ``norms`` are
        those of the values, (..., head, token), or None if not requested. Nothing after the last
        wanted layer's attention is computed. Raises UsageError as ``logits`` does.
        """

        def look(layer: int, attention: NumpyAttention, read: Floats) -> Floats:
            moved = attention.moved_norms(read) if norms else None
            return attention.in_rows(
                read, rows, lambda start, weights: observe(layer, start, weights, moved)
            )

        self._run(ids, wants, look, lambda attention, read: attention.in_rows(read, rows))

    def run_queries_keys(
        self,
        ids: ArrayLike,
        wants: Callable[[int], bool],
        observe: Callable[[int, Floats, Floats, NDArray[np.bool_] | None], None],
    ) -> None:
        """Run the model, and pass queries, keys and mask of each wanted layer to ``observe``.

        They are (..., head, token, head_dim), rotated, not scaled, with a copy of the key for each
        query head; the mask is (query, key), None if all are seen.
        """

        def look(layer: int, attention: NumpyAttention, read: Floats) -> Floats:
            query, key, _ = attention.heads_of(read, read, read)
            observe(layer, query, key, attention.seen(read))
            return attention(read)[0]

        self._run(ids, wants, look)

    def _run(
        self,
        ids: ArrayLike,
        wants: Callable[[int], bool],
        look: Callable[[int, NumpyAttention, Floats], Floats],
        pass_by: Callable[[NumpyAttention, Floats], Floats] = lambda attend, read: attend(read)[0],
    ) -> None:
        """Run layers up to the last wanted one: ``look`` observes these, ``pass_by`` others."""
        checked = self.checked(ids)
        wanted = [layer for layer in range(self.shape.layers) if wants(layer)]
        if not wanted:
            return
        residual = self.embed(checked)
        for layer in range(wanted[-1] + 1):
            attention, read = self.attention(layer), self.read(layer, residual)
            attended = look(layer, attention, read) if layer in wanted else pass_by(attention, read)
            self.finite = self.finite and bool(np.isfinite(attended).all())
            if layer < wanted[-1]:
                residual = self.after_layer(layer, residual, attended)

    def checked(self, ids: ArrayLike) -> NDArray[np.integer]:
        """Return token ids as an array; UsageError if it is empty, too long, or has wrong ids."""
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

    def embed(self, ids: NDArray[np.integer], start: int = 0) -> Floats:
        """Return the residual before the first layer, for tokens of ``ids`` from ``start`` on."""
        first, *others = embeddings(self, ids, start).values()
        residual = sum(others, first)
        if "embedding_norm.weight" in self.tensors:
            residual = self._norm("embedding_norm", residual)
        if "embedding_projection.weight" in self.tensors:
            residual = self._project("embedding_projection", residual)
        return residual

    def read(self, layer: int, residual: Floats) -> Floats:
        """Return the input of a layer's attention from the residual before it."""
        if self.shape.order == "after":
            return residual
        return self._norm(f"layers.{layer}.attention_norm", residual)

    def attention(self, layer: int) -> NumpyAttention:
        """Return the attention of a layer, with its parameters."""
        if layer in self._attentions:
            return self._attentions[layer]
        name, shape = f"layers.{layer}", self.shape
        stored = {f"{part}_{kind}": f"{part}.{kind}" for part, kind in _PARAMETERS}
        stored |= {f"{part}_gain": f"{part}_norm.weight" for part in ("query", "key")}
        parts: dict[str, Any] = {
            part: self.tensors[f"{name}.{role}"]
            for part, role in stored.items()
            if f"{name}.{role}" in self.tensors
        }
        attention = NumpyAttention(
            **parts,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            causal=shape.causal,
            window=shape.windows[layer] if shape.windows else None,
            rotary=None if layer in shape.unturned else shape.rotary,
            norm_eps=shape.norm_eps,
            query_factor=1.0 if shape.scaled else math.sqrt(shape.head_dim),
            removed=self._removed.get(layer, ()),
        )
        if self.tensors.keeps(f"{name}.output.weight"):
            self._attentions[layer] = attention
        return attention

    def after_layer(
        self,
        layer: int,
        residual: Floats,
        attended: Floats,
        edit: Callable[[Floats], Floats] = lambda fed: fed,
    ) -> Floats:
        """Return the residual after a layer; ``edit`` may replace its feed-forward's output."""
        name = f"layers.{layer}"
        if self.shape.order == "after":
            between = self._norm(f"{name}.attention_norm", residual + attended)
            fed = edit(self._feed_forward(layer, between))
            return self._norm(f"{name}.feed_norm", between + fed)
        return residual + attended + edit(self._fed(layer, residual, attended))

    def _fed(self, layer: int, residual: Floats, attended: Floats) -> Floats:
        """Return the output of a layer's feed-forward, in a model with norms before each part."""
        return self._feed_forward(layer, _feed_read(self, layer, residual, attended))

    def _feed_forward(self, layer: int, read: Floats) -> Floats:
        active, up = _activated(self, layer, read)
        return self._project(f"layers.{layer}.down", active if up is None else active * up)

    def _norm(self, name: str, residual: Floats) -> Floats:
        """Return the RMS norm of the residual times a gain, or its LayerNorm, as the shape says."""
        centred, bias = _centred(self.shape, residual), self.tensors.optional(f"{name}.bias")
        normed: Floats = centred / _scale(self, centred) * self._gain(name)
        return normed if bias is None else normed + bias

    def _gain(self, name: str) -> Floats:
        gain = self.tensors[f"{name}.weight"]
        return 1 + gain if self.shape.norm == "rms-from-one" else gain

    def _project(self, name: str, x: Floats) -> Floats:
        weight, bias = self.tensors[f"{name}.weight"], self.tensors.optional(f"{name}.bias")
        return project(x, weight, bias)


def neurons_of(stack: NumpyStack, layer: int, ids: ArrayLike) -> tuple[Floats, Floats | None]:
    """Return a layer's neurons (token, neuron), and what multiplies them; None without a gate."""
    residual = attended = stack.embed(stack.checked(ids))
    for at in range(layer + 1):
        residual = residual if not at else stack.after_layer(at - 1, residual, attended)
        attended = stack.attention(at)(stack.read(at, residual))[0]
    return _activated(stack, layer, _feed_read(stack, layer, residual, attended))


def _feed_read(stack: NumpyStack, layer: int, residual: Floats, attended: Floats) -> Floats:
    read = residual if stack.shape.order == "parallel" else residual + attended
    return stack._norm(f"layers.{layer}.feed_norm", read)


def _activated(stack: NumpyStack, layer: int, read: Floats) -> tuple[Floats, Floats | None]:
    name, up = f"layers.{layer}", stack._project(f"layers.{layer}.up", read)
    activate = ACTIVATE[stack.shape.activation]
    if f"{name}.gate.weight" not in stack.tensors:
        return activate(up), None
    return activate(stack._project(f"{name}.gate", read)), up


def embeddings(stack: NumpyStack, ids: NDArray[np.integer], start: int = 0) -> dict[str, Floats]:
    """Return rows of the tables ``tokens``, ``positions``, ``types`` from token ``start`` on."""
    rows = {"tokens": stack.tensors.rows("tokens.weight", ids[..., start:])}
    if stack.shape.embedding_scale != 1.0:
        rows["tokens"] = rows["tokens"] * stack.dtype.type(stack.shape.embedding_scale)
    if "positions.weight" in stack.tensors:
        places: NDArray[np.integer] | slice = slice(start, ids.shape[-1])
        if (padding := stack.shape.padding) is not None:  # counted from the row after it
            counted = ids != padding
            places = (np.cumsum(counted, axis=-1) * counted + padding)[..., start:]
        rows["positions"] = stack.tensors.rows("positions.weight", places)
    if "types.weight" in stack.tensors:
        segments: NDArray[np.integer] | slice = slice(0, 1)
        pair, count = stack.segments, ids.shape[-1]
        if pair is not None and count <= len(pair[0]) and (ids == pair[0][:count]).all():
            segments = pair[1][start:count]
        rows["types"] = stack.tensors.rows("types.weight", segments)
    return rows


def _centred(shape: StackShape, x: Floats) -> Floats:
    """Return what a norm divides: x without its mean for LayerNorm, else x as it is."""
    return x - np.mean(x, axis=-1, keepdims=True) if shape.norm == "layer" else x


def _scale(stack: NumpyStack, centred: Floats) -> Floats:
    """Return the number (..., 1) by which a norm divides each row of what is centred."""
    square = np.mean(centred * centred, axis=-1, keepdims=True)
    return np.sqrt(square + stack.dtype.type(stack.shape.norm_eps))


def held_norm(stack: NumpyStack, name: str, given: Floats, change: Floats) -> Floats:
    """Return a norm's change for a ``change`` of its input, with its scale for ``given``."""
    scale = _scale(stack, _centred(stack.shape, given))
    return _centred(stack.shape, change) / scale * stack._gain(name)


def held_norm_back(stack: NumpyStack, name: str, given: Floats, slope: Floats) -> Floats:
    """Return the gradient at a norm's input (..., width), with its scale for ``given`` fixed."""
    scale = _scale(stack, _centred(stack.shape, given))
    return _centred(stack.shape, slope * stack._gain(name) / scale)


def _unembedding_row(tensors: ConvertedTensors, token: int) -> tuple[Floats, float]:
    """Return the unembedding row of a token id, and its bias."""
    tied = "unembedding.weight" not in tensors
    table = "tokens.weight" if tied else "unembedding.weight"
    row = tensors.rows(table, slice(token, token + 1))[0]
    bias = tensors.optional("unembedding.bias")
    return row, 0.0 if bias is None else float(bias[token])


class NarrowStack(NumpyStack):
    """A NumPy model that rounds its weights, and the inputs and outputs of each part, to bfloat16.

    Sums within a matrix product, a norm or a softmax keep their width, as on torch. The size of the
    error agrees with a run in bfloat16 on torch (tests/benchmarks/bench_rounding.py); its sign does
    not.
    """

    @classmethod
    def of(cls, stack: NumpyStack) -> NarrowStack:
        """Return the same model with rounding. stack: the model."""
        tensors = stack.tensors
        rounded = LazyTensors(tensors.stored, lambda name: to_bfloat16(tensors[name]))
        return cls(stack.shape, rounded, stack.dtype)

    embed = rounding(NumpyStack.embed)
    after_layer = rounding(NumpyStack.after_layer)

    def attention(self, layer: int) -> NumpyAttention:
        return NarrowAttention.of(super().attention(layer))

    def _norm(self, name: str, residual: Floats) -> Floats:
        return to_bfloat16(super()._norm(name, to_bfloat16(residual)))

    def _project(self, name: str, x: Floats) -> Floats:
        return to_bfloat16(super()._project(name, to_bfloat16(x)))
