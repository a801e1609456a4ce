"""The pruned model: planned, or written where ``--out`` says."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from attnviz.capture.masked_outputs import difference_from_masked
from attnviz.capture.output_projections import find_output_projections
from attnviz.models.bundled import Bundled
from attnviz.models.huggingface import load_transformers
from attnviz.models.model import Model
from attnviz.models.pruned import plan_pruned, write_pruned
from attnviz.models.smaller_model import count_parameters
from attnviz.models.transformers_model import TransformersModel
from attnviz.pruning import Head, PrunedModel

__all__ = ["PruneStore"]

_COMPARED = 64
"""Tokens over which outputs are held against each other, at most."""

_STORED = {np.dtype("float16"): torch.float16, np.dtype("float32"): torch.float32}


class PruneStore:
    """What can be stored of a model without some heads.

    Raises UnsupportedError where its heads cannot be removed for good.
    """

    def __init__(self, model: Model) -> None:
        self._stored: torch.dtype | None = None
        if isinstance(model, Bundled):
            # Its files are a Llama checkpoint: what is written of it is one as well.
            checkpoint = model.checkpoint
            tensor = next(iter(checkpoint.tensors.values()))
            self._stored = _STORED.get(tensor.dtype)
            self._model = load_transformers(str(checkpoint.directory), dtype="float32")
        else:
            assert isinstance(model, TransformersModel)
            self._model = model
        self._projections = find_output_projections(self._model)

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that have heads."""
        return tuple(sorted(self._projections))

    @property
    def parameters(self) -> int:
        """Of the whole model, tied tensors once."""
        return count_parameters(self._model.model)

    def make(
        self, heads: Iterable[Head], ids: tuple[int, ...], directory: Path | None
    ) -> PrunedModel:
        """What is left without these heads, written where a directory is given.

        ids: a text, over which the written model is compared.
        """
        heads = tuple(heads)
        removed = {
            layer: frozenset(head for at, head in heads if at == layer) for layer in self.layers
        }
        if directory is None:
            return plan_pruned(self._model, removed, self._projections)
        difference = difference_from_masked(self._model, heads, ids[:_COMPARED])
        return write_pruned(
            self._model, removed, self._projections, directory, difference, self._stored
        )
