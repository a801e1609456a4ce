"""The report of ``attnviz patterns``: each head's scores, base rates and label, and the texts.

The scores are defined by ``measures``, relations between words by ``relations``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.report import Report
from attnviz.measures.registry import View
from attnviz.records import (
    HeadLabel,
    Kind,
    ModelInfo,
    Provenance,
    RegionShares,
    Source,
    Tokens,
)

if TYPE_CHECKING:
    from attnviz.draw.document import Document
    from attnviz.mergeable import CorpusRecord


@dataclass(frozen=True)
class WordPair:
    """An annotated pair of words of a sentence with a grammatical relation.

    relation: such as ``subject``. dependent, head: the indices of both words in the sentence.
    """

    relation: str
    dependent: int
    head: int


@dataclass(frozen=True)
class AnnotatedSentence:
    """A sentence in which a person has annotated pairs of related words.

    text: the whole sentence.
    words: for each word the range of its characters in ``text``, without punctuation at its ends.
    pairs: the related words. line: its number in the file, counted from 1.
    """

    text: str
    words: tuple[range, ...]
    pairs: tuple[WordPair, ...]
    line: int

    def __post_init__(self) -> None:
        for pair in self.pairs:
            if not {pair.dependent, pair.head} <= set(range(len(self.words))):
                raise ValueError(f"no such words: {pair}")


@dataclass(frozen=True)
class Probe:
    """A set of texts over which pattern scores were measured, as described in the report.

    name: ``natural text``, ``random repeats``, ``random copies``, ``annotated sentences``, or
        ``text`` for a person's own. texts: the number of texts.
    shortest, longest: their lengths in tokens. scores: the names of the scores that come from them.
    seeds: of the random texts.
    pairs: by relation, the number of annotated word pairs that could be used.
    skipped: a sentence for each text that could not be used, with the reason.
    """

    name: str
    texts: int
    shortest: int
    longest: int
    scores: tuple[str, ...]
    seeds: tuple[int, ...] = ()
    pairs: Mapping[str, int] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Example:
    """A small map that shows what a head attends to, over a text in which its label can be seen.

    tokens: of the queries. keys: of the keys, the same object for self-attention.
    weights: float array (query, key), after the report's weight transform.
    """

    tokens: Tokens
    keys: Tokens
    weights: NDArray[np.floating]

    def __post_init__(self) -> None:
        if self.weights.shape != (len(self.tokens), len(self.keys)):
            raise ValueError(
                f"expected weights over {len(self.tokens)} queries and {len(self.keys)} keys, "
                f"got {self.weights.shape}"
            )


@dataclass(frozen=True)
class PatternScores:
    """The pattern scores of one head, its label and their statistics.

    layer, head: of the head, from 0.
    label: the name of the score that stands out most, or None if no score reaches its threshold.
    scores: by name, in [0, 1], but ``rare`` and ``monotone`` in [-1, 1]; None if not measured, for
        the reason in ``PatternReport.not_measured``. base_rate: by name, the score without the
        pattern; None as in ``scores``, and for scores without a base rate.
    strength: for the names that can be labels, the gain over the base rate as a share of the
        largest possible gain, at most 1; the largest strength gives the label. If a random baseline
        ran, the gain is over the highest score of its heads in this layer as well.
    margin: the label's score minus its base rate; None without a label.
    agreement: the share of the texts (or seeds, or, for a relation, of ten folds of its sentences)
        that show this label on their own; None without a label or with a single text.
    measured: for each score, the number of texts in its mean (for a relation, of word pairs).
    statistics: the means of ``STATISTICS`` over the running texts, None if not measured.
    control: the scores of the same head in the random baseline; empty without one.
    example: a small map to look at; None for heads that are not among their label's best.
    intervals: by score, the ends of its 95% confidence interval, if it has one: Student's over
        texts, for a relation Wilson's over word pairs.
    said: the label of the head on a person's own text by the rule of a single text; else None.
    by_text: for each score its values over single texts (or seeds, or folds), in their order.
    """

    layer: int
    head: int
    label: str | None
    scores: Mapping[str, float | None]
    base_rate: Mapping[str, float | None]
    strength: Mapping[str, float] = field(default_factory=dict)
    margin: float | None = None
    agreement: float | None = None
    measured: Mapping[str, int] = field(default_factory=dict)
    statistics: Mapping[str, float | None] = field(default_factory=dict)
    control: Mapping[str, float | None] = field(default_factory=dict)
    example: Example | None = None
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    said: HeadLabel | None = None
    by_text: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.label is not None and self.scores.get(self.label) is None:
            raise ValueError(f"L{self.layer}H{self.head}: no score stands behind {self.label!r}")

    @property
    def score(self) -> float | None:
        """Return the score of the head's label; None without a label.

        For the attention sink of a single text, it is the sink's whole weight.
        """
        if self.label is None:
            return None
        return self._sink.on_text if self._sink else self.scores[self.label]

    @property
    def chance(self) -> float | None:
        """Return the base rate of the head's label, its score by chance; None without a label."""
        if self.label is None:
            return None
        return self._sink.base_rate if self._sink else self.base_rate[self.label]

    @property
    def events(self) -> int | None:
        """Return how many tokens of the user's own text show the label; None for probes."""
        return None if self.said is None or self.said.name != self.label else self.said.events

    @property
    def _sink(self) -> HeadLabel | None:
        said = self.said
        return (
            said if said is not None and said.name == self.label and not said.is_finding else None
        )


