"""One pass over one text: the weights of all heads, what is predicted, and what values move.

With the outputs of chosen heads at zero, if that is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.capture import Asked, capture, observe, record_of
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.model import Model, OutputModel
from attnviz.records import AttentionRecord, Input, Kind, LayerWeights

Floats = NDArray[np.floating]

Head: TypeAlias = tuple[int, int]
"""Layer and head, from 0."""

_CELLS = 2**21
"""Log-probabilities that are formed at once."""


@dataclass(frozen=True, eq=False)
class TextPass:
    """What one pass gives.

    logits: (token, word) of the next token; None where none is predicted from what came before.
    """

    record: AttentionRecord
    logits: Floats | None


def read_text(model: Model, wanted: Asked, removed: Collection[Head] = ()) -> TextPass:
    """Run ``model`` once over a text, without the ``removed`` heads.

    Raises UsageError for a head that is not there, UnsupportedError where the attention cannot be
    observed or its heads cannot be removed.
    """
    check_heads(model, removed)
    if isinstance(model, OutputModel) and wanted.kind == "self":
        return _in_numpy(model.without(removed) if removed else model, wanted.given)
    given = wanted.given
    if removed:
        raise UnsupportedError(f"heads of {model.info.name!r} cannot be removed here")
    return TextPass(capture(model, given.text, kind=wanted.kind, target=given.target), None)


def _in_numpy(model: OutputModel, given: Input) -> TextPass:
    layers: list[LayerWeights] = []

    def take(layer: int, weights: Floats, outputs: Floats) -> None:
        layers.append(LayerWeights(layer, tuple(range(len(weights))), weights))

    logits = model.run_outputs(given.text, take)
    return TextPass(record_of(model, given, "self", tuple(layers)), logits)


def check_heads(model: Model, heads: Collection[Head]) -> None:
    """UsageError for the first (layer, head) that the model does not have."""
    info = model.info
    for layer, head in heads:
        if not (0 <= layer < info.layers and 0 <= head < info.heads):
            raise UsageError(
                f"no head {head} in layer {layer}: {info.name!r} has layers 0 to "
                f"{info.layers - 1} and heads 0 to {info.heads - 1}"
            )


def moved_norms(
    model: Model, wanted: Asked, removed: Collection[Head] = ()
) -> Mapping[int, Floats]:
    """‖v_j W_O^h‖ of each layer, (head, key): what a key's value moves the residual by.

    Kobayashi et al. 2020. Raises UnsupportedError where the values cannot be seen.
    """
    check_heads(model, removed)
    if removed and isinstance(model, OutputModel):
        model = model.without(removed)
    elif removed:
        raise UnsupportedError(f"heads of {model.info.name!r} cannot be removed here")
    keep = _KeepNorms(wanted.kind)
    observe(model, keep, [wanted.given])
    return keep.found


class _KeepNorms:
    """Keeps the norms of one kind of attention."""

    norms = True

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.found: dict[int, Floats] = {}

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self._kind

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Floats, norms: Floats
    ) -> None:
        self.found[layer] = norms


def token_losses(logits: Floats, ids: Sequence[int]) -> NDArray[np.float64]:
    """−log p of each token but the first by the logits (token, word) before it: (token − 1,)."""
    found = np.empty(max(len(ids) - 1, 0))
    rows = max(1, _CELLS // logits.shape[-1])
    for start in range(0, len(found), rows):
        some = slice(start, min(start + rows, len(found)))
        wide = logits[some].astype(np.float64)
        wide -= wide.max(-1, keepdims=True)
        word = np.asarray(ids[1:])[some, None]
        chosen = np.take_along_axis(wide, word, -1)[:, 0]
        found[some] = np.log(np.exp(wide).sum(-1)) - chosen
    return found
