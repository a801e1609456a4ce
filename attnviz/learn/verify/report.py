"""The report of ``attnviz verify``: checks with their measured numbers, tolerances and verdicts.

The tolerances are derived from the rounding of a sum: n roundings of relative size ε/2 add up as a
random walk, to λ·√n·ε/2 with λ of a few (Higham & Mary 2019, "A new approach to probabilistic
rounding error analysis"). Two rounded sides may differ by twice that; λ is 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.report import Report
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
class Tolerance:
    """The largest difference that rounding alone can explain: 4 · ε · √roundings · largest.

    epsilon: the machine epsilon of the rounding type; 0 if both must be equal bit for bit.
    roundings: number of roundings in sequence on the way to one number.
    largest: the largest absolute number that is rounded on the way.
    reason: a clause on the origin of these numbers. most: an upper limit of the tolerance.
    """

    epsilon: float = 0.0
    roundings: int = 0
    largest: float = 0.0
    reason: str = ""
    most: float = math.inf

    def __post_init__(self) -> None:
        if self.epsilon < 0 or self.roundings < 0 or not 0 <= self.largest < math.inf:
            raise ValueError(f"a tolerance is made of finite numbers from 0 on, got {self}")

    @property
    def value(self) -> float:
        return min(_WALK * self.epsilon * math.sqrt(self.roundings) * self.largest, self.most)

    @property
    def words(self) -> str:
        """Return the formula of the tolerance with its numbers, and the reason for it."""
        formula = f"4ε·√{self.roundings:,}·{self.largest:.3g}"
        if not self.value:
            formula = "exactly 0"
        elif self.value == self.most:
            formula = f"at most {self.most:g}"
        return f"{formula}: {self.reason}"


@dataclass(frozen=True)
class ComparedNumber:
    """One measured difference, compared with its tolerance.

    name: the compared numbers, such as ``outputs``.
    difference: the largest absolute difference from the expected numbers; NaN never passes.
    where: the head of the largest difference, such as ``L2H5``; empty if there is none.
    """

    name: str
    difference: float
    tolerance: Tolerance
    where: str = ""

    @property
    def passed(self) -> bool:
        return self.difference <= self.tolerance.value

    @property
    def severity(self) -> tuple[float, float, float]:
        """Return a sort key: (difference ÷ tolerance, difference, tolerance); NaN is the worst."""
        allowed = self.tolerance.value
        if math.isnan(self.difference):
            return math.inf, math.inf, allowed
        share = self.difference / allowed if allowed else math.inf if self.difference else 0.0
        return share, self.difference, allowed


def exact(
    name: str,
    difference: float,
    where: str = "",
    reason: str = "bit for bit: the same operations on the same numbers",
) -> ComparedNumber:
    """Return a measure whose difference must be exactly 0.

    name: what was measured. where: the head of the difference. reason: why it must be 0.
    """
    return ComparedNumber(name, difference, Tolerance(reason=reason), where)


@dataclass(frozen=True)
class Check:
    """One check of a verification, with its measures and its verdict.

    case: the case of the library's own attention that it belongs to, or empty.
    name: of the checked property. against: the implementation it is compared with; empty if the
        name includes it. claim: what must be true, in one sentence.
    measures: its numbers; every one must pass.
    skipped: why the check was not made; None if it was made.
    notes: further observations, in sentences.
    """

    case: str
    name: str
    against: str = ""
    claim: str = ""
    measures: tuple[ComparedNumber, ...] = ()
    skipped: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.skipped is None) == (not self.measures):
            raise ValueError(f"a check has measures, or a reason to be skipped: {self}")

    @property
    def verdict(self) -> Verdict:
        if self.skipped is not None:
            return "skipped"
        return "pass" if all(measure.passed for measure in self.measures) else "fail"

    @property
    def word(self) -> str:
        """Return PASS, FAIL, SKIP if something is missing, or N/A if the claim does not apply."""
        if self.skipped is not None:
            return "N/A" if self.claim else "SKIP"
        return self.verdict.upper()

    @property
    def title(self) -> str:
        """Return its name with its case, and with the implementation that it is compared with."""
        name = f"{self.name} against {self.against}" if self.against else self.name
        return f"{self.case}: {name}" if self.case else name


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
    found: its results by symbol, such as ``S``; their last two axes are rows and columns.
    given: the parameters used in this step, by symbol. note: a remark; may be empty.
    """

    name: str
    formula: str
    axes: tuple[str, ...]
    found: Mapping[str, NDArray[Any]]
    given: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        for values in self.found.values():
            if values.ndim != len(self.axes):
                raise ValueError(
                    f"{self.name}: expected the axes {self.axes}, got the shape {values.shape}"
                )

    @property
    def result(self) -> NDArray[Any]:
        """Return its first result."""
        return next(iter(self.found.values()))


