"""The ``model`` object of every JSON document."""

from __future__ import annotations

from typing import Any

from attnviz.records import ModelInfo

__all__ = ["model_facts"]


def model_facts(info: ModelInfo) -> dict[str, Any]:
    """Where the numbers come from, as JSON values; None for what an array does not tell."""
    known = not info.is_array
    return {
        "name": info.name,
        "revision": info.revision,
        "dtype": info.dtype,
        "layers": info.layers if known else None,
        "heads": info.heads,
        "kv_heads": info.kv_heads if known else None,
        "head_dim": info.head_dim if known else None,
        "architecture": info.architecture if known else None,
        "weights": info.weights,
        "seed": info.seed,
        "device": info.device if known else None,
        "notes": list(info.notes),
    }
