"""Chooses the heads that align words best, on half of the examples, and measures the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.inspect.align.report import AlignReport, HeadErrors, HeadSet
from attnviz.inspect.align.request import AlignRequest
from attnviz.inspect.align.study import Clips, Example, GoldPairs, Heads, heard, paired
from attnviz.measures.bootstrap import intervals
from attnviz.models.model import Model
from attnviz.models.work import ON_TORCH, Work
from attnviz.progress import UNWATCHED, Advance

_RANDOM = 20  # the number of random sets of heads
Steps = list[tuple[int, float, float]]
"""Heads in the order in which they were added, with the errors on both halves."""


def work(given: Clips | GoldPairs) -> Work:
    """Return the planned work, by which the loader opens a model of sounds or of texts."""
    return Work(reads="sound") if isinstance(given, Clips) else ON_TORCH


def align(
    model: Model, given: Clips | GoldPairs, request: AlignRequest, advance: Advance = UNWATCHED
) -> AlignReport:
    """Return which cross-attention heads align words, chosen and reported on halves.

    given: sounds with the times of their words, or sentence pairs with gold links. advance: is
    called with the share of these that is read. Every second one chooses heads greedily, by the
    mean error of the beginnings of words or by the alignment error rate; the others are measured.

    Raises UnsupportedError for a model of another kind, LoadError or UsageError for a sound or
    words that do not fit the model.
    """
    if isinstance(given, Clips):
        study = heard(model, given, request.recipe or "openai", advance)
    else:
        study = paired(model, given, advance)
    heads, count = study.heads, len(study.heads)
    halves = {name: (some[::2], some[1::2]) for name, some in study.readings.items()}
    greedy = {name: _greedy(*half, min(request.most, count)) for name, half in halves.items()}
    reading = min(greedy, key=lambda name: min(chose for _, chose, _ in greedy[name][0]))
    (choosing, held), (steps, chosen) = halves[reading], greedy[reading]
    draws = np.random.default_rng(request.seed)
    asked: dict[str, tuple[str, list[Heads]]] = {"chosen": (reading, [chosen])}
    for name, (_, best) in greedy.items():
        if name != reading:
            asked[f"chosen, {name}"] = name, [best]
    known = set(study.published) <= set(heads)
    controls: dict[str, list[Heads]] = {
        "published list": [[heads.index(head) for head in study.published if known]],
        "all of the last half": [[at for at in range(count) if 2 * heads[at][0] >= heads[-1][0]]],
        "random heads": [
            draws.choice(count, len(chosen), replace=False).tolist() for _ in range(_RANDOM)
        ],
    }
    for name, sets in controls.items():  # each is read in the way that is best for it
        errors = {way: _errors(half[0], sets).mean() for way, half in halves.items() if sets[0]}
        if errors:
            asked[name] = min(errors, key=lambda way: errors[way]), sets
    reads = {
        name: [example.read(sets) for example in halves[way][1]]
        for name, (way, sets) in asked.items()
    }
    asked[study.guess], reads[study.guess] = ("", []), [example.guess() for example in held]
    # Per example, (set, example) in all: the mean over the random sets.
    terms = {name: _terms(held, read) for name, read in reads.items()}
    around = intervals(np.stack(list(terms.values()), axis=1), request.seed)
    against = np.stack([terms["chosen"] - values for values in terms.values()], axis=1)
    apart = [None, *intervals(against[:, 1:], request.seed)]
    sets_told = []
    for at, (name, (way, sets)) in enumerate(asked.items()):
        facts = [example.facts(read) for example, read in zip(held, reads[name], strict=True)]
        sets_told.append(
            HeadSet(
                name,
                tuple(heads[head] for head in sets[0]) if len(sets) == 1 else (),
                error=float(terms[name].mean()),
                interval=around[at],
                apart=apart[at],
                reading=way,
                further=study.further(np.concatenate(facts, axis=-1)),
            )
        )
    alone: list[Heads] = [[head] for head in range(count)]
    single = zip(heads, *(_errors(half, alone).tolist() for half in (choosing, held)), strict=True)
    words = [
        word
        for example, read in zip(held, reads["chosen"], strict=True)
        for word in example.words(read[0])
    ]
    return AlignReport(
        model=model.info,
        choosing=tuple(example.name for example in choosing),
        held=tuple(example.name for example in held),
        recipe=reading,
        frame=study.frame,
        heads=tuple(HeadErrors(*head, *errors) for head, *errors in single),
        published=tuple(study.published),
        steps=tuple(HeadErrors(*heads[head], *errors) for head, *errors in steps),
        sets=tuple(sets_told),
        words=tuple(words),
        notes=tuple(dict.fromkeys([*model.info.notes, *study.notes])),
        index_base=request.index_base,
    )


def _greedy(
    choosing: Sequence[Example], held: Sequence[Example], most: int
) -> tuple[Steps, list[int]]:
    """Return the heads as they were added, each with the least error left, and the best set."""
    taken, steps = list[int](), Steps()
    while len(taken) < most:
        left = [head for head in range(len(choosing[0].scores)) if head not in taken]
        errors = _errors(choosing, [[*taken, head] for head in left])
        best = int(errors.argmin())
        taken.append(left[best])
        steps.append((left[best], float(errors[best]), float(_errors(held, [taken])[0])))
    size = int(np.argmin([chose for _, chose, _ in steps])) + 1
    return steps, taken[:size]


def _errors(examples: Sequence[Example], sets: Sequence[Heads]) -> NDArray[np.float64]:
    """Return the error (set,) over examples: all that is wrong by all that there is."""
    wrong, whole = np.sum([example.wrong(example.read(sets)) for example in examples], axis=0).T
    return wrong / whole


def _terms(examples: Sequence[Example], reads: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """Return a number (example,) whose mean is the error, so that its interval is the error's.

    Of a quotient of sums R = Σn / Σd it is R + (n − R d) / mean(d), the term of its linearisation
    (Cochran 1977, "Sampling Techniques", section 6.5). Several sets are taken in the mean.
    """
    counts = [
        example.wrong(read).mean(axis=0) for example, read in zip(examples, reads, strict=True)
    ]
    wrong, whole = np.array(counts).T
    error = wrong.sum() / whole.sum()
    return error + (wrong - error * whole) / whole.mean()
