"""Ablate heads of a running model: replace their outputs before the output projection.

Zeroing a slice of that projection's *output* is something else. What takes a head's place is zero,
its mean output over texts, or its output over another text. Michel et al. 2019, "Are Sixteen Heads
Really Better than One?"
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from attnviz.engine.effects import Variant
from attnviz.engine.hook_points import HookedCall, LostTrackError
from attnviz.engine.patchable import Keep, PatchableModel, Untouched, run_pass
from attnviz.errors import UsageError
from attnviz.records import Input, Kind

Replacements: TypeAlias = Mapping[int, Tensor]
"""By layer, what takes the place of its heads' outputs: (token or 1, head, dim)."""


@contextmanager
def ablating(
    model: PatchableModel,
    heads: Collection[tuple[int, int]],
    replacements: Replacements | None = None,
) -> Iterator[None]:
    """While this is open, ``model.root`` runs without these (layer, head) pairs, for any batch.

    replacements: replace their outputs by these; None by zero.
    The model is in evaluation mode, and as it was on leaving, also after an exception. Raises
    UsageError for a head that does not exist.
    """
    check_heads(model, heads)
    variant = Variant(tuple(sorted(set(heads)))) if heads else None
    intervention = HeadAblation(
        model.kind, {} if variant is None else {None: variant}, replacements
    )
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


class HeadAblation(Untouched):
    """An intervention that ablates heads, other ones in each row of the batch.

    kind: of attention; other kinds pass untouched.
    variants: what to ablate by row; the row None stands for every row.
    replacements: replace the outputs by these; None by zero.
    directions: seed of a control: in place of the ablation, a random direction of all heads'
        outputs side by side is taken off, at each token of the norm of what the ablation would
        take off there. None ablates.
    """

    def __init__(
        self,
        kind: Kind,
        variants: Mapping[int | None, Variant],
        replacements: Replacements | None = None,
        directions: int | None = None,
    ) -> None:
        self._kind = kind
        self._replacements = replacements
        self._directions = directions
        self._pairs: dict[int, list[tuple[int | None, int]]] = {}
        for row, variant in variants.items():
            for layer, head in variant.heads:
                self._pairs.setdefault(layer, []).append((row, head))

    def edit(self, number: int, point: HookedCall, outputs: Tensor) -> Tensor:
        """Take the heads of this point out of the outputs (batch, token, head, dim), in place."""
        if max((row or 0 for row, _ in self._pairs_of(point)), default=0) >= len(outputs):
            raise LostTrackError(f"a batch of {len(outputs)} has too few rows for its removals")
        return self.edit_rows(point, outputs, 0)

    def edit_rows(self, point: HookedCall, outputs: Tensor, first: int) -> Tensor:
        """Return the same where the outputs are those of the rows from ``first`` on."""
        here = range(first, first + len(outputs))
        pairs = [
            (None if row is None else row - first, head)
            for row, head in self._pairs_of(point)
            if row is None or row in here
        ]
        if not pairs:
            return outputs
        if self._directions is not None:
            self._take_directions(point, outputs, pairs)
        elif pairs[0][0] is None:
            heads = [head for _, head in pairs]
            outputs[:, :, heads] = self._values(point, heads, outputs)
        else:
            rows, heads = [row for row, _ in pairs], [head for _, head in pairs]
            # The index over tokens stands between: what is set has shape (pair, token, dim).
            values = self._values(point, heads, outputs)
            outputs[rows, :, heads] = values.transpose(0, 1) if values.ndim else values
        return outputs

    def _pairs_of(self, point: HookedCall) -> Sequence[tuple[int | None, int]]:
        return self._pairs.get(point.layer, []) if point.kind == self._kind else []

    def _values(self, point: HookedCall, heads: list[int], like: Tensor) -> Tensor:
        """Return what takes the heads' place: (token or 1, chosen head, dim), or a single zero."""
        if self._replacements is None:
            return like.new_zeros(())
        return self._replacements[point.layer][:, heads].to(like)

    def _take_directions(
        self, point: HookedCall, outputs: Tensor, pairs: Sequence[tuple[int | None, int]]
    ) -> None:
        by_row: dict[int | None, list[int]] = {}
        for row, head in pairs:
            by_row.setdefault(row, []).append(head)
        for row, heads in by_row.items():
            rows = outputs if row is None else outputs[row : row + 1]
            taken = rows[:, :, heads] - self._values(point, heads, outputs)
            norm = taken.float().flatten(-2).norm(dim=-1)[..., None, None]
            generator = np.random.default_rng((self._directions or 0, point.layer, *heads))
            drawn = generator.standard_normal((point.heads, point.dim), dtype=np.float32)
            direction = torch.from_numpy(drawn / np.linalg.norm(drawn)).to(outputs.device)
            rows -= (norm * direction).to(rows.dtype)


def _outputs_of(model: PatchableModel, given: Input) -> Replacements:
    """By layer what its heads put out over one text: (token, head, dim)."""
    keep = Keep(model.kind)
    run_pass(model, given, keep)
    return {layer: outputs for (_, layer), outputs in keep.held.items()}


def mean_outputs(
    model: PatchableModel, inputs: Sequence[Input], tokens: int | None = None
) -> Replacements:
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
    sums: dict[int, Tensor] = {}
    counts = np.zeros(tokens or 1)
    for given in inputs:
        length = _length(model.kind, given)
        counts[:length] += length if tokens is None else 1
        for layer, outputs in _outputs_of(model, given).items():
            part = outputs.double()
            part = part.sum(0, keepdim=True) if tokens is None else part[:tokens]
            total = sums.setdefault(layer, part.new_zeros(tokens or 1, *part.shape[1:]))
            total[: len(part)] += part
    return {layer: total / total.new_tensor(counts)[:, None, None] for layer, total in sums.items()}


def resampled(
    model: PatchableModel, given: Input, others: Sequence[Input], draws: int, seed: int
) -> tuple[list[Replacements], bool]:
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
