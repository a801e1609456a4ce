"""Attention knockout: an edge from a query to a key cut in some heads, and what is predicted then.

The score of the edge becomes −inf before the softmax, which runs over the keys that are left; all
else runs as ever. Geva et al. 2023, "Dissecting Recall of Factual Associations in Auto-Regressive
Language Models", section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.engine.ablation import check_heads
from attnviz.engine.hook_points import HookedCall, LostTrackError
from attnviz.engine.patchable import PatchableModel
from attnviz.engine.plain_pass import ends_alike, not_its_own
from attnviz.engine.predicted import require_two, words_to_mask
from attnviz.errors import UnsupportedError
from attnviz.measures.divergence import kl_divergence
from attnviz.records import Input

Edges = Collection[tuple[int, int]]
"""Pairs (query, key) of positions."""

Heads = Collection[tuple[int, int]]
"""Pairs (layer, head)."""

MOST_MASKED = 64
"""Words that are hidden from a masked model one by one for the loss of a text."""


@contextmanager
def cutting(model: PatchableModel, heads: Heads, edges: Edges, given: Input) -> Iterator[None]:
    """While this is open, passes of the borrowed ``model`` over ``given`` run without the edges.

    heads: those in which they are cut. Raises UsageError for a head that does not exist, and while
    it runs UnsupportedError where an edge cannot be cut.
    """
    check_heads(model, heads)
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

    with model.hook_points.hiding(hide, given):
        yield


@dataclass(frozen=True)
class EdgePrediction:
    """What a model predicts of one text.

    places: the positions of the text that it predicts of which the predictions are kept.
    log_probabilities: (place, word) of the token after each place; of a masked model, of the token
        at that place while it is hidden.
    losses: (token,) nats of each token, NaN where it was not predicted.
    """

    places: tuple[int, ...]
    log_probabilities: NDArray[np.float64]
    losses: NDArray[np.float64]

    @property
    def loss(self) -> float:
        """Nats per token, mean over those that were predicted; NaN where none was."""
        known = self.losses[~np.isnan(self.losses)]
        return float(known.mean()) if known.size else float("nan")

    def kl(self, other: EdgePrediction) -> NDArray[np.float64]:
        """KL(this ‖ other) at each place, in nats, at least 0."""
        return kl_divergence(self.log_probabilities, other.log_probabilities)


class CutScan:
    """A model and one text, ready for edges to be cut.

    model: with a language model's head. given: at least two tokens. causal: whether each token
    predicts the next one; else a token is predicted while it is hidden.
    Raises UnsupportedError for a model without such a head or that runs otherwise while its
    scores are edited, UsageError for a text of one token.
    """

    def __init__(self, model: PatchableModel, given: Input, causal: bool) -> None:
        self.causal = causal
        self._model = model
        self._given = given
        name = type(model.root).__name__
        if model.head is None:
            raise UnsupportedError(
                f"{name} has no language-model head: there is no prediction that a cut could "
                "change; choose a model that predicts tokens"
            )
        require_two(given)
        if not causal and model.mask_id is None:
            raise UnsupportedError(
                f"{name} predicts hidden words, and no mask token is known that could hide one: "
                "there is no prediction that a cut could change"
            )
        with self._opened():
            self._require_own()

    def outcome(
        self,
        places: Sequence[int],
        heads: Heads = (),
        edges: Edges = (),
        *,
        losses: bool = True,
        on_pass: Callable[[], None] = lambda: None,
    ) -> EdgePrediction:
        """Return what is predicted without the edges in these heads; plainly where there are none.

        losses: whether those of the tokens are measured, of a masked model of at most
            ``MOST_MASKED`` evenly spaced words.
        """
        asked = self._masked(places, losses)
        size = len(self._given.predicted)
        kept: dict[int, Tensor] = {}
        found = np.full(size, np.nan)
        with self._opened():
            if self.causal:
                logs = self._run(self._given, heads, edges)
                on_pass()
                kept = {place: logs[place] for place in places}
                if losses:
                    wanted = torch.tensor(self._given.predicted.ids[1:], device=logs.device)
                    found[1:] = -logs[:-1].gather(1, wanted[:, None])[:, 0].cpu().numpy()
            for place in asked:
                assert self._model.mask_id is not None
                hidden = self._given.masked(place, self._model.mask_id)
                logs = self._run(hidden, heads, edges)[place]
                on_pass()
                kept[place] = logs
                if losses:
                    found[place] = -float(logs[self._given.predicted.ids[place]])
        chosen = torch.stack([kept[place] for place in places]).cpu().numpy()
        return EdgePrediction(tuple(places), chosen, found)

    def passes(self, places: Sequence[int], losses: bool) -> int:
        """Return how many times the model runs for one outcome."""
        return 1 if self.causal else len(self._masked(places, losses))

    def _masked(self, places: Sequence[int], losses: bool) -> list[int]:
        if self.causal:
            return []
        assert self._model.mask_id is not None
        words = words_to_mask(self._given, self._model.mask_id) if losses else []
        if len(words) > MOST_MASKED:
            spaced = np.linspace(0, len(words) - 1, MOST_MASKED).round().astype(int)
            words = [words[at] for at in spaced]
        return sorted({*words, *places})

    def _run(self, given: Input, heads: Heads, edges: Edges) -> Tensor:
        """Log-probabilities (token, word), float64."""
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

    def _require_own(self) -> None:
        """Refuse a model that ends elsewhere once its scores can be edited, with nothing cut."""
        heads = self._model.heads
        every = [(layer, head) for layer in heads for head in range(heads[layer])]
        plain, edited = (self._run(self._given, chosen, ()) for chosen in ((), every))
        if not ends_alike(self._model.root, edited, plain, exact=False):
            raise not_its_own(self._model.root, "it ends in other numbers")

    @contextmanager
    def _opened(self) -> Iterator[None]:
        with torch.inference_mode(), self._model.hook_points.borrowed():
            yield
