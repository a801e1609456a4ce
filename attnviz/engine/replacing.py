"""Replace parts of a running model: heads' outputs, queries, weights, what a layer adds.

Ablation and patching are the same intervention; they differ in the source of the values: zero, a
mean, another text, or the other prompt of a pair. It is written once, for NumPy and torch arrays.
A head is replaced before the output projection: zeroing a slice of what that puts out would be
another intervention (Michel et al. 2019, "Are Sixteen Heads Really Better than One?").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Array, namespace
from attnviz.engine.patching import Site, What
from attnviz.errors import UsageError
from attnviz.records import Input, Kind

Held: TypeAlias = Mapping[tuple[What, int], Array]
"""What a run holds, by sort and layer: (token, head, dim); a pattern is (query, head, key). An
array with one token serves all tokens."""


class LostTrackError(Exception):
    """Raised if a pass calls its attention in another way than the pass that found these calls."""


class Met(Protocol):
    """The interface of a position in a running model: one kind of values of one layer."""

    @property
    def kind(self) -> Kind: ...

    @property
    def sort(self) -> What: ...

    @property
    def layer(self) -> int: ...


class Point(NamedTuple):
    """A position in a running NumPy model: one kind of values of one layer, of one attention."""

    kind: Kind
    sort: What
    layer: int


class Change(Protocol):
    """The interface of an ablation or a patch: what one row of the batch does differently."""

    @property
    def layers(self) -> Sequence[int]:
        """Return every layer in which this ablation or patch changes something."""

    @property
    def sites(self) -> Sequence[Site]:
        """Return the sites that this ablation or patch replaces."""


class RowEdit(Protocol):
    """The interface of an intervention that edits a whole batch, or some of its rows."""

    def edit(self, number: int, point: Any, outputs: Array) -> Array:
        """Return the edited outputs (batch, token, head, dim) of a whole batch at a call."""

    def edit_rows(self, point: Any, outputs: Array, first: int) -> Array:
        """Return the edited outputs (row, token, head, dim) from row ``first`` on."""


def head_of(site: Site) -> int:
    """Return the index of a site's head; a site of a whole layer has the index 0."""
    return site.head or 0


def values_of(held: Held, site: Site) -> Array:
    """Return the values (token, dim) of one patch site in the values of a recorded run."""
    values = held[site.sort, site.layer][:, head_of(site)]
    return values if site.tokens is None else values[list(site.tokens)]


