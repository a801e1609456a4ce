"""The report of ``attnviz check``: rules about a model, and what is measured of each."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attnviz.draw.labels import visible
from attnviz.draw.report import Report
from attnviz.draw.values import model_facts, table_of
from attnviz.records import ModelInfo

_COLUMNS = ("name", "passed", "value", "at_least", "at_most", "unit", "warning", "measured_on")


def on_github() -> bool:
    """Return whether this runs in GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def printable(text: str) -> str:
    """Return a foreign name safe to print; on GitHub it cannot begin a workflow command."""
    text = visible(text)
    return text.replace("::", ": :").replace("##[", "## [") if on_github() else text


@dataclass(frozen=True)
class Bounds:
    """The bounds of a rule: the interval in which a value must lie, ends included.

    at_least, at_most: its ends; one may be None, for no bound on that side.
    Raises ValueError for no end, for one that is not finite, and if no value could pass.
    """

    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if not self.ends:
            raise ValueError("expected at_least or at_most, or both")
        if not all(map(math.isfinite, self.ends)):
            raise ValueError("expected a finite bound")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"at_least {self.at_least:g} is above at_most {self.at_most:g}")

    @property
    def ends(self) -> list[float]:
        """Return the one or two ends that are given."""
        return [end for end in (self.at_least, self.at_most) if end is not None]

    def hold(self, value: float) -> bool:
        """Return whether a value is finite and lies within the bounds."""
        low = -math.inf if self.at_least is None else self.at_least
        high = math.inf if self.at_most is None else self.at_most
        return math.isfinite(value) and low <= value <= high


@dataclass(frozen=True)
class Rule:
    """One rule of a file.

    name: unique in the file. shown: the name with the display names of measures, if it has any.
        warning: whether the check passes even if the rule does not hold. line: its line in the
        file, 0 if not known.
    kind, measure: its name in ``rules.KINDS``, and what measures its value, see ``rules.Measure``.
    texts, path: the texts that it is about, and a file that it names.
    """

    name: str
    bounds: Bounds
    shown: str = ""
    warning: bool = False
    line: int = 0
    kind: str = ""
    measure: Callable[[Any], Mapping[str, Any]] = lambda model: {}
    texts: Sequence[str] = ()
    path: Path | None = None

    @property
    def title(self) -> str:
        """Return the name as it is printed."""
        return printable(self.shown or self.name)


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

    @property
    def data(self) -> dict[str, Any]:
        """Return the outcome as a JSON object."""
        rule = self.rule
        return {
            "name": rule.name,
            "passed": self.passed,
            "value": float(self.value),
            "bound": asdict(rule.bounds),
            "unit": self.unit or None,
            "warning": rule.warning,
            "measured_on": self.measured_on,
            "detail": self.detail or None,
            "line": rule.line or None,
        }


@dataclass(frozen=True, repr=False)
class CheckReport(Report):
    """The report of ``attnviz check``: all rules of a file with their outcomes.

    name: the model's, as it was typed. info: its facts, None if only its config was read. path: of
        the file of rules.
    sources: descriptions of the texts behind several rules, by the short name in ``Outcome.over``.
        written: the files of rules and baselines that this run wrote.
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
        """Return the report as one JSON object; of a model whose config was counted the name."""
        return {
            "schema": "attnviz.check/1",
            "model": {"name": self.name} if self.info is None else model_facts(self.info),
            "file": str(self.path),
            "passed": self.passed,
            "failed": len(self.failed),
            "warnings": len(self.warned),
            "seconds": round(self.seconds, 3),
            "notes": self.notes,
            "rules": [outcome.data for outcome in self.outcomes],
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Return the table: a row for each rule in the order of the file."""
        entries = ((outcome.data, outcome.unit) for outcome in self.outcomes)
        return table_of(_COLUMNS, (data | data["bound"] | {"unit": unit} for data, unit in entries))

    @property
    def files_written(self) -> str:
        """Return a string that names the files that this run wrote."""
        return f"wrote {', '.join(printable(str(path)) for path in self.written)}"

    @property
    def failed(self) -> Sequence[Outcome]:
        """Return the outcomes of rules that do not hold and are not warnings."""
        return [own for own in self.outcomes if not own.passed and not own.rule.warning]

    @property
    def warned(self) -> Sequence[Outcome]:
        """Return the outcomes of warnings that do not hold."""
        return [own for own in self.outcomes if not own.passed and own.rule.warning]

    @property
    def passed(self) -> bool:
        """Return whether no rule failed; warnings do not count."""
        return not self.failed
