"""What each single head is worth to one text: every removal at once, in NumPy where that runs it.

As ``attnviz ablate`` measures it with zeros in the head's place; see ``engine.scan.run``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.numpy_stack import NumpyStack
from attnviz.engine.capture import Asked
from attnviz.engine.effects import Metric, Variant
from attnviz.engine.head_run import Head
from attnviz.engine.text_pass import token_losses
from attnviz.errors import UsageError
from attnviz.models.model import Model, require_number
from attnviz.models.stack_model import StackModel

Floats = NDArray[np.floating]

_CELLS = 2**20
"""Weights of a layer, of all removals that run at once: more than caches hold is slower."""

_LOGITS = 2**23
"""Logits that are formed at once."""

_REPORTS = 10
"""How often a scan on torch tells what is done: each time it begins anew with the clean text."""


class Effects(NamedTuple):
    """What each single removal costs over one text.

    metric: ``loss_delta``, nats per token, or of a model without a loss ``output_mse``.
    values: by (layer, head).
    """

    metric: Metric
    values: Mapping[Head, float]

    def ranking(self) -> tuple[Head, ...]:
        """Return the heads, the one that costs most first."""
        return tuple(sorted(self.values, key=lambda head: -self.values[head]))


def removal_effects(
    model: Model, wanted: Asked, advance: Callable[[float], None] = lambda share: None
) -> Effects:
    """Remove every head of the wanted kind, one at a time.

    advance: told the share that is done; what it raises ends the run.
    Raises UsageError for a text of one token, and for numbers that rank nothing; UnsupportedError
    where heads cannot be removed.
    """
    if isinstance(model, StackModel):
        with np.errstate(over="ignore", invalid="ignore"):
            found = _in_numpy(model, wanted.given.ids, advance)
    else:
        found = _by_scan(model, wanted, advance)
    require_number("effect of removals", sum(found.values.values()), model.info)
    return found


def _in_numpy(model: StackModel, ids: Sequence[int], advance: Callable[[float], None]) -> Effects:
    stack, values = model.stack, dict[Head, float]()
    if model.predicts and len(ids) < 2:
        raise UsageError("the text has one token: a loss needs two, one to read, one to predict")
    clean = stack.run_outputs(ids, lambda layer, weights, outputs: None)
    loss, hidden = _loss(stack, clean, ids) if model.predicts else 0.0, stack.hidden(clean)
    shape = stack.shape
    most = max(1, min(shape.heads, _CELLS // (shape.heads * len(ids) ** 2)))
    for layer, first, ends in stack.removals(ids, most):
        for head, residual in enumerate(ends, first):
            if model.predicts:
                values[layer, head] = _loss(stack, residual, ids) - loss
            else:
                values[layer, head] = float(np.square(stack.hidden(residual) - hidden).mean())
        advance(len(values) / (shape.layers * shape.heads))
    return Effects("loss_delta" if model.predicts else "output_mse", values)


def _loss(stack: NumpyStack, residual: Floats, ids: Sequence[int]) -> float:
    """Mean cross-entropy in nats of each token but the first."""
    rows = max(1, _LOGITS // stack.shape.vocabulary)
    losses = [
        token_losses(stack.unembed(residual[start : start + rows]), ids[start : start + rows + 1])
        for start in range(0, len(ids) - 1, rows)
    ]
    return float(np.concatenate(losses).mean())


def _by_scan(model: Model, wanted: Asked, advance: Callable[[float], None]) -> Effects:
    from attnviz.engine.scan.run import open_scan  # NumPy's own does without

    scan = open_scan(model, [wanted.given], kind=wanted.kind)
    heads = [(layer, head) for layer, count in scan.heads.items() for head in range(count)]
    variants = [Variant((head,)) for head in heads]
    values: dict[Metric, dict[Head, float]] = {"loss_delta": {}, "output_mse": {}}
    done, size = 0, -(-len(heads) // _REPORTS)
    for start in range(0, len(heads), size):
        some = range(start, min(start + size, len(heads)))
        for piece in scan.scan(0, variants, some):
            for name, found in values.items():
                if name in piece.metrics:
                    measured = piece.metrics[name].tolist()
                    found |= zip((heads[at] for at in piece.variants), measured, strict=True)
            done += len(piece.variants)
            advance(done / len(heads))
    metric: Metric = "loss_delta" if values["loss_delta"] else "output_mse"
    return Effects(metric, values[metric])
