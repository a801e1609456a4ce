"""Whether an observed pass is the model's own: it must end in what a plain pass ends in.

Each model is tried on the first text of every length class (up to 2, 4, 8 … tokens), by a second
pass over the same text that nobody watches. Rounding errors are taken as independent, so that they
grow with the root of their number (Higham & Mary 2019, "A New Approach to Probabilistic Rounding
Error Analysis").
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attnviz.errors import LoadError, UnsupportedError

if TYPE_CHECKING:  # the library's own decoder does without transformers
    from attnviz.engine.attention_calls import AttentionCall
    from attnviz.engine.forward_pass import ForwardPass

_STORED = 4
"""Results of one attention that are rounded one after another: scores, exponents, weights, sums."""

_known: WeakKeyDictionary[nn.Module, set[tuple[Any, ...]]] = WeakKeyDictionary()
"""By model what was compared already: kinds of attention, way of observing, length class."""


class PlainCheck:
    """Compares one pass with a plain one, if none of this length class was compared before.

    forward: the pass. way: how it is observed. exact: whether it takes the model's own steps, so
        that it ends in the same bits.
    Texts with padding are not compared: their padded rows differ, and mean nothing.
    """

    def __init__(self, forward: ForwardPass, way: str, *, exact: bool = True) -> None:
        self._forward = forward
        self._place = (forward.kinds, way, length_class(max(forward.lengths)))
        known = _known.setdefault(forward.model, set())
        padded = "attention_mask" in forward.inputs
        self._is_due = forward.compare and not padded and self._place not in known
        self._exact = exact
        self._plain: Tensor | None = None

    def begin(self) -> PlainCheck:
        """Run plainly, in the model as it is borrowed now; without this ``end`` does."""
        if self._is_due:
            self._plain = _last_hidden(_run(self._forward))
        return self

    def call(self, call: AttentionCall, output: Tensor) -> None:
        """Hold one call's output (batch, query, heads, dims) against that of the own function."""
        if not (self._is_due and call.found.is_fused):
            return
        own = call.own()[0]
        self._exact &= torch.equal(own, output)
        if not _agree(call, output, own):
            raise self._refused("its attention function gives other numbers")

    def weights(self, call: AttentionCall, start: int, weights: Tensor, output: Tensor) -> None:
        """Hold recomputed weights (batch, head, rows, keys) of the queries from ``start`` on
        against the call's output (batch, query, heads, dims), which is their mean of the values."""
        if not self._is_due:
            return
        rows, seen = weights.shape[-2:]
        value = call.value[:, :, :seen].repeat_interleave(
            weights.shape[1] // call.value.shape[1], 1
        )
        mean = (weights @ value.to(weights.dtype)).transpose(1, 2)
        if not _agree(call, mean, output[:, start : start + rows]):
            raise self._refused("its weights are no plain softmax")

    def end(self, output: Any) -> None:
        """Hold what the pass returned against what the plain one did."""
        if self._is_due and self._plain is None:
            self.begin()
        if self._plain is None:
            return
        found, plain = _last_hidden(output), self._plain
        if not ends_alike(self._forward.module, found, plain, exact=self._exact):
            raise self._refused("it ends in other numbers")
        _known[self._forward.model].add(self._place)

    def _refused(self, why: str) -> UnsupportedError:
        return not_its_own(self._forward.model, why)


def length_class(tokens: int) -> int:
    """Which of the classes up to 1, 2, 4, 8 … tokens a length falls into."""
    return (tokens - 1).bit_length()


def not_its_own(model: nn.Module, why: str) -> UnsupportedError:
    """The refusal of a model that does not run plainly while it is observed."""
    return UnsupportedError(
        f"{type(model).__name__} computes something else while it is observed than when it runs "
        f"plainly ({why}): nothing of it can be shown, choose another model"
    )


def ends_alike(module: nn.Module, found: Tensor, plain: Tensor, *, exact: bool) -> bool:
    """Whether two passes of ``module`` over one text end in the same hidden states.

    exact: bit for bit, at least on a CPU: elsewhere sums change their order from run to run.
    Otherwise the middle one of the tokens may differ by rounding; for a router may send single
    tokens to other experts for the last bit of a number.
    Tokens of which ``found`` has no numbers are left out: functions overflow at different places,
    and what is no number is never shown as one.
    """
    if found.shape != plain.shape:
        return False
    known = found.isfinite().all(-1)
    found, plain = found[known], plain[known]
    same = found == plain
    if bool(same.all()) or (exact and plain.device.type == "cpu"):
        return bool(same.all())
    # Half precision sums in float32: there only what is stored counts.
    wide = plain.dtype in (torch.float32, torch.float64)
    roundings = sum(
        _STORED + (weight.shape[-1] if wide and weight.ndim else 0)
        for part in module.modules()
        for weight in part.parameters(recurse=False)
    )
    apart = (found - plain).masked_fill(same, 0).double().norm(dim=-1)
    allowed = _epsilon(plain) * math.sqrt(roundings) * plain.nan_to_num().double().norm(dim=-1)
    return bool((apart <= allowed).double().mean() >= 0.5)


def _run(forward: ForwardPass) -> Any:
    """A plain pass; from now on without a cache of keys and values where it fails with one."""
    try:
        return forward.run()
    except LoadError:  # what a model raises for which the library's cache is not made, among others
        forward.leave_cache_out()
    return forward.run()


def _last_hidden(output: Any) -> Tensor:
    """The final hidden states, or the logits of a model without a trunk of its own."""
    hidden: Tensor = output if isinstance(output, Tensor) else output[0]
    return hidden


def _epsilon(tensor: Tensor) -> float:
    # transformers takes the softmax in float32, whatever the model.
    return max(torch.finfo(tensor.dtype).eps, torch.finfo(torch.float32).eps)


def _agree(call: AttentionCall, found: Tensor, own: Tensor) -> bool:
    """Whether two outputs of a call differ by rounding; also where the model has overflowed."""
    allowed = _rounding_of(call)
    near = ((found - own).abs() <= allowed) | (found.isnan() & own.isnan())
    return not math.isfinite(allowed) or bool(near.all())


def _rounding_of(call: AttentionCall) -> float:
    """How far two functions may be apart that round the same attention otherwise.

    A weight is off by what its score is off, relatively; a score by the rounding of its sum, of
    which the longest query and key bound the terms.
    """
    width, keys = call.query.shape[-1], call.key.shape[-2]
    scale = call.options.get("scaling")
    scale = width**-0.5 if scale is None else float(scale)
    largest = [float(part.norm(dim=-1).max()) for part in (call.query, call.key)]
    wide = call.query.dtype in (torch.float32, torch.float64)
    roundings = _STORED * (1 + (math.sqrt(width) + math.sqrt(keys) if wide else 1))
    scores = 1 + abs(scale) * largest[0] * largest[1]
    return math.prod((_epsilon(call.query), roundings, scores, float(call.value.abs().max())))
