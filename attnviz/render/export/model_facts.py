"""The ``model`` object of every JSON document."""

from __future__ import annotations

from typing import Any

from attnviz.records import ModelInfo

__all__ = ["model_facts"]


def model_facts(info: ModelInfo) -> dict[str, Any]:
    """Where the numbers come from, as JSON values."""
    return {
        "name": info.name,
        "revision": info.revision,
        "dtype": info.dtype,
        "layers": info.layers,
        "heads": info.heads,
        "kv_heads": info.kv_heads,
        "head_dim": info.head_dim,
        "architecture": info.architecture,
        "weights": info.weights,
        "seed": info.seed,
        "device": info.device,
        "notes": list(info.notes),
    }
