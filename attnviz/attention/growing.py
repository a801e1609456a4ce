"""Run a text through a stack, with rows that branch off where something is changed.

A reader runs a text that grows by tokens: those that it has read are not computed again.

Before its first change a row equals the text, so it starts in that layer, and in a causal stack at
that token: keys and values before it are the text's own. Likewise rows that are equal up to a layer
are one row until then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from attnviz.attention.functional import Floats, causal_mask
from attnviz.attention.numpy_attention import KeyValues, NumpyAttention
from attnviz.attention.numpy_stack import NumpyStack

Edit = Callable[[str, int, Floats], Floats]
"""Returns the values to continue with, given their sort, the layer and the values (row, token,
head, dim). A ``pattern`` is (row, query, head, key). Key/value heads have one key and value;
``residual`` and ``mlp`` have one head. Only ``output`` may be changed in place."""

_BEFORE = frozenset({"residual", "query", "key", "value", "pattern"})
"""The sorts that are changed before the heads put out anything."""


class GrowingRun:
    """The run of a text through a NumPy model, from which changed runs can branch off.

    ids: (token,) or (text, token), of one length. keep: kinds of values to store beside
    ``residual`` and ``output``; ``held`` has them by kind and layer, shaped as in ``Edit``, in so
    many ``bytes``. end: the residual (text, token, width) after the last layer. Raises UsageError
    as ``NumpyStack.logits``.
    """

    def __init__(self, stack: NumpyStack, ids: ArrayLike, keep: Collection[str] = ()) -> None:
        self._stack = stack
        self.held: dict[tuple[str, int], Floats] = {}
        sorts = {"residual", "output", *keep}
        rows = stack.embed(stack.checked(np.atleast_2d(ids)))
        self.tokens = kept = rows.shape[1]
        for layer in range(stack.shape.layers):
            attention = stack.attention(layer)
            rows = _whole(self._keep, "residual", layer, rows)
            outputs = self._outputs(layer, attention, rows, self._keep, sorts=sorts, kept=kept)
            rows = self._after(layer, attention, rows, outputs, edit=self._keep, sorts=sorts)
        self.end = rows
        self.bytes = sum(values.nbytes for values in self.held.values())

    def each(self) -> list[GrowingRun]:
        """Return a run of its own for each text of this run."""
        found = []
        for text in range(len(self.end)):
            run = copy(self)
            run.held = {place: held[text : text + 1] for place, held in self.held.items()}
            run.end = self.end[text : text + 1]
            run.bytes = self.bytes // len(self.end)
            found.append(run)
        return found

    def ends(
        self,
        first: int,
        sources: Sequence[Sequence[int]],
        edited: Mapping[int, Collection[str]],
        edit: Edit,
        *,
        start: int = 0,
        last: int | None = None,
    ) -> Floats:
        """Return the residuals (row, token, width) after the last layer of one text with changes.

        first: the first changed layer. sources: for each layer from it on the row before that each
        row continues; −1 for the text. edited: the changed kinds by layer. start: the first changed
        token of a causal stack with keys and values. last: how many last tokens are returned; None
        for all.
        """
        stack, tokens = self._stack, self.tokens
        start = 0 if last is None else min(start, tokens - last)
        rows = self.held["residual", first][:0, start:, 0]
        for layer, source in enumerate(sources, start=first):
            attention, sorts, kept = stack.attention(layer), edited.get(layer, ()), tokens - start
            if last is not None and layer == stack.shape.layers - 1:
                kept = last
            before = rows
            rows = _forked(rows, self.held["residual", layer][:, start:, 0], source)
            if _BEFORE.intersection(sorts):
                if "residual" in sorts:
                    rows = _whole(edit, "residual", layer, rows)
                outputs = self._outputs(layer, attention, rows, edit, sorts=sorts, kept=kept)
            else:
                outputs = ours = self.held["output", layer].swapaxes(1, 2)[:, :, tokens - kept :]
                if len(before):
                    outputs = self._outputs(layer, attention, before, edit, sorts=(), kept=kept)
                outputs = _forked(outputs[: len(before)], ours, source)
            rows = self._after(layer, attention, rows[:, -kept:], outputs, edit=edit, sorts=sorts)
        return rows

    def _keep(self, what: str, layer: int, values: Floats) -> Floats:
        self.held[what, layer] = values
        return values

    def _outputs(
        self,
        layer: int,
        attention: NumpyAttention,
        rows: Floats,
        edit: Edit,
        *,
        sorts: Collection[str],
        kept: int,
    ) -> Floats:
        """Return the outputs (row, head, token, dim) of a layer's heads for ``kept`` last tokens.

        rows: the residual (row, token, width) before it. sorts: what ``edit`` changes in it.
        """
        start, groups = self.tokens - rows.shape[1], attention.shape.groups
        read = self._stack.read(layer, rows)
        query, *pair = attention.heads_of(read, read, read, range(start, self.tokens))
        if "query" in sorts:
            query = edit("query", layer, query.swapaxes(1, 2)).swapaxes(1, 2)
        for at, what in enumerate(("key", "value")):
            if what in sorts:
                shared = edit(what, layer, pair[at][:, ::groups].swapaxes(1, 2))
                pair[at] = np.repeat(shared.swapaxes(1, 2), groups, 1)
            if start:
                ours = np.repeat(self.held[what, layer][:, :start].swapaxes(1, 2), groups, 1)
                past = np.broadcast_to(ours, (len(rows), *ours.shape[1:]))
                pair[at] = np.concatenate([past, pair[at]], 2)
        mask = None
        if attention.causal:
            mask = causal_mask(kept, self.tokens, rows, attention.window)
        change = partial(_crossed, edit, layer) if "pattern" in sorts else None
        key, value = pair
        return attention.attend(query[:, :, -kept:], key, value, mask, change)[0]

    def _after(
        self,
        layer: int,
        attention: NumpyAttention,
        rows: Floats,
        outputs: Floats,
        *,
        edit: Edit,
        sorts: Collection[str],
    ) -> Floats:
        """Return the residual (row, token, width) after a layer from its heads' outputs."""
        if "output" in sorts:
            outputs = edit("output", layer, outputs.swapaxes(1, 2)).swapaxes(1, 2)
        attended = attention.joined(outputs)
        if "mlp" not in sorts:
            return self._stack.after_layer(layer, rows, attended)
        return self._stack.after_layer(layer, rows, attended, partial(_whole, edit, "mlp", layer))


