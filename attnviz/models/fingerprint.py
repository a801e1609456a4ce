"""A short name of a model's weights: the same weights, the same name, wherever they lie."""

from __future__ import annotations

import hashlib
from typing import Any

from attnviz.models.model import Model

__all__ = ["weights_fingerprint"]

_SAMPLES = 64
_DIGITS = 12


def weights_fingerprint(model: Model) -> str:
    """From the name, the shape and 64 evenly spaced values of every tensor.

    Of the built-in models, whose info names their weights fully, from that alone. Not proof
    against a forger; a checkpoint that was trained further has another one.
    """
    info = model.info
    hashed = hashlib.sha256(repr((info.architecture, info.revision, info.seed)).encode())
    module = getattr(model, "model", None)
    if module is not None:
        for name, tensor in module.state_dict().items():
            hashed.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            hashed.update(_sample(tensor))
    return hashed.hexdigest()[:_DIGITS]


def _sample(tensor: Any) -> bytes:
    flat = tensor.detach().flatten()
    chosen = flat[:: max(len(flat) // _SAMPLES, 1)][:_SAMPLES]
    values: bytes = chosen.double().cpu().numpy().tobytes()
    return values
