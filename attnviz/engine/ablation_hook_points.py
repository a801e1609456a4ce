"""Change the heads' outputs of the library's own attention, at its hook points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from attnviz.attention.module import MultiHeadAttention
from attnviz.engine.sites import HeadEditor, Site, SiteCounter

__all__ = ["HookPointSites"]


class HookPointSites:
    """The ``MultiHeadAttention`` modules under ``root``, numbered as ``observe_hook_points`` does.

    They are taken to run in that order, each once.
    """

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        attentions = [module for module in root.modules() if isinstance(module, MultiHeadAttention)]
        self.found = tuple(
            Site("self", layer, attention, attention.shape.heads, attention.shape.value_dim)
            for layer, attention in enumerate(attentions)
        )

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        training = [module for module in self._root.modules() if module.training]
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for module in training:
                module.training = True

    @contextmanager
    def editing(self, editor: HeadEditor, order: Sequence[int] | None = None) -> Iterator[None]:
        counter = SiteCounter(self._root, self.found, editor, order)
        with ExitStack() as hooks:
            hooks.enter_context(counter.counting())
            for site in self.found:
                point = site.module.get_submodule("heads_point")
                hook = point.register_forward_hook(_Edit(counter, site.module))
                hooks.callback(hook.remove)
            yield


class _Edit:
    """A forward hook: outputs of shape (batch, head, token, dim)."""

    def __init__(self, counter: SiteCounter, attention: nn.Module) -> None:
        self._counter = counter
        self._attention = attention

    def __call__(self, module: nn.Module, args: tuple[Any, ...], outputs: Tensor) -> Tensor:
        return self._counter.edit(self._attention, outputs.transpose(1, 2)).transpose(1, 2)
