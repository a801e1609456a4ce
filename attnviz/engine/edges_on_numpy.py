"""Cut edges in a stack that NumPy runs: each head has its own mask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import causal_mask
from attnviz.engine.edges import NOTHING_LEFT, CutPass, Edges, Heads
from attnviz.engine.likely import log_softmax
from attnviz.engine.selection import check_heads
from attnviz.errors import UsageError
from attnviz.models.stack_model import StackModel
from attnviz.records import Input

_LOGITS = 2**22
"""The number of log-probabilities that are computed at once."""


class NumpyCutter:
    """Runs a NumPy model in which some queries do not see some keys; see ``Cutter``."""

    def __init__(self, model: StackModel) -> None:
        self._model = model
        self.name = model.info.architecture or model.info.name
        self.predicts = model.has_head
        self.mask_id = model.mask_id

    def check(self, given: Input) -> None:
        """Do nothing: in NumPy a mask that hides no key changes no score."""

    def run(
        self, passes: Iterable[CutPass], heads: Heads, edges: Edges
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        check_heads(self._model.info.heads_of_layers, heads)
        for given, places, words in passes:
            with np.errstate(over="ignore", invalid="ignore"):
                masks = self._masks(len(given.text), heads, edges)
                end = self._model.stack.run_outputs(given.ids, lambda *seen: None, masks=masks)
                found = self._predicted(end, places, words)
            yield found

    def maps(self, given: Input, heads: Heads, edges: Edges) -> Mapping[int, NDArray[np.floating]]:
        found: dict[int, NDArray[np.floating]] = {}

        def keep(layer: int, weights: NDArray[np.floating], _: NDArray[np.floating]) -> None:
            found[layer] = weights

        masks = self._masks(len(given.text), heads, edges)
        self._model.stack.run_outputs(given.ids, keep, masks=masks)
        return found

    def _masks(self, tokens: int, heads: Heads, edges: Edges) -> dict[int, NDArray[np.bool_]]:
        """Return for each layer a boolean (head, query, key), True if the query may see the key.

        tokens: the length of the text. edges: query–key pairs of positions to hide.
        """
        masks: dict[int, NDArray[np.bool_]] = {}
        for layer, head in heads:
            if layer not in masks:
                masks[layer] = np.ones((self._model.info.heads, tokens, tokens), bool)
            for query, key in edges:
                masks[layer][head, query, key] = False
        shape = self._model.stack.shape
        for layer, mask in masks.items():
            window = shape.windows[layer] if shape.windows else None
            seen = causal_mask(tokens, tokens, np.empty(0), window) if shape.causal else True
            if not (mask & seen).any(-1).all():
                raise UsageError(NOTHING_LEFT)
        return masks

    def _predicted(
        self, end: NDArray[np.floating], places: tuple[int, ...], words: tuple[tuple[int, int], ...]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return log-probabilities (place, vocab), and the words' losses (word,) in nats.

        end: the final hidden states (token, width). places: the positions of the log-probabilities.
        words: tuples (position, token id) whose losses are wanted.
        """
        stack, size = self._model.stack, max(1, _LOGITS // self._model.stack.shape.vocabulary)
        logs, losses = np.empty((len(places), stack.shape.vocabulary)), np.empty(len(words))
        # If losses are wanted, all rows of a text are computed: the same row may round otherwise in
        # another batch.
        read = range(len(end)) if len(words) > 1 else sorted({*places, *(at for at, _ in words)})
        for start in range(0, len(read), size):
            some = read[start : start + size]
            row = {at: number for number, at in enumerate(some)}
            found = log_softmax(stack.unembed(end[list(some)]).astype(np.float64))
            for number, at in enumerate(places):
                if at in row:
                    logs[number] = found[row[at]]
            for number, (at, word) in enumerate(words):
                if at in row:
                    losses[number] = -found[row[at], word]
        return logs, losses
