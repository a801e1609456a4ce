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
from itertools import takewhile

import numpy as np
from numpy.typing import ArrayLike

from attnviz.attention.functional import Floats, causal_mask
from attnviz.attention.numpy_attention import KeyValues, NumpyAttention
from attnviz.attention.numpy_stack import NumpyStack

Edit = Callable[[str, int, Floats], Floats]
"""Returns the values to continue with, given their sort, the layer and the values (row, token,
head, dim). A ``pattern`` is (row, query, head, key). Key/value heads have one key and value;
``residual`` and ``mlp`` have one head. Only ``output`` may be changed in place."""

# The sorts that are changed before the heads put out anything.
_BEFORE = frozenset({"residual", "query", "key", "value", "pattern"})


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

    def by_text(self) -> list[GrowingRun]:
        """Return a run of its own for each text of this run."""
        runs = [copy(self) for _ in self.end]
        for text, run in enumerate(runs):
            run.held = {key: values[text : text + 1] for key, values in self.held.items()}
            run.end = self.end[text : text + 1]
            run.bytes = self.bytes // len(self.end)
        return runs

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

    def _keep(self, sort: str, layer: int, values: Floats) -> Floats:
        self.held[sort, layer] = values
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
        for at, sort in enumerate(("key", "value")):
            if sort in sorts:
                shared = edit(sort, layer, pair[at][:, ::groups].swapaxes(1, 2))
                pair[at] = np.repeat(shared.swapaxes(1, 2), groups, 1)
            if start:
                ours = np.repeat(self.held[sort, layer][:, :start].swapaxes(1, 2), groups, 1)
                past = np.broadcast_to(ours, (len(rows), *ours.shape[1:]))
                pair[at] = np.concatenate([past, pair[at]], 2)
        mask = None
        if attention.causal:
            mask = causal_mask(kept, self.tokens, rows, attention.window)

        def change(weights: Floats) -> Floats:
            return edit("pattern", layer, weights.swapaxes(1, 2)).swapaxes(1, 2)

        changed = change if "pattern" in sorts else None
        return attention.attend(query[:, :, -kept:], pair[0], pair[1], mask, changed)[0]

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


def _whole(edit: Edit, sort: str, layer: int, rows: Floats) -> Floats:
    return edit(sort, layer, rows[:, :, None])[:, :, 0]


_HELD = 2**24  # the most attention weights of a layer that are in memory at once


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
        shape, known = self._stack.shape, shared(text[:-1], self._ids)
        held = max(1, _HELD // (shape.heads * len(text)))  # tokens whose weights are held at a time
        if (rotary := shape.rotary) is not None and rotary.stretch is not None:
            held = len(text)  # the angles depend on the length
            before, now = (rotary.frequencies(shape.head_dim, len(t)) for t in (self._ids, text))
            known = known if before == now else 0  # it is longer than the context of LongRoPE
        self._ids = ()  # a failed run must leave nothing cached
        for layer in self._past:
            layer.cut(known)
        rows: dict[int, Floats] = {}

        def take(layer: int, weights: Floats, outputs: Floats) -> None:
            rows[layer] = weights[:, -1].copy()

        with np.errstate(over="ignore", invalid="ignore"):
            for stop in (*range(known + held, len(text), held), len(text)):
                residual = self._stack.run_outputs(text[:stop], take, self._past)
            scores = self._stack.unembed(residual[-1:])[0]
        self._ids = text
        return scores, rows


def shared(text: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens at their beginning two texts share."""
    pairs = zip(text, other, strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
