"""Observe the library's own attention by forward hooks on its hook points."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from attnviz.attention.module import MultiHeadAttention
from attnviz.engine.observer import Observer
from attnviz.records import Kind

__all__ = ["observe_hook_points"]


@contextmanager
def observe_hook_points(root: nn.Module, observer: Observer) -> Iterator[None]:
    """Hand the weights of each attention call under ``root`` to ``observer`` while this is open.

    Layers are the ``MultiHeadAttention`` modules under ``root``, numbered from 0 in the order in
    which they were registered; a module that is registered twice is one layer. A call is ``self``
    where the key is the query, otherwise ``cross``. Layers of which the observer wants neither
    are left alone and run at full speed. The hooks are gone on leaving, also by an exception.
    """
    attentions = [module for module in root.modules() if isinstance(module, MultiHeadAttention)]
    with ExitStack() as hooks:
        for layer, attention in enumerate(attentions):
            if observer.wants("self", layer) or observer.wants("cross", layer):
                watch = _Watch(observer, layer)
                before = attention.register_forward_pre_hook(watch.enter, with_kwargs=True)
                hooks.callback(before.remove)
                hooks.callback(attention.weights_point.register_forward_hook(watch.look).remove)
        yield


class _Watch:
    """Tells the observer of one layer's calls; each call's arguments say of which kind it is."""

    def __init__(self, observer: Observer, layer: int) -> None:
        self._observer = observer
        self._layer = layer
        self._kind: Kind = "self"

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = dict(zip(("query", "key"), args, strict=False)) | kwargs
        key = given.get("key")
        self._kind = "self" if key is None or key is given["query"] else "cross"

    def look(self, module: nn.Module, args: tuple[Tensor, ...], weights: Tensor) -> None:
        if self._observer.wants(self._kind, self._layer):
            self._observer.observe(self._kind, self._layer, weights)
