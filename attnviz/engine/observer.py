"""The interface by which every model hands over its attention: some queries of one text at a time.

A whole matrix is one block. The ingredients of the weights can be handed over separately: queries,
keys, scale and mask, from which the softmax gives the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import attention_scores, softmax
from attnviz.engine.device_sizes import sizes
from attnviz.errors import LoadError, UnsupportedError
from attnviz.measures.reduced import ReducedLayer
from attnviz.records import Floats, Kind, LayerWeights, ModelInfo

BLOCK_CELLS = sizes("cpu").block_cells
"""The number of weights in a block, over all heads and texts: 4 MB as float32."""


class BlockFacts(NamedTuple):
    """The facts that are handed over with a block of attention weights.

    norms: ‖v_j W_O^h‖ of each key's value, (head, key); None unless requested.
    mask: boolean (rows, keys), True where the layer lets the query see the key; None if it is only
        known whether the attention is causal.
    """

    norms: Any = None
    mask: Any = None


class Observer(Protocol):
    """The interface of an object that receives a pass's attention weights, block by block."""

    @property
    def norms(self) -> bool:
        """Return True if the norms ‖v_j W_O^h‖ of the values are wanted as well."""

    def wants(self, kind: Kind, layer: int) -> bool:
        """Return True if this layer's attention weights are wanted; others run at full speed."""

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Any, beside: BlockFacts
    ) -> None:
        """Record the attention weights (head, rows, keys) of one text's queries from ``start`` on.

        text: the index of the text. weights, beside: NumPy arrays if blocks were requested; a whole
            matrix is an array of the library that runs the model. Causal attention may leave out
            keys after a block's last query.
        """


Held = Literal["auto", "blocks", "full"]
"""The most of a layer that is held: blocks of rows, or whole matrices; ``auto`` decides by the
length of the text."""

Reduce = Held | Literal["fused"]
"""How attention is read: ``fused`` as sums that are computed where it is, or what is ``Held``."""

_run_notes: list[str] = []


def note_of_runs(note: str) -> None:
    """Keep a note on how this process reads attention, for all reports that follow."""
    if note not in _run_notes:
        _run_notes.append(note)


def notes_of_runs() -> tuple[str, ...]:
    """Return the notes that ``note_of_runs`` has kept."""
    return tuple(_run_notes)


_LONG, _LARGE = 1_000, 2**28
"""From so many tokens and bytes of whole maps on, the maps are not kept."""


_Sums = TypeVar("_Sums")
_Maps = TypeVar("_Maps")


def sums_or_maps(
    info: ModelInfo,
    tokens: int,
    reduce: Reduce,
    sums: Callable[[], _Sums],
    maps: Callable[[], _Maps],
    *,
    short: bool = False,
) -> _Sums | _Maps:
    """Return ``sums()`` for a text that is scored without its attention maps, otherwise ``maps()``.

    If ``sums`` raises UnsupportedError, return ``maps()``, unless the user chose ``fused``.
    info: the facts of the model. tokens: the length of the text. reduce: the user's choice; with
    ``auto``, torch sums long texts whose maps need much memory. short: True sums a short text, too.
    """
    large = tokens >= _LONG and 4 * tokens**2 * info.layers * info.heads >= _LARGE
    auto = reduce == "auto" and large and info.backend == "torch"
    if short or auto or reduce == "fused":
        try:
            return sums()
        except UnsupportedError:
            if reduce == "fused":
                raise
    return maps()


class SumsReader(Protocol):
    """The interface of an object that reads sums over the attention rows of a pass's layers."""

    def wants(self, kind: Kind, layer: int) -> bool:
        """Return True if sums of this layer are wanted."""

    def sums(self, text: int, kind: Kind, layer: int, attention: ReducedLayer) -> None:
        """Take the sums over the rows of a layer's weights of one text, and keep what is needed."""


def hand_over(
    observer: Observer,
    kind: Kind,
    layer: int,
    weights: Iterable[Any],
    norms: Any = None,
    *,
    masks: Any = None,
    cells: int | None = None,
    first: int = 0,
) -> None:
    """Pass a layer's attention weights (text, head, query, key) on to ``observer``.

    norms: (text, head, key) or None. masks: boolean (text, query, key), True where the query may
    see the key, or None. cells: the most attention weights in a NumPy block; None passes whole
    matrices on. first: the index of the first text.
    """
    if cells is not None:  # all texts in one copy
        weights = to_numpy(weights) if getattr(weights, "is_cuda", False) else weights
        masks = None if masks is None else on_host(masks)
    for text, matrix in enumerate(weights):
        norm = None if norms is None else to_numpy(norms[text])
        mask = None if masks is None else masks[text]
        if cells is None:
            observer.observe(first + text, kind, layer, 0, matrix, BlockFacts(norm, mask))
            continue
        whole = to_numpy(matrix)
        heads, queries, keys = whole.shape
        rows = rows_of_a_block(1, heads, keys, cells)
        for start in range(0, queries, rows):
            block = whole[:, start : start + rows]
            seen = None if mask is None else mask[start : start + rows]
            observer.observe(first + text, kind, layer, start, block, BlockFacts(norm, seen))


