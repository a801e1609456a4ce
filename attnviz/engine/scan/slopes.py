"""Estimate patches to first order in torch: one forward and one backward pass for all of them.

Nanda 2023, "Attribution Patching: Activation Patching At Industrial Scale".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from attnviz.engine.hook_points import HookedCall
from attnviz.engine.patchable import Untouched
from attnviz.engine.patching import Patch, PatchMetric, What
from attnviz.engine.replacing import values_of
from attnviz.engine.scan.on_torch import TorchRunner
from attnviz.engine.scan.patching import Measured, PatchWork
from attnviz.models.split import whole_modules
from attnviz.records import Kind


class Slopes:
    """Estimates the effects of patches on a torch model from the gradient of the metrics."""

    def __init__(self, runner: TorchRunner) -> None:
        self._runner = runner

    def estimated(self, work: PatchWork, patches: Sequence[Patch]) -> Measured:
        """Return the estimated metrics M + ⟨∂M/∂z, z of the other run − z⟩ for each patch.

        z are the values at the patch's sites. work: the prompt pair, with M and z of its base run.
        Each metric is an array (patch,).
        """
        runner, zeros = self._runner, _Zeros(self._runner.kind, work.what)
        with runner.open(learning=True), whole_modules(runner.model.root):
            logits = runner.logits_alone(work.base.given, work.base.position, work.what, zeros)
            return _first_order(work, patches, logits.double(), zeros.added)


def _first_order(
    work: PatchWork,
    patches: Sequence[Patch],
    logits: Tensor,
    zeros: dict[tuple[What, int], Tensor],
) -> Measured:
    scores = logits.log_softmax(-1)
    clean = torch.from_numpy(work.clean.logits).to(logits.device).log_softmax(-1)
    measures: dict[PatchMetric, Tensor] = {
        "log_prob": scores[work.answer],
        "kl": (clean.exp() * (clean - scores)).sum(),
    }
    if work.foil is not None:
        measures["logit_diff"] = logits[work.answer] - logits[work.foil]
    found: Measured = {}
    for name, value in measures.items():
        slope = torch.autograd.grad(
            value, list(zeros.values()), retain_graph=True, allow_unused=True
        )
        of = {
            place: torch.zeros_like(zero[0]) if each is None else each[0]
            for (place, zero), each in zip(zeros.items(), slope, strict=True)
        }
        changes = [
            sum(
                float(
                    (values_of(of, site) * (values_of(work.held, site) - values_of(work.own, site)))
                    .double()
                    .sum()
                )
                for site in patch.sites
            )
            for patch in patches
        ]
        found[name] = work.plain(work.base)[name] + np.array(changes)
    return found


class _Zeros(Untouched):
    """Adds zeros to the values of a run, so that metrics can be differentiated by these values.

    kind: the attention whose values these are. what: the kinds of values.
    added: these zeros, (1, token, head, dim), by kind and layer.
    """

    def __init__(self, kind: Kind, what: Collection[What]) -> None:
        self._kind = kind
        self._what = what
        self.added: dict[tuple[What, int], Tensor] = {}

    def edit_rows(self, point: HookedCall, outputs: Tensor, first: int) -> Tensor:
        if point.kind != self._kind or point.what not in self._what:
            return outputs
        zeros = self.added[point.what, point.layer] = torch.zeros_like(outputs, requires_grad=True)
        return outputs + zeros
