"""Count the operations of a run from the sizes of the model.

The choice of a backend and of threads uses these counts. An operation is an addition or a
multiplication in a product of matrices. A function of single numbers, such as an exponential,
counts as the operations that take the same time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # parameters are counted and threads are chosen without NumPy
    from attnviz.attention.numpy_stack import StackShape
    from attnviz.models.model import Model

_SINGLE = 100.0
"""The operations of a product that take as long as a function of one number (about 1 ns)."""

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
        rows = 1
        total = 0.0
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
    return ModelSizes(
        layers=info.layers,
        heads=info.heads,
        matrices=12.0 * width**2,
        reading=3.0 * width**2,
        width=width,
        mixed=width,
        vocabulary=0,
    )


def sizes_of_stack(
    shape: StackShape, roles: Mapping[str, tuple[int, ...]], predicts: bool
) -> ModelSizes:
    """Return a model's sizes from its tensors' shapes by role; ``predicts``: it has logits."""
    inside = sum(math.prod(size) for role, size in roles.items() if role.startswith("layers."))
    (width,) = roles["layers.0.attention_norm.weight"]
    return ModelSizes(
        layers=shape.layers,
        heads=shape.heads,
        matrices=inside / shape.layers,
        reading=(shape.heads + 2.0 * shape.kv_heads) * shape.head_dim * width,
        width=width,
        mixed=shape.heads * shape.head_dim,
        vocabulary=roles["tokens.weight"][0] if predicts else 0,
    )
