"""A model that is verified: what it must be able to run, and functions that compare two runs."""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnviz.engine.observer import BlockFacts, to_numpy
from attnviz.learn.verify.head_sums import HeadSum
from attnviz.models.model import Model
from attnviz.records import Input, Kind

Maps: TypeAlias = Mapping[tuple[Kind, int], NDArray[np.floating]]
"""The attention weights (head, query, key) by kind of attention and layer."""

Outputs: TypeAlias = NDArray[np.float64]
"""The last hidden states or logits of one text: (token, width)."""

Difference: TypeAlias = tuple[float, str]
"""The largest absolute difference, and the head of it."""

Side = Literal["right", "left"]

_Numbers = TypeVar("_Numbers")

PADDED = 3
"""Number of padding tokens in the padding check."""

_HOOKS = ("forward", "forward_pre", "backward", "backward_pre", "state_dict")


@dataclass(frozen=True, eq=False)
class ReferenceRun(Generic[_Numbers]):
    """The attention weights or the outputs of the same run, computed in another way.

    name: of that way. numbers: the weights or outputs.
    exact: whether its operations are the same, so that no bit may differ.
    """

    name: str
    numbers: _Numbers
    exact: bool = False


@dataclass(frozen=True, eq=False)
class Padded:
    """The results of a run over a text with padding, for its real tokens only.

    side: where the padding stood, left or right. maps, outputs: of the real tokens.
    on_padding: the largest attention weight of a real token on padding, and its head.
    """

    side: Side
    maps: Maps
    outputs: Outputs
    on_padding: Difference


class Examinee(ABC):
    """A model to be verified on one text, with the ways to run it; a base class.

    root: the model's torch module, or the torch twin of a NumPy model. passage: the text.
    kinds: the kinds of attention of a run. causal: those that must not see later tokens.
    rounds_in: the dtype of its least exact steps, from which tolerances are derived.
    """

    kinds: tuple[Kind, ...]
    causal: tuple[Kind, ...] = ()

    def __init__(self, model: Model, root: nn.Module, passage: Input) -> None:
        self.info = model.info
        self.root = root
        self.passage = passage
        self.rounds_in = model.info.dtype
        self._context = model.context

    @abstractmethod
    def observe(self, passage: Input) -> tuple[Maps, Outputs]:
        """Return the weights that attnviz observes over a passage, and the outputs meanwhile."""

    @abstractmethod
    def references(self) -> list[ReferenceRun[Maps]]:
        """Return the attention weights over ``self.passage``, computed in other ways."""

    @abstractmethod
    def unobserved(self) -> list[ReferenceRun[Outputs]]:
        """Return the outputs over ``self.passage`` of runs without observation."""

    @abstractmethod
    def head_sums(self) -> tuple[tuple[HeadSum, ...], str]:
        """Return the sum of the heads' outputs for each attention module.

        Also returns why other modules have no sum, or "".
        """

    @abstractmethod
    def run_padded(self, ids: tuple[int, ...], real: slice) -> tuple[Maps, Outputs]:
        """Return the weights and outputs over ids of which only the ``real`` ones are no padding.

        The outputs of a decoder are those of its own text, which is not padded.
        """

    @abstractmethod
    def token_ids(self) -> list[int]:
        """Return the ids of the vocabulary that can stand in a text."""

    def sinks(self) -> Maps:
        """Return the attention share of learned sinks for each query, (head, query, 1).

        The keys are (kind, layer). The result is empty for a model without learned sinks.
        """
        return {}

    def sides(self) -> tuple[tuple[Side, ...], str]:
        """Return the sides of the text on which padding is possible, and why the other is not."""
        return ("right", "left"), ""

    def padding_ids(self) -> tuple[int, ...]:
        """Return the ids of the padding."""
        return self.other_ids(PADDED)

    @property
    def parameters(self) -> int:
        """Return the number of parameters, tied ones counted once."""
        return sum(weight.numel() for weight in self.root.parameters())

    @property
    def dropout(self) -> float:
        """Return the largest dropout probability that any module has in training."""
        rates = [0.0]
        for module in self.root.modules():
            if isinstance(module, nn.Dropout):
                rates.append(module.p)
            # Attention modules keep the probability as a number, without an nn.Dropout.
            rates += [
                value
                for name, value in vars(module).items()
                if "dropout" in name and isinstance(value, float) and 0 <= value < 1
            ]
        return max(rates)

    def other_ids(self, count: int) -> tuple[int, ...]:
        """Return ``count`` token ids of the vocabulary that can replace those of a text."""
        drawn = np.random.default_rng(0).permutation(self.token_ids())
        return tuple(int(drawn[at % len(drawn)]) for at in range(count))

    def padded(self) -> tuple[list[Padded], str]:
        """Return the runs over the text with padding on its right and left.

        Also returns why a side has no run, or "".
        """
        ids, length = self.passage.ids, len(self.passage.ids)
        if self._context is not None and length + PADDED > self._context:
            return [], "the text fills the context: there is no room for padding"
        sides, reason = self.sides()
        runs, padding = [], self.padding_ids()
        for side in sides:
            first = 0 if side == "right" else PADDED
            real = slice(first, first + length)
            maps, outputs = self.run_padded((*padding[:first], *ids, *padding[first:]), real)
            # Queries of these kinds are of the padded text; a decoder's own text is not padded.
            read: dict[tuple[Kind, int], NDArray[np.floating]] = {
                (kind, layer): weights[:, real] if kind in ("self", "encoder") else weights
                for (kind, layer), weights in maps.items()
                if kind != "decoder"
            }
            on_padding = furthest(
                (at, weights[..., [*range(first), *range(real.stop, length + PADDED)]])
                for at, weights in read.items()
            )
            cut = {at: weights[..., real] for at, weights in read.items()}
            outputs = outputs if "decoder" in self.kinds else outputs[real]
            runs.append(Padded(side, {**maps, **cut}, outputs, on_padding))
        return runs, reason

    @contextmanager
    def training(self) -> Iterator[None]:
        """Put the model in training mode while the context is open."""
        modes = [(module, module.training) for module in self.root.modules()]
        self.root.train()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode

    def state(self) -> dict[str, str]:
        """Return a digest (SHA-256), by name, of each part that observing must not change."""
        modules = list(self.root.named_modules())
        weights = list(self.root.named_parameters())
        configs: list[tuple[str, Any]] = [
            (name, getattr(module, "config", None)) for name, module in modules
        ]
        parts: dict[str, list[Any]] = {
            "parameters": [(name, _fingerprint(weight)) for name, weight in weights],
            "buffers": [(name, _fingerprint(buffer)) for name, buffer in self.root.named_buffers()],
            "gradients": [(name, w.requires_grad, w.grad is None) for name, w in weights],
            "hooks": [
                (name, kind, [*getattr(module, f"_{kind}_hooks", ())])
                for name, module in modules
                for kind in _HOOKS
            ],
            "training modes": [(name, module.training) for name, module in modules],
            "configs": [
                (name, config._attn_implementation, json.dumps(config.to_dict(), default=str))
                for name, config in configs
                if hasattr(config, "to_dict")
            ],
        }
        return {part: _digest(repr(values).encode()) for part, values in parts.items()}


