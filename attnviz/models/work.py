"""The options of loading a model, and what a command plans to do with it.

The plan decides whether NumPy or torch runs the model, and in how many threads.

Each question that runs a model says it in its function ``work``, before a model is loaded.

The operations of a run are counted from the sizes of the model. An operation is an addition or a
multiplication in a product of matrices. A function of single numbers, such as an exponential,
counts as the operations that take the same time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:  # these import NumPy, which options do without
    from attnviz.attention.numpy_stack import StackShape
    from attnviz.models.model import Model
    from attnviz.records import ModelInfo

Reads = Literal["text", "picture", "picture and text", "sound"]


@dataclass(frozen=True)
class Work:
    """The work that a command plans to do with a model; without arguments, work for torch alone.

    tokens: about how many the model runs on in all; None if torch must run it. texts: in how many
        texts or runs, of about one length. changed: whether they are run again with each head
        changed. joined: whether a second text is joined to each.
    logits: whether a logit is explained, so that a checkpoint without a head is refused before its
        weights are read.
    reads: what the model reads; all but a text alone only torch does.
    built_in: whether NumPy can do it with a built-in model only, and torch does with checkpoints.
    fits: returns whether NumPy can do it with this checkpoint, a ``StackModel``.
    """

    tokens: int | None = None
    texts: int = 1
    changed: bool = False
    joined: bool = False
    logits: bool = False
    reads: Reads = "text"
    built_in: bool = False
    fits: Callable[[Any], bool] = lambda model: True

    @property
    def length(self) -> int:
        """Return about how many tokens one of the texts has."""
        return (self.tokens or 0) // self.texts

    def operations(self, sizes: ModelSizes) -> float:
        """Return how many operations the planned work takes. sizes: of the model."""
        length = max(1, self.length)
        if not self.changed:
            return self.texts * sizes.forward(length)
        return self.texts * sizes.changed(length, sizes.every_head())


ON_TORCH = Work()  # work that only torch does, whatever its amount

CORPUS_WORK = Work(10**6, texts=10**4)
"""Over a corpus: the same for all shards, which use one backend."""


Progress = Callable[[str, int, int | None], None]
"""Called as ``progress(file, done, total)`` with bytes; total is None if unknown."""


@dataclass(frozen=True)
class LoadOptions:
    """All options of loading a model; each kind of model uses those that apply to it.

    revision, offline, trust_remote_code, allow_pickle, progress: of Hugging Face checkpoints, as in
        ``load_transformers``.
    device, dtype: the device and the number type of the computation; ``auto`` is the model's own
        dtype.
    max_memory, offload: of the device ``auto``, as in ``placement.spread``. tp: whether torchrun's
        processes share the model.
    backend: what runs a checkpoint; ``auto`` takes NumPy if it gives the same result sooner.
    threads: the most threads to use; None for the number that suits the model.
    work: what the command plans to do with the model; by default what needs torch.
    seed: of random parameters.
    d_model, heads, kv_heads, causal, score: the sizes and options of ``mha``.
    """

    revision: str | None = None
    device: str = "cpu"
    dtype: str = "auto"
    offline: bool = False
    trust_remote_code: bool = False
    allow_pickle: bool = False
    progress: Progress | None = None
    backend: Literal["auto", "numpy", "torch"] = "auto"
    threads: int | None = None
    max_memory: str | None = None
    offload: str | None = None
    tp: bool = False
    work: Work = ON_TORCH
    seed: int = 0
    d_model: int = 64
    heads: int = 8
    kv_heads: int | None = None
    causal: bool = False
    score: Literal["scaled-dot", "dot", "additive"] = "scaled-dot"


USUAL = LoadOptions()  # no option is given


def about_tokens(*texts: str) -> int:
    """Return a rough number of tokens of texts without a tokenizer: a quarter of their bytes."""
    return sum(len(text.encode(errors="replace")) // 4 + 3 for text in texts)


# Operations --------------------------------------------------------------------------------------


_SINGLE = 100.0  # the operations of a product that take as long as one function (about 1 ns)

_CHANGE = 1e7
"""The operations of a product that take as long as what a change costs whatever the sizes: the
calls of its first layer (about 0.1 ms)."""


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of a model that its operations are counted from.

    matrices: the number of parameters in the matrices of one layer. reading: those of the query,
        key and value projections.
    width: of the residual stream. mixed: the width of all heads' outputs together.
    vocabulary: the number of tokens with logits; 0 without a language-model head.
    """

    layers: int
    heads: int
    matrices: float
    reading: float
    width: int
    mixed: int
    vocabulary: int

    @classmethod
    def of(
        cls, shape: StackShape | ModelInfo, matrices: float, width: int, vocabulary: int
    ) -> Self:
        """Return the sizes of a model of a shape; the other arguments are its own fields."""
        heads, read = shape.heads, shape.heads + 2.0 * shape.kv_heads
        reading, mixed = read * shape.head_dim * width, heads * shape.head_dim
        return cls(shape.layers, heads, matrices, reading, width, mixed, vocabulary=vocabulary)

    @property
    def weights(self) -> float:
        """Return how many parameters the matrices of all layers have."""
        return self.layers * self.matrices

    def every_head(self) -> Iterator[int]:
        """Yield for each head of the model the index of its layer."""
        for layer in range(self.layers):
            yield from repeat(layer, self.heads)

    def forward(self, tokens: int) -> float:
        """Return how many operations all layers take for a text of ``tokens`` tokens."""
        return self.layers * self._layer(tokens)

    def read_out(self, tokens: int) -> float:
        """Return how many operations the logits of ``tokens`` tokens and their comparison take."""
        return tokens * self.vocabulary * (2.0 * self.width + 3.5 * _SINGLE)

    def changed(self, tokens: int, layers: Iterable[int], read: int | None = None) -> float:
        """Return how many operations a text takes together with changes to it.

        Each change is a further row of the batch from its first layer on. tokens: the length of the
        text. layers: the first changed layer of each change.
        read: the number of tokens whose logits are compared; None means all.
        """
        begins = Counter(layers)
        rows, total = 1, 0.0
        for layer in range(self.layers):
            total += rows * self._layer(tokens)
            # In its first layer a row shares the text's attention, up to its output.
            total += begins[layer] * (self._layer(tokens) - self._attention(tokens))
            rows += begins[layer]
        total += begins.total() * _CHANGE
        return total + rows * self.read_out(tokens if read is None else read)

    def numbers_kept(self, tokens: int) -> float:
        """Return how many numbers a run of a text stores for changed runs to continue from."""
        return 4.0 * self.layers * tokens * self.width

    def numbers_inside(self, tokens: int, rows: int) -> float:
        """Return how many numbers a layer needs at once for ``rows`` copies of a text."""
        single = rows * tokens * (8.0 * self.width + 8 * self.mixed + 2 * self._inner)
        return single + 2.0 * rows * self.heads * tokens**2

    @property
    def _inner(self) -> float:
        """Return the approximate inner width of a feed-forward block."""
        return (self.matrices - self.reading) / (2.0 * self.width)

    def _layer(self, tokens: int) -> float:
        single = tokens * (2 * self._inner + 14.0 * self.width) * _SINGLE
        products = 2.0 * tokens * (self.matrices - self.reading)
        return products + single + self._attention(tokens)

    def _attention(self, tokens: int) -> float:
        """Return the operations of queries, keys, values, weights and the mixing of values."""
        cells = float(tokens) * tokens
        return 2.0 * tokens * self.reading + cells * (4.0 * self.mixed + 5 * self.heads * _SINGLE)


def sizes_of(model: Model) -> ModelSizes:
    """Return the sizes of a model: its own, or those of its info if it has none."""
    sizes = getattr(model, "sizes", None)
    if isinstance(sizes, ModelSizes):
        return sizes
    info = model.info
    width = info.heads * info.head_dim
    whole = 12.0 * width**2
    return ModelSizes(info.layers, info.heads, whole, whole / 4, width, mixed=width, vocabulary=0)


def sizes_of_stack(
    shape: StackShape, roles: Mapping[str, tuple[int, ...]], predicts: bool
) -> ModelSizes:
    """Return a model's sizes from its tensors' shapes by role; ``predicts``: it has logits."""
    inside = sum(math.prod(size) for role, size in roles.items() if role.startswith("layers."))
    (width,) = roles["layers.0.attention_norm.weight"]
    vocabulary = roles["tokens.weight"][0] if predicts else 0
    return ModelSizes.of(shape, inside / shape.layers, width, vocabulary)