class Replace:
    """An intervention that replaces different sites in each row of the batch.

    kind: of attention; other kinds stay unchanged.
    rows: the ablation or patch of each row; the row None stands for every row.
    values: the replacements, token for token; None means zero. directions: the seed of a random
        baseline, or None. The baseline removes a random direction of all heads' outputs
        concatenated, with the norm that the replacement would remove at each token.
    """

    def __init__(
        self,
        kind: Kind,
        rows: Mapping[int | None, Change],
        values: Held | None = None,
        directions: int | None = None,
    ) -> None:
        self._kind, self._values, self._directions = kind, values, directions
        self._sites: dict[tuple[What, int], list[tuple[int | None, Site]]] = {}
        for row, change in rows.items():
            for site in change.sites:
                self._sites.setdefault((site.sort, site.layer), []).append((row, site))

    def edit(self, number: int, point: Met, outputs: Array) -> Array:
        """Return the outputs (batch, token, head, dim) of a call with its sites replaced."""
        if max((row or 0 for row, _ in self._sites_of(point)), default=0) >= len(outputs):
            raise LostTrackError(f"a batch of {len(outputs)} has too few rows for its changes")
        return self.edit_rows(point, outputs, 0)

    def edit_rows(self, point: Met, outputs: Array, first: int) -> Array:
        """Return outputs (row, token, head, dim) from row ``first`` on, replaced in place."""
        here = range(first, first + len(outputs))
        sites = [
            (None if row is None else row - first, site)
            for row, site in self._sites_of(point)
            if row is None or row in here
        ]
        if not sites:
            return outputs
        if point.sort != "output":
            outputs = namespace(outputs).asarray(outputs, copy=True)
        hidden = [(row, site) for row, site in sites if site.edges]
        if hidden:
            for row, site in hidden:
                rows = outputs if row is None else outputs[row : row + 1]
                _hide(rows[:, :, head_of(site)], site.edges, short=self._kind != "cross")
            return outputs
        if self._directions is not None:
            self._take_directions(point, outputs, sites)
            return outputs
        held = self._held(point, outputs)
        whole = [(row, head_of(site)) for row, site in sites if site.tokens is None]
        rows, heads = [row for row, _ in whole], [head for _, head in whole]
        if heads and rows[0] is None:
            outputs[:, :, heads] = self._of(held, heads, outputs)
        elif heads:
            # The index over tokens stands between, so that the values set have the shape (site,
            # token, dim).
            values = self._of(held, heads, outputs)
            outputs[rows, :, heads] = values if held is None else values.swapaxes(0, 1)
        some = [(row, site) for row, site in sites if site.tokens is not None]
        for of_every_row in (True, False):
            chosen = [(row, site) for row, site in some if (row is None) == of_every_row]
            self._replace_tokens(outputs, held, chosen)
        return outputs

    def _sites_of(self, point: Met) -> Sequence[tuple[int | None, Site]]:
        return self._sites.get((point.sort, point.layer), ()) if point.kind == self._kind else ()

    def _held(self, point: Met, outputs: Array) -> Array | None:
        """Return what replaces ``outputs``, None for zero; LostTrackError if shapes differ."""
        if self._values is None:
            return None
        held = self._values[point.sort, point.layer]
        if held.shape[1:] != outputs.shape[2:] or 1 < len(held) < outputs.shape[1]:
            raise LostTrackError(f"{point.sort} of layer {point.layer} has another shape")
        return held

    @staticmethod
    def _of(held: Array | None, heads: Sequence[int], outputs: Array) -> Array:
        """Return what replaces some heads of ``outputs``, (token or 1, head, dim); 0 for zero."""
        if held is None:
            return 0
        # The last block may run on the last tokens only.
        return _like(held[max(len(held) - outputs.shape[1], 0) :, list(heads)], outputs)

    @staticmethod
    def _replace_tokens(
        outputs: Array, held: Array | None, sites: Sequence[tuple[int | None, Site]]
    ) -> None:
        """Replace single tokens, all at once; the rows of these sites are all None, or none is."""
        missing = 0 if held is None else max(len(held) - outputs.shape[1], 0)
        tokens_of = ((row, site, at) for row, site in sites for at in site.tokens or ())
        cells = [(row, at, head_of(site)) for row, site, at in tokens_of if at >= missing]
        if not cells:
            return
        rows, tokens, heads = map(list, zip(*cells, strict=True))
        where = slice(None) if rows[0] is None else rows
        put = 0 if held is None else _like(held[tokens, heads], outputs)
        outputs[where, [token - missing for token in tokens], heads] = put

    def _take_directions(
        self, point: Met, outputs: Array, sites: Sequence[tuple[int | None, Site]]
    ) -> None:
        xp, held = namespace(outputs), self._held(point, outputs)
        by_row: dict[int | None, list[int]] = {}
        for row, site in sites:
            by_row.setdefault(row, []).append(head_of(site))
        for row, heads in by_row.items():
            rows = outputs if row is None else outputs[row : row + 1]
            taken = rows[:, :, heads] - self._of(held, heads, outputs)
            if taken.dtype.itemsize < 4:
                taken = xp.astype(taken, xp.float32)
            norm = xp.sqrt(xp.sum(taken * taken, axis=(-2, -1)))[..., None, None]
            generator = np.random.default_rng((self._directions or 0, point.layer, *heads))
            drawn = generator.standard_normal(tuple(outputs.shape[2:]), dtype=np.float32)
            rows -= xp.astype(norm * _like(drawn / np.linalg.norm(drawn), norm), rows.dtype)