@dataclass(frozen=True)
class Backends:
    """The comparison of NumPy and torch on one checkpoint, over the same tokens.

    dtypes: the dtype of each. texts, tokens: how many of each were run.
    apart: (layer, head) largest absolute difference of the two's attention weights.
    """

    dtypes: Mapping[str, str]
    texts: int
    tokens: int
    apart: NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class VerifyReport(Report):
    """The report of ``attnviz verify``: all checks of the library's attention or of a model.

    dtype: the number type of the verified attention.
    rounds_in: the dtype of its least exact steps. epsilon: the machine epsilon of that dtype.
    checks: in the order of the report.
    model: the model that was verified; None for the library's own attention.
    sizes: of the library's own attention; None for a model.
    cases: the description of each case of the library's own attention.
    steps: the library's own attention step by step; empty if not requested.
    causal: whether the steps hide later tokens.
    text, target: the texts of a model; None if there is none. tokens: their numbers of tokens.
    versions: of the compared libraries.
    backends: the comparison of NumPy and torch on a checkpoint.
    """

    dtype: str
    rounds_in: str
    epsilon: float
    checks: tuple[Check, ...]
    model: ModelInfo | None = None
    sizes: Sizes | None = None
    cases: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[ComputationStep, ...] = ()
    causal: bool = False
    text: str | None = None
    target: str | None = None
    tokens: tuple[int, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    backends: Backends | None = None

    command = "verify"
    lists = None

    def data(self) -> dict[str, Any]:
        """Return the object of ``--json``; its ``model`` is null for the own attention.

        A ``difference`` that is NaN or infinite is null, and its measure has failed.
        """
        return {
            "schema": "attnviz.verify/1",
            "model": None if self.model is None else model_facts(self.model),
            "passed": not self.failed,
            "passes": self.count("pass"),
            "failures": self.count("fail"),
            "skips": self.count("skipped"),
            "dtype": self.dtype,
            "tolerance": {"epsilon": self.epsilon, "dtype": self.rounds_in, "formula": _FORMULA},
            "sizes": None if self.sizes is None else asdict(self.sizes),
            "text": self.text,
            "target": self.target,
            "tokens": self.tokens,
            "versions": self.versions,
            "cases": self.cases,
            "checks": [_check(check) for check in self.checks],
            **({} if self.model is None else {"backends": _backends(self.backends)}),
            "causal": self.causal if self.steps else None,
            "steps": [_step(step, self.numbers_shown) for step in self.steps],
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Return the table: a row for each measure, and for each check that was skipped."""
        entries = []
        for check in map(_check, self.checks):
            shared = {name: check[name] or "" for name in ("case", "against", "verdict")}
            shared["check"] = check["name"]
            for measure in check["measures"]:
                where, reason = measure["where"] or "", measure["reason"] or ""
                row = {**measure, **shared, "where": where, "reason": reason}
                number = float(measure["difference"])
                entries.append({**row, "measure": measure["name"], "difference": number})
            if check["verdict"] == "skipped":
                entries.append({**shared, "reason": check["reason"]})
        return table_of(_COLUMNS, entries)

    def require_passed(self) -> None:
        """Raise AttnvizError if a check failed."""
        named = []
        for check in self.failed:
            worst = max(check.measures, key=lambda measure: measure.severity)
            allowed = difference(worst.tolerance.value)
            numbers = f"{worst.name} {difference(worst.difference)}, tolerance {allowed}"
            named.append(f"{check.title} ({numbers})")
        if named:
            more = f" and {len(named) - 3} more" if len(named) > 3 else ""
            count = f"{len(named)} of {len(self.checks)} checks failed"
            raise AttnvizError(f"{count}: {'; '.join(named[:3])}{more}")

    def count(self, verdict: Verdict) -> int:
        """Return the number of checks with this verdict: ``pass``, ``fail`` or ``skipped``."""
        return sum(check.verdict == verdict for check in self.checks)

    @property
    def numbers_shown(self) -> bool:
        """Return whether the matrices of the attention are small enough to print their numbers."""
        return self.sizes is not None and max(self.sizes.tokens, self.sizes.d_model) <= MOST

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.verdict == "fail")


def difference(value: float) -> str:
    """Return a difference or a tolerance as a string of at most seven characters: ``1.2e-07``."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf"
    return f"{value:,.0f}" if value >= 1 and value == int(value) < 1e6 else f"{value:.1e}"


def _check(check: Check) -> dict[str, Any]:
    return {
        "case": check.case or None,
        "name": check.name,
        "against": check.against or None,
        "claim": check.claim or None,
        "verdict": check.verdict,
        "reason": check.skipped,
        "measures": [
            {
                "name": measure.name,
                "difference": measure.difference,
                "tolerance": measure.tolerance.value,
                "passed": measure.passed,
                "epsilon": measure.tolerance.epsilon,
                "roundings": measure.tolerance.roundings,
                "largest": measure.tolerance.largest,
                "reason": measure.tolerance.reason or None,
                "where": measure.where or None,
            }
            for measure in check.measures
        ],
        "notes": check.notes,
    }


def _step(step: ComputationStep, numbers: bool) -> dict[str, Any]:
    def arrays(named: Mapping[str, NDArray[Any]]) -> list[dict[str, Any]]:
        return [
            {"symbol": symbol, "shape": values.shape} | ({"values": values} if numbers else {})
            for symbol, values in named.items()
        ]

    return {
        "name": step.name,
        "formula": step.formula,
        "axes": step.axes,
        "note": step.note or None,
        "given": arrays(step.given),
        "found": arrays(step.found),
    }


def _backends(backends: Backends | None) -> dict[str, Any] | None:
    if backends is None:
        return None
    heads = [
        {"layer": layer, "head": head, "difference": number}
        for (layer, head), number in np.ndenumerate(backends.apart)
    ]
    counts = {"texts": backends.texts, "tokens": backends.tokens}
    return {"dtypes": backends.dtypes, **counts, "heads": heads}
