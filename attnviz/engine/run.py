"""Run a model over one text and keep the attention weights that were asked for."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.observer import KeepWeights
from attnviz.errors import UsageError
from attnviz.models.model import Model, NumpyModel, PairModel
from attnviz.records import AttentionRecord, Kind, LayerWeights, ModelInfo, Tokens

__all__ = ["capture", "no_numbers"]

_ROUNDING = 0.02
"""How far a row of 16-bit weights may be from one by rounding alone."""


def capture(
    model: Model,
    tokens: Tokens,
    *,
    kind: Kind,
    target: Tokens | None = None,
    heads: Mapping[int, Container[int]] | None = None,
) -> AttentionRecord:
    """The attention of ``model`` over ``tokens``.

    kind: one of ``model.kinds``, or ``cross`` of a ``PairModel``.
    target: the decoder's tokens, or those that look; needed for the kinds ``decoder`` and
        ``cross``.
    heads: the heads to keep of each layer; None keeps all.

    Raises UnsupportedError where the architecture's attention cannot be observed, UsageError
    where no chosen layer has a chosen head.
    """
    keep = KeepWeights(kind, heads)
    notes = model.info.notes + model.notes_for(tokens)
    if isinstance(model, NumpyModel):
        _run_numpy(model, keep, kind, tokens, target)
    else:
        from attnviz.engine.transformers_run import run_transformers  # torch only where needed

        run_transformers(model, keep, tokens, target)
    if not keep.layers:
        raise UsageError(
            "none of the chosen layers has such a head: choose others with --layer or --head"
        )
    queries = target if target is not None and kind in ("decoder", "cross") else tokens
    keys = tokens if kind == "cross" else queries
    if isinstance(model, PairModel):
        causal = kind != "cross" and model.causal and len(tokens) > 1
    else:
        causal = kind != "cross" and all(map(_sees_no_future, keep.layers))
    weights = [layer.weights for layer in keep.layers]
    notes += no_numbers(model.info, weights) + _lost_weight(keep.layers)
    info = replace(model.info, notes=notes)
    return AttentionRecord(info, kind, causal, queries, keys, keep.layers)


def _run_numpy(
    model: NumpyModel, keep: KeepWeights, kind: Kind, tokens: Tokens, target: Tokens | None
) -> None:
    def wants(layer: int) -> bool:
        return keep.wants(kind, layer)

    def observe(layer: int, weights: NDArray[np.floating]) -> None:
        keep.observe(kind, layer, weights[None])

    if isinstance(model, PairModel) and kind == "cross" and target is not None:
        model.run_cross(target, tokens, wants, observe)
    else:
        model.run(tokens, wants, observe)


def _sees_no_future(layer: LayerWeights) -> bool:
    """Whether every weight of a query on a later key is exactly zero, or no number at all."""
    return layer.weights.shape[-1] > 1 and not (np.triu(layer.weights, 1) > 0).any()


def no_numbers(info: ModelInfo, arrays: Iterable[NDArray[np.floating]]) -> tuple[str, ...]:
    """A note where a model has overflowed, or was broken from the start."""
    if not any(np.isnan(array).any() for array in arrays):
        return ()
    return (f"some weights are not numbers: their cells stay blank{info.overflow_advice}",)


def _lost_weight(layers: tuple[LayerWeights, ...]) -> tuple[str, ...]:
    """A note where rows do not sum to one, as with the learned sinks of gpt_oss."""
    sums = np.concatenate([layer.weights.sum(-1).ravel() for layer in layers])
    least = float(np.min(sums[~np.isnan(sums)], initial=1.0))
    if least > 1 - _ROUNDING:
        return ()
    return (f"rows sum to as little as {least:.2f}: the rest goes to no token (a learned sink)",)
