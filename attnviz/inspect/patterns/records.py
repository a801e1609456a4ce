"""What ``attnviz patterns`` found: each head's scores, base rates and label, and over what.

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
from attnviz.records import HeadLabel, Kind, ModelInfo, Source, Tokens

if TYPE_CHECKING:
    from attnviz.draw.document import Document


@dataclass(frozen=True)
class WordPair:
    """Two words that belong together.

    relation: such as ``subject``.
    dependent, head: their indices among the sentence's words.
    """

    relation: str
    dependent: int
    head: int


@dataclass(frozen=True)
class AnnotatedSentence:
    """A sentence of which a person has said which words belong together.

    text: as a model reads it.
    words: of each word the range of its characters in ``text``, without marks at its ends.
    pairs: what belongs together.
    line: of its file, counted from 1.
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
    """A set of texts that heads were scored on.

    name: ``natural text``, ``random repeats``, ``random copies``, ``annotated sentences``, or
        ``text`` for a person's own.
    texts: how many there were.
    shortest, longest: of them, in tokens.
    scores: the names of the scores that come from them.
    seeds: of the random ones.
    pairs: of annotated ones, by relation, how many could be looked at.
    skipped: texts that could not be looked at, each with the reason, as sentences.
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
    """A small map that shows what a head does, of a text that its label can be seen on.

    tokens: of the queries.
    keys: of the keys, the same object for self-attention.
    weights: float array (query, key), in the report's view.
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
    """What one head does.

    label: the name of the score that stands out most, or None where none reaches its threshold.
    scores: by name, each in [0, 1] but ``rare`` and ``monotone``, which are in [-1, 1]; None where
        it was not measured, for which ``PatternReport.not_measured`` has the reason.
    base_rate: of the same names, what the score would be without the pattern; None as in
        ``scores``, and for names that no base rate belongs to.
    strength: of the names that can be labels, the share of what a score could gain over its base
        rate (and, where a control ran, over the highest score of the twin's heads in this layer)
        that it has gained, at most 1; the largest one names the head.
    margin: the label's score minus its base rate; None without a label.
    agreement: the share of the texts (or seeds, or, of a relation, of ten folds of its sentences)
        that show this label on their own; None without a label or with a single text.
    measured: of each score, the number of texts behind it (of a relation: of pairs).
    statistics: the means of ``STATISTICS`` over the running texts, None where not measured.
    control: the scores of the same place in the randomly initialised twin; empty without one.
    example: a small map to look at; None for heads that are not among their label's best.
    intervals: of the scores that have one, the ends of the 95% interval: Student's over texts, and
        of a relation Wilson's over pairs.
    said: what the rule of a single text calls the head, of a person's own text; else None.
    by_text: of each score its values over single texts (or seeds, or folds), in their order.
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
        """Return the label's score, of an attention sink of a single text its whole weight.

        None without a label.
        """
        if self.label is None:
            return None
        return self._sink.on_text if self._sink else self.scores[self.label]

    @property
    def chance(self) -> float | None:
        """Return what the label's score would be by chance; None without a label."""
        if self.label is None:
            return None
        return self._sink.base_rate if self._sink else self.base_rate[self.label]

    @property
    def events(self) -> int | None:
        """Return how many places of a single text stand behind the label; else None."""
        return None if self.said is None or self.said.name != self.label else self.said.events

    @property
    def _sink(self) -> HeadLabel | None:
        said = self.said
        return (
            said if said is not None and said.name == self.label and not said.is_finding else None
        )


@dataclass(frozen=True)
class Control:
    """The randomly initialised twin of the model, scored on the same texts.

    seed: of its weights.
    labelled: how many of its heads get each label by base rates alone.
    """

    seed: int
    labelled: Mapping[str, int]


@dataclass(frozen=True, repr=False)
class PatternReport(Report):
    """What ``attnviz patterns`` found: the one input of every screen and file it writes.

    model: where the numbers come from.
    kind: the attention that was scored.
    causal: whether a query sees no later key.
    view: how weights were changed before they were scored.
    heads: one entry a head, layer by layer.
    labels: the names that a head could get here, in the order of ``LABELS``.
    thresholds: of each of them, the strength from which it names a head.
    probes: what was measured, and over which texts.
    not_measured: for each score that has no value at all, the reason in words.
    untestable: for each relation that no head could be named after, so often does the best fixed
        offset find it, that base rate.
    control: of the randomly initialised twin; None without one.
    text: a person's own as given; None where the probes were scored.
    target: what a decoder read next to it; None if there is none.
    file: where the text comes from; empty for one that was typed.
    probe_files: of annotated sentences, in place of those that ship with attnviz.
    seconds: it took.
    notes: sentences a reader of the result must know.
    index_base: 0, or 1 for names that start at one; indices inside records start at 0.
    labels_from: where the labels of a person's own text come from; ``none`` for those of probes.
    labels_date: when ``patterns`` kept them; empty for other sources.
    watch: the one label by which heads are ranked, or None.
    stats: tell the statistics of every head. top: heads listed for a label; None: the usual few.
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
    text: str | None = None
    target: str | None = None
    file: str = ""
    probe_files: tuple[str, ...] = ()
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    index_base: int = 0
    labels_from: Source = "none"
    labels_date: str = ""
    watch: str | None = None
    stats: bool = False
    top: int | None = None

    command = "patterns"
    lists = ("heads",)

    def __post_init__(self) -> None:
        if set(self.labels) != set(self.thresholds):
            raise ValueError(
                f"labels and thresholds differ: {self.labels}, {tuple(self.thresholds)}"
            )

    @property
    def source(self) -> str:
        """Return where text and probes come from; empty for what was typed or is built in."""
        return ", ".join([*([self.file] if self.file else []), *self.probe_files])

    def data(self) -> dict[str, Any]:
        from attnviz.inspect.patterns.data import patterns_data

        return patterns_data(self)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.inspect.patterns.data import patterns_rows

        return patterns_rows(self, self.watch)

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.inspect.patterns.document import patterns_document

        return patterns_document(self, explain=explain, hints=hints)

    def name(self, layer: int, head: int) -> str:
        """Return a head's name, such as ``L2H5``."""
        return f"L{layer + self.index_base}H{head + self.index_base}"

    @property
    def unknown(self) -> tuple[PatternScores, ...]:
        """Return the heads without any score, as of weights that are not numbers."""
        return tuple(entry for entry in self.heads if set(entry.scores.values()) <= {None})

    def labelled(self, label: str) -> tuple[PatternScores, ...]:
        """Return the heads that have this label, strongest first."""
        return tuple(entry for entry in self.ranked(label) if entry.label == label)

    def ranked(self, score: str) -> tuple[PatternScores, ...]:
        """Return all heads that this score was measured of, highest first."""
        found = [entry for entry in self.heads if entry.scores.get(score) is not None]
        return tuple(sorted(found, key=lambda entry: -(entry.scores[score] or 0.0)))
