"""The records of ``check``: rules about a model, their outcomes, and the report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnviz.draw.report import Report
from attnviz.records import ModelInfo

if TYPE_CHECKING:
    from attnviz.draw.document import Document


@dataclass(frozen=True)
class Bounds:
    """The bounds of a rule: the interval in which a value must lie, ends included.

    at_least, at_most: its ends; one may be None, for no bound on that side.
    Raises ValueError for no end, for one that is not finite, and if no value could pass.
    """

    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        given = [end for end in (self.at_least, self.at_most) if end is not None]
        if not given:
            raise ValueError("expected at_least or at_most, or both")
        if not all(map(math.isfinite, given)):
            raise ValueError("expected a finite bound")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"at_least {self.at_least:g} is above at_most {self.at_most:g}")

    def hold(self, value: float) -> bool:
        """Return whether a value is finite and lies within the bounds."""
        low = -math.inf if self.at_least is None else self.at_least
        high = math.inf if self.at_most is None else self.at_most
        return math.isfinite(value) and low <= value <= high


@dataclass(frozen=True)
class Rule:
    """One rule of a file; a base class of the kinds of rules.

    name: unique in the file. bounds: of its value. warning: whether the check passes even if the
        rule does not hold. line: its line in the file, 0 if not known.
    """

    name: str
    bounds: Bounds
    warning: bool = False
    line: int = 0


@dataclass(frozen=True)
class ScoreRule(Rule):
    """A rule on a pattern score of one head, as in ``patterns``.

    head: as it is typed, such as ``L1H2``. score: the name of the score.
    """

    head: str = ""
    score: str = ""


@dataclass(frozen=True)
class LabelRule(Rule):
    """A rule on how many heads of the model get a label from ``patterns``. label: its name."""

    label: str = ""


@dataclass(frozen=True)
class BaselineRule(Rule):
    """A rule on how far heads are from a saved baseline.

    path: of the baseline. share: the share of heads (0 to 1) that must lie within the bounds.
    of: the measure of distance: ``js_divergence`` of attention by distance in bits, or
        ``score_change``, the largest change of any pattern score.
    """

    path: Path = Path()
    of: str = "js_divergence"
    share: float = 1.0


@dataclass(frozen=True)
class LossRule(Rule):
    """A rule on the mean loss in nats per token over texts.

    texts: if empty, the built-in ones. path: the file of the texts, if any.
    """

    texts: tuple[str, ...] = ()
    path: Path | None = None


@dataclass(frozen=True)
class SpanRule(Rule):
    """A rule on the attention of some queries to a span of a text, mean over heads and queries.

    span: a word, words, or an index, as for ``heads --token``. queries: likewise, or ``last`` or
        ``all``. head: one head as typed; empty for all.
    """

    text: str = ""
    span: str = ""
    queries: str = "last"
    head: str = ""


@dataclass(frozen=True)
class CountRule(Rule):
    """A rule on one number that ``params`` counts.

    number: its keys in ``attnviz params --json``, such as ``kv_cache.bytes_per_token``.
    """

    number: str = "total"


@dataclass(frozen=True)
class RowsRule(Rule):
    """A rule on the largest distance of a query's sum of attention weights from one.

    It is measured over the built-in texts.
    """


@dataclass(frozen=True)
class RuleFile:
    """All rules of a file of rules, with the model that they are about.

    rules: in the order of the file.
    path: of the file. model: the name of the model, None if the file names none.
    """

    path: Path
    rules: tuple[Rule, ...]
    model: str | None = None

    @property
    def of_config(self) -> bool:
        """Return whether every rule is about the config alone."""
        return all(isinstance(rule, CountRule) for rule in self.rules)

    @property
    def baselines(self) -> tuple[Path, ...]:
        """Return the paths of the baselines that rules name, each once."""
        paths = [rule.path for rule in self.rules if isinstance(rule, BaselineRule)]
        return tuple(dict.fromkeys(paths))

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the texts of the rules; rules on the built-in texts have none."""
        losses = [text for rule in self.rules if isinstance(rule, LossRule) for text in rule.texts]
        return (*losses, *(rule.text for rule in self.rules if isinstance(rule, SpanRule)))

    @property
    def read(self) -> tuple[Path, ...]:
        """Return the paths of all files that a check reads: rules, their baselines, their texts."""
        texts = [rule.path for rule in self.rules if isinstance(rule, LossRule) and rule.path]
        return (self.path, *self.baselines, *texts)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one rule: the measured value, and the texts or heads behind it.

    value: the measured number; NaN if a head or a token has none. measured_on: the texts or heads.
    over: the same in few words, which ``CheckReport.sources`` may explain. unit: such as
        ``nats/token``. detail: more on the value, such as the heads beyond the bounds.
    """

    rule: Rule
    value: float
    measured_on: str
    over: str
    unit: str = ""
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Return whether the value lies within the rule's bounds; this ignores ``Rule.warning``."""
        return self.rule.bounds.hold(self.value)


@dataclass(frozen=True, repr=False)
class CheckReport(Report):
    """The report of ``attnviz check``: all rules of a file with their outcomes.

    name: the model's, as it was typed. info: its facts, None if only its config was read. path: of
        the file of rules. outcomes: in the order of the file. seconds: the time of the check.
    notes: remarks for the reader. sources: descriptions of the texts behind several rules, by the
        short name in ``Outcome.over``. written: the files of rules and baselines that this run
        wrote.
    """

    name: str
    info: ModelInfo | None
    path: Path
    outcomes: tuple[Outcome, ...]
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    written: tuple[Path, ...] = ()

    command = "check"

    def __post_init__(self) -> None:
        if not self.outcomes:
            raise ValueError("expected a rule")

    def data(self) -> dict[str, Any]:
        from attnviz.inspect.check.data import check_data

        return check_data(self)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.inspect.check.data import check_rows

        return check_rows(self)

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.inspect.check.document import check_document

        return check_document(self).shown(explain=explain, hints=hints)

    @property
    def failed(self) -> Sequence[Outcome]:
        """Return the outcomes of rules that do not hold and are not warnings."""
        return [each for each in self.outcomes if not each.passed and not each.rule.warning]

    @property
    def warned(self) -> Sequence[Outcome]:
        """Return the outcomes of warnings that do not hold."""
        return [each for each in self.outcomes if not each.passed and each.rule.warning]

    @property
    def passed(self) -> bool:
        """Return whether no rule failed; warnings do not count."""
        return not self.failed
