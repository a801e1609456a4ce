"""The report of ``attnviz verify``: checks with their measured numbers, tolerances and verdicts.

The tolerances are derived from the rounding of a sum: n roundings of relative size ε/2 add up as a
random walk, to λ·√n·ε/2 with λ of a few (Higham & Mary 2019, "A new approach to probabilistic
rounding error analysis"). Two rounded sides may differ by twice that; λ is 4.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, Literal

from numpy.typing import NDArray

from attnviz.draw.report import Report, fields_of
from attnviz.draw.values import model_facts, table_of
from attnviz.errors import AttnvizError
from attnviz.records import ModelInfo

Verdict = Literal["pass", "fail", "skipped"]

_FORMULA = "4 * epsilon * sqrt(roundings) * largest"
_COLUMNS = (
    *("case", "check", "against", "verdict", "measure", "difference", "tolerance"),
    *("roundings", "largest", "where", "reason"),
)
_WALK = 4
MOST = 8
"""Most tokens, and most numbers of a token, for which the steps show their numbers."""


@dataclass(frozen=True)
class Checked:
    """One number of a check: how far two results are apart, and how far rounding may bring them.

    Without a limit, 4 · ε · √roundings · largest is allowed.

    case: the case of the library's own attention that it belongs to, or empty.
    check: the implementation, or the property of a model, that is checked. against: what it is
        compared with, or empty. claim: what must be true of a model, in one sentence.
    skipped: why the check was not made; None if it was made.
    number: the compared numbers, such as ``outputs``.
    difference: the largest absolute difference from the expected numbers; NaN never passes.
    epsilon: the machine epsilon of the rounding type; 0 if both must be equal bit for bit.
    roundings: number of roundings in sequence on the way to one number.
    largest: the largest absolute number that is rounded on the way.
    reason: a clause on the origin of these three. where: the head of the difference, such as
        ``L2H5``. limit: the most that is allowed, if rounding explains more.
    """

    case: str
    check: str
    against: str = ""
    claim: str = ""
    skipped: str | None = None
    number: str = ""
    difference: float = 0.0
    epsilon: float = 0.0
    roundings: int = 0
    largest: float = 0.0
    reason: str = ""
    where: str = ""
    limit: float = math.inf

    def __post_init__(self) -> None:
        if self.epsilon < 0 or self.roundings < 0 or not 0 <= self.largest < math.inf:
            raise ValueError(f"a tolerance is made of finite numbers from 0 on, got {self}")

    @property
    def allowed(self) -> float:
        return min(_WALK * self.epsilon * math.sqrt(self.roundings) * self.largest, self.limit)

    @property
    def passed(self) -> bool:
        return self.difference <= self.allowed

    @property
    def severity(self) -> tuple[float, float, float]:
        """Return a sort key: (difference ÷ allowed, difference, allowed); NaN is the worst."""
        if math.isnan(self.difference):
            return math.inf, math.inf, self.allowed
        share = math.inf if self.difference else 0.0
        share = self.difference / self.allowed if self.allowed else share
        return share, self.difference, self.allowed

    @property
    def title(self) -> str:
        """Return the check's name with its case and the implementation that it is compared with."""
        name = f"{self.check} against {self.against}" if self.against else self.check
        return f"{self.case}: {name}" if self.case else name


def verdict(numbers: Sequence[Checked]) -> Verdict:
    """Return the verdict of a check, or of several, by all of their numbers."""
    made = [number.passed for number in numbers if number.skipped is None]
    return ("pass" if all(made) else "fail") if made else "skipped"


def worst(numbers: Sequence[Checked]) -> Checked:
    """Return the number with the largest difference relative to its tolerance."""
    return max(numbers, key=lambda number: number.severity)


@dataclass(frozen=True)
class Sizes:
    """The sizes of the library's own attention in a verification.

    d_model: the width. heads: how many query heads. tokens: queries of each text. keys: those of
    the other text of cross-attention. batch: how many texts. seed: of parameters and inputs.
    kv_heads: of the grouped case; None if there is one head, which cannot share.
    """

    d_model: int
    heads: int
    kv_heads: int | None
    tokens: int
    keys: int
    batch: int
    seed: int

    @property
    def head_dim(self) -> int:
        return self.d_model // self.heads


@dataclass(frozen=True)
class ComputationStep:
    """One step of the attention computation, with its formula and its numbers.

    name: such as ``scores``. formula: such as ``S = Q Kᵀ``. axes: the names of the result's axes.
    results: by symbol, such as ``S``; their last two axes are rows and columns.
    given: the parameters used in this step, by symbol. note: a remark; may be empty.
    """

    name: str
    formula: str
    axes: tuple[str, ...]
    results: Mapping[str, NDArray[Any]]
    given: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    note: str = ""

    @property
    def result(self) -> NDArray[Any]:
        """Return the first of the step's results."""
        return next(iter(self.results.values()))


