"""What stands in for a removed head: its mean output over texts, or that over another text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from attnviz.engine.ablation import StandIns
from attnviz.engine.patchable import Passage, Subject
from attnviz.engine.scan.forward import run_pass
from attnviz.engine.sites import Site
from attnviz.errors import UsageError

__all__ = ["Resampled", "mean_outputs", "outputs_of", "resampled"]


@dataclass(frozen=True)
class Resampled:
    """Outputs of other texts of the same length.

    draws: one set of outputs a draw. cut: how many of them were cut to the length.
    shorter: how many of the texts to draw from were too short.
    """

    draws: tuple[StandIns, ...]
    cut: int
    shorter: int


def outputs_of(subject: Subject, passage: Passage) -> StandIns:
    """By layer what its heads put out over one text: (token, head, dim)."""
    keep = _Keep(subject)
    run_pass(subject, passage, keep)
    return keep.outputs


def mean_outputs(
    subject: Subject, passages: Sequence[Passage], tokens: int | None = None
) -> StandIns:
    """By layer the mean output of its heads over texts.

    tokens: keep the mean of each of the first so many positions apart, over the texts that have
        it: (tokens, head, dim). None is one mean over all positions: (1, head, dim).
    Raises UsageError where there is no text, or none is so long.
    """
    longest = max((_length(subject, passage) for passage in passages), default=0)
    if not longest:
        raise UsageError("the reference is empty: give it at least one text")
    if tokens is not None and longest < tokens:
        raise UsageError(
            f"a mean for each of {tokens} positions needs a reference that long, the longest has "
            f"{longest} tokens: give longer texts, or take the mean over positions"
        )
    sums: dict[int, Tensor] = {}
    counts = np.zeros(tokens or 1)
    for passage in passages:
        length = _length(subject, passage)
        counts[:length] += length if tokens is None else 1
        for layer, outputs in outputs_of(subject, passage).items():
            part = outputs.double()
            part = part.sum(0, keepdim=True) if tokens is None else part[:tokens]
            total = sums.setdefault(layer, part.new_zeros(tokens or 1, *part.shape[1:]))
            total[: len(part)] += part
    return {layer: total / total.new_tensor(counts)[:, None, None] for layer, total in sums.items()}


def resampled(
    subject: Subject, passage: Passage, others: Sequence[Passage], draws: int, seed: int
) -> Resampled:
    """The outputs of up to ``draws`` of the other texts, drawn without repetition.

    A longer text is cut to the length of ``passage``. Raises UsageError where all are shorter, or
    none is another.
    """
    length = _length(subject, passage)
    long_enough = [
        other for other in others if other != passage and _length(subject, other) >= length
    ]
    if not long_enough:
        raise UsageError(
            f"no other text of at least {length} tokens to take a head's output from: give "
            f"longer ones as the reference"
        )
    generator = np.random.default_rng((seed, length))
    order = generator.permutation(len(long_enough))[:draws]
    chosen = [long_enough[at] for at in order]
    return Resampled(
        tuple(outputs_of(subject, _cut(subject, other, length)) for other in chosen),
        sum(_length(subject, other) > length for other in chosen),
        sum(_length(subject, other) < length for other in others),
    )


def _length(subject: Subject, passage: Passage) -> int:
    """Tokens on the query axis of the subject's kind of attention."""
    of_decoder = subject.kind in ("decoder", "cross") and passage.target is not None
    return len(passage.predicted if of_decoder else passage.ids)


def _cut(subject: Subject, passage: Passage, length: int) -> Passage:
    if passage.target is not None and subject.kind in ("decoder", "cross"):
        return replace(passage, target=passage.target[:length])
    return replace(passage, ids=passage.ids[:length])


class _Keep:
    """An editor that keeps the outputs of the first text of the batch."""

    def __init__(self, subject: Subject) -> None:
        self._kind = subject.kind
        self.outputs: dict[int, Tensor] = {}

    def edit(self, number: int, site: Site, outputs: Tensor) -> Tensor:
        if site.kind == self._kind:
            self.outputs[site.layer] = outputs[0].clone()
        return outputs
