"""How much each value moves once it has passed the output projection (Kobayashi et al. 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnviz.engine.output_projections import find_output_projections
from attnviz.errors import UnsupportedError
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Kind

__all__ = ["MovedNorms"]


class MovedNorms:
    """‖v_j W_O^h‖₂ of a transformers model, whose output projections are found by a short run.

    Raises UnsupportedError where they cannot be found.
    """

    def __init__(self, model: TransformersModel) -> None:
        self._model = model
        self._projections = find_output_projections(model)

    def of(self, kind: Kind, layer: int, heads: int, value: Tensor) -> Tensor:
        """(text, head, key) of a layer's value (text, key/value head, key, dim).

        Raises UnsupportedError for another kind of attention than the model's first.
        """
        projection = self._projections.get(layer)
        if kind != self._model.kinds[0] or projection is None:
            raise UnsupportedError(
                f"the output projections of {self._model.info.name!r} are known for its "
                f"{self._model.kinds[0]} attention only: choose another view"
            )
        module: Any = self._model.model.get_submodule(projection.module)
        weight = module.weight.movedim(projection.axis, 0)  # (heads · dim, output)
        output = weight.unflatten(0, (heads, -1)).float()
        if output.shape[1] != value.shape[-1]:
            raise UnsupportedError(
                f"the values of {self._model.info.name!r} are {value.shape[-1]} wide, its output "
                f"projection reads {output.shape[1]} of each head: choose another view"
            )
        groups = heads // value.shape[1]
        norms = [
            (value[:, head // groups].float() @ output[head]).norm(dim=-1) for head in range(heads)
        ]
        return torch.stack(norms, dim=1)
