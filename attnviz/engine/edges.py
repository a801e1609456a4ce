"""Attention knockout: cut edges from a query to a key in some heads, and measure the predictions.

The score of an edge becomes −inf before the softmax, which then runs over the remaining keys.
Everything else runs as usual. Geva et al. 2023, "Dissecting Recall of Factual Associations in
Auto-Regressive Language Models", section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.predicted import require_two, words_to_mask
from attnviz.errors import UnsupportedError
from attnviz.measures.divergence import kl_divergence
from attnviz.models.model import MaskToken
from attnviz.records import Input

Edges = Collection[tuple[int, int]]
"""Pairs (query, key) of positions."""

Heads = Collection[tuple[int, int]]
"""Pairs (layer, head)."""

MOST_MASKED = 64
"""The most words that are hidden from a masked model, one by one, to measure a loss."""

NOTHING_LEFT = (
    "a query can attend to no other key than the one that is cut: nothing would be left, choose "
    "another edge"
)


@dataclass(frozen=True)
class EdgePrediction:
    """The predictions of a model for one text, with or without cut query–key pairs.

    places: the positions whose predictions are stored. log_probabilities: (place, vocab), of the
        token after each place; of a masked model, of the token at that place while it is hidden.
    losses: (token,) in nats; NaN for a token that was not predicted.
    """

    places: tuple[int, ...]
    log_probabilities: NDArray[np.float64]
    losses: NDArray[np.float64]

    @property
    def loss(self) -> float:
        """Return the mean of the losses in nats per predicted token; NaN if none was predicted."""
        known = self.losses[~np.isnan(self.losses)]
        return float(known.mean()) if known.size else float("nan")

    def kl(self, other: EdgePrediction) -> NDArray[np.float64]:
        """Return KL(this ‖ other) of the predictions at each position, in nats, at least 0."""
        return kl_divergence(self.log_probabilities, other.log_probabilities)


class CutPass(NamedTuple):
    """One pass that the model is to run, and the predictions that are wanted from it.

    given: the text. places: the positions whose predictions over the whole vocabulary are wanted.
    words: tuples (position, id of the token whose loss is wanted there).
    """

    given: Input
    places: tuple[int, ...]
    words: tuple[tuple[int, int], ...]


class Cutter(Protocol):
    """The interface to run a model in which some queries do not see some keys.

    Such a query–key pair is called an edge. name: the model's class. predicts: True if the model
    has a language-model head.
    mask_id: the token that hides a word from a masked model; None if there is none.
    """

    name: str
    predicts: bool
    mask_id: MaskToken | None

    def check(self, given: Input) -> None:
        """Raise UnsupportedError if editing attention scores changes results without any cut edge.

        given: a text for the trial.
        """

    def run(
        self, passes: Iterable[CutPass], heads: Heads, edges: Edges
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Yield for each pass its log-probabilities (place, vocab) and losses (word,), in nats.

        heads: (layer, head) of each. edges: query–key pairs of positions, each cut in each head.
        Raises UsageError if a head does not exist or a query would see no key, UnsupportedError if
        an edge cannot be cut.
        """

    def maps(self, given: Input, heads: Heads, edges: Edges) -> Mapping[int, NDArray[np.floating]]:
        """Return the attention weights (head, query, key) of each layer while the edges are cut.

        given: the text. heads, edges: see ``run``. Raises as ``run`` does, UnsupportedError also if
        the model shows no weights while edges are cut.
        """


class CutScan:
    """Measures the predictions of one text while query–key pairs (edges) of the attention are cut.

    cutter: runs the model. given: a text of at least two tokens.
    causal: True if each token predicts the next one; else a token is predicted while hidden.
    Raises UnsupportedError if the model has no language-model head, or if editing its scores
    changes its results; UsageError for a text of one token.
    """

    def __init__(self, cutter: Cutter, given: Input, causal: bool) -> None:
        self.causal = causal
        self._cutter = cutter
        self._given = given
        if not cutter.predicts:
            raise UnsupportedError(
                f"{cutter.name} has no language-model head: there is no prediction that a cut "
                "could change; choose a model that predicts tokens"
            )
        require_two(given)
        if not causal and cutter.mask_id is None:
            raise UnsupportedError(
                f"{cutter.name} predicts hidden words, and no mask token is known that could hide "
                "one: there is no prediction that a cut could change"
            )
        cutter.check(given)

    def outcome(
        self,
        places: Sequence[int],
        heads: Heads = (),
        edges: Edges = (),
        *,
        losses: bool = True,
        on_pass: Callable[[], None] = lambda: None,
    ) -> EdgePrediction:
        """Return the predictions of the text, with the edges cut in these heads.

        places: the positions whose predictions are stored.
        heads: (layer, head) of each; without any no edge is cut.
        edges: query–key pairs of positions. losses: True measures the loss of each token; of a
            masked model at most ``MOST_MASKED`` evenly spaced ones.
        on_pass: called after each pass of the model.
        """
        passes = self._passes(places, losses)
        kept: dict[int, NDArray[np.float64]] = {}
        found = np.full(len(self._given.predicted), np.nan)
        for one, (logs, lost) in zip(passes, self._cutter.run(passes, heads, edges), strict=True):
            kept |= zip(one.places, logs, strict=True)
            # In a causal model the loss of a word belongs to the token after it.
            found[[place + self.causal for place, _ in one.words]] = lost
            on_pass()
        return EdgePrediction(tuple(places), np.stack([kept[place] for place in places]), found)

    def passes(self, places: Sequence[int], losses: bool) -> int:
        """Return the number of passes of the model that ``outcome`` makes.

        places: the positions whose predictions are stored. losses: True measures each token's loss.
        """
        return len(self._passes(places, losses))

    def _passes(self, places: Sequence[int], losses: bool) -> list[CutPass]:
        given, mask = self._given, self._cutter.mask_id
        read = given.predicted.ids
        if self.causal:
            words = tuple(enumerate(read[1:])) if losses else ()
            return [CutPass(given, tuple(places), words)]
        assert mask is not None
        asked = words_to_mask(given, mask) if losses else []
        if len(asked) > MOST_MASKED:
            spaced = np.linspace(0, len(asked) - 1, MOST_MASKED).round().astype(int)
            asked = [asked[at] for at in spaced]
        return [
            CutPass(given.masked(at, mask), (at,), ((at, read[at]),) if losses else ())
            for at in sorted({*asked, *places})
        ]
