"""The report of ``attnviz patterns``: each head's scores, base rates and label, and the texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from attnviz.draw.report import Report, fields_of
from attnviz.draw.values import model_facts, table_of
from attnviz.measures.labels import least_strength
from attnviz.measures.registry import STATISTICS, View, label_named, read_score
from attnviz.reading import finite, optional, typed
from attnviz.records import HeadLabel, Kind, ModelInfo, Provenance, Source

if TYPE_CHECKING:
    from attnviz.mergeable import CorpusRecord

SCHEMA = "attnviz.patterns/1"


@dataclass(frozen=True)
class Probe:
    """A set of texts over which pattern scores were measured, as described in the report.

    name: ``natural text``, ``random repeats``, ``random copies``, ``annotated sentences``, or
        ``text`` for a person's own.
    shortest, longest: their lengths in tokens. scores: the names of the scores that come from them.
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
class PatternScores:
    """The pattern scores of one head, its label and their statistics.

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
    intervals: by score, the ends of its 95% confidence interval, if it has one: Student's over
        texts, for a relation Wilson's over word pairs.
    text_label: the head's label on a person's own text by the rule of a single text; else None.
    pairs: for each score (score, base rate) over single texts (or seeds, or folds), in their order.
    reach: the share of a text's queries that could show a score, mean over texts, in [0, 1].
    one_delimiter: the share of the gain of ``delimiter`` over chance that a single token gives.
    agreeing: for texts that are not kept in ``pairs``, the share that agrees on a label.
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
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    text_label: HeadLabel | None = None
    pairs: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    reach: Mapping[str, float] = field(default_factory=dict)
    one_delimiter: float = 0.0
    agreeing: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.label is not None and self.scores.get(self.label) is None:
            raise ValueError(f"L{self.layer}H{self.head}: no score stands behind {self.label!r}")

    @property
    def place(self) -> tuple[int, int]:
        """Return (layer, head)."""
        return self.layer, self.head

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
        own = self.text_label
        return None if own is None or own.name != self.label else own.events

    @property
    def by_text(self) -> dict[str, tuple[float, ...]]:
        """Return for each score its values over single texts (or seeds, or folds), in order."""
        return {name: tuple(score for score, _ in pairs) for name, pairs in self.pairs.items()}

    @property
    def _sink(self) -> HeadLabel | None:
        own = self.text_label
        return own if own is not None and own.name == self.label and not own.is_finding else None


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

    causal: whether a query sees no later key.
    view: the transform of the attention weights before scores are measured, such as ``raw``.
    heads: one entry for each head, layer by layer.
    labels: the names that a head could get here, in the order of ``LABELS``.
    probes: the sets of texts, and the scores measured over each.
    not_measured: for each score that has no value at all, the reason in words.
    untestable: the base rate of each relation that no head could get as a label, because the best
        fixed offset finds it too often. control: the random baseline; None without one.
    text: a person's own text; empty if the probes were used.
    labels_from: where the labels of a person's own text come from; ``none`` for those of probes.
    labels_date: when ``patterns`` stored them; empty for other sources.
    watch: the one label by which heads are ranked, or None. top: heads listed for a label; None:
        the usual few.
    record: of a corpus, all numbers behind the report; it adds up with those of other shards.
    """

    model: ModelInfo
    kind: Kind
    causal: bool
    view: View
    heads: tuple[PatternScores, ...]
    labels: tuple[str, ...]
    probes: tuple[Probe, ...]
    not_measured: Mapping[str, str] = field(default_factory=dict)
    untestable: Mapping[str, float] = field(default_factory=dict)
    control: Control | None = None
    target: str | None = None
    file: str = ""
    labels_from: Source = "none"
    labels_date: str = ""
    watch: str | None = None
    top: int | None = None
    record: CorpusRecord | None = None

    command = "patterns"
    lists = ("heads",)

    @property
    def thresholds(self) -> dict[str, float]:
        """Return for each label the least strength with which a head gets it."""
        return {name: least_strength(name) for name in self.labels}

    def data(self) -> dict[str, Any]:
        """Return the report as one JSON object, except the example maps; indices start at 0.

        ``heads`` has an entry for each head, layer by layer; if one label is watched, only the
        heads that have its score, highest first.
        """
        control = self.control
        return {
            "schema": SCHEMA,
            "model": model_facts(self.model),
            "text": self.text or None,
            "target": self.target,
            "source": self.source or None,
            **fields_of(self, ("kind", "causal", "view")),
            "watched": self.watch,
            "index_base": 0,
            "probes": [asdict(probe) for probe in self.probes],
            "labels": {
                name: {
                    "letter": label_named(name).letter,
                    "family": label_named(name).family,
                    "threshold": least,
                    "heads": len(self.labelled(name)),
                }
                for name, least in self.thresholds.items()
            },
            "labels_from": None if self.labels_from == "none" else self.labels_from,
            "labels_date": self.labels_date or None,
            **fields_of(self, ("not_measured", "untestable")),
            "control": control and {"weights": "random", **asdict(control)},
            "seconds": round(self.seconds, 3),
            "notes": self.notes,
            "heads": [score_entry(entry) for entry in self._listed],
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the CSV header, then a row for each head, ranked if one label is watched.

        The columns ``score.NAME``, ``base.NAME``, ``strength.NAME`` and, with a random baseline,
        ``random.NAME`` belong to the score NAME; statistics have their own names.
        A cell is empty if it was not measured.
        """
        names = dict.fromkeys(name for entry in self.heads for name in entry.scores)
        kinds = ("score", "base", "strength", *(["random"] if self.control else []))

        def row(entry: PatternScores) -> dict[str, Any]:
            values = (entry.scores, entry.base_rate, entry.strength, entry.control)
            cells: dict[str, Any] = {**vars(entry), **entry.statistics}
            for kind, by_name in zip(kinds, values, strict=False):
                cells |= {f"{kind}.{name}": score for name, score in by_name.items()}
            return cells

        columns = (f"{kind}.{name}" for kind in kinds for name in names)
        facts = ("layer", "head", "label", "margin", "agreement", *STATISTICS)
        return table_of((*facts, *columns), map(row, self._listed))

    @property
    def _listed(self) -> tuple[PatternScores, ...]:
        return self.heads if self.watch is None else self.ranked(self.watch)

    @property
    def unknown(self) -> tuple[PatternScores, ...]:
        """Return the heads without any score, for example because their weights are NaN."""
        return tuple(entry for entry in self.heads if set(entry.scores.values()) <= {None})

    def labelled(self, label: str) -> tuple[PatternScores, ...]:
        """Return the heads that have this label, strongest first."""
        return tuple(entry for entry in self.ranked(label) if entry.label == label)

    def ranked(self, score: str) -> tuple[PatternScores, ...]:
        """Return all heads that have a value of this pattern score, highest first."""
        scored = [entry for entry in self.heads if entry.scores.get(score) is not None]
        return tuple(sorted(scored, key=lambda entry: -(entry.scores[score] or 0.0)))


def score_entry(entry: PatternScores) -> dict[str, Any]:
    """Return the JSON object of one head's pattern scores; ``null`` for values not measured."""
    of_label = ("label", "score", "margin", "agreement")
    by_score = ("scores", "base_rate", "strength", "intervals", "statistics", "measured")
    return {
        **fields_of(entry, ("layer", "head", *of_label, *by_score, "events")),
        **({"control": entry.control} if entry.control else {}),
    }


def read_scores(facts: Mapping[str, Any]) -> PatternScores:
    """Return a head of a saved file; KeyError, TypeError or ValueError for anything else."""

    def numbers(given: Mapping[str, Any]) -> dict[str, float | None]:
        return {str(name): read_score(name, score) for name, score in given.items()}

    return PatternScores(
        typed(facts["layer"], int),
        typed(facts["head"], int),
        optional(facts["label"], str),
        numbers(facts["scores"]),
        numbers(facts.get("base_rate", {})),
        intervals={
            str(name): (finite(low), finite(high))
            for name, (low, high) in facts["intervals"].items()
            if low is not None and high is not None
        },
    )
