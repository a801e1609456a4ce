"""Ablate heads of a running model: replace their outputs before the output projection.

Zeroing a slice of that projection's *output* is something else. What takes a head's place is zero,
its mean output over texts, or its output over another text. Michel et al. 2019, "Are Sixteen Heads
Really Better than One?"
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from torch import Tensor

from attnviz.engine.effects import Variant
from attnviz.engine.patchable import Keep, PatchableModel, run_pass
from attnviz.engine.patching import What
from attnviz.engine.replacing import Held, Replace
from attnviz.errors import UsageError
from attnviz.records import Input, Kind


@contextmanager
def ablating(
    model: PatchableModel,
    heads: Collection[tuple[int, int]],
    replacements: Held | None = None,
) -> Iterator[None]:
    """While this is open, ``model.root`` runs without these (layer, head) pairs, for any batch.

    replacements: replace their outputs by these; None by zero.
    The model is in evaluation mode, and as it was on leaving, also after an exception. Raises
    UsageError for a head that does not exist.
    """
    check_heads(model, heads)
    variant = Variant(tuple(sorted(set(heads)))) if heads else None
    intervention = Replace(model.kind, {} if variant is None else {None: variant}, replacements)
    with model.hook_points.borrowed(), model.hook_points.intervening(intervention):
        yield


def check_heads(model: PatchableModel, heads: Collection[tuple[int, int]]) -> None:
    """UsageError for the first of the (layer, head) pairs that the model does not have."""
    for layer, head in heads:
        if layer not in model.heads:
            raise UsageError(f"no layer {layer} with heads: expected {_range(list(model.heads))}")
        if not 0 <= head < model.heads[layer]:
            raise UsageError(
                f"no head {head} in layer {layer}: expected 0 to {model.heads[layer] - 1}"
            )


def _range(layers: Sequence[int]) -> str:
    if list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]} to {layers[-1]}"
    return ", ".join(map(str, layers))


def _outputs_of(model: PatchableModel, given: Input) -> Held:
    """By layer what its heads put out over one text: (token, head, dim)."""
    keep = Keep(model.kind)
    run_pass(model, given, keep)
    return keep.held


def mean_outputs(model: PatchableModel, inputs: Sequence[Input], tokens: int | None = None) -> Held:
    """By layer the mean output of its heads over texts.

    tokens: keep the mean of each of the first so many positions apart, over the texts that have
        it: (tokens, head, dim). None is one mean over all positions: (1, head, dim).
    Raises UsageError where there is no text, or none is so long.
    """
    longest = max((_length(model.kind, given) for given in inputs), default=0)
    if not longest:
        raise UsageError("the reference is empty: give it at least one text")
    if tokens is not None and longest < tokens:
        raise UsageError(
            f"a mean for each of {tokens} positions needs a reference that long, the longest has "
            f"{longest} tokens: give longer texts, or take the mean over positions"
        )
    sums: dict[tuple[What, int], Tensor] = {}
    counts = np.zeros(tokens or 1)
    for given in inputs:
        length = _length(model.kind, given)
        counts[:length] += length if tokens is None else 1
        for place, outputs in _outputs_of(model, given).items():
            part = outputs.double()
            part = part.sum(0, keepdim=True) if tokens is None else part[:tokens]
            total = sums.setdefault(place, part.new_zeros(tokens or 1, *part.shape[1:]))
            total[: len(part)] += part
    return {place: total / total.new_tensor(counts)[:, None, None] for place, total in sums.items()}


def resampled(
    model: PatchableModel, given: Input, others: Sequence[Input], draws: int, seed: int
) -> tuple[list[Held], bool]:
    """Return the outputs of up to ``draws`` of the other texts, drawn without repetition.

    Also whether a longer text was cut to the length of ``given``, or a shorter one left out.
    Raises UsageError where all are shorter, or
    none is another.
    """
    length = _length(model.kind, given)
    ids = given.ids, given.target_ids
    long_enough = [
        other
        for other in others
        if (other.ids, other.target_ids) != ids and _length(model.kind, other) >= length
    ]
    if not long_enough:
        raise UsageError(
            f"no other text of at least {length} tokens to take a head's output from: give "
            f"longer ones as the reference"
        )
    generator = np.random.default_rng((seed, length))
    order = generator.permutation(len(long_enough))[:draws]
    chosen = [long_enough[at] for at in order]
    fitted = any(_length(model.kind, other) > length for other in chosen) or any(
        _length(model.kind, other) < length for other in others
    )
    return [_outputs_of(model, _cut(model.kind, other, length)) for other in chosen], fitted


def _length(kind: Kind, given: Input) -> int:
    """Tokens that look, where ``kind`` of attention is the model model's own."""
    return len(given.predicted if kind in ("decoder", "cross") else given.text)


def _cut(kind: Kind, given: Input, length: int) -> Input:
    if given.target is not None and kind in ("decoder", "cross"):
        return replace(given, target=given.target.cut(length))
    return replace(given, text=given.text.cut(length))
