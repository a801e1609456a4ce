"""The parameters of a model that was built to be counted: its parts by name, and no more."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.params.accounts.running import CacheCount

__all__ = ["BuiltCount"]


@dataclass(frozen=True)
class BuiltCount:
    """What a model holds whose class no arithmetic claims.

    name, source, revision: as it was asked for, where its config is, its commit on the hub.
    architecture: the class that was built.
    total: its parameters, tied ones once. buffers: numbers stored beside them.
    parts: the direct children of the model, in order, with their parameters.
    dtype, weight_bytes: what the parameters take.
    cache: what its layers keep; None where transformers does not show it.
    """

    name: str
    source: str
    revision: str | None
    architecture: str
    total: int
    buffers: int
    parts: tuple[tuple[str, int], ...]
    dtype: str
    weight_bytes: int
    cache: CacheCount | None = None
