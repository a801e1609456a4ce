"""Counts the bytes of quantised weights: packed numbers, and the scales stored beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from attnviz.count.params.counting.blocks import Term
from attnviz.count.params.counting.parameters import ParameterCount

if TYPE_CHECKING:  # few models are quantised in fractions of a bit
    from fractions import Fraction

MatrixKind = Literal["linear", "experts", "router", "embedding", "head"]
"""What a matrix is for: formats quantise some of these kinds and leave others alone."""

_KINDS: Mapping[str, MatrixKind] = {
    **dict.fromkeys(("query", "key", "value", "output", "latent", "up", "gate", "down"), "linear"),
    **{kind: kind for kind in ("router", "embedding", "head")},
}
"""The kind of a matrix by the role of its term; terms of other roles are never quantised."""


class WeightMatrix(NamedTuple):
    """Equal matrices of a model, one or more in each of some layers.

    names: the names that checkpoints give it; ``#`` stands for the index of the layer.
    kind: what it is for. inputs, outputs: its widths. copies: how many a layer has, such as one for
        each expert. layers: the indices of the layers that have it.
    """

    names: tuple[str, ...]
    kind: MatrixKind
    inputs: int
    outputs: int
    copies: int = 1
    layers: Sequence[int] = (0,)


class Packing(NamedTuple):
    """The way in which a quantised matrix is stored.

    bits: of a number, fractions of a bit included. rows, columns: the outputs and inputs of a block
        that has its own scale; 0 rows for blocks of the flattened matrix, 0 columns for all inputs,
        0 for both if the matrix has one scale.
    block_bits: of everything that is stored for a block, such as its scale and zero point.
    input_bits: of what is stored for an input. matrix_bits: of what is stored for a matrix.
    fits: whether only a matrix whose inputs make whole blocks is quantised.
    """

    bits: Fraction | int
    rows: int = 1
    columns: int = 0
    block_bits: Fraction | int = 0
    input_bits: int = 0
    matrix_bits: int = 0
    fits: bool = False

    def bytes_of(self, inputs: int, outputs: int) -> int:
        """Return the bytes of a matrix with its scales, rounded up."""
        columns = self.columns or inputs
        blocks = -(-outputs // (self.rows or 1)) * -(-inputs // columns)
        if not self.rows:
            blocks = -(-inputs * outputs // columns) if self.columns else 1
        beside = blocks * self.block_bits + inputs * self.input_bits + self.matrix_bits
        return int(-(-inputs * outputs * self.bits // 8) - (-beside // 8))


class StoredLine(NamedTuple):
    """The numbers that are stored in one way.

    label: how. numbers: how many parameters; None if a file does not say. bytes: of all of them.
    """

    label: str
    numbers: int | None
    bytes: int


class Storage(NamedTuple):
    """How the parameters of a quantised model are stored.

    scheme: the name of the format. lines: the numbers by how they are stored; empty if the format
        is not known. narrowest: the dtype of the narrowest quantised numbers, empty if unknown.
    experts, tables: the bytes of all routed experts and of token tables; None if unknown.
    buffered: whether the lines contain the buffers of the model too, as files do.
    """

    scheme: str
    lines: tuple[StoredLine, ...] = ()
    narrowest: str = ""
    experts: int | None = None
    tables: int | None = None
    buffered: bool = False

    @property
    def bytes(self) -> int | None:
        """Return the bytes of all lines; None if the format is not known."""
        return sum(line.bytes for line in self.lines) if self.lines else None


def matrices(counted: ParameterCount, names: Mapping[str, Sequence[str]]) -> Iterator[WeightMatrix]:
    """Yield the matrices of an architecture that formats may quantise.

    counted: its parameters. names: the usual names of a matrix by the label of its term.
    """
    outside = [*counted.terms, *(term for stack in counted.stacks for term in stack.terms)]
    found: list[tuple[Term, str, Sequence[int]]] = [(term, "model.", (0,)) for term in outside]
    for stack in counted.stacks:
        prefix = f"{'model' if stack.spec.causal else stack.spec.name}.layers.#."
        for group in stack.groups:
            layers = range(group.repeat) if group.indices is None else group.indices
            for part in (*group.layer.attentions, group.layer.feed_forward):
                terms = () if part is None else part.terms
                found += [(term, prefix, layers[: group.stored]) for term in terms]
    for term, start, indices in found:
        if term.role in _KINDS and len(term.factors) > 1:
            *copies, inputs, outputs = term.factors
            kind: MatrixKind = "experts" if copies else _KINDS[term.role]
            if kind == "embedding":  # a row for each token, as a head has
                inputs, outputs = outputs, inputs
            known = names.get(term.label, (term.label.replace(" ", "_"),))
            named, many = tuple(start + name for name in known), math.prod(copies)
            yield WeightMatrix(named, kind, inputs, outputs, many, indices)
