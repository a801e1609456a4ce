"""Find where the feed-forward block of each layer puts out what it adds to the residual stream.

No family is known by name. The feed-forward block is all that a layer calls next to its attention.
What it adds is the output of the smallest suitable module around the last matrix that is called. A
module is suitable if the layer's result stays the same when its output is held while every other
matrix of the layer puts out something else. This is tried on a few tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from torch import Tensor, nn

from attnviz.engine.forward_pass import nearly_equal
from attnviz.engine.hook_points import HookedCall, enclosing_block, first_of, hooked, with_first
from attnviz.engine.patchable import PatchableModel, Untouched, run_pass
from attnviz.errors import UnsupportedError
from attnviz.records import Input

_OTHERWISE = 3.0
"""The number that the trial adds to the outputs of the other matrices."""


@dataclass(frozen=True)
class _Layer:
    """The modules of one model layer outside of its attention.

    block: the module around them. modules: all of them.
    matrices: those with weights of two or more axes.
    outer: the next larger module around each one, by its ``id``, up to the block.
    """

    block: nn.Module
    modules: Sequence[nn.Module]
    matrices: Sequence[nn.Module]
    outer: Mapping[int, nn.Module]

    def around(self, module: nn.Module) -> Iterator[nn.Module]:
        """Yield the module, then each module around it up to the block."""
        while module is not self.block:
            yield module
            module = self.outer[id(module)]


def find_feed_forward(model: PatchableModel, probe: Input) -> dict[int, nn.Module]:
    """Return by layer the module whose (first) output feed-forward adds to the residual stream.

    model: inside ``HookPoints.borrowed``. probe: a few tokens to try it on. Layers that share a
    module have the same entry. Raises UnsupportedError if a module cannot be determined.
    """
    layers, plain = _layers(model), Outputs()
    inner = (module for layer in layers.values() for module in (*layer.modules, layer.block))
    plain.run(model, probe, dict.fromkeys(inner))
    candidates = {number: _candidates(layer, plain) for number, layer in layers.items()}
    while all(candidates.values()):
        chosen = {number: modules[0] for number, modules in candidates.items()}
        wrong = _first_wrong(model, probe, layers, chosen, plain)
        if wrong is None:
            return chosen
        kinds = [*map(type, candidates[wrong])]
        for modules in candidates.values():
            if [*map(type, modules)] == kinds:
                del modules[0]
    raise _unknown(model, "what a layer adds does not come out of one module")


def find_last_matrices(
    model: PatchableModel, probe: Input
) -> dict[int, tuple[nn.Module, Sequence[nn.Module]]]:
    """Return each layer's last matrix beside its attention, and all; or UnsupportedError."""
    layers, plain = _layers(model), Outputs()
    matrices = (module for layer in layers.values() for module in layer.matrices)
    plain.run(model, probe, dict.fromkeys(matrices))
    return {
        number: (max(layer.matrices, key=lambda own: plain.last.get(id(own), -1)), layer.matrices)
        for number, layer in layers.items()
    }


def _layers(model: PatchableModel) -> dict[int, _Layer]:
    points = (point for point in model.hook_points.calls if point.kind == model.kind)
    return {point.layer: _layer(model, point) for point in points}


def _candidates(layer: _Layer, plain: Outputs) -> list[nn.Module]:
    """Return the last matrix called and modules around it that put out the stream's shape."""
    last = max(layer.matrices, key=lambda module: plain.last.get(id(module), -1))
    stream = plain.of[id(layer.block)][0].shape
    called = (module for module in layer.around(last) if id(module) in plain.of)
    shapes = stream, stream[1:]
    return [own for own in called if all(x.shape in shapes for x in plain.of[id(own)])]


def _first_wrong(
    model: PatchableModel,
    probe: Input,
    layers: Mapping[int, _Layer],
    chosen: Mapping[int, nn.Module],
    plain: Outputs,
) -> int | None:
    """Return a layer that changes while only its chosen module's output is held; or None."""
    calls: Counter[int] = Counter()

    def hold(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        calls[id(module)] += 1
        return with_first(output, plain.of[id(module)][calls[id(module)] - 1].clone())

    def disturb(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        tensor = first_of(output)
        if tensor is None or not tensor.is_floating_point():
            return output
        return with_first(output, tensor + _OTHERWISE)

    held, seen = set(chosen.values()), Outputs()
    matrices = dict.fromkeys(own for layer in layers.values() for own in layer.matrices)
    with (
        hooked(*(module.register_forward_hook(hold) for module in held)),
        hooked(*(own.register_forward_hook(disturb) for own in matrices if own not in held)),
    ):
        seen.run(model, probe, dict.fromkeys(layer.block for layer in layers.values()))
    for number, layer in layers.items():
        ends = zip(seen.of[id(layer.block)], plain.of[id(layer.block)], strict=True)
        if not all(nearly_equal(*both) for both in ends):
            return number
    return None


def _layer(model: PatchableModel, point: HookedCall) -> _Layer:
    """Return the modules of the innermost block around an attention with matrices outside of it."""
    around = enclosing_block(model.root)
    attention = {id(point.module) for point in model.hook_points.calls}
    block = around.get(id(point.module))
    while block is not None:
        outer: dict[int, nn.Module] = {}
        others = list(_others(block, block, attention, outer))
        matrices = [
            module
            for module in others
            if not isinstance(module, nn.Embedding)
            and any(weight.ndim > 1 for weight in module.parameters(recurse=False))
        ]
        if matrices:
            return _Layer(block, others, matrices, outer)
        block = around.get(id(block))
    raise _unknown(model, f"layer {point.layer} has no matrices beside its attention")


def _others(
    module: nn.Module, around: nn.Module, attention: set[int], outer: dict[int, nn.Module]
) -> Iterator[nn.Module]:
    """Yield the modules inside ``module`` that contain no attention."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from _others(child, around, attention, outer)
        elif attention.isdisjoint(map(id, child.modules())):
            outer[id(child)] = around
            yield child
            yield from _others(child, child, attention, outer)


class Outputs:
    """Records the first tensor of chosen modules' calls, and the index of each one's last call."""

    def __init__(self) -> None:
        self.of: dict[int, list[Tensor]] = {}
        self.last: dict[int, int] = {}

    def run(self, model: PatchableModel, probe: Input, modules: Iterable[nn.Module]) -> None:
        """Run the model once, and record the outputs of these modules."""

        def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            tensor = first_of(output)
            if tensor is not None:
                self.of.setdefault(id(module), []).append(tensor.clone())
                self.last[id(module)] = next(numbers)

        numbers = count()
        with hooked(*(module.register_forward_hook(keep) for module in modules)):
            run_pass(model, probe, Untouched())


def _unknown(model: PatchableModel, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"the feed-forward blocks of {type(model.root).__name__} were not recognised ({why}): "
        f"only what its attention does and its residual stream can be patched"
    )