def _forked(rows: Floats, own: Floats, source: Sequence[int]) -> Floats:
    """Return for each entry of ``source`` the row of the layer before; for −1 the text's own."""
    return np.concatenate([rows, own])[list(source)]


def _whole(edit: Edit, what: str, layer: int, rows: Floats) -> Floats:
    return edit(what, layer, rows[:, :, None])[:, :, 0]


def _crossed(edit: Edit, layer: int, weights: Floats) -> Floats:
    return edit("pattern", layer, weights.swapaxes(1, 2)).swapaxes(1, 2)


_HELD = 2**24
"""The most attention weights of a layer that are in memory at once."""


class StackReader:
    """Runs growing texts through one causal NumPy model; what they share comes from a cache."""

    def __init__(self, stack: NumpyStack) -> None:
        if not stack.shape.causal:
            raise ValueError("a query that sees later keys changes as the text grows")
        self._stack = stack
        self._past = [KeyValues() for _ in range(stack.shape.layers)]
        self._ids: tuple[int, ...] = ()

    def read(self, ids: Sequence[int]) -> tuple[Floats, dict[int, Floats]]:
        """Run the model on a text; return next-token logits and its last token's attention weights.

        The logits are (vocab,), the weights of each layer (head, token). They equal those of a pass
        over the whole text, except for the order of summation. Raises UsageError as
        ``NumpyStack.logits`` does.
        """
        text = tuple(ids)
        known = 0 if self._is_turned_anew(len(text)) else shared(text[:-1], self._ids)
        self._ids = ()  # a failed run must leave nothing cached
        for layer in self._past:
            layer.cut(known)
        rows: dict[int, Floats] = {}
        shape = self._stack.shape
        held = max(1, _HELD // (shape.heads * len(text)))  # tokens whose weights are held at a time
        if shape.rotary is not None and shape.rotary.stretch is not None:
            held = len(text)  # the angles depend on the length

        def take(layer: int, weights: Floats, outputs: Floats) -> None:
            rows[layer] = weights[:, -1].copy()

        with np.errstate(over="ignore", invalid="ignore"):
            for stop in (*range(known + held, len(text), held), len(text)):
                residual = self._stack.run_outputs(text[:stop], take, self._past)
            scores = self._stack.unembed(residual[-1:])[0]
        self._ids = text
        return scores, rows

    def _is_turned_anew(self, tokens: int) -> bool:
        """Return whether a text is the first one that is longer than the context of LongRoPE."""
        shape = self._stack.shape
        if shape.rotary is None or shape.rotary.stretch is None or not self._ids:
            return False
        before, now = (
            shape.rotary.frequencies(shape.head_dim, count) for count in (len(self._ids), tokens)
        )
        return before != now


def shared(text: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens at their beginning two texts share."""
    alike = 0
    for one, two in zip(text, other, strict=False):
        if one != two:
            break
        alike += 1
    return alike
