"""The records of ``attnviz verify``: checks with their numbers, tolerances and verdicts.

The tolerances are derived from the rounding of a sum: n roundings of relative size ε/2 add up as a
random walk, to λ·√n·ε/2 with λ of a few (Higham & Mary 2019, "A new approach to probabilistic
rounding error analysis"). Two rounded sides may differ by twice that; λ is 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.report import Report
from attnviz.draw.values import json_number, model_facts
from attnviz.errors import AttnvizError
from attnviz.records import ModelInfo

if TYPE_CHECKING:
    from attnviz.draw.document import Document

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
    most: an upper limit of the tolerance.
    """

    epsilon: float
    roundings: int
    largest: float
    most: float = math.inf

    def __post_init__(self) -> None:
        if self.epsilon < 0 or self.roundings < 0 or not 0 <= self.largest < math.inf:
            raise ValueError(f"a tolerance is made of finite numbers from 0 on, got {self}")

    @property
    def value(self) -> float:
        return min(_WALK * self.epsilon * math.sqrt(self.roundings) * self.largest, self.most)

    @property
    def words(self) -> str:
        """Return the formula of the tolerance with its numbers, such as ``4ε·√152·6.3``."""
        if not self.value:
            return "exactly 0"
        if self.value == self.most:
            return f"at most {self.most:g}"
        return f"4ε·√{self.roundings:,}·{self.largest:.3g}"


@dataclass(frozen=True)
class ComparedNumber:
    """One measured difference, compared with its tolerance.

    name: the compared numbers, such as ``outputs``.
    difference: the largest absolute difference from the expected numbers; NaN never passes.
    reason: a clause on the origin of the tolerance.
    where: the head of the largest difference, such as ``L2H5``; empty if there is none.
    """

    name: str
    difference: float
    tolerance: Tolerance
    reason: str = ""
    where: str = ""

    @property
    def passed(self) -> bool:
        return self.difference <= self.tolerance.value

    @property
    def words(self) -> str:
        """Return the formula of its tolerance and the reason for it."""
        return f"{self.tolerance.words}: {self.reason}"

    def data(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {
            "name": self.name,
            "difference": self.difference if math.isfinite(self.difference) else None,
            "tolerance": self.tolerance.value,
            "passed": self.passed,
            "epsilon": self.tolerance.epsilon,
            "roundings": self.tolerance.roundings,
            "largest": self.tolerance.largest,
            "reason": self.reason or None,
            "where": self.where or None,
        }


@dataclass(frozen=True)
class Check:
    """One check of a verification, with its measures and its verdict.

    group: the case of the library's own attention that it belongs to, or empty.
    name: of the checked property. against: the implementation it is compared with; empty if the
        name includes it. claim: what must be true, in one sentence.
    measures: its numbers; every one must pass.
    skipped: why the check was not made; None if it was made.
    notes: further observations, in sentences.
    """

    group: str
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

    def data(self) -> dict[str, Any]:
        """Return the check as JSON values."""
        return {
            "case": self.group or None,
            "name": self.name,
            "against": self.against or None,
            "claim": self.claim or None,
            "verdict": self.verdict,
            "reason": self.skipped,
            "measures": [measure.data() for measure in self.measures],
            "notes": list(self.notes),
        }


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
class Matrix:
    """A named array of a computation step.

    symbol: its name, such as ``S``. values: the last two axes are rows and columns.
    """

    symbol: str
    values: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def data(self, numbers: bool) -> dict[str, Any]:
        """Return the symbol, the shape and, if ``numbers``, the values; a hidden score is null."""
        found: dict[str, Any] = {"symbol": self.symbol, "shape": list(self.shape)}
        return found | ({"values": _listed(self.values.tolist())} if numbers else {})


def _listed(values: Any) -> Any:
    return [*map(_listed, values)] if isinstance(values, list) else json_number(values)


@dataclass(frozen=True)
class ComputationStep:
    """One step of the attention computation, with its formula and its numbers.

    name: such as ``scores``. formula: such as ``S = Q Kᵀ``.
    axes: the names of the axes of the results.
    given: parameters used in this step. found: its results.
    note: a remark for the reader; may be empty.
    """

    name: str
    formula: str
    axes: tuple[str, ...]
    found: tuple[Matrix, ...]
    given: tuple[Matrix, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        for matrix in self.found:
            if len(matrix.shape) != len(self.axes):
                raise ValueError(
                    f"{self.name}: expected the axes {self.axes}, got the shape {matrix.shape}"
                )

    def data(self, numbers: bool) -> dict[str, Any]:
        """Return the step as JSON values. numbers: include those of its arrays."""
        return {
            "name": self.name,
            "formula": self.formula,
            "axes": list(self.axes),
            "note": self.note or None,
            "given": [matrix.data(numbers) for matrix in self.given],
            "found": [matrix.data(numbers) for matrix in self.found],
        }


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

    def __post_init__(self) -> None:
        if self.apart.ndim != 2:
            raise ValueError(f"expected differences (layer, head), got {self.apart.shape}")

    def data(self) -> dict[str, Any]:
        """Return the comparison of both backends as JSON values."""
        heads = [
            {"layer": layer, "head": head, "difference": json_number(float(difference))}
            for (layer, head), difference in np.ndenumerate(self.apart)
        ]
        counts = {"texts": self.texts, "tokens": self.tokens}
        return {"dtypes": dict(self.dtypes), **counts, "heads": heads}


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
        backends = None if self.backends is None else self.backends.data()
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
            "tokens": list(self.tokens),
            "versions": dict(self.versions),
            "cases": dict(self.cases),
            "checks": [check.data() for check in self.checks],
            **({} if self.model is None else {"backends": backends}),
            "causal": self.causal if self.steps else None,
            "steps": [step.data(self.numbers_shown) for step in self.steps],
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        yield _COLUMNS
        for check in self.checks:
            start = (check.group, check.name, check.against, check.verdict)
            for measure in check.measures:
                tolerance = measure.tolerance
                yield (
                    *start,
                    *(measure.name, json_number(measure.difference), tolerance.value),
                    *(tolerance.roundings, tolerance.largest, measure.where, measure.reason),
                )
            if check.skipped is not None:
                yield (*start, *[None] * 6, check.skipped)

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.learn.verify.document import verification_document

        return verification_document(self).shown(explain=explain, hints=hints)

    def require_passed(self) -> None:
        """Raise AttnvizError if a check failed."""
        if self.failed:
            from attnviz.learn.verify.words import failure_words

            raise AttnvizError(failure_words(self))

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
