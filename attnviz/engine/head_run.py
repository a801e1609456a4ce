"""One text through a model: each head's weights and outputs, and what is predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.capture import capture
from attnviz.engine.observer import KeepWeights, to_numpy
from attnviz.errors import UnsupportedError
from attnviz.models.model import Model, NumpyModel, OutputModel
from attnviz.records import Input, Kind

Floats = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class HeadRun:
    """One text through a model.

    weights: (head, query, key) of each layer. outputs: (head, query, dim), z_h = A_h V_h before
    the output projection; empty where they cannot be seen.
    logits: (token, word) of the next token; None where none is predicted from what came before.
    """

    weights: Mapping[int, Floats]
    outputs: Mapping[int, Floats]
    logits: Floats | None


Run = Callable[[Input], HeadRun]


def open_heads(model: Model, kind: Kind, given: Input, causal: bool) -> tuple[Run, tuple[str, ...]]:
    """What runs inputs through ``model``, and notes on what of its heads cannot be seen.

    given: an input on which a torch model is tried. causal: whether its logits are of the next
    token. Raises UnsupportedError where its attention cannot be observed.
    """
    if isinstance(model, OutputModel):
        return lambda given: _in_numpy(model, given), ()
    lacks = UnsupportedError("NumPy does not show them")
    if not isinstance(model, NumpyModel):
        try:
            return _on_torch(model, kind, given, causal), ()
        except UnsupportedError as error:
            lacks = error
    note = f"outputs of heads and predictions are not shown: {lacks}"
    return lambda given: HeadRun(_weights(model, kind, given), {}, None), (note,)


def _in_numpy(model: OutputModel, given: Input) -> HeadRun:
    weights: dict[int, Floats] = {}
    outputs: dict[int, Floats] = {}

    def take(layer: int, seen: Floats, written: Floats) -> None:
        weights[layer], outputs[layer] = seen, written

    logits = model.run_outputs(given.text, take)
    return HeadRun(weights, outputs, logits)


def _weights(model: Model, kind: Kind, given: Input) -> dict[int, Floats]:
    record = capture(model, given.text, kind=kind, target=given.target)
    return {layer.layer: layer.weights for layer in record.layers}


def _on_torch(model: Model, kind: Kind, given: Input, causal: bool) -> Run:
    import torch

    from attnviz.engine.hook_points import HeadOutputs
    from attnviz.engine.observe_torch import observe_pass, transformers_of
    from attnviz.engine.patchable import open_patchable, whole_pass

    whole = transformers_of(model).model
    patchable = open_patchable(model, kind, given)
    predicts = causal and patchable.head is not None

    def run(given: Input) -> HeadRun:
        forward = replace(
            whole_pass(whole, kind, given),
            wanted=frozenset({kind}),
            compare=True,
            cached=True,
            logits=predicts,
        )
        weights, outputs = KeepWeights(kind), HeadOutputs(kind, patchable.hook_points)
        with torch.inference_mode():
            logits = observe_pass(forward, weights, outputs=outputs)
        return HeadRun(
            {layer.layer: layer.weights for layer in weights.layers},
            outputs.found,
            to_numpy(logits[0]) if predicts else None,
        )

    return run
