"""Find the output projections of a transformers model, the linear maps that read its heads.

They are the first linear maps that run after the softmax of attention, found by a short run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.engine.attention_calls import SoftmaxWatch, borrowed
from attnviz.engine.forward_pass import ForwardPass, nearly_equal, plan_pass
from attnviz.engine.hook_points import Function, hooked
from attnviz.engine.linear_map import linear_maps, matrix_of, weight_axis
from attnviz.errors import UnsupportedError
from attnviz.models.cut_tensors import OutputProjection
from attnviz.models.split import whole_weight
from attnviz.models.transformers_model import TransformersModel
from attnviz.models.whole import embedding_rows, linear_size
from attnviz.records import Kind

_LENGTH = 7
_NUMBER = re.compile(r"\.(\d+)\.")


@torch.inference_mode()
def find_output_projections(model: TransformersModel) -> dict[int, OutputProjection]:
    """Return the output projection of each layer of the model's default kind of attention.

    A module that serves several layers is returned for each. Raises UnsupportedError if a layer has
    no linear map as wide as its heads together.
    """
    whole = model.model
    ids = torch.arange(_LENGTH)[None] % embedding_rows(whole)
    forward = plan_pass(whole, {model.kinds[0]}, ids)
    names = {id(module): name for name, module in whole.named_modules()}
    probe = _MapsAfterSoftmax()
    with (
        borrowed(whole, "eager"),
        hooked(*(module.register_forward_pre_hook(probe.pass_by) for module in whole.modules())),
        linear_maps(forward.module, probe.enter),
        probe,
    ):
        forward.run()
    projections: list[OutputProjection] = []
    named = ""
    for module, around, merged in probe.maps:
        projection = _described(names, module, around, merged, model.info.heads)
        if projection is None:
            named = f", but through a {type(module).__module__}.{type(module).__name__}"
            break
        projections.append(projection)
    if not projections or named:
        raise UnsupportedError(
            f"{type(whole).__name__} does not read its heads through a linear map of their width"
            f"{named}: what each head writes cannot be told, and none can be removed for good"
        )
    numbers = [_NUMBER.search(f".{projection.module}.") for projection in projections]
    layers = [int(number[1]) for number in numbers if number is not None]
    if not len(set(layers)) == len(layers) == len(projections):  # a module serves several layers
        layers = list(range(len(projections)))
    return dict(zip(layers, projections, strict=True))


class _MapsAfterSoftmax(SoftmaxWatch):
    """Records the linear maps of a pass that run first after a softmax of attention."""

    def __init__(self) -> None:
        super().__init__(1, {_LENGTH, _LENGTH + 1})  # a sink stands next to the keys
        self._mixed = False
        self._entered: list[tuple[nn.Module, Any]] = []
        self.maps: list[tuple[nn.Module, list[nn.Module], Tensor]] = []

    def notice(self, scores: Sequence[int], compute: Callable[[], Tensor]) -> Tensor:
        self._mixed, self._entered = True, []
        return compute()

    def pass_by(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._mixed and len(args) == 1:
            self._entered.append((module, args[0]))

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Record a linear map that follows a softmax, and modules around it that get the same."""
        if self._mixed and args:
            same = [outer for outer, given in self._entered if given is args[0]]
            around = [outer for outer in same if outer is not module and module in outer.modules()]
            self.maps.append((module, around, args[0]))
            self._mixed = False


def _described(
    names: Mapping[int, str], module: nn.Module, around: list[nn.Module], merged: Tensor, heads: int
) -> OutputProjection | None:
    """Return the projection that a linear map or its wrapper is; None if it reads no heads."""
    size = linear_size(module)
    if size is None or size[0] % heads:
        return None
    for outer in around:
        output = outer.forward(merged)
        if isinstance(output, Tensor) and not nearly_equal(output, module.forward(merged)):
            with suppress(UnsupportedError):  # what is not linear is no projection
                matrix_of(outer, merged, size[0])
                return OutputProjection(names[id(outer)], 1, False)
    axis = weight_axis(module)
    return OutputProjection(names[id(module)], 1 if axis is None else axis, axis is not None)


