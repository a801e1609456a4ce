"""Chooses heads greedily on half of the examples, and measures them and controls on the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.capture import capture
from attnviz.errors import UsageError
from attnviz.inspect.align.report import AddedHead, AlignedWord, HeadAlone, HeadSet
from attnviz.measures.bootstrap import intervals
from attnviz.models.model import TwoStackModel
from attnviz.records import Floats, Tokens

Head = tuple[int, int]
Heads = Sequence[int]
"""A set of heads: their indices, layer by layer."""

_RANDOM = 20
"""The number of random sets of heads."""


@dataclass(frozen=True)
class Example(ABC):
    """A clip or a sentence pair, whose words heads align with the other side.

    name: of the clip, or the number of the pair. scores: (head, row, column), whose mean over a
    set of heads is read.
    """

    name: str
    scores: NDArray[np.float32]

    def mean(self, sets: Sequence[Heads]) -> NDArray[np.float32]:
        """Return the mean of the scores of each set of heads: (set, row, column)."""
        shares = np.zeros((len(sets), len(self.scores)), np.float32)
        for at, heads in enumerate(sets):
            shares[at, list(heads)] = 1 / len(heads)
        flat = shares @ self.scores.reshape(len(self.scores), -1)
        return flat.reshape(len(sets), *self.scores.shape[1:])

    @abstractmethod
    def read(self, sets: Sequence[Heads]) -> NDArray[Any]:
        """Return what each set of heads says of each word: (set, word), seconds or links."""

    @abstractmethod
    def guess(self) -> NDArray[Any]:
        """Return the same (1, word) without attention: the last control."""

    @abstractmethod
    def wrong(self, read: NDArray[Any]) -> Floats:
        """Return how much is wrong, and of how much: (set, 2). read: (set, word)."""

    @abstractmethod
    def further(self, read: NDArray[Any]) -> Mapping[str, Floats]:
        """Return further facts of what was read, each (set, any): see ``HeadStudy.further``."""

    @abstractmethod
    def words(self, read: NDArray[Any]) -> Sequence[AlignedWord]:
        """Return each word beside the truth. read: (word,)."""


def cross_weights(
    model: TwoStackModel, tokens: Tokens, target: Tokens, name: str
) -> tuple[list[Head], NDArray[np.float32]]:
    """Return the heads of cross attention, and their weights (head, query, key) over an example.

    Raises UsageError for a target that is too long, and for weights that are not numbers.
    """
    limit = model.target_context
    if limit is not None and len(target) > limit:
        raise UsageError(
            f"{name!r} has {len(target):,} tokens, the decoder takes {limit:,}: cut it there"
        )
    layers = capture(model, tokens, kind="cross", target=target).layers
    weights = np.concatenate([layer.weights for layer in layers])
    if not np.isfinite(weights).all():
        raise UsageError(f"the attention over {name!r} has weights that are not numbers (NaN)")
    return [(layer.layer, head) for layer in layers for head in layer.heads], weights


class HeadStudy(NamedTuple):
    """What is asked of examples.

    heads: (layer, head) of each score, layer by layer. readings: by name the same examples, their
    scores taken from other rows; the one with the least error is chosen. further: returns a number
    from a fact of all examples, by its name. guess: the name of the control without attention.
    published: a list of heads that others chose; empty for none.
    """

    heads: Sequence[Head]
    readings: Mapping[str, Sequence[Example]]
    further: Mapping[str, Callable[[NDArray[Any]], float]]
    guess: str
    published: Sequence[Head] = ()


class Chosen(NamedTuple):
    """What was chosen, and how well it does; see ``AlignReport``."""

    reading: str
    heads: tuple[HeadAlone, ...]
    steps: tuple[AddedHead, ...]
    sets: tuple[HeadSet, ...]
    words: tuple[AlignedWord, ...]


class _Greedy(NamedTuple):
    """Heads in the order in which they were added, and the error with them on each half."""

    heads: list[int]
    choosing: list[float]
    held: list[float]

    @property
    def best(self) -> list[int]:
        """Return the first heads, as many as have the least error where they were chosen."""
        return self.heads[: int(np.argmin(self.choosing)) + 1]


def choose(study: HeadStudy, most: int, seed: int) -> Chosen:
    """Return the heads that align best on every second example, measured on the others.

    most: the most heads to choose. seed: of the random sets and the intervals.
    """
    heads, count = study.heads, len(study.heads)
    halves = {name: (some[::2], some[1::2]) for name, some in study.readings.items()}
    greedy = {name: _greedy(*half, min(most, count)) for name, half in halves.items()}
    reading = min(greedy, key=lambda name: min(greedy[name].choosing))
    (choosing, held), steps = halves[reading], greedy[reading]
    draws = np.random.default_rng(seed)
    size = len(steps.best)
    middle = (heads[-1][0] + 1) // 2
    known = set(study.published) <= set(heads)
    controls: dict[str, list[Heads]] = {
        "published list": [[heads.index(head) for head in study.published if known]],
        "all of the last half": [[at for at in range(count) if heads[at][0] >= middle]],
        "random heads": [draws.choice(count, size, replace=False).tolist() for _ in range(_RANDOM)],
    }
    asked: list[tuple[str, str, list[Heads]]] = [("chosen", reading, [steps.best])]
    asked += [
        (f"chosen, {name}", name, [other.best]) for name, other in greedy.items() if name != reading
    ]
    for name, sets in controls.items():  # each is read in the way that is best for it
        if len(sets[0]):
            errors = {way: _errors(half[0], sets).mean() for way, half in halves.items()}
            asked.append((name, min(errors, key=lambda way: errors[way]), sets))
    reads = {name: [each.read(sets) for each in halves[way][1]] for name, way, sets in asked}
    reads[study.guess] = [each.guess() for each in held]
    asked.append((study.guess, "", []))
    terms = {name: _terms(held, read) for name, read in reads.items()}
    around = intervals(np.stack(list(terms.values()), axis=1), seed)
    less = np.stack([terms["chosen"] - values for values in terms.values()], axis=1)
    apart = intervals(less[:, 1:], seed)
    alone = [[head] for head in range(count)]
    single = [_errors(half, alone) for half in (choosing, held)]

    def further(name: str) -> dict[str, float]:
        facts = [each.further(read) for each, read in zip(held, reads[name], strict=True)]
        return {
            fact: value(np.concatenate([one[fact] for one in facts], axis=-1))
            for fact, value in study.further.items()
        }

    return Chosen(
        reading,
        tuple(
            HeadAlone(*heads[at], float(single[0][at]), float(single[1][at])) for at in range(count)
        ),
        tuple(
            AddedHead(*heads[head], chose, kept) for head, chose, kept in zip(*steps, strict=True)
        ),
        tuple(
            HeadSet(
                name,
                tuple(heads[each] for each in sets[0]) if len(sets) == 1 else (),
                error=float(terms[name].mean()),
                interval=around[at],
                apart=apart[at - 1] if at else None,
                reading=way,
                further=further(name),
            )
            for at, (name, way, sets) in enumerate(asked)
        ),
        tuple(
            word
            for each, read in zip(held, reads["chosen"], strict=True)
            for word in each.words(read[0])
        ),
    )


def _greedy(choosing: Sequence[Example], held: Sequence[Example], most: int) -> _Greedy:
    """Return heads, each the one that leaves the least error on ``choosing`` with those before."""
    taken, found = list[int](), _Greedy([], [], [])
    while len(taken) < most:
        left = [head for head in range(len(choosing[0].scores)) if head not in taken]
        errors = _errors(choosing, [[*taken, head] for head in left])
        best = int(errors.argmin())
        taken.append(left[best])
        found.choosing.append(float(errors[best]))
        found.held.append(float(_errors(held, [taken])[0]))
    return found._replace(heads=taken)


def _errors(examples: Sequence[Example], sets: Sequence[Heads]) -> NDArray[np.float64]:
    """Return the error (set,) over examples: all that is wrong by all that there is."""
    wrong, whole = np.sum([each.wrong(each.read(sets)) for each in examples], axis=0).T
    errors: NDArray[np.float64] = wrong / whole
    return errors


def _terms(examples: Sequence[Example], reads: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """Return a number (example,) whose mean is the error, so that its interval is the error's.

    Of a quotient of sums R = Σn / Σd it is R + (n − R d) / mean(d), the term of its linearisation
    (Cochran 1977, "Sampling Techniques", section 6.5). Several sets are taken in the mean.
    """
    counts = [each.wrong(read).mean(axis=0) for each, read in zip(examples, reads, strict=True)]
    wrong, whole = np.array(counts).T
    error = wrong.sum() / whole.sum()
    terms: NDArray[np.float64] = error + (wrong - error * whole) / whole.mean()
    return terms
