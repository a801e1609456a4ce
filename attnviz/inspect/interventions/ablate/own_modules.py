"""Ablate the heads of any ``nn.Module``, measured by a loss of the person's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnviz.engine.any_module import run_without
from attnviz.engine.effects import Metric, Scores, Variant
from attnviz.errors import UsageError
from attnviz.inspect.heads.own_modules import ModuleChoice, module_maps
from attnviz.inspect.interventions.ablate.ablate import ablation_effects, mean_baseline, metric_of
from attnviz.inspect.interventions.ablate.report import AblationReport
from attnviz.inspect.interventions.ablate.request import AblateRequest
from attnviz.measures.bootstrap import few_note
from attnviz.progress import UNWATCHED, Advance

_KEPT = {
    *("--layer", "--head", "--kind", "--together", "--mode", "--metric", "--top", "--index-base"),
    "--seed",
}

Loss = Callable[[Any], Any]
"""Returns the loss of a module's output: a number, or one for each text of the batch."""


def ablate_module(
    module: nn.Module,
    inputs: Sequence[Any],
    named: Mapping[str, Any],
    loss: Loss | None,
    choice: ModuleChoice,
    request: AblateRequest,
    advance: Advance = UNWATCHED,
) -> AblationReport:
    """Run a module without each head, and measure how much its loss rises.

    ``mode`` mean puts the head's mean over all texts and queries of these inputs in its place.
    loss: of the output; None measures only how much the output changes. One number for each text
    gives intervals over texts.

    Raises UsageError for an option that is for texts, a loss that is not finite, and without a loss
    for an output that is not of finite numbers; else what ``module_maps`` raises.
    """
    if ignored := [name for name in request.given() if name not in _KEPT]:
        raise UsageError(f"{ignored[0]} is for models that read texts: leave it out")
    if request.mode == "resample":
        raise UsageError("a module has only the texts that it is given: take --mode zero or mean")
    read = module_maps(module, inputs, named, choice)
    record = read.maps.report.record
    before, whole = _losses(loss, read.run.output), _numbers(read.run.output)
    if not np.isfinite(whole).all():
        whole = whole[:0]
    if loss is None and not whole.size:
        raise UsageError("the output is not of finite numbers that can be compared: give a loss")
    heads = sorted(read.heads)
    groups = [tuple(heads)] if request.together else [(head,) for head in heads]
    variants = [Variant(group) for group in groups]
    changes, moved = [], []
    for at, group in enumerate(groups):
        removed, mean = [read.heads[head] for head in group], request.mode == "mean"
        output = run_without(module, inputs, named, removed, mean=mean)
        changes.append(_losses(loss, output) - before)
        if whole.size:
            moved.append(float(np.square(_numbers(output) - whole).mean()))
        advance((at + 1) / len(groups))
    pieces = []
    for text, own in enumerate(before if loss is not None else [0.0]):
        metrics: dict[Metric, NDArray[np.float64]] = {}
        if loss is not None:
            metrics["loss_delta"] = np.array([change[text] for change in changes])
        if whole.size and (loss is None or len(before) == 1):
            metrics["output_mse"] = np.array(moved)
        baseline = {"loss": float(own)} if loss is not None else {}
        baseline |= {"output_square": float(np.square(whole).mean())} if whole.size else {}
        pieces.append(Scores(text, tuple(range(len(variants))), metrics, baseline))
    effects = ablation_effects(pieces, variants, request.seed)
    return AblationReport(
        read.info,
        record.kind,
        (record.keys,) * len(pieces),
        effects,
        (record.queries,) * len(pieces) if record.kind in ("decoder", "cross") else (),
        mode=request.mode,
        reference="these inputs" if request.mode == "mean" else None,
        metric=metric_of(effects, request.metric, False, read.info.name),
        baseline=mean_baseline(pieces),
        seed=request.seed,
        notes=few_note(len(pieces), "texts"),
        text=read.maps.text,
        texts_wanted=len(pieces),
        patterns=replace(read.maps.report, index_base=request.index_base),
        top=request.top,
        index_base=request.index_base,
        own_loss=True,
    )


def _losses(loss: Loss | None, output: Any) -> NDArray[np.float64]:
    """Return the loss of each text, or that of the batch as the only one."""
    if loss is None:
        return np.zeros(1)
    if not callable(loss):
        raise UsageError(f"loss is a function of the module's output: got {loss!r:.40}")
    losses = torch.as_tensor(loss(output)).detach().double().cpu().numpy()
    misshapen = losses.ndim > 1 or not losses.size
    if misshapen or not np.isfinite(losses).all():
        got = f"the shape {losses.shape}" if misshapen else f"{losses}"
        raise UsageError(f"loss(output) gives a finite number, or one for each text: got {got}")
    return np.atleast_1d(losses)


def _numbers(output: Any) -> NDArray[np.float64]:
    """Return the numbers of the first tensor in an output; empty without any."""
    if isinstance(output, Tensor):
        kept = output.detach() if output.is_floating_point() else output.new_zeros(0)
        return kept.double().cpu().numpy().ravel()
    values = output.values() if isinstance(output, Mapping) else output
    parts = map(_numbers, values if isinstance(output, Mapping | list | tuple) else ())
    return next((part for part in parts if part.size), np.zeros(0))