_SUM = 1e-5
"""The share below which what the weights of a query lack of 1 is rounding."""


def _hide(weights: Array, edges: Sequence[tuple[int, int]], *, short: bool) -> None:
    """Change attention weights to those of a softmax in which some queries do not see some keys.

    Their weight goes to the other keys, in proportion: e^s_j / Σ e^s, with the sum over what is
    left. That is a score of −inf, without the score. A part of the sum that belongs to no key, such
    as a learned sink, stays in it. A query with no weight on any other key then reads nothing.
    weights: (row, query, key), changed in place. edges: pairs (query, key).
    """
    xp = namespace(weights)
    missing = weights.shape[2] - weights.shape[1] if short else 0
    for query in sorted({query for query, _ in edges if query >= missing}):
        own = weights[:, query - missing]
        wide = xp.astype(own, xp.float32) if own.dtype.itemsize < 4 else own
        kept = xp.asarray(wide, copy=True)
        kept[:, [key for asking, key in edges if asking == query]] = 0
        whole, rest = (xp.sum(part, axis=-1, keepdims=True) for part in (wide, kept))
        least = max(_SUM, 2 * float(xp.finfo(own.dtype).eps))
        unseen = xp.where(whole < 1 - least, 1 - whole, xp.zeros_like(whole))
        left = xp.where(rest + unseen > 0, rest + unseen, xp.ones_like(rest))
        weights[:, query - missing] = xp.astype(kept * ((whole + unseen) / left), own.dtype)


def _like(values: Array, other: Array) -> Array:
    return namespace(other).asarray(values, dtype=other.dtype, device=other.device)


# Ablation -----------------------------------------------------------------------------------------

Outputs: TypeAlias = Callable[[Input], Held]
"""Returns what the heads put out over one text, by layer, as NumPy arrays."""


def mean_outputs(outputs: Outputs, kind: Kind, inputs: Sequence[Input]) -> Held:
    """Return the mean outputs (1, head, dim) by layer over all tokens; UsageError for no token."""
    tokens = sum(_length(kind, given) for given in inputs)
    if not tokens:
        raise UsageError("the reference is empty: give it at least one text")
    sums: dict[tuple[What, int], NDArray[np.float64]] = {}
    for given in inputs:
        for key, values in outputs(given).items():
            part = values.astype(np.float64).sum(0, keepdims=True)
            sums[key] = sums[key] + part if key in sums else part
    return {key: total / tokens for key, total in sums.items()}


def resampled(
    outputs: Outputs, kind: Kind, given: Input, others: Sequence[Input], *, draws: int, seed: int
) -> tuple[list[Held], bool]:
    """Return heads' outputs over up to ``draws`` other texts, drawn without repetition.

    The second value is True if a text was cut to the length of ``given`` or left out as shorter.
    Raises UsageError if no other text is long enough.
    """
    length, ids = _length(kind, given), (given.ids, given.target_ids)
    different = (other for other in others if (other.ids, other.target_ids) != ids)
    long_enough = [other for other in different if _length(kind, other) >= length]
    if not long_enough:
        raise UsageError(
            f"no other text of at least {length} tokens to take a head's output from: give "
            f"longer ones as the reference"
        )
    generator = np.random.default_rng((seed, length))
    order = generator.permutation(len(long_enough))[:draws]
    chosen = [long_enough[at] for at in order]
    shorter = any(_length(kind, other) < length for other in others)
    fitted = shorter or any(_length(kind, other) > length for other in chosen)
    return [outputs(_cut(kind, other, length)) for other in chosen], fitted


def _length(kind: Kind, given: Input) -> int:
    """Return the number of query tokens of attention of this kind over the text ``given``."""
    return len(given.predicted if kind in ("decoder", "cross") else given.text)


def _cut(kind: Kind, given: Input, length: int) -> Input:
    if given.target is not None and kind in ("decoder", "cross"):
        return replace(given, target=given.target.cut(length))
    return replace(given, text=given.text.cut(length))
