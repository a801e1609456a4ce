"""Change the heads' outputs of a transformers model that computes attention by itself.

They are the input of the output projection, which a probe finds: the first linear layer that is
entered after a softmax over the keys. Head h is columns hD … (h+1)D of it; the probe proves that
by emptying one head's weights and looking for the columns that become zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

from torch import Tensor, nn

from attnviz.engine.forward_pass import ForwardPass
from attnviz.engine.model_state import borrowed
from attnviz.engine.sites import HeadEditor, Site, SiteCounter
from attnviz.engine.stray_attention import SoftmaxWatch
from attnviz.errors import UnsupportedError
from attnviz.records import Kind

__all__ = ["ProjectionSites", "enclosing_block", "find_projections"]


def find_projections(probe: ForwardPass) -> ProjectionSites:
    """The sites of a pass, by the output projection of each attention.

    probe: a short pass over one text, whose lengths differ and are above one.
    Raises UnsupportedError where they cannot be found, or are laid out otherwise.
    """
    with borrowed(probe.model):
        run = _Find(probe)
        with run.watching(), run:
            probe.call(use_cache=False)
    name = type(probe.model).__name__
    layers = getattr(probe.model.config, "num_hidden_layers", None)
    if not run.found or run.pending:
        raise UnsupportedError(
            f"{name} computes attention by itself and its output projections were not found: "
            f"its heads cannot be removed"
        )
    if len(probe.kinds) == 1 and layers not in (None, len(run.found)):
        raise UnsupportedError(
            f"{name} has {layers} layers, attention was found in {len(run.found)}: "
            f"which layers these are cannot be told"
        )
    return ProjectionSites(probe, tuple(run.found), run.token_axis)


class ProjectionSites:
    """The output projections of a pass of ``probe``'s module.

    token_axis: the axis of a projection's input (1, or 0 in models that put the batch second).
    """

    def __init__(self, probe: ForwardPass, found: tuple[Site, ...], token_axis: int) -> None:
        self._probe = probe
        self._token_axis = token_axis
        self.found = found

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        with borrowed(self._probe.model):
            yield

    @contextmanager
    def editing(self, editor: HeadEditor, order: Sequence[int] | None = None) -> Iterator[None]:
        counter = SiteCounter(self._probe.module, self.found, editor, order)
        shapes = {id(site.module): (site.heads, site.dim) for site in self.found}

        def enter(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            outputs = args[0].unflatten(-1, shapes[id(module)])
            if self._token_axis == 0:
                outputs = outputs.transpose(0, 1)
            outputs = counter.edit(module, outputs)
            if self._token_axis == 0:
                outputs = outputs.transpose(0, 1)
            return (outputs.flatten(-2), *args[1:])

        with ExitStack() as hooks:
            hooks.enter_context(counter.counting())
            for module in {id(site.module): site.module for site in self.found}.values():
                hooks.callback(module.register_forward_pre_hook(enter).remove)
            yield


def enclosing_block(root: nn.Module) -> Mapping[int, nn.Module]:
    """For each module's ``id`` the nearest module above it that is an entry of a ``ModuleList``."""
    blocks: dict[int, nn.Module] = {}

    def walk(module: nn.Module, block: nn.Module | None) -> None:
        for child in module.children():
            if block is not None:
                blocks.setdefault(id(child), block)
            walk(child, child if isinstance(module, nn.ModuleList) else block)

    walk(root, None)
    return blocks


class _Find(SoftmaxWatch):
    """Takes down the first linear layer after each softmax, and where one head lies in its input.

    One head's weights are emptied in every layer: the last head's.
    """

    def __init__(self, probe: ForwardPass) -> None:
        super().__init__(1, {*probe.queries.values(), *probe.keys.values()})
        self._probe = probe
        self._encoder = (
            {id(module) for module in probe.model.get_encoder().modules()}
            if len(probe.kinds) > 1
            else set()
        )
        self._blocks = enclosing_block(probe.module)
        self._block: nn.Module | None = None
        self.found: list[Site] = []
        self.pending: Sequence[int] | None = None
        self.token_axis = 1

    def notice(self, scores: Sequence[int], compute: Callable[[], Tensor]) -> Tensor:
        weights = compute()
        if self.pending is not None:
            raise _refused(self._probe, "two attentions share one output projection")
        self.pending = scores
        emptied = weights.clone()
        emptied.flatten(0, -3)[-1] = 0
        return emptied

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the linear layers, and the blocks around them, while this is open."""
        blocks = {id(block): block for block in self._blocks.values()}
        linear = [module for module in self._probe.module.modules() if _is_linear(module)]
        with ExitStack() as hooks:
            for block in blocks.values():
                hooks.callback(block.register_forward_pre_hook(self._enter_block).remove)
            for module in linear:
                hooks.callback(module.register_forward_pre_hook(self._enter_linear).remove)
            yield

    def _enter_block(self, block: nn.Module, args: tuple[Any, ...]) -> None:
        self._block = block

    def _enter_linear(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self.pending is None or not args:
            return
        scores, self.pending = self.pending, None
        if self._blocks.get(id(module)) is not self._block:
            raise _refused(self._probe, "it lies outside the block of its softmax")
        kind = self._kind(module, scores[-1])
        heads = prod(scores[:-2])
        dim = self._width(args[0], scores[-2], heads)
        layer = sum(site.kind == kind for site in self.found)
        self.found.append(Site(kind, layer, module, heads, dim))

    def _width(self, merged: Tensor, tokens: int, heads: int) -> int:
        """How wide a head is, once its columns are seen to be where they are expected."""
        if merged.ndim != 3 or merged.shape[-1] % heads or 1 not in merged.shape[:2]:
            raise _refused(self._probe, f"the projection's input is {tuple(merged.shape)}")
        self.token_axis = 1 if merged.shape[0] == 1 else 0
        empty = (merged.reshape(*merged.shape[:2], heads, -1) == 0).all(-1).flatten(0, 1).all(0)
        if merged.shape[self.token_axis] != tokens or empty.tolist() != [False] * (heads - 1) + [
            True
        ]:
            raise _refused(self._probe, "its heads do not lie side by side")
        return int(merged.shape[-1] // heads)

    def _kind(self, module: nn.Module, keys: int) -> Kind:
        if len(self._probe.kinds) == 1:
            return self._probe.kinds[0]
        if id(module) in self._encoder:
            return "encoder"
        return "cross" if keys == self._probe.keys["cross"] else "decoder"


def _is_linear(module: nn.Module) -> bool:
    # transformers' Conv1D is a linear layer with its weight transposed.
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _refused(probe: ForwardPass, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"{type(probe.model).__name__} computes attention by itself, and its output projection "
        f"was not recognised ({why}): its heads cannot be removed"
    )
