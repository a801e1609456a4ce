"""Measure how much memory a pass of a torch model holds at most.

The peak is measured on one text without ablations; all growth is by the row. Elementwise work on a
large batch is limited by memory speed: transformers' own spelling of the tanh approximation of GELU
(Hendrycks & Gimpel 2016) passes over it six times. During a scan torch's fused function with the
same values replaces it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnviz.engine.device_sizes import sizes

_ACTIVATIONS = "transformers.activations"
_GELU_ROUNDING = 2e-6


def rows_at_once(blocks: Sequence[nn.Module], tokens: int) -> int:
    """Return on how many rows of so many tokens a block should be called at once to be fastest."""
    weights = [weight for block in blocks for weight in block.parameters() if weight.ndim > 1]
    buffer = sizes(weights[0].device.type).buffer_bytes if weights else None
    if buffer is None:
        return 1 << 30
    widest = max(max(weight.shape) for weight in weights)
    return max(1, buffer // (tokens * widest * weights[0].element_size()))


def peak_bytes(run: Callable[[], object], owned: Collection[nn.Module]) -> int:
    """Return the most bytes of tensors that ``run`` makes, but for parameters of ``owned``."""
    watch = _Watch(owned)
    with watch:
        run()
    return watch.peak


class _Watch(TorchDispatchMode):
    """Measures the peak of the memory that tensors use while it is active."""

    def __init__(self, owned: Collection[nn.Module]) -> None:
        TorchDispatchMode.__init__(self)
        self._alive = 0
        self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        for module in owned:
            for tensor in (*module.parameters(), *module.buffers()):
                self._known.add(tensor.untyped_storage())

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, so that torch does not load its compiler first, which takes a second."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        outputs = func(*args, **(kwargs or {}))
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor):
                self._count(output.untyped_storage())
        return outputs

    def _count(self, storage: Any) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        size = storage.nbytes()
        self._alive += size
        self.peak = max(self.peak, self._alive)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self._alive -= size


@contextmanager
def fused_activations(root: nn.Module) -> Iterator[None]:
    """Replace each tanh GELU under ``root`` by torch's equal fused function inside this context."""
    with ExitStack() as restored:
        for module in root.modules():
            plain = type(module).__module__ == _ACTIVATIONS and "forward" not in vars(module)
            if plain and _is_tanh_gelu(module):
                vars(module)["forward"] = _fused
                restored.callback(vars(module).pop, "forward")
        yield


def _fused(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def _is_tanh_gelu(module: nn.Module) -> bool:
    """Return True if the module computes the tanh approximation of GELU over the relevant range."""
    if next(module.parameters(), None) is not None:
        return False
    x = torch.linspace(-9, 9, 181)
    y = module(x)
    return isinstance(y, Tensor) and bool(((y - _fused(x)).abs() <= _GELU_ROUNDING).all())
