"""Ablate heads of a running model: replace their outputs before the output projection.

Zeroing a slice of that projection's *output* would be another intervention. The replacement is
zero, the head's mean output over texts, or its output over another text. Michel et al. 2019, "Are
Sixteen Heads Really Better than One?"
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.effects import Variant
from attnviz.engine.patching import What
from attnviz.engine.replacing import Held, Replace
from attnviz.engine.selection import check_heads
from attnviz.errors import UsageError
from attnviz.records import Input, Kind

if TYPE_CHECKING:  # torch only where needed
    from attnviz.engine.patchable import PatchableModel

Outputs: TypeAlias = Callable[[Input], Held]
"""Returns what the heads put out over one text, by layer, as NumPy arrays."""


@contextmanager
def ablating(model: PatchableModel, heads: Collection[tuple[int, int]]) -> Iterator[None]:
    """Run ``model.root`` without these heads inside this context, for any batch.

    heads: (layer, head) of each. Their outputs are set to zero. The model is in evaluation mode
        inside the context; its former state is restored on leaving, also after an exception. Raises
        UsageError for a head that does not exist.
    """
    check_heads(model.heads, heads)
    variant = Variant(tuple(sorted(set(heads)))) if heads else None
    intervention = Replace(model.kind, {} if variant is None else {None: variant})
    with model.hook_points.borrowed(), model.hook_points.intervening(intervention):
        yield


def mean_outputs(
    outputs: Outputs, kind: Kind, inputs: Sequence[Input], tokens: int | None = None
) -> Held:
    """Return the mean output of each layer's heads over the given texts, in float64.

    outputs: runs the model over one text. kind: the kind of attention whose heads these are.
    tokens: None averages over all positions, and each array is (1, head, dim). A number averages
        each of that many first positions separately: (tokens, head, dim).
    Raises UsageError if there are no tokens, or if every text is shorter than ``tokens``.
    """
    longest = max((_length(kind, given) for given in inputs), default=0)
    if not longest:
        raise UsageError("the reference is empty: give it at least one text")
    if tokens is not None and longest < tokens:
        raise UsageError(
            f"a mean for each of {tokens} positions needs a reference that long, the longest has "
            f"{longest} tokens: give longer texts, or take the mean over positions"
        )
    sums: dict[tuple[What, int], NDArray[np.float64]] = {}
    counts = np.zeros(tokens or 1)
    for given in inputs:
        length = _length(kind, given)
        counts[:length] += length if tokens is None else 1
        for place, found in outputs(given).items():
            part = found.astype(np.float64)
            part = part.sum(0, keepdims=True) if tokens is None else part[:tokens]
            total = sums.setdefault(place, np.zeros((tokens or 1, *part.shape[1:])))
            total[: len(part)] += part
    return {place: total / counts[:, None, None] for place, total in sums.items()}


def resampled(
    outputs: Outputs, kind: Kind, given: Input, others: Sequence[Input], *, draws: int, seed: int
) -> tuple[list[Held], bool]:
    """Return the heads' outputs over up to ``draws`` of the other texts, drawn without repetition.

    The second value is True if a longer text was cut to the length of ``given`` or a shorter one
    was left out. Raises UsageError if no text other than ``given`` is at least as long. outputs:
    runs the model over one text. kind: the kind of attention whose heads these are. others: the
    texts to draw from, which may contain ``given``. draws: the most texts to draw.
    """
    length = _length(kind, given)
    ids = given.ids, given.target_ids
    long_enough = [
        other
        for other in others
        if (other.ids, other.target_ids) != ids and _length(kind, other) >= length
    ]
    if not long_enough:
        raise UsageError(
            f"no other text of at least {length} tokens to take a head's output from: give "
            f"longer ones as the reference"
        )
    generator = np.random.default_rng((seed, length))
    order = generator.permutation(len(long_enough))[:draws]
    chosen = [long_enough[at] for at in order]
    fitted = any(_length(kind, other) > length for other in chosen) or any(
        _length(kind, other) < length for other in others
    )
    return [outputs(_cut(kind, other, length)) for other in chosen], fitted


def _length(kind: Kind, given: Input) -> int:
    """Return the number of query tokens of attention of this kind over the text ``given``."""
    return len(given.predicted if kind in ("decoder", "cross") else given.text)


def _cut(kind: Kind, given: Input, length: int) -> Input:
    if given.target is not None and kind in ("decoder", "cross"):
        return replace(given, target=given.target.cut(length))
    return replace(given, text=given.text.cut(length))
