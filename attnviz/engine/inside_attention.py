"""Edit the tensors inside attention calls of torch: queries, keys, values and attention patterns.

``edited_call`` edits a call that a transformers model makes; ``OwnHookPoints`` has the same edits
for the library's own attention. The two stand side by side, so that another sort of site inside
attention is added here for every model that torch runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from attnviz.attention.functional import combine_masks
from attnviz.attention.module import MultiHeadAttention
from attnviz.engine.hook_points import NOTHING_LEFT, CallCounter, Hide, HookedCall, HookPoints
from attnviz.engine.patching import ATTENDED, What
from attnviz.errors import UsageError
from attnviz.records import Input

if TYPE_CHECKING:  # the library's own attention runs without transformers
    from attnviz.engine.attention_calls import Attended, AttentionCall


def edited_call(call: AttentionCall, counter: CallCounter, inside: frozenset[What]) -> Attended:
    """Return output and weights, or None, of a transformers call with edited tensors."""

    def edit(what: What, tensor: Tensor) -> Tensor:
        """Return the tensor (batch, head, token, dim) after the intervention."""
        return counter.edit_inside(what, tensor.transpose(1, 2)).transpose(1, 2)

    counter.take(call.module)
    if not inside.isdisjoint(ATTENDED):
        given: dict[str, Any] = {what: edit(what, getattr(call, what)) for what in ATTENDED}
        call = call.attending(**given)
    if "pattern" in inside:
        output, weights = call.mixing(partial(edit, "pattern"))
    else:
        output, weights = call.own()
    return counter.edit(output), weights


class OwnHookPoints(HookPoints):
    """The calls of ``MultiHeadAttention`` modules under ``root``, each once, in their order."""

    def __init__(self, root: nn.Module) -> None:
        found = (module for module in root.modules() if isinstance(module, MultiHeadAttention))
        shapes = [(each, each.shape.heads, each.shape.value_dim) for each in found]
        super().__init__(
            root, (HookedCall("self", layer, *shape) for layer, shape in enumerate(shapes))
        )

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        training = [module for module in self.root.modules() if module.training]
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for module in training:
                module.training = True

    @contextmanager
    def editing(self, counter: CallCounter, inside: frozenset[What]) -> Iterator[None]:
        def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
            counter.take(module)

        def leave(module: nn.Module, args: tuple[Any, ...], outputs: Tensor) -> Tensor:
            return counter.edit(outputs.transpose(1, 2)).transpose(1, 2)  # (batch, head, token, …)

        def leave_weights(module: nn.Module, args: tuple[Any, ...], weights: Tensor) -> Tensor:
            return counter.edit_inside("pattern", weights.transpose(1, 2)).transpose(1, 2)

        with ExitStack() as hooks:
            for point in self.found:
                attention: Any = point.module
                hooks.callback(attention.register_forward_pre_hook(enter).remove)
                hooks.callback(attention.heads_point.register_forward_hook(leave).remove)
                if "pattern" in inside:
                    handle = attention.weights_point.register_forward_hook(leave_weights)
                    hooks.callback(handle.remove)
                for what in ATTENDED if not inside.isdisjoint(ATTENDED) else ():
                    projection = attention.get_submodule(f"{what}_projection")
                    dim = attention.shape.value_dim if what == "value" else attention.shape.head_dim

                    def leave_projection(
                        module: nn.Module,
                        args: tuple[Any, ...],
                        merged: Tensor,
                        what: What = what,
                        dim: int = dim,
                    ) -> Tensor:
                        return counter.edit_inside(
                            what, merged.view(*merged.shape[:-1], -1, dim)
                        ).flatten(-2)

                    hooks.callback(projection.register_forward_hook(leave_projection).remove)
            yield

    @contextmanager
    def masking(self, counter: CallCounter, hide: Hide, given: Input) -> Iterator[None]:
        with ExitStack() as hooks:
            for point in self.found:
                hidden = hide(point, len(given.text), len(given.text))
                if hidden is None:
                    continue
                visible = ~hidden[None]
                if not bool(visible.tril().any(-1).all()):
                    raise UsageError(NOTHING_LEFT)

                def enter(
                    module: nn.Module,
                    args: tuple[Any, ...],
                    kwargs: dict[str, Any],
                    visible: Tensor = visible,
                ) -> tuple[tuple[Any, ...], dict[str, Any]]:
                    return args, {**kwargs, "mask": combine_masks(kwargs.get("mask"), visible)}

                entered = point.module.register_forward_pre_hook(enter, with_kwargs=True)
                hooks.callback(entered.remove)
            yield
