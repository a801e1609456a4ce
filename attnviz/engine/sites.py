"""Where the heads' outputs of a running model can be changed: one site for each attention call.

A head's output z_h is the attention-weighted sum of its values, before any gate or projection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from attnviz.records import Kind

__all__ = ["HeadEditor", "LostTrackError", "Site", "SiteCounter", "Sites"]


class LostTrackError(Exception):
    """A pass ran otherwise than the one in which its sites were found."""


@dataclass(frozen=True)
class Site:
    """One attention call of a forward pass.

    kind, layer: whose it is, as ``observe_transformers`` names them.
    module: the module in which the heads' outputs are met.
    heads, dim: how many heads it has, and how wide one's output is.
    """

    kind: Kind
    layer: int
    module: nn.Module
    heads: int
    dim: int


class HeadEditor(Protocol):
    """Changes what heads put out while a model runs."""

    def edit(self, number: int, site: Site, outputs: Tensor) -> Tensor:
        """The outputs (batch, token, head, dim) to go on with; they may be changed in place.

        number: of the site among those of the pass, in the order in which they run.
        """
        ...


class Sites(Protocol):
    """All sites of one pass, found by one way of entering the model.

    found: in the order in which they run.
    """

    @property
    def found(self) -> tuple[Site, ...]: ...

    def borrowed(self) -> AbstractContextManager[Any]:
        """Ready the model for runs; it is as it was on leaving, also after an exception."""
        ...

    def editing(
        self, editor: HeadEditor, order: Sequence[int] | None = None
    ) -> AbstractContextManager[None]:
        """While this is open, each pass of the borrowed model hands its outputs to ``editor``.

        order: the numbers of the sites in the order in which they run, None for one after another.
        """
        ...


class SiteCounter:
    """Tells which site a call belongs to by counting the calls of a pass.

    root: the module whose forward is a pass.
    order: as ``Sites.editing`` takes it.
    """

    def __init__(
        self,
        root: nn.Module,
        sites: tuple[Site, ...],
        editor: HeadEditor,
        order: Sequence[int] | None = None,
    ) -> None:
        self._root = root
        self._sites = sites
        self._order = range(len(sites)) if order is None else order
        self._editor = editor
        self._next = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Start anew at each pass while this is open."""

        def restart(module: nn.Module, args: tuple[Any, ...]) -> None:
            self._next = 0

        hook = self._root.register_forward_pre_hook(restart)
        try:
            yield
        finally:
            hook.remove()

    def edit(self, module: nn.Module, outputs: Tensor) -> Tensor:
        """Hand over the outputs (batch, token, head, dim) of the next call, made in ``module``.

        Raises LostTrackError where another call was expected.
        """
        number = self._order[self._next] if self._next < len(self._order) else None
        site = None if number is None else self._sites[number]
        if (
            number is None
            or site is None
            or site.module is not module
            or outputs.shape[2:] != (site.heads, site.dim)
        ):
            raise LostTrackError(
                f"attention call {self._next} is made by another module than in the first pass"
            )
        self._next += 1
        return self._editor.edit(number, site, outputs)
