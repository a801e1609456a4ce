"""Gradient importance of heads: the slope of the loss with respect to a gate on each head's output.

Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 4.1: a gate ξ_h = 1
multiplies z_h; a head's importance is |∂loss/∂ξ_h|, averaged over texts. One forward and one
backward pass serve all heads. It is a first-order hint about which heads to measure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from attnviz.engine.hook_points import HookedCall
from attnviz.engine.patchable import PatchableModel, probe_of
from attnviz.engine.replacing import Held
from attnviz.engine.scan.plan import fused_activations, is_causal, require_own
from attnviz.engine.scan.runner import require_two, words_to_mask
from attnviz.errors import UsageError
from attnviz.models.split import whole_modules
from attnviz.records import Input

_IGNORED = -100
"""The label of a position that predicts no token."""


def gradient_importance(
    model: PatchableModel,
    inputs: Sequence[Input],
    *,
    replacements: Held | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> dict[tuple[int, int], float]:
    """Return the gradient importance |∂loss/∂ξ| of each (layer, head), in nats per token.

    ξ, a gate, multiplies the head's output and is 1 in the model. replacements: the outputs at a
    gate of zero; None means zero. enough: called after each text; True ends. Raises UsageError
    without a loss.
    """
    if model.head is None:
        raise UsageError("this model has no language-model head: there is no loss to differentiate")
    total: Tensor | None = None
    done = 0
    for done, given in enumerate(inputs, start=1):
        if not model.ours:
            with torch.inference_mode(), model.hook_points.borrowed():
                require_own(model, given)
        gradient = _gradient(model, given, replacements).abs()
        total = gradient if total is None else total + gradient
        if on_progress is not None:
            on_progress(done, len(inputs))
        if enough():
            break
    if total is None:
        raise UsageError("no text to take a gradient over: expected at least one")
    places = [(layer, head) for layer, heads in model.heads.items() for head in range(heads)]
    return dict(zip(places, (total / done).tolist(), strict=True))


def _gradient(model: PatchableModel, given: Input, replacements: Held | None) -> Tensor:
    """Return ∂loss/∂ξ (head,) over a text: at a gate ξ of zero a head puts out ``replacements``."""
    gates = _Gates(model, replacements)
    runs = _runs(model, given)
    total = torch.zeros(sum(model.heads.values()), dtype=torch.float64)
    with (
        model.hook_points.borrowed(),
        whole_modules(model.root),
        fused_activations(model.root),
        torch.enable_grad(),
        model.hook_points.intervening(gates),
    ):
        for run, at, wanted in runs:
            logits = model.run(run)
            if logits is None:
                raise UsageError("this model returns no logits: there is no loss")
            rows = logits.flatten(0, 1)
            rows = rows if rows.dtype == torch.float64 else rows.float()
            # Choosing rows by their index would copy them, and fill a gradient of all with zeros.
            words = torch.full((len(rows),), _IGNORED, device=rows.device)
            words[at] = torch.tensor(wanted, device=rows.device)
            loss = functional.cross_entropy(rows, words, ignore_index=_IGNORED)
            found = torch.autograd.grad(loss, gates.all, allow_unused=True)
            total += torch.cat(
                [
                    torch.zeros_like(gate) if slope is None else slope
                    for gate, slope in zip(gates.all, found, strict=True)
                ]
            ).cpu()
    return total / len(runs)


def _runs(model: PatchableModel, given: Input) -> list[tuple[Input, list[int], list[int]]]:
    """Return the passes (input, predicting positions, token ids): one, or one for each mask."""
    read = given.predicted.ids
    with torch.inference_mode(), model.hook_points.borrowed():
        causal = is_causal(model, probe_of(given))
    if causal:
        require_two(given)
        words = [(at, own) for at, own in enumerate(given.predicted.predictable[1:]) if own >= 0]
        return [(given, [at for at, _ in words], [own for _, own in words])]
    mask = model.mask_id
    if mask is None:
        raise UsageError("this model is bidirectional and has no mask token: there is no loss")
    return [(given.masked(at, mask), [at], [read[at]]) for at in words_to_mask(given, mask)]


class _Gates:
    """Multiplies each head's output in a pass by its gate, which is one."""

    def __init__(self, model: PatchableModel, replacements: Held | None) -> None:
        self._kind = model.kind
        self._replacements = replacements
        self._gates = {
            layer: torch.ones(heads, device=model.device, requires_grad=True)
            for layer, heads in model.heads.items()
        }

    @property
    def all(self) -> list[Tensor]:
        return list(self._gates.values())

    def edit(self, number: int, point: HookedCall, outputs: Tensor) -> Tensor:
        if point.kind != self._kind:
            return outputs
        gate = self._gates[point.layer][:, None].to(outputs.dtype)
        if self._replacements is None:
            return outputs * gate
        replacement = torch.as_tensor(self._replacements["output", point.layer]).to(outputs)
        return replacement + (outputs - replacement) * gate
