"""One text through a model: each head's weights and outputs, and what is predicted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.capture import capture, observe
from attnviz.engine.observer import BlockFacts, KeepWeights, to_numpy
from attnviz.errors import UnsupportedError
from attnviz.models.model import Model, NumpyModel
from attnviz.records import Input, Kind, LayerWeights

Floats = NDArray[np.floating]

Head: TypeAlias = tuple[int, int]
"""Layer and head, from 0."""


@dataclass(frozen=True, eq=False)
class HeadRun:
    """One text through a model.

    weights: (head, query, key) of each layer. outputs: (head, query, dim), z_h = A_h V_h before
    the output projection; empty where they cannot be seen.
    logits: (token, word) of the next token; None where none is predicted from what came before.
    norms: (head, key), ‖v_j W_O^h‖ of each layer, where they were asked for.
    masks: (query, key) of the layers whose mask is known, as in ``BlockFacts``.
    """

    weights: Mapping[int, Floats]
    outputs: Mapping[int, Floats]
    logits: Floats | None
    norms: Mapping[int, Floats] = field(default_factory=dict)
    masks: Mapping[int, Any] = field(default_factory=dict)


class Run(Protocol):
    """Runs a model over one text."""

    def __call__(
        self, given: Input, removed: Collection[Head] = (), norms: bool = False
    ) -> HeadRun:
        """Return what comes of it; the outputs of the ``removed`` heads go on as zero.

        Raises UnsupportedError where heads cannot be removed, or norms be seen.
        """
        ...


def open_heads(model: Model, kind: Kind, given: Input, causal: bool) -> tuple[Run, tuple[str, ...]]:
    """Return what runs inputs through ``model``, and notes on what of its heads cannot be seen.

    given: an input on which a torch model is tried. causal: whether its logits are of the next
    token. Raises UnsupportedError where its attention cannot be observed.
    """
    if isinstance(model, NumpyModel) and kind == "self":
        return partial(_in_numpy, model), ()
    lacks = UnsupportedError("NumPy does not show them")
    if not isinstance(model, NumpyModel):
        try:
            return _on_torch(model, kind, given, causal), ()
        except UnsupportedError as error:
            lacks = error

    def run(given: Input, removed: Collection[Head] = (), norms: bool = False) -> HeadRun:
        if removed:
            raise UnsupportedError(f"heads of {model.info.name!r} cannot be removed: {lacks}")
        record = capture(model, given.text, kind=kind, target=given.target)
        moved = _norms(model, kind, given) if norms else {}
        weights, masks = _by_layer(record.layers)
        return HeadRun(weights, {}, None, moved, masks)

    return run, (f"outputs of heads and predictions are not shown: {lacks}",)


def _in_numpy(
    model: NumpyModel, given: Input, removed: Collection[Head] = (), norms: bool = False
) -> HeadRun:
    weights: dict[int, Floats] = {}
    outputs: dict[int, Floats] = {}

    def take(layer: int, seen: Floats, written: Floats) -> None:
        weights[layer], outputs[layer] = seen, written

    model = model.without(removed) if removed else model
    logits = model.run_outputs(given.text, take)
    masks = {layer: model.mask(layer, 0, len(given.text), len(given.text)) for layer in weights}
    moved = _norms(model, "self", given) if norms else {}
    return HeadRun(weights, outputs, logits, moved, masks)


def _by_layer(layers: Iterable[LayerWeights]) -> tuple[dict[int, Floats], dict[int, Any]]:
    """Return weights and masks by the index of their layer."""
    kept = list(layers)
    return (
        {layer.layer: layer.weights for layer in kept},
        {layer.layer: layer.mask for layer in kept},
    )


def _norms(model: Model, kind: Kind, given: Input) -> dict[int, Floats]:
    """Of a pass of their own, in blocks."""
    keep = _KeepNorms(kind)
    observe(model, keep, [given])
    return keep.norms_of


class _KeepNorms:
    """Keeps the norms of one kind of attention, and hands on its weights."""

    norms = True

    def __init__(self, kind: Kind, weights: KeepWeights | None = None) -> None:
        self._kind = kind
        self._weights = weights
        self.norms_of: dict[int, Floats] = {}

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self._kind

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Any, beside: BlockFacts
    ) -> None:
        if beside.norms is not None:
            self.norms_of[layer] = beside.norms
        if self._weights is not None:
            self._weights.observe(text, kind, layer, start, weights, beside)


def _on_torch(model: Model, kind: Kind, given: Input, causal: bool) -> Run:
    import torch

    from attnviz.engine.ablation import check_heads
    from attnviz.engine.hook_points import HeadOutputs
    from attnviz.engine.observe_torch import observe_pass, transformers_of
    from attnviz.engine.patchable import open_patchable, whole_pass
    from attnviz.engine.plain_pass import length_class
    from attnviz.engine.projections import ValueNorms

    opened = transformers_of(model)
    whole = opened.model
    patchable = open_patchable(model, kind, given)
    predicts = causal and patchable.head is not None
    compared: set[int] = set()

    def run(given: Input, removed: Collection[Head] = (), norms: bool = False) -> HeadRun:
        check_heads(patchable, removed)
        size = length_class(len(given.text))
        if removed and size not in compared:
            run(given)  # which is held against a plain pass: without heads it ends elsewhere
        forward = replace(
            whole_pass(whole, kind, given),
            wanted=frozenset({kind}),
            compare=not removed,
            cached=True,
            logits=predicts,
        )
        weights = KeepWeights(kind)
        keep = _KeepNorms(kind, weights)
        outputs = HeadOutputs(kind, patchable.hook_points, removed)
        with torch.inference_mode():
            values = ValueNorms(opened) if norms else None
            logits = observe_pass(forward, keep, norms=values, outputs=outputs)
        compared.add(size)
        seen, masks = _by_layer(weights.layers)
        predicted = to_numpy(logits[0]) if predicts else None
        return HeadRun(seen, outputs.found, predicted, keep.norms_of, masks)

    return run
