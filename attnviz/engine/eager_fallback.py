"""Observe a transformers model that computes attention by itself: run it eager and read its report.

The model holds the weights of all layers until the run ends; they are checked before the first is
handed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnviz.engine.forward_pass import ForwardPass, wants_any
from attnviz.engine.model_state import borrowed, implementations
from attnviz.engine.observer import Observer
from attnviz.engine.plain_pass import PlainCheck
from attnviz.errors import UnsupportedError
from attnviz.records import Kind

if TYPE_CHECKING:
    from attnviz.models.attention_interface import PreTrainedModel

__all__ = ["observe_reported", "without_recording_hooks"]

# Rows are sums of rounded numbers, half precision included; a sink takes its part out of them.
_TOLERANCE = 0.02


def observe_reported(forward: ForwardPass, observer: Observer) -> None:
    """Run once with eager attention and hand over the weights that the model reports.

    Raises UnsupportedError if it reports none, or what it reports are no attention weights.
    """
    name = type(forward.model).__name__
    if not forward.takes("output_attentions"):
        raise UnsupportedError(f"{name} computes no attention weights that could be shown.")
    exact = implementations(forward.model) <= {"eager", None}
    with borrowed(forward.model):
        check = PlainCheck(forward, "reported", exact=exact).begin()
    with borrowed(forward.model, "eager"), without_recording_hooks(forward.model):
        outputs = forward.run(output_attentions=True)
    check.end(outputs)
    reported = _reported(forward, observer, outputs)
    del outputs
    for kind, layers in reported.items():
        if not layers:
            raise UnsupportedError(f"{name} computes no attention weights that could be shown.")
        for weights in layers:
            forward.check(kind, weights)
            _check_rows(name, weights)
    expected = getattr(forward.model.config, "num_hidden_layers", None)
    if "self" in reported and expected not in (None, len(reported["self"])):
        raise UnsupportedError(
            f"{name} reports attention weights of {len(reported['self'])} layers, "
            f"expected {expected}: which layers they belong to cannot be told."
        )
    for kind, layers in reported.items():
        for layer in range(len(layers)):
            weights = layers.pop(0)  # so that what the observer leaves is freed at once
            if observer.wants(kind, layer):
                observer.observe(kind, layer, weights)


def _reported(forward: ForwardPass, observer: Observer, outputs: Any) -> dict[Kind, list[Any]]:
    field = "attentions" if len(forward.kinds) == 1 else "{}_attentions"
    return {
        kind: list(getattr(outputs, field.format(kind), None) or ())
        for kind in forward.kinds
        if wants_any(observer, kind, forward.module)
    }


def _check_rows(name: str, weights: Tensor) -> None:
    rows = weights.sum(-1, dtype=torch.float32)
    # Written so that NaN fails too.
    if not bool((weights.min() >= 0) & (rows.max() <= 1 + _TOLERANCE) & (rows.max() > 0)):
        raise UnsupportedError(
            f"{name} reports attention weights that are no shares of one: "
            f"smallest {float(weights.min()):g}, largest row sum {float(rows.max()):g}."
        )


@contextmanager
def without_recording_hooks(model: PreTrainedModel) -> Iterator[None]:
    """Remove the hooks that transformers installs for good when weights are first asked for."""
    hooks = [(module, set(module._forward_hooks)) for module in model.modules()]
    marked = [module for module in model.modules() if _MARK in module.__dict__]
    try:
        yield
    finally:
        for module, found in hooks:
            for key in set(module._forward_hooks) - found:
                del module._forward_hooks[key]
            if module not in marked:
                module.__dict__.pop(_MARK, None)


# Without the mark transformers installs them again when they are next needed.
_MARK = "_output_capturing_hooks_installed"
