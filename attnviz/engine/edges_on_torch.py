"""Cut edges in a running torch model by editing its scores before the softmax."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.engine.edges import CutPass, Edges, Heads
from attnviz.engine.hook_points import HookedCall, Keep, LostTrackError
from attnviz.engine.observer import to_numpy
from attnviz.engine.patchable import PatchableModel
from attnviz.engine.plain_pass import ends_alike, not_its_own
from attnviz.engine.selection import check_heads
from attnviz.records import Input


@contextmanager
def cutting(
    model: PatchableModel, heads: Heads, edges: Edges, given: Input, keep: Keep | None = None
) -> Iterator[None]:
    """Run the block with some query–key pairs (edges) cut in the borrowed ``model``.

    heads: (layer, head) of each in which they are cut. edges: query–key pairs of positions. given:
        the text of the run. keep: takes the attention weights of each call.
    Raises UsageError for a head that does not exist, and while the model runs UnsupportedError if
    an edge cannot be cut.
    """
    check_heads(model.heads, heads)
    by_layer: dict[int, list[int]] = {}
    for layer, head in heads:
        by_layer.setdefault(layer, []).append(head)
    pairs = torch.tensor(sorted(set(edges)), dtype=torch.long, device=model.device).reshape(-1, 2)

    def hide(point: HookedCall, queries: int, keys: int) -> Tensor | None:
        if point.kind != model.kind or point.layer not in by_layer:
            return None
        hidden = torch.zeros(point.heads, queries, keys, dtype=torch.bool, device=pairs.device)
        for head in by_layer[point.layer]:
            hidden[head, pairs[:, 0], pairs[:, 1]] = True
        return hidden

    with model.hook_points.hiding(hide, given, keep):
        yield


class TorchCutter:
    """Runs a torch model in which some queries do not see some keys; see ``Cutter``."""

    def __init__(self, model: PatchableModel) -> None:
        self._model = model
        self.name = type(model.root).__name__
        self.predicts = model.head is not None
        self.mask_id = model.mask_id

    def check(self, given: Input) -> None:
        heads = self._model.heads
        every = [(layer, head) for layer in heads for head in range(heads[layer])]
        with self._opened():
            plain, edited = (self._run(given, chosen, ()) for chosen in ((), every))
            if not ends_alike(self._model.root, edited, plain, exact=False):
                raise not_its_own(self._model.root, "it ends in other numbers")

    def run(
        self, passes: Iterable[CutPass], heads: Heads, edges: Edges
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        with self._opened():
            for given, places, words in passes:
                logs = self._run(given, heads, edges)
                lost = -logs[[place for place, _ in words], [word for _, word in words]]
                yield logs[list(places)].cpu().numpy(), lost.cpu().numpy()

    def maps(self, given: Input, heads: Heads, edges: Edges) -> Mapping[int, NDArray[np.floating]]:
        found: dict[int, NDArray[np.floating]] = {}

        def keep(point: HookedCall, weights: Tensor) -> None:
            if point.kind == self._model.kind:
                found[point.layer] = to_numpy(weights[0]).copy()

        with self._opened(), cutting(self._model, heads, edges, given, keep):
            self._model.run(given)
        return found

    def _run(self, given: Input, heads: Heads, edges: Edges) -> Tensor:
        """Return log-probabilities (token, vocab) in float64, with the edges cut in the heads.

        heads: (layer, head) of each. edges: query–key pairs of positions.
        """
        if not heads:
            logits = self._model.run(given)
        else:
            try:
                with cutting(self._model, heads, edges, given):
                    logits = self._model.run(given)
            except LostTrackError as error:
                raise not_its_own(self._model.root, str(error)) from error
        assert logits is not None
        return logits[0].double().log_softmax(-1)

    @contextmanager
    def _opened(self) -> Iterator[None]:
        with torch.inference_mode(), self._model.hook_points.borrowed():
            yield
