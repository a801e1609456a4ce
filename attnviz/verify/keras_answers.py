"""What Keras's attention layers answer to a case, where Keras is installed."""

from __future__ import annotations

import importlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.verify.cases import Case
from attnviz.verify.own_answers import Answer

__all__ = ["find_keras", "keras_answer"]

_NAME = "keras"


def find_keras() -> Any:
    """The Keras package on its torch backend, or on ``KERAS_BACKEND``'s; None where it is missing.

    Its settings file is neither read nor written: what is computed must not depend on it.
    """
    if importlib.util.find_spec(_NAME) is None:
        return None
    with _without_settings():
        return importlib.import_module(_NAME)


@contextmanager
def _without_settings() -> Iterator[None]:
    names = {"KERAS_BACKEND": os.environ.get("KERAS_BACKEND", "torch")}
    with tempfile.TemporaryDirectory() as home:
        names["KERAS_HOME"] = os.environ.get("KERAS_HOME", home)
        before = {name: os.environ.get(name) for name in names}
        os.environ.update(names)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def keras_answer(keras: Any, case: Case) -> Answer:
    """``MultiHeadAttention``, or where heads share keys and values ``GroupQueryAttention``."""
    dtype = str(case.query.dtype)
    head_dim = case.query.shape[2] // case.heads
    if case.kv_heads == case.heads:
        layer = keras.layers.MultiHeadAttention(case.heads, head_dim, dtype=dtype)
    else:
        layer = keras.layers.GroupQueryAttention(head_dim, case.heads, case.kv_heads, dtype=dtype)
    layer.build(case.query.shape, case.key.shape)
    layer.set_weights([*_kernels(case, head_dim)])
    mask = None
    if case.padding is not None:
        shape = (len(case.query), case.query.shape[1], case.key.shape[1])
        mask = np.broadcast_to(case.padding[:, None, :], shape)
    output, weights = layer(
        case.query,
        case.key,
        attention_mask=mask,
        use_causal_mask=case.causal,
        return_attention_scores=True,
        training=False,
    )
    return _numpy(keras, output), _numpy(keras, weights)


def _kernels(case: Case, head_dim: int) -> Iterator[NDArray[Any]]:
    """Kernels (width, heads, head_dim) with their biases, the output's last."""
    width = case.query.shape[2]
    for name in ("query", "key", "value"):
        yield case.state[f"{name}_projection.weight"].T.reshape(width, -1, head_dim)
        yield case.state[f"{name}_projection.bias"].reshape(-1, head_dim)
    yield case.state["output_projection.weight"].T.reshape(-1, head_dim, width)
    yield case.state["output_projection.bias"]


def _numpy(keras: Any, tensor: Any) -> NDArray[Any]:
    # Keras's own conversion of a torch tensor asks NumPy 2 for what it warns of.
    is_torch = hasattr(tensor, "detach")
    array: NDArray[Any] = (
        tensor.detach().cpu().numpy() if is_torch else keras.ops.convert_to_numpy(tensor)
    )
    return array
