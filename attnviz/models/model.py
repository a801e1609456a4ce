"""What every loaded model offers, whatever runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from attnviz.records import Kind, ModelInfo, Tokens

__all__ = [
    "Model",
    "NumpyModel",
    "ObserveBlock",
    "PairModel",
    "QueryKeyModel",
    "RowModel",
    "TwoStackModel",
]


class Model(Protocol):
    """A model that can turn a text into tokens and be observed by ``attnviz.engine``.

    info: its name, shape and origin.
    kinds: the attention kinds it has, the default one first.
    context: the longest token sequence it takes, or None where nothing limits it.
    """

    @property
    def info(self) -> ModelInfo: ...

    @property
    def kinds(self) -> tuple[Kind, ...]: ...

    @property
    def context(self) -> int | None: ...

    def encode(self, text: str, limit: int | None = None) -> Tokens:
        """Tokenise ``text`` with the model's special tokens; keep at most ``limit`` tokens."""
        ...

    def notes_for(self, tokens: Tokens) -> tuple[str, ...]:
        """What a reader must know about a run over these tokens, beside ``info.notes``."""
        ...


@runtime_checkable
class NumpyModel(Model, Protocol):
    """A model with one stack of self-attention that runs in NumPy, without torch."""

    def run(
        self,
        tokens: Tokens,
        wants: Callable[[int], bool],
        observe: Callable[[int, NDArray[np.floating]], None],
    ) -> None:
        """Run over one text; for each layer that is wanted, hand over its weights.

        ``observe`` gets the layer's index and an array (heads, query, key).
        Layers after the last wanted one need not run.
        """
        ...


ObserveBlock = Callable[[int, int, NDArray[np.floating], NDArray[np.floating] | None], None]
"""Told of the layer, the first query's index, the weights (text, head, rows, keys) of a block of
queries, and the norms (text, head, key) of what each key's value moves, or None."""


@runtime_checkable
class RowModel(NumpyModel, Protocol):
    """A NumPy model that needs no whole matrix: it runs over blocks of queries."""

    def run_rows(
        self,
        ids: Sequence[Sequence[int]],
        rows: int,
        wants: Callable[[int], bool],
        observe: ObserveBlock,
        *,
        norms: bool = False,
    ) -> None:
        """Run over texts of one length, ``rows`` queries at a time.

        Blocks of a causal model may leave out the keys after their last query.
        """
        ...


@runtime_checkable
class QueryKeyModel(NumpyModel, Protocol):
    """A NumPy model that shows what its weights are made of.

    causal: whether a query sees no later key.
    """

    @property
    def causal(self) -> bool: ...

    def run_queries_keys(
        self,
        tokens: Tokens,
        wants: Callable[[int], bool],
        observe: Callable[[int, NDArray[np.floating], NDArray[np.floating]], None],
    ) -> None:
        """Run over one text; for each layer that is wanted, hand over its queries and keys.

        ``observe`` gets the layer's index and both arrays (heads, token, head_dim), one key head a
        query head, as they are multiplied: the weights are the softmax of their products times
        1/√head_dim.
        """
        ...


@runtime_checkable
class PairModel(NumpyModel, Protocol):
    """A NumPy model that has no decoder, yet can let one text look at another.

    Its ``kinds`` are those over one text; ``capture`` takes the kind ``cross`` as well.

    causal: whether a token of one text sees no later one.
    """

    @property
    def causal(self) -> bool: ...

    def encode_queries(self, text: str, keys: Tokens) -> Tokens:
        """The text that looks; its words that ``keys`` has too have the same ids there."""
        ...

    def run_cross(
        self,
        queries: Tokens,
        keys: Tokens,
        wants: Callable[[int], bool],
        observe: Callable[[int, NDArray[np.floating]], None],
    ) -> None:
        """Run queries from one text, keys and values from another; else as ``run``."""
        ...


@runtime_checkable
class TwoStackModel(Model, Protocol):
    """An encoder–decoder: it reads one text and writes, or is given, another.

    target_context: the longest decoder text in tokens, or None where nothing limits it.
    """

    @property
    def target_context(self) -> int | None: ...

    def encode_target(self, text: str, limit: int | None = None) -> Tokens:
        """Decoder text as the model is trained on it: shifted right behind its start token."""
        ...

    def greedy_target(self, tokens: Tokens, limit: int) -> Tokens:
        """The decoder text that the model itself writes for ``tokens``, at most ``limit`` long."""
        ...
