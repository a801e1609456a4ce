"""Hides facts in the texts of a corpus of any size: the sums of a block, and the report of all.

A text is a haystack of each length that it has tokens for, and a shorter one is left out. Scores
and losses are means over haystacks with Student's interval, which needs the sum and the sum of
squares alone. The heads of which the loss is measured must be known before the first block, and be
the same for every shard: they are those that the first eight haystacks of each length name.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import numpy as np

from attnviz.corpus import Line, Shard, TextBlock, TextCorpus
from attnviz.draw.labels import visible
from attnviz.draw.numbers import counted
from attnviz.draw.values import model_facts, model_of
from attnviz.engine.head_run import Head
from attnviz.errors import UsageError
from attnviz.inspect.retrieve import haystacks as hay
from attnviz.inspect.retrieve.report import HeadRetrieval, LossChange, RetrieveReport
from attnviz.inspect.retrieve.request import RetrieveRequest
from attnviz.inspect.retrieve.retrieve import (
    CacheSize,
    Haystack,
    HaystackStudy,
    above_chance,
    cache_sizes,
    checked_lengths,
    head_records,
    retrieval_heads,
    short_caches,
)
from attnviz.measures.bootstrap import LEAST_TEXTS, few_note, student_t
from attnviz.measures.exact_sums import Integers, exact_sum, known_exact, mean, variance
from attnviz.mergeable import CorpusRecord, Form, Tallies, read_record, recorded
from attnviz.models.model import Model, model_identity
from attnviz.progress import UNWATCHED, Watch
from attnviz.reading import WHOLE

FIRST = 8  # the haystacks of each length, from the first text on, that name the heads to be ablated
_SEARCHED = 1024  # the texts, from the first on, among which these haystacks are


FORM = Form(
    {"lengths": list[WHOLE], "needles": list, "seed": WHOLE, "top": WHOLE, "notes": list[str]}
    | {"caches": list[tuple[WHOLE, WHOLE, WHOLE, list[WHOLE], str]]}
    | {"ablated": list[tuple[WHOLE, WHOLE]]},
    lambda facts: (
        {"number": 4, "base": 2, "length": len(facts["lengths"])} | {"depth": len(hay.DEPTHS)}
    ),
    {
        "": "texts answer_tokens writing",
        "exact": "loss predicted",
        "length": "haystacks short",
        "layer of_layer": "seen",
        "layer of_layer exact": "squares written",
        "number layer of_layer exact": "heads",
        "base layer of_layer exact": "margins margin_squares",
        "length depth": "asked",
        "length depth layer of_layer exact": "cells",
        "change exact": "changes change_squares",
    },
)
"""What the record of a shard may hold; see ``_sums``."""


def refuse_for_corpus(request: RetrieveRequest) -> None:
    """Raise UsageError if an option of the request does not work with a corpus; checked early."""
    given = {
        "--haystack": request.haystack is not None,
        "--haystacks": request.haystacks != RetrieveRequest().haystacks,
    }
    for name in (name for name, there in given.items() if there):
        raise UsageError(
            f"{name} is not for a corpus, where each text is a haystack of each length: leave it "
            "or --texts out"
        )


def retrieve_over(
    model: Model,
    corpus: TextCorpus,
    request: RetrieveRequest,
    shard: Shard,
    file: Path | None = None,
    advance: Watch = UNWATCHED,
) -> RetrieveReport:
    """Measure which heads fetch a needle from the shard's texts of a corpus.

    Raises UsageError for lengths and needles that do not fit the model or texts that cannot be read
    twice, UnsupportedError for a model that does not predict the next token.
    """
    began = time.monotonic()
    if corpus.source == "standard input":
        raise UsageError("--texts - cannot be read twice: name a file")
    makes = _Haystacks(model, checked_lengths(model, request), request)
    removed = _known(file)
    notes: Sequence[str] = ()
    if removed is None:
        removed, notes = _first_named(makes, corpus)
    caches, more = cache_sizes(model)
    needles, asked = hay.needles_of(request)
    run = {
        **model_identity(model),
        "lengths": makes.lengths,
        "needles": needles,
        "asked": asked,
        "ablated": removed,
        **({"chat": True} if request.chat else {}),
        "seed": request.seed,
    }
    shown = {
        "model": model_facts(model.info),
        "source": corpus.source,
        "caches": caches,
        "notes": [*notes, *more],
        "top": request.top,
        "index_base": request.index_base,
    }
    heads = tuple((layer, head) for layer, head in removed)

    def measured(block: TextBlock) -> Tallies:
        by_text = [makes.of(index, line) for index, line in enumerate(block.lines, block.first)]
        haystacks = [(at, own) for at, some in enumerate(by_text, block.first) for own in some]
        sizes = [questions[0].length for _, questions in haystacks]
        counts = [sizes.count(length) for length in makes.lengths]
        sums: dict[str, Integers] = {
            "texts": np.array(sum(map(bool, by_text))),
            "haystacks": np.array(counts),
            "short": len(by_text) - np.array(counts),
        }
        return Tallies(sums | (_sums(makes, haystacks, heads) if haystacks else {}))

    begun = CorpusRecord("retrieve", run, shown, (), Tallies())
    record = recorded(corpus, shard, begun, measured, FORM, file=file, watch=advance)
    return replace(report_of(record), seconds=time.monotonic() - began)


class _Haystacks:
    def __init__(self, model: Model, lengths: Sequence[int], request: RetrieveRequest) -> None:
        self.model, self.lengths, self.seed = model, lengths, request.seed
        self._request = request

    def of(self, index: int, line: Line) -> list[Haystack]:
        """Return the haystacks a text is long enough for, by length. index: in the corpus."""
        made_of = hay.material(self.model, hay.sentences_of(line.text), self._request)
        size = sum(map(len, made_of.sentences))
        fitting = (length for length in self.lengths if length <= size)
        return [hay.questions(made_of, length, index, self.seed) for length in fitting]

    def study(self, haystacks: Sequence[tuple[int, Haystack]]) -> HaystackStudy:
        """Return the study of some haystacks, each with the index of its text."""
        numbers = [
            len(self.lengths) * index + self.lengths.index(haystack[0].length)
            for index, haystack in haystacks
        ]
        return HaystackStudy(self.model, [own for _, own in haystacks], numbers=numbers)


def _known(file: Path | None) -> list[Head] | None:
    """Return the heads that a run ablates which goes on from its file; None for a new run."""
    if file is None or not file.exists():
        return None
    kept = read_record(file)  # what else differs is refused where the run goes on
    if kept.command != "retrieve":
        return []
    kept.check(FORM, visible(str(file)))
    heads: list[Head] = kept.run["ablated"]
    return heads


def _first_named(makes: _Haystacks, corpus: TextCorpus) -> tuple[list[Head], tuple[str, ...]]:
    """Return the heads that the first haystacks name, and a note if writing is not measured."""
    first: dict[int, list[tuple[int, Haystack]]] = {length: [] for length in makes.lengths}
    for index, line in enumerate(islice(corpus.lines(), _SEARCHED)):
        for haystack in makes.of(index, line):
            if len(kept := first[haystack[0].length]) < FIRST:
                kept.append((index, haystack))
        if all(len(kept) == FIRST for kept in first.values()):
            break
    haystacks = [*chain.from_iterable(first.values())]
    if not haystacks:
        return [], ()
    heads, _ = makes.study(haystacks).fetched(makes.seed)
    _, notes = makes.study(haystacks[:1]).written()
    return sorted(retrieval_heads(*heads[:3])), notes


def _sums(
    makes: _Haystacks, haystacks: Sequence[tuple[int, Haystack]], removed: Sequence[Head]
) -> dict[str, Integers]:
    """Return the sums over some haystacks.

    ``heads`` has the axes (number, layer, head) of ``HaystackStudy.fetched``, ``margins`` those of
    the score's difference to each base rate. ``cells`` and ``asked`` begin with length and depth.
    ``changes`` has the loss without the ablated heads and without random ones.
    """
    study = makes.study(haystacks)
    heads, answers = study.fetched(makes.seed)
    written, _ = study.written()
    changes = study.changes(removed, answers, makes.seed) or ()
    margins = heads[0] - heads[1:3]
    asked = chain.from_iterable(study.haystacks)
    pairs = [*zip(asked, chain.from_iterable(answers), strict=True)]
    cells = np.zeros((len(makes.lengths), len(hay.DEPTHS), *heads.shape[2:], 2), np.int64)
    asked_at = np.zeros(cells.shape[:2], np.int64)
    for question, answer in pairs:
        cell = makes.lengths.index(question.length), question.depth
        cells[cell] += known_exact(answer.heads[0])
        asked_at[cell] += 1
    sums = {
        "seen": np.isfinite(heads[0]).sum(0),
        "heads": known_exact(heads).sum(1),
        "squares": known_exact(heads[0] ** 2).sum(0),
        "margins": known_exact(margins).sum(1),
        "margin_squares": known_exact(margins**2).sum(1),
        "cells": cells,
        "asked": asked_at,
        "answer_tokens": np.array(sum(len(question.right) for question, _ in pairs)),
        "loss": exact_sum([answer.loss for _, answer in pairs]),
        "predicted": exact_sum([answer.predicted for _, answer in pairs]),
    }
    if written:
        sums |= {"written": exact_sum(written), "writing": np.array(len(written))}
    known = np.array([rise for rise in changes if rise is not None]).reshape(-1, len(haystacks))
    return sums | {"changes": exact_sum(known.T), "change_squares": exact_sum(known.T**2)}


def report_of(record: CorpusRecord) -> RetrieveReport:
    """Return the report of a saved record; UsageError if no text of a corpus is long enough."""
    sums, shown, run = record.tallies.sums, record.shown, record.run
    info, lengths, seed = model_of(shown["model"]), tuple(run["lengths"]), run["seed"]
    count = int(sums["haystacks"].sum()) if "haystacks" in sums else 0
    if not count and not record.missing:
        raise UsageError(
            f"no text has {lengths[0]:,} tokens, the shortest of --lengths: give shorter ones"
        )
    named = _named(record, count)
    heads = _heads(record, named) if count else ()
    sizes = [CacheSize(*size) for size in shown["caches"]]
    return RetrieveReport(
        model=info,
        lengths=lengths,
        haystacks=count,
        questions=int(sums["asked"].sum()) if count else 0,
        tokens=int(sums["answer_tokens"]) if count else 0,
        predicted=_of_answers(record, "predicted"),
        loss=_of_answers(record, "loss"),
        heads=heads,
        cells=_cells(record, heads[0].place) if heads else {},
        without=_change(record, count, 0),
        random=_change(record, count, 1),
        caches=short_caches(info, sizes, named) if named else (),
        top=shown["top"],
        texts=int(sums.get("texts", 0)),
        ablated=tuple((layer, head) for layer, head in run["ablated"]),
        record=record,
        chat="chat" in run,
        source=shown["source"],
        notes=tuple(_notes(record, count)),
        complete=not record.missing,
        seed=seed,
        index_base=shown["index_base"],
    )


def _notes(record: CorpusRecord, count: int) -> Iterator[str]:
    sums, lengths = record.tallies.sums, record.run["lengths"]
    for length, short in zip(lengths, sums.get("short", np.zeros(0)).tolist(), strict=False):
        if short:
            verb = "is" if short == 1 else "are"
            yield f"{counted(short, 'text')} {verb} too short for {length:,} tokens"
    if record.run["ablated"]:
        yield f"the heads ablated are those that the first {FIRST} haystacks of each length name"
    yield from record.shown["notes"]
    yield from record.notes
    yield from few_note(count, "haystacks")


def _of_answers(record: CorpusRecord, name: str) -> float:
    """Return the mean over all answers of the exact sum with this name; NaN without an answer."""
    sums = record.tallies.sums
    return float(mean(sums[name], sums["asked"].sum())) if name in sums else math.nan


def _named(record: CorpusRecord, count: int) -> tuple[Head, ...]:
    if count < LEAST_TEXTS:
        return ()
    sums = record.tallies.sums
    score, unasked, shuffled, _ = mean(sums["heads"], sums["seen"])
    base = np.where(unasked >= shuffled, 0, 1)[None]
    margin = mean(sums["margins"], sums["seen"])
    spread = variance(sums["margins"], sums["margin_squares"], sums["seen"])
    margin, spread = (np.take_along_axis(both, base, 0)[0] for both in (margin, spread))
    return above_chance(score, margin, spread, count)


def _heads(record: CorpusRecord, named: Sequence[Head]) -> tuple[HeadRetrieval, ...]:
    """Return what the sums say of each head. named: those that retrieve."""
    sums, seen = record.tallies.sums, record.tallies.sums["seen"]
    means, spread = mean(sums["heads"], seen), variance(sums["heads"][0], sums["squares"], seen)
    written = mean(sums["written"], sums["writing"]) if "writing" in sums else None

    def change(head: Head) -> LossChange:
        return _interval(float(means[0][head]), float(spread[head]), int(seen[head]), (0.0, 1.0))

    return head_records(seen > 0, change, means, written, named)


def _cells(record: CorpusRecord, head: Head) -> dict[tuple[int, int], float]:
    """Return a head's score by length and depth, over the answers that were asked for there."""
    sums, lengths = record.tallies.sums, record.run["lengths"]
    scores = mean(sums["cells"][:, :, *head], sums["asked"])
    known = np.argwhere(sums["asked"] > 0).tolist()
    return {(lengths[length], depth): float(scores[length, depth]) for length, depth in known}


def _change(record: CorpusRecord, count: int, which: int) -> LossChange | None:
    """Return a change of the loss, by its place in ``changes``; None if it was not measured."""
    sums = record.tallies.sums
    if "changes" not in sums or which >= len(sums["changes"]):
        return None
    (value,) = mean(sums["changes"][which, None], count).tolist()
    squares = sums["change_squares"][which, None]
    (spread,) = variance(sums["changes"][which, None], squares, count).tolist()
    return _interval(value, spread, count)


def _interval(
    value: float, spread: float, count: int, ends: tuple[float, float] = (-math.inf, math.inf)
) -> LossChange:
    """Return a mean with Student's interval. spread: the variance. ends: its least and largest."""
    if count < LEAST_TEXTS:
        return LossChange(value, None, None)
    reach = student_t(count - 1) * math.sqrt(spread / count)
    return LossChange(value, max(value - reach, ends[0]), min(value + reach, ends[1]))
