"""One text through a model: each head's weights and outputs, and what is predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.capture import capture
from attnviz.engine.observer import to_numpy
from attnviz.errors import UnsupportedError
from attnviz.models.model import Model, NumpyModel
from attnviz.records import Input, Kind

if TYPE_CHECKING:  # torch only where it runs
    from torch import Tensor

    from attnviz.engine.hook_points import HookPoint

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
    if isinstance(model, NumpyModel):
        return lambda given: _in_numpy(model, given), ()
    try:
        return _on_torch(model, kind, given, causal), ()
    except UnsupportedError as error:
        note = f"outputs of heads and predictions are not shown: {error}"
    return lambda given: HeadRun(_weights(model, kind, given), {}, None), (note,)


def _in_numpy(model: NumpyModel, given: Input) -> HeadRun:
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

    from attnviz.engine.patchable import open_patchable

    patchable = open_patchable(model, kind, given)

    def run(given: Input) -> HeadRun:
        keep = _Keep(kind)
        points = patchable.hook_points
        with torch.inference_mode(), points.borrowed(), points.intervening(keep):
            logits = patchable.run(given)
        predicted = None if logits is None or not causal else to_numpy(logits[0])
        return HeadRun(_weights(model, kind, given), keep.outputs, predicted)

    return run


class _Keep:
    """An intervention that keeps what it sees of one kind and changes nothing."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.outputs: dict[int, Floats] = {}

    def edit(self, number: int, point: HookPoint, outputs: Tensor) -> Tensor:
        if point.kind == self._kind:  # (batch, token, head, dim)
            self.outputs[point.layer] = to_numpy(outputs[0].transpose(0, 1)).copy()
        return outputs