def _fingerprint(tensor: Tensor) -> str:
    # As bytes, because NumPy has no bfloat16.
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{tuple(tensor.shape)} {tensor.dtype} {tensor.device} {_digest(flat)}"


def _digest(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


class KeepAll:
    """An observer that records the attention of all layers and kinds, for the first text."""

    norms = False

    def __init__(self) -> None:
        self.maps: dict[tuple[Kind, int], NDArray[np.floating]] = {}

    def wants(self, kind: Kind, layer: int) -> bool:
        return True

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Any, beside: BlockFacts
    ) -> None:
        # A copy, as the model may change its array in place later.
        if text == 0:
            self.maps[kind, layer] = np.array(to_numpy(weights))


def apart(one: Maps, other: Maps) -> Difference:
    """Return the largest difference between the attention weights of two runs, and its head.

    It is infinite if layers or shapes differ.
    """
    if set(one) != set(other):
        return math.inf, "other layers"
    return furthest((at, differences(one[at], other[at])) for at in one)


def differences(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    """Return absolute differences of two arrays; a single infinite one if the shapes differ."""
    if one.shape != other.shape:
        return np.full(1, math.inf)
    difference: NDArray[np.float64] = np.abs(one.astype(np.float64) - other.astype(np.float64))
    return difference


def furthest(numbers: Iterable[tuple[tuple[Kind, int], NDArray[Any]]]) -> Difference:
    """Return the largest number in all arrays, and the name of its head; NaN counts as largest.

    numbers: pairs of (kind of attention, layer) and an array (head, ...) of absolute numbers.
    """
    worst, where = 0.0, ""
    for (kind, layer), array in numbers:
        by_head = array.reshape(len(array), -1)
        if not by_head.size:
            continue
        peaks = by_head.max(-1)
        head = int(np.argmax(np.where(np.isnan(peaks), np.inf, peaks)))
        if math.isnan(peaks[head]) or peaks[head] > worst:
            worst = float(peaks[head])
            where = f"L{layer}H{head}" + ("" if kind == "self" else f" {kind}")
            if math.isnan(worst):
                break
    return worst, where


def score_spread(maps: Maps) -> float:
    """Return an estimate of how far attention scores differ, at least 1.

    It is −ln of the smallest attention weight above 0. An error of a score becomes a relative error
    of its weight, and larger scores round more.
    """
    least = [float(w[w > 0].min()) for w in maps.values() if bool((w > 0).any())]
    return max(1.0, -math.log(min(least, default=1.0)))