@dataclass(frozen=True)
class Control:
    """The random baseline of pattern scores: the architecture with random parameters.

    seed: of its parameters. labelled: how many of its heads get each label by base rates alone.
    """

    seed: int
    labelled: Mapping[str, int]


@dataclass(frozen=True, repr=False)
class PatternReport(Report, Provenance):
    """The report of ``attnviz patterns``: the pattern scores and labels of all heads.

    model: the facts of the model. kind: the kind of attention.
    causal: whether a query sees no later key.
    view: the transform of the attention weights before scores are measured, such as ``raw``.
    heads: one entry for each head, layer by layer.
    labels: the names that a head could get here, in the order of ``LABELS``.
    thresholds: for each label, the strength from which a head gets it.
    probes: the sets of texts, and the scores measured over each.
    not_measured: for each score that has no value at all, the reason in words.
    untestable: the base rate of each relation that no head could get as a label, because the best
        fixed offset finds it too often. control: the random baseline; None without one.
    text: a person's own text; empty if the probes were used. file: of the text, or empty.
    target: the decoder's text; None if there is none.
    labels_from: where the labels of a person's own text come from; ``none`` for those of probes.
    labels_date: when ``patterns`` stored them; empty for other sources.
    watch: the one label by which heads are ranked, or None. stats: whether the statistics of every
        head are shown. top: heads listed for a label; None: the usual few.
    regions: the attention shares between the regions of the text; None without regions.
    record: of a corpus, all numbers behind the report; it adds up with those of other shards.
    """

    model: ModelInfo
    kind: Kind
    causal: bool
    view: View
    heads: tuple[PatternScores, ...]
    labels: tuple[str, ...]
    thresholds: Mapping[str, float]
    probes: tuple[Probe, ...]
    not_measured: Mapping[str, str] = field(default_factory=dict)
    untestable: Mapping[str, float] = field(default_factory=dict)
    control: Control | None = None
    target: str | None = None
    file: str = ""
    labels_from: Source = "none"
    labels_date: str = ""
    watch: str | None = None
    stats: bool = False
    top: int | None = None
    regions: RegionShares | None = None
    record: CorpusRecord | None = None

    command = "patterns"
    lists = ("heads",)

    def __post_init__(self) -> None:
        if set(self.labels) != set(self.thresholds):
            raise ValueError(
                f"labels and thresholds differ: {self.labels}, {tuple(self.thresholds)}"
            )

    def data(self) -> dict[str, Any]:
        from attnviz.inspect.patterns.data import patterns_data

        return patterns_data(self)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.inspect.patterns.data import patterns_rows

        return patterns_rows(self, self.watch)

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.inspect.patterns.document import patterns_document

        return patterns_document(self).shown(explain=explain, hints=hints)

    @property
    def unknown(self) -> tuple[PatternScores, ...]:
        """Return the heads without any score, for example because their weights are NaN."""
        return tuple(entry for entry in self.heads if set(entry.scores.values()) <= {None})

    def labelled(self, label: str) -> tuple[PatternScores, ...]:
        """Return the heads that have this label, strongest first."""
        return tuple(entry for entry in self.ranked(label) if entry.label == label)

    def ranked(self, score: str) -> tuple[PatternScores, ...]:
        """Return all heads that have a value of this pattern score, highest first."""
        found = [entry for entry in self.heads if entry.scores.get(score) is not None]
        return tuple(sorted(found, key=lambda entry: -(entry.scores[score] or 0.0)))
