"""Gradient importance of heads: the slope of the loss in a gate on each head's output.

Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 4.1: a gate ξ_h = 1
multiplies z_h; a head matters by |∂loss/∂ξ_h|, averaged over texts. One forward and one backward
pass for all heads. First order only: a hint which heads to measure, never the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from attnviz.engine.ablation import StandIns
from attnviz.engine.patchable import Passage, Subject
from attnviz.engine.scan.activation import fused_activations
from attnviz.engine.scan.plan import is_causal, require_own
from attnviz.engine.sites import Site
from attnviz.errors import UsageError

__all__ = ["Reduction", "gradient_importance"]

Reduction = Literal["text", "batch"]
"""Take the absolute value for each text and then the mean, or of the mean over the texts."""

_IGNORED = -100
"""In place of the word at a position that predicts none."""


def gradient_importance(
    subject: Subject,
    passages: Sequence[Passage],
    *,
    special: Sequence[tuple[bool, ...]] = (),
    stand_ins: StandIns | None = None,
    reduction: Reduction = "text",
    removed: Collection[tuple[int, int]] = (),
    normalise: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> dict[tuple[int, int], float]:
    """|∂loss/∂ξ| of each (layer, head), nats per token.

    special: which tokens of each text were added; a masked model is not asked for them.
    stand_ins: what a gate of zero would put in the head's place; None is zero.
    removed: (layer, head) pairs whose gates are zero already; their own slope is there as well.
    normalise: divide by the layer's L2 norm, as Molchanov et al. 2017 do.
    on_progress: called as (done, total) in texts.
    enough: asked after each text; True leaves out those that follow.

    The model is left as it was. Raises UsageError where it has no language-model head, or a text
    is too short for a loss.
    """
    if subject.head is None:
        raise UsageError("this model has no language-model head: there is no loss to differentiate")
    total: Tensor | None = None
    done = 0
    for done, passage in enumerate(passages, start=1):
        if not subject.ours:
            with torch.inference_mode(), subject.sites.borrowed():
                require_own(subject, passage)
        marks = special[done - 1] if special else (False,) * len(passage.predicted)
        gradient = _gradient(subject, passage, marks, stand_ins, removed)
        if reduction == "text":
            gradient = gradient.abs()
        total = gradient if total is None else total + gradient
        if on_progress is not None:
            on_progress(done, len(passages))
        if enough():
            break
    if total is None:
        raise UsageError("no text to take a gradient over: expected at least one")
    scores = dict(zip(_places(subject), (total.abs() / done).tolist(), strict=True))
    return _normalised(scores) if normalise else scores


def _places(subject: Subject) -> list[tuple[int, int]]:
    return [(layer, head) for layer, heads in subject.heads.items() for head in range(heads)]


def _normalised(scores: Mapping[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    squares: dict[int, float] = {}
    for (layer, _), score in scores.items():
        squares[layer] = squares.get(layer, 0.0) + score * score
    return {
        (layer, head): score / squares[layer] ** 0.5 if squares[layer] else 0.0
        for (layer, head), score in scores.items()
    }


def _gradient(
    subject: Subject,
    passage: Passage,
    special: tuple[bool, ...],
    stand_ins: StandIns | None,
    removed: Collection[tuple[int, int]],
) -> Tensor:
    """∂loss/∂ξ of every head over one text, in the order of ``_places``."""
    gates = _Gates(subject, stand_ins, removed)
    runs = _runs(subject, passage, special)
    total = torch.zeros(sum(subject.heads.values()), dtype=torch.float64)
    with (
        subject.sites.borrowed(),
        fused_activations(subject.root),
        torch.enable_grad(),
        subject.sites.editing(gates),
    ):
        for run, at, wanted in runs:
            logits = subject.run(run)
            if logits is None:
                raise UsageError("this model puts out no logits: there is no loss")
            rows = logits.flatten(0, 1)
            rows = rows if rows.dtype == torch.float64 else rows.float()
            # Choosing rows by their index would copy them, and fill a gradient of all with zeros.
            words = torch.full((len(rows),), _IGNORED, device=rows.device)
            words[at] = torch.tensor(wanted, device=rows.device)
            loss = functional.cross_entropy(rows, words, ignore_index=_IGNORED)
            found = torch.autograd.grad(loss, gates.all, allow_unused=True)
            total += torch.cat(
                [
                    torch.zeros(gate.numel()).double() if slope is None else slope.double().cpu()
                    for gate, slope in zip(gates.all, found, strict=True)
                ]
            )
    return total / len(runs)


def _runs(
    subject: Subject, passage: Passage, special: tuple[bool, ...]
) -> list[tuple[Passage, list[int], list[int]]]:
    """Passes, their positions that predict a token, and these tokens."""
    read = passage.predicted
    if not _is_masked(subject, passage):
        if len(read) < 2:
            raise UsageError(
                f"a text of {len(read)} token is too short for a loss: expected at least 2"
            )
        return [(passage, list(range(len(read) - 1)), list(read[1:]))]
    if subject.mask_id is None:
        raise UsageError("this model reads both ways and has no mask token: there is no loss")
    words = [at for at, added in enumerate(special) if not added and read[at] != subject.mask_id]
    if not words:
        raise UsageError("the text has no word that could be masked: expected at least 1")
    return [(passage.masked(at, subject.mask_id), [at], [read[at]]) for at in words]


def _is_masked(subject: Subject, passage: Passage) -> bool:
    with torch.inference_mode(), subject.sites.borrowed():
        return not is_causal(subject, passage.probe())


class _Gates:
    """An editor that multiplies each head's output by its gate: one, or zero where removed."""

    def __init__(
        self,
        subject: Subject,
        stand_ins: StandIns | None,
        removed: Collection[tuple[int, int]],
    ) -> None:
        self._kind = subject.kind
        self._stand_ins = stand_ins
        self._gates = {
            layer: torch.tensor(
                [float((layer, head) not in removed) for head in range(heads)],
                device=subject.device,
                requires_grad=True,
            )
            for layer, heads in subject.heads.items()
        }

    @property
    def all(self) -> list[Tensor]:
        return list(self._gates.values())

    def edit(self, number: int, site: Site, outputs: Tensor) -> Tensor:
        if site.kind != self._kind:
            return outputs
        gate = self._gates[site.layer][:, None].to(outputs.dtype)
        if self._stand_ins is None:
            return outputs * gate
        stand_in = self._stand_ins[site.layer].to(outputs)
        return stand_in + (outputs - stand_in) * gate
