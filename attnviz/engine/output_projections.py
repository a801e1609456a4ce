"""Find where each layer reads its heads: the first linear map entered after attention's softmax."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.engine.forward_pass import plan_pass
from attnviz.engine.model_state import borrowed
from attnviz.engine.stray_attention import SoftmaxWatch
from attnviz.errors import UnsupportedError
from attnviz.models.cut_tensors import OutputProjection
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Kind

__all__ = ["find_output_projections"]

_LENGTH = 7
_NUMBER = re.compile(r"\.(\d+)\.")


@torch.inference_mode()
def find_output_projections(model: TransformersModel) -> dict[int, OutputProjection]:
    """The output projection of each layer of the model's default kind of attention.

    One short run; the model is left as it was. Layers are numbered as the model numbers them; where
    one module serves several layers, each names it.

    Raises UnsupportedError where none is found whose input is as wide as the heads together.
    """
    whole = model.model
    ids = torch.arange(_LENGTH)[None] % whole.get_input_embeddings().num_embeddings
    forward = plan_pass(whole, _Wish(model.kinds[0]), ids, None, None)
    names = {id(module): name for name, module in whole.named_modules()}
    probe = _Probe(_LENGTH)
    with borrowed(whole, "eager"), _entered(forward.module, probe.enter), probe:
        forward.run()
    found = [_described(names[id(module)], module, model.info.heads) for module in probe.found]
    if not found or any(projection is None for projection in found):
        raise UnsupportedError(
            f"{type(whole).__name__} does not read its heads through a linear map of their width: "
            "they cannot be removed for good"
        )
    projections = [projection for projection in found if projection is not None]
    return dict(zip(_layers([entry.module for entry in projections]), projections, strict=True))


class _Wish:
    """An observer that wants one kind of attention, and nothing of it."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self._kind

    def observe(self, kind: Kind, layer: int, weights: Any) -> None:
        return


class _Probe(SoftmaxWatch):
    """Notices each linear map that is the first to be entered after attention's softmax."""

    def __init__(self, length: int) -> None:
        super().__init__(1, {length, length + 1})  # a sink stands beside the keys
        self._mixed = False
        self.found: list[nn.Module] = []

    def notice(self, scores: Sequence[int], compute: Callable[[], Tensor]) -> Tensor:
        self._mixed = True
        return compute()

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Before any linear map runs."""
        if self._mixed:
            self.found.append(module)
            self._mixed = False


@contextmanager
def _entered(root: nn.Module, act: Callable[[nn.Module, tuple[Any, ...]], None]) -> Iterator[None]:
    with ExitStack() as hooks:
        for module in root.modules():
            weight = getattr(module, "weight", None)
            if isinstance(weight, Tensor) and weight.ndim == 2 and not _is_table(module):
                hooks.callback(module.register_forward_pre_hook(act).remove)
        yield


def _is_table(module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding)


def _described(name: str, module: nn.Module, heads: int) -> OutputProjection | None:
    # transformers' Conv1D, of GPT-2 and its kin, holds its weight as (input, output).
    axis = 1 if isinstance(module, nn.Linear) else 0
    if axis == 0 and not hasattr(module, "nf"):
        return None
    weight: Any = module.weight
    return None if weight.shape[axis] % heads else OutputProjection(name, axis)


def _layers(modules: list[str]) -> list[int]:
    """The number of each layer: that in its name, or its place where one module serves several."""
    numbers = [match[1] for module in modules if (match := _NUMBER.search(f".{module}."))]
    if len(set(numbers)) == len(modules):
        return [int(number) for number in numbers]
    return list(range(len(modules)))