@dataclass(frozen=True, repr=False)
class VerifyReport(Report):
    """The report of ``attnviz verify``: all checks of the library's attention or of a model.

    dtype: the number type of the verified attention.
    rounds_in: the dtype of its least exact steps. epsilon: the machine epsilon of that dtype.
    numbers: those of all checks, in the order of the report.
    model: the model that was verified; None for the library's own attention.
    sizes: of the library's own attention; None for a model.
    cases: the description of each case of the library's own attention.
    steps: the library's own attention step by step; empty if not requested.
    causal: whether the steps hide later tokens.
    text: that a model read; None without one. tokens: the number of its tokens, and of a decoder's.
    versions: of the compared libraries.
    """

    dtype: str
    rounds_in: str
    epsilon: float
    numbers: tuple[Checked, ...]
    model: ModelInfo | None = None
    sizes: Sizes | None = None
    cases: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[ComputationStep, ...] = ()
    causal: bool = False
    text: str | None = None
    tokens: tuple[int, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    command = "verify"
    lists = None

    def data(self) -> dict[str, Any]:
        """Return the object of ``--json``; ``model`` is null for the library's own attention.

        A ``difference`` that is NaN or infinite is null, and its measure has failed.
        """
        return {
            "schema": "attnviz.verify/1",
            "model": None if self.model is None else model_facts(self.model),
            "passed": not self.count("fail"),
            "passes": self.count("pass"),
            "failures": self.count("fail"),
            "skips": self.count("skipped"),
            "dtype": self.dtype,
            "tolerance": {"epsilon": self.epsilon, "dtype": self.rounds_in, "formula": _FORMULA},
            "sizes": None if self.sizes is None else asdict(self.sizes),
            "text": self.text,
            "target": self.text if len(self.tokens) > 1 else None,
            **fields_of(self, ("tokens", "versions", "cases")),
            "checks": [_check(numbers) for numbers in self.checks],
            "causal": self.causal if self.steps else None,
            "steps": [_step(step, self.numbers_shown) for step in self.steps],
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Return the table: a row for each measure, and for each check that was skipped."""
        entries = []
        for numbers in self.checks:
            for number in numbers:
                entry = vars(number) | {"measure": number.number, "tolerance": number.allowed}
                if number.skipped is not None:
                    entry = fields_of(number, ("case", "check", "against"))
                    entry["reason"] = number.skipped
                entries.append(entry | {"verdict": verdict(numbers)})
        return table_of(_COLUMNS, entries)

    def require_passed(self) -> None:
        """Raise AttnvizError if a check failed."""
        failed = [numbers for numbers in self.checks if verdict(numbers) == "fail"]
        named = []
        for number in map(worst, failed[:3]):
            off, allowed = difference(number.difference), difference(number.allowed)
            named.append(f"{number.title} ({number.number} {off}, tolerance {allowed})")
        if named:
            more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
            count = f"{len(failed)} of {len(self.checks)} checks failed"
            raise AttnvizError(f"{count}: {'; '.join(named)}{more}")

    def count(self, outcome: Verdict) -> int:
        """Return the number of checks with this verdict: ``pass``, ``fail`` or ``skipped``."""
        return sum(verdict(check) == outcome for check in self.checks)

    @property
    def checks(self) -> list[list[Checked]]:
        """Return for each check the list of its numbers."""
        whose = operator.attrgetter("case", "check", "against")
        return [list(numbers) for _, numbers in groupby(self.numbers, whose)]

    @property
    def numbers_shown(self) -> bool:
        """Return whether the matrices of the attention are small enough to print their numbers."""
        return self.sizes is not None and max(self.sizes.tokens, self.sizes.d_model) <= MOST


def difference(value: float) -> str:
    """Return a difference or a tolerance as a string of at most seven characters: ``1.2e-07``."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf"
    return f"{value:,.0f}" if value >= 1 and value == int(value) < 1e6 else f"{value:.1e}"


def _check(numbers: Sequence[Checked]) -> dict[str, Any]:
    first = numbers[0]
    return {
        "case": first.case or None,
        "name": first.check,
        "against": first.against or None,
        "claim": first.claim or None,
        "verdict": verdict(numbers),
        "reason": first.skipped,
        "measures": [
            {
                "name": number.number,
                "difference": number.difference,
                "tolerance": number.allowed,
                "passed": number.passed,
                **fields_of(number, ("epsilon", "roundings", "largest")),
                **{name: getattr(number, name) or None for name in ("reason", "where")},
            }
            for number in numbers
            if number.skipped is None
        ],
    }


def _step(step: ComputationStep, numbers: bool) -> dict[str, Any]:
    def arrays(named: Mapping[str, NDArray[Any]]) -> list[dict[str, Any]]:
        return [
            {"symbol": symbol, "shape": values.shape} | ({"values": values} if numbers else {})
            for symbol, values in named.items()
        ]

    return {
        **fields_of(step, ("name", "formula", "axes")),
        "note": step.note or None,
        "given": arrays(step.given),
        "found": arrays(step.results),
    }
