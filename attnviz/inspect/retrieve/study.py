"""Runs a model over haystacks: as it is, without some heads, and taken apart.

A head's score follows Wu et al. 2024; see ``attnviz.inspect.retrieve.retrieve``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.backend import backend_of
from attnviz.engine.head_run import Head
from attnviz.engine.likely import log_softmax
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.retrieve.haystacks import Question
from attnviz.inspect.retrieve.report import RECENT, SINK
from attnviz.models.model import Model, NumpyModel, Reader, require_number
from attnviz.models.pool import in_turn
from attnviz.progress import UNWATCHED, Watch
from attnviz.records import Input, Tokens

Floats = NDArray[np.float64]
Haystack = tuple[Question, ...]
"""The questions about one text."""

_SHUFFLED = "fetching needles from shuffled haystacks"


class Answered(NamedTuple):
    """The measurements on all heads while a model reads one answer, as means over its tokens.

    heads: (3, layer, head), NaN for a head that was not seen: the retrieval score, that of needles
    that are not asked for, the weight on the first and last tokens. loss: of a token, in nats.
    predicted: the share of the answer's tokens that the model predicts.
    """

    heads: Floats
    loss: float
    predicted: float


def answered(reader: Reader, question: Question, layers: int, heads: int) -> Answered:
    """Measure the heads at each token of an answer; return the means over these tokens.

    reader: runs the model on a growing text. layers, heads: how many the model has.
    """
    found = np.full((len(question.right), 3, layers, heads), np.nan)
    losses, predicted = [], []
    for step, (right, others) in enumerate(zip(question.right, question.others, strict=True)):
        scores, rows = reader.read(question.ids[: question.start + step])
        token = question.ids[question.start + step]
        logs = log_softmax(scores.astype(np.float64))
        losses.append(-float(logs[token]))
        predicted.append(int(logs.argmax()) == token)
        for layer, weights in rows.items():
            top, last = weights.argmax(-1), max(weights.shape[1] - RECENT, SINK)
            elsewhere = np.isin(top, others) / len(others) if others else np.nan
            near = weights[:, :SINK].sum(-1) + weights[:, last:].sum(-1)
            for part, values in enumerate((np.isin(top, right), elsewhere, near)):
                found[step, part, layer, : len(top)] = values
    known = np.isfinite(found)
    with np.errstate(invalid="ignore"):  # a head that was not seen has no mean
        means = np.where(known, found, 0.0).sum(0) / known.sum(0)
    return Answered(means, float(np.mean(losses)), float(np.mean(predicted)))


class HaystackStudy:
    """Runs one model over haystacks: as it is, without some heads, and split by heads.

    advance: is given the progress. numbers: of the haystacks, which seed what is random about each;
    by default they are counted from 0.
    """

    def __init__(
        self,
        model: Model,
        haystacks: Sequence[Haystack],
        advance: Watch = UNWATCHED,
        numbers: Sequence[int] = (),
    ) -> None:
        self._model, self.haystacks, self._advance = model, haystacks, advance
        self._numbers = numbers or range(len(haystacks))
        self._backend = backend_of(model)

    def fetched(self, seed: int) -> tuple[Floats, list[list[Answered]]]:
        """Return the heads' scores (4, haystack, layer, head), and for each haystack its answers.

        The first axis has the retrieval score, that of needles that are not asked for, the score
        over shuffled haystacks, and the weight on the first and last tokens. seed: of the orders.
        """
        found = self.read("fetching needles")
        scores, unasked, near = np.stack([_mean(each) for each in found], 1)
        mixed = [
            tuple(one.shuffled((seed, number)) for one in each)
            for number, each in zip(self._numbers, self.haystacks, strict=True)
        ]
        others = HaystackStudy(self._model, mixed, self._advance)
        shuffled = [_mean(each)[0] for each in others.read(_SHUFFLED)]
        return np.stack([scores, unasked, np.stack(shuffled), near]), found

    def read(
        self, what: str, without: Callable[[int], Sequence[Head]] = lambda haystack: ()
    ) -> list[list[Answered]]:
        """Run the model on every question; return for each haystack the measurements by question.

        what: the words for the progress. without: returns the heads that are ablated, given the
        index of a haystack.
        """
        info, readers = self._model.info, dict[tuple[Head, ...], Reader]()

        def one(at: int) -> list[Answered]:
            removed, begun = tuple(without(at)), Tokens.bare(self.haystacks[at][0].ids[:2])
            reader = readers.get(removed)
            if reader is None:
                reader = self._backend.open_reader(begun, begun, "self", removed)
            if not isinstance(self._model, NumpyModel):  # its threads cannot share a reader
                readers[removed] = reader
            return [answered(reader, each, info.layers, info.heads) for each in self.haystacks[at]]

        every = in_turn if isinstance(self._model, NumpyModel) else map
        found = []
        for answers in every(one, self._announced(what)):
            require_number("loss", sum(each.loss for each in answers), info)
            found.append(answers)
            self._advance(len(found) / len(self.haystacks))
        return found

    def written(self) -> tuple[list[Floats], tuple[str, ...]]:
        """Return by haystack what each head writes towards the answers, (layer, head), and notes.

        It is the direct contribution to logit(answer) − logit(foil) by what a head reads at the
        needle, for one token of one answer; the next haystack takes the next answer. The foil is
        the token at the same place of an answer that is not asked for; a haystack without one is
        left out. The list is empty if contributions cannot be measured.
        """
        found = list[Floats]()
        try:
            attributor = self._backend.open_attributor(Input.of_ids(self.haystacks[0][0].ids[:2]))
            for at in self._announced("measuring what heads write"):
                number = self._numbers[at]
                question = self.haystacks[at][number % len(self.haystacks[at])]
                step = number % len(question.right)
                end = question.start + step
                foils = [question.ids[place] for place in question.others[step]]
                foil = next((each for each in foils if each != question.ids[end]), None)
                if foil is not None:
                    given = Input.of_ids(question.ids[:end])
                    apart = attributor.attribute(given, answer=question.ids[end], foil=foil)
                    values = np.zeros((self._model.info.layers, self._model.info.heads))
                    for (_, layer, head), row in apart.rows.items():
                        values[layer, head] = row[list(question.span)].sum()
                    found.append(values)
                self._advance((at + 1) / len(self.haystacks))
        except (UnsupportedError, UsageError) as error:
            return [], (f"what heads write is not measured: {error}",)
        return found, ()

    def changes(
        self, removed: Sequence[Head], found: Sequence[Sequence[Answered]], seed: int
    ) -> tuple[Floats, Floats | None] | None:
        """Return the rise of each haystack's loss without some heads, and without random others.

        found: the answers of the whole model. seed: of the random heads, which are drawn for each
        haystack, as many as ``removed`` or as there are. None if ``removed`` is empty.
        """
        if not removed:
            return None
        losses, heads = _losses(found), self._model.info.heads_of_layers.items()
        rest = [
            (at, one) for at, count in heads for one in range(count) if (at, one) not in removed
        ]

        def drawn(at: int) -> list[Head]:
            order = np.random.default_rng((seed, self._numbers[at])).permutation(len(rest))
            return sorted(rest[place] for place in order[: len(removed)])

        lost = self.read("ablating retrieval heads", lambda at: sorted(removed))
        random = self.read("ablating random heads", drawn) if rest else None
        return _losses(lost) - losses, None if random is None else _losses(random) - losses

    def _announced(self, what: str) -> range:
        """Announce a run over all haystacks, and return their indices. what: its words."""
        self._advance.begin(what)
        return range(len(self.haystacks))


def _mean(answers: Sequence[Answered]) -> Floats:
    mean: Floats = np.mean([each.heads for each in answers], 0)
    return mean


def _losses(found: Sequence[Sequence[Answered]]) -> Floats:
    """Return the mean loss of the answers of each haystack."""
    return np.array([np.mean([each.loss for each in answers]) for answers in found])
