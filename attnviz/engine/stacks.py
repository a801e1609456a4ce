"""The kind and layer to which a call of a transformers attention function belongs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from attnviz.engine.forward_pass import ForwardPass
from attnviz.engine.stray_attention import IncompleteError
from attnviz.records import Kind

__all__ = ["Places"]


class Places:
    """Names the calls of one pass, in the order in which they are made.

    forward: the pass.
    cross: whether a decoder's attention module attends to the encoder, by the module's ``id``; is
        asked only where encoder and decoder text have one length, so that shapes cannot tell.
    """

    def __init__(self, forward: ForwardPass, cross: Mapping[int, bool] | None = None) -> None:
        self._forward = forward
        self._cross = cross or {}
        self._taken: dict[Kind, list[int]] = {kind: [] for kind in forward.kinds}
        self._encoder = (
            {id(module) for module in forward.model.get_encoder().modules()}
            if len(forward.kinds) > 1
            else set()
        )

    @staticmethod
    def ambiguous(forward: ForwardPass) -> bool:
        """Whether self- and cross-attention of the decoder have the same shape."""
        return len(forward.kinds) > 1 and forward.keys["decoder"] == forward.keys["cross"]

    @property
    def missed(self) -> tuple[Kind, ...]:
        """The kinds of which no call was seen."""
        return tuple(kind for kind, layers in self._taken.items() if not layers)

    def next(self, module: nn.Module, keys: int) -> tuple[Kind, int]:
        """The kind and the layer of the next call: of ``module``, over ``keys`` keys.

        Raises IncompleteError where the layer cannot be told.
        """
        kind = self._kind(module, keys)
        taken = self._taken[kind]
        layer = self._layer(module, taken)
        taken.append(layer)
        return kind, layer

    def _kind(self, module: nn.Module, keys: int) -> Kind:
        if len(self._forward.kinds) == 1:
            return self._forward.kinds[0]
        if id(module) in self._encoder:
            return "encoder"
        if self.ambiguous(self._forward):
            return "cross" if self._cross[id(module)] else "decoder"
        return "cross" if keys == self._forward.keys["cross"] else "decoder"

    def _layer(self, module: nn.Module, taken: list[int]) -> int:
        own: Any = getattr(module, "layer_idx", None)
        if isinstance(own, int) and own not in taken:
            return own
        # One module that serves several layers has one index or none: there the order counts. Where
        # a module of its own for each layer runs twice, neither says which layer this is.
        alike = {
            other.layer_idx
            for other in self._forward.module.modules()
            if type(other) is type(module) and isinstance(getattr(other, "layer_idx", None), int)
        }
        if (own in alike and len(alike) > 1) or taken != list(range(len(taken))):
            raise IncompleteError
        return len(taken)