class ValueNorms:
    """Measures ‖v_j W_O^h‖₂ of a transformers model, whose output projections a short run finds."""

    def __init__(self, model: TransformersModel) -> None:
        self._model = model
        self._projections = find_output_projections(model)
        self._matrices: dict[int, Tensor] = {}

    def mixed(self, forward: ForwardPass) -> MixedValues:
        """Return what records the values of a pass of a model that computes attention itself."""
        get = self._model.model.get_submodule
        return MixedValues(forward, {at: get(own.module) for at, own in self._projections.items()})

    def of(self, kind: Kind, layer: int, heads: int, value: Tensor) -> Tensor:
        """Return ‖v_j W_O^h‖ (text, head, key); UnsupportedError for another kind of attention."""
        projection = self._projections.get(layer)
        if kind != self._model.kinds[0] or projection is None:
            raise UnsupportedError(
                f"the output projections of {self._model.info.name!r} are known for its "
                f"{self._model.kinds[0]} attention only: choose another view"
            )
        module: Any = self._model.model.get_submodule(projection.module)
        if not projection.plain and layer not in self._matrices:
            self._matrices[layer] = matrix_of(module, value, heads * value.shape[-1])
        weight = self._matrices.get(layer)  # (heads · dim, output)
        if weight is None:
            weight = whole_weight(module).movedim(projection.axis, 0)
        output = weight.unflatten(0, (heads, -1)).float()
        if output.shape[1] != value.shape[-1]:
            raise UnsupportedError(
                f"the values of {self._model.info.name!r} are {value.shape[-1]} wide, its output "
                f"projection reads {output.shape[1]} of each head: choose another view"
            )
        groups = heads // value.shape[1]
        by_head = ((value[:, at // groups].float() @ output[at]) for at in range(heads))
        return torch.stack([written.norm(dim=-1) for written in by_head], dim=1)


_PRODUCTS = {torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__}


class MixedValues(SoftmaxWatch):
    """Records the values that each layer's weights multiply: the product behind a softmax."""

    def __init__(self, forward: ForwardPass, projections: Mapping[int, nn.Module]) -> None:
        super().__init__(forward.batch, forward.lengths)
        self._projections = projections
        self._shape: tuple[int, ...] = ()
        self._value: Tensor | None = None
        self._mixed: dict[int, tuple[Tensor, Tensor]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the values of the passes that run inside this context."""
        by_module: dict[nn.Module, list[int]] = {}
        for layer, module in self._projections.items():
            by_module.setdefault(module, []).append(layer)

        def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
            if self._value is not None:
                self._mixed[by_module[module].pop(0)] = self._value, args[0]
            self._value = None

        with hooked(*(module.register_forward_pre_hook(enter) for module in by_module)), self:
            yield

    def notice(self, scores: Sequence[int], compute: Callable[[], Tensor]) -> Tensor:
        self._shape, self._value = tuple(scores[-2:]), None
        return compute()

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._shape and func in _PRODUCTS and args[0].shape[-2:] == self._shape:
            self._shape, self._value = (), args[1]
        return super().call(func, args, kwargs)

    def of(self, layer: int, weights: Tensor) -> Tensor | None:
        """Return a layer's values (text, key/value head, key, dim) if weights mix them; or None."""
        texts, heads, _, keys = weights.shape
        if layer not in self._mixed or self._mixed[layer][0].shape[-2] != keys:
            return None
        value, merged = self._mixed[layer]
        value = value.reshape(texts, -1, *value.shape[-2:])
        if heads % value.shape[1]:
            return None
        outputs = weights.to(value.dtype) @ value.repeat_interleave(heads // value.shape[1], 1)
        return value if nearly_equal(outputs.transpose(1, 2).flatten(2), merged) else None
