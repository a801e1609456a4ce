"""The report of ``attnviz generate``: a text, and what heads attended to during the writing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from attnviz.draw.files import Writer, text_file
from attnviz.draw.regions import region_facts, share_facts
from attnviz.draw.report import Report, fields_of
from attnviz.draw.values import known_label_facts
from attnviz.engine.generation import Step
from attnviz.engine.head_run import Head
from attnviz.inspect.generate.run import WrittenRun, rounded, run_facts, step_facts, write_run_lines
from attnviz.measures.labels import best_label, strength
from attnviz.measures.regions import regions_of
from attnviz.measures.registry import label_named
from attnviz.measures.rows import Conditions, RowBlock, TextFacts, base_rates, scores_of
from attnviz.records import HeadLabel

NAMED = ("previous", "self", "first", "duplicate", "induction", "separator", "delimiter")
"""The measures of what a head attends to, token by token."""

TELLING = ("previous", "duplicate", "induction", "delimiter")
"""The labels that show where a head attends while it writes: not at itself, nor at the sink."""

_SPREAD, _PEAKED = ("spread", "normalised_entropy"), ("peaked", "confidence")
_DIFFUSE = 0.6  # the normalised entropy from which a head without another name is called diffuse
_SOURCES = 5  # the number of most attended tokens that are listed for each step


class HeadActivity(NamedTuple):
    """The attention of one head during a generation, described by one measure.

    name: of its label, or of the measure that describes it. score: the mean of that measure, in [0,
        1], over ``steps`` generation steps. uniform: the score of uniform attention.
    label: the head's label in the model's card or from ``patterns``; None without one.
    """

    name: str
    score: float
    uniform: float
    steps: int
    label: HeadLabel | None = None

    @property
    def known(self) -> bool:
        """Return whether the name is that of the head's label, because these steps can show it."""
        return self.label is not None and self.label.name == self.name

    @property
    def words(self) -> str:
        return label_named(self.name).said


@dataclass(frozen=True, repr=False)
class GenerateReport(Report):
    """The report of ``attnviz generate``: the generated text, and where the heads attended.

    Iterating yields the generation steps. run: the generation. activity: of each (layer, head).
    heads: those that are shown in full; the first one colours the text. chosen: whether the user
    chose them.
    """

    run: WrittenRun
    activity: Mapping[Head, HeadActivity]
    heads: tuple[Head, ...]
    chosen: bool = False

    command = "generate"
    lists = None

    def __iter__(self) -> Iterator[Step]:
        return iter(self.run.steps)

    @property
    def head(self) -> Head:
        """Return the (layer, head) whose weights colour the text."""
        return self.heads[0]

    def data(self) -> dict[str, Any]:
        """Return the whole report of a generation as JSON values; indices start at 0.

        Attention weights are included for the shown heads; the ``sources`` of a step are those of
        the first shown head.
        """
        run, keys, (layer, head) = self.run, self.run.keys, self.head
        steps = []
        for number, step in enumerate(run.steps):
            sources = [
                {"index": at, "token": keys.texts[at], "weight": weight}
                for at, weight in run.sources(self.head, number, _SOURCES)
            ]
            more = {"sources": sources, "sink_weight": run.sink_weight(self.head, number)}
            steps.append(step_facts(step) | more)
        return {
            **run_facts(run),
            "written": run.text_written,
            **({"regions": region_facts(keys)} if keys.regions else {}),
            "shown": {"layer": layer, "head": head},
            "steps": steps,
            "heads": [self._head_facts(*entry) for entry in self.activity.items()],
        }

    def _head_facts(self, head: Head, activity: HeadActivity) -> dict[str, Any]:
        run, (layer, number), label = self.run, head, activity.label
        return {
            "layer": layer,
            "head": number,
            **fields_of(activity, ("name", "known", "score")),
            "base_rate": activity.uniform,
            "steps": activity.steps,
            "label": None if label is None else known_label_facts(label),
            **({} if run.regions is None else {"regions": share_facts(run.regions, head)}),
            **({"weights": rounded(run.weights(layer)[number])} if head in self.heads else {}),
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the CSV header, then a row for each generation step and each shown head.

        The columns begin with step, token, id, probability, entropy, layer and head.
        """
        run, of_keys = self.run, np.asarray(self.run.keys.regions)
        regions = [*regions_of(run.keys)] if run.keys.regions else []
        yield (
            *("step", "token", "id", "probability", "entropy", "layer", "head"),
            *("source_index", "source_token", "weight", "sink_weight"),
            *(f"region_{name}" for name in regions),
        )
        for number, step in enumerate(run.steps):
            for head in self.heads:
                at, weight = next(iter(run.sources(head, number, 1)), (None, None))
                source = None if at is None else run.keys.texts[at]
                row = step.rows[head[0]][head[1]]
                sums = [float(row[of_keys[: len(row)] == name].sum()) for name in regions]
                facts = (number, step.text, step.id, step.probability, step.entropy, *head)
                yield (*facts, at, source, weight, run.sink_weight(head, number), *sums)

    def arrays(self) -> Mapping[str, Writer]:
        """Return the function that writes the run to a ``.jsonl`` file for ``attnviz explore``."""
        return {".jsonl": text_file(lambda stream: write_run_lines(self.run, stream))}


def activities(run: WrittenRun) -> dict[Head, HeadActivity]:
    """Return the activity of every (layer, head) during a generation, from its attention weights.

    A head is named by its known label, if the text can show it; else by the measure that gained
    most over uniform attention, as ``best_label`` decides. A query is taken to see each key to
    which some head of the layer gives any weight.
    """
    facts = TextFacts(run.queries, run.keys, Conditions(run.kind, run.kind != "cross"))
    names = (*NAMED, _SPREAD[1], _PEAKED[1])
    doing, labels = dict[Head, HeadActivity](), {} if run.known is None else run.known.named()
    for layer in sorted(run.steps[0].rows):
        weights = run.weights(layer)
        seen = np.asarray(np.any(weights > 0, axis=0))
        uniform, counts = base_rates(facts, names, seen, run.start)
        scores = scores_of(RowBlock(facts, weights, run.start, seen), names)
        for head in range(len(weights)):
            own = {name: float(values[head]) for name, values in scores.items()}
            label = labels.get((layer, head))
            name, measure = _called(own, uniform, None if label is None else label.name)
            base = uniform[measure]
            base = math.nan if base is None else base
            doing[layer, head] = HeadActivity(name, own[measure], base, counts[measure], label)
    return doing


def _called(
    scores: Mapping[str, float], uniform: Mapping[str, float | None], known: str | None
) -> tuple[str, str]:
    """Return a head's name and the measure behind it, for the weights of a generation.

    known: the name of the head's label, if it was measured before.
    """
    if known is not None and not math.isnan(scores.get(known, math.nan)):
        return known, known
    gained = {
        name: strength(scores[name], uniform[name]) or 0.0
        for name in NAMED
        if not math.isnan(scores.get(name, math.nan))
    }
    best = best_label(gained, scores, uniform, {})
    if best is not None:
        return best, best
    return _SPREAD if scores[_SPREAD[1]] >= _DIFFUSE else _PEAKED