def rows_of_a_block(texts: int, heads: int, keys: int, cells: int = BLOCK_CELLS) -> int:
    """Return how many queries, at least one, a block of at most ``cells`` weights can have."""
    return max(1, cells // (texts * heads * keys))


def to_numpy(weights: Any) -> Floats:
    """Return a torch tensor or NumPy array as NumPy: float64 stays, the rest becomes float32."""
    if hasattr(weights, "detach"):
        weights = weights.detach()
        if weights.element_size() < 4:  # NumPy has no bfloat16
            weights = weights.float()
        weights = weights.cpu().numpy()
    array: Floats = np.asarray(weights)
    return array if array.dtype == np.float64 else array.astype(np.float32, copy=False)


def on_host(mask: Any) -> NDArray[np.bool_]:
    """Return a boolean mask of torch or NumPy as a NumPy array."""
    return np.asarray(mask.cpu() if hasattr(mask, "cpu") else mask, bool)


class KeepWeights:
    """An observer that records whole attention matrices of the first text of the batch.

    kind: the kind of attention to record.
    heads: the heads to record by layer; other layers are skipped. None records every head.
    after: is called with each layer of the first text that is recorded.
    """

    norms = False

    def __init__(
        self,
        kind: Kind,
        heads: Mapping[int, Container[int]] | None = None,
        after: Callable[[int], None] = lambda layer: None,
    ) -> None:
        self._kind, self._heads, self._after = kind, heads, after
        self._layers: dict[int, LayerWeights] = {}

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self._kind and (self._heads is None or layer in self._heads)

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Any, beside: BlockFacts
    ) -> None:
        if text or not self.wants(kind, layer):
            return
        every = range(len(weights))
        wanted = every if self._heads is None else self._heads[layer]
        kept = tuple(head for head in every if head in wanted)
        if not kept:  # layers may differ in their heads
            return
        chosen = weights if len(kept) == len(every) else weights[list(kept)]
        mask = None if beside.mask is None else on_host(beside.mask)
        if mask is not None:  # memory has equal ones once
            known = {id(own.mask): own.mask for own in self._layers.values()}.values()
            mask = next((own for own in known if own is not None and (own == mask).all()), mask)
        self._layers[layer] = LayerWeights(layer, kept, to_numpy(chosen), mask)
        self._after(layer)

    @property
    def layers(self) -> tuple[LayerWeights, ...]:
        """Return the recorded attention weights, in the order of the layers."""
        return tuple(self._layers[layer] for layer in sorted(self._layers))


def no_numbers(info: ModelInfo, arrays: Iterable[Floats]) -> tuple[str, ...]:
    """Return a note if some of the arrays contain NaN, otherwise an empty tuple."""
    if not any(np.isnan(array).any() for array in arrays):
        return ()
    return (f"some weights are not numbers: their cells stay blank{info.overflow_advice}",)


def nothing_to_compare(info: ModelInfo, layer: int) -> LoadError:
    """Return the error for a layer whose pattern scores are NaN and cannot be compared."""
    why = "; ".join((*info.notes, *no_numbers(info, [np.array(np.nan)])))
    return LoadError(f"nothing can be compared in L{layer} of {info.name!r}: {why}")


@dataclass(frozen=True, eq=False)
class QueriesKeys:
    """The queries and keys of one layer over one text.

    layer: from 0.
    query, key: (heads, token, head_dim) as they are multiplied: a key head per query head.
    scale: the number by which their products are multiplied. bias: (1 or heads, query, key), added
        to the scaled products; −inf where a query does not see a key; None if nothing is added.
    """

    layer: int
    query: Floats
    key: Floats
    scale: float
    bias: Floats | None = None

    def head(self, head: int) -> tuple[Floats, Floats, Floats | None]:
        """Return a head's queries and keys (token, head_dim), and its bias or None."""
        bias = self.bias
        if bias is not None:
            bias = bias[head if len(bias) > 1 else 0]
        return self.query[head], self.key[head], bias


ObserveHeads = Callable[[QueriesKeys], None]


def products(query: Floats, key: Floats) -> Floats:
    """Return the attention scores q·k, (..., query, key), without scale and mask."""
    scores: Floats = attention_scores(query, key, 1.0)
    return scores


def softmaxed(scores: Floats, scale: float, bias: Floats | None = None) -> Floats:
    """Return the attention weights softmax(scores · scale + bias); scores (..., query, key)."""
    scaled = scores * scale
    weights: Floats = softmax(scaled if bias is None else scaled + bias)
    return weights
