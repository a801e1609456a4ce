"""What ``attnviz verify`` found: checks with their numbers, their tolerances and their verdicts.

The tolerances are reasoned from the rounding of a sum: n roundings of relative size ε/2 add up as a
random walk, to λ·√n·ε/2 with λ of a few (Higham & Mary 2019, "A new approach to probabilistic
rounding error analysis"). Two sides that are both rounded may differ by twice that; λ is 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.report import Report
from attnviz.errors import AttnvizError
from attnviz.records import ModelInfo

if TYPE_CHECKING:
    from attnviz.draw.document import Document

Verdict = Literal["pass", "fail", "skipped"]

_WALK = 4
MOST = 8
"""Tokens, and numbers of a token, up to which paper can follow the steps."""


@dataclass(frozen=True)
class Tolerance:
    """How far two numbers may be apart by rounding alone: 4 · ε · √roundings · largest.

    epsilon: the machine epsilon of the type that rounds; 0 where both must be equal bit for bit.
    roundings: how many follow one another on the way to one number.
    largest: the largest absolute number that is rounded on the way.
    most: what is allowed at most, however many round.
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
        """Return how it comes about, such as ``4ε·√152·6.3``."""
        if not self.value:
            return "exactly 0"
        if self.value == self.most:
            return f"at most {self.most:g}"
        return f"4ε·√{self.roundings:,}·{self.largest:.3g}"


@dataclass(frozen=True)
class ComparedNumber:
    """One number compared with its tolerance.

    name: what was measured, such as ``outputs``.
    difference: the largest absolute difference from what is expected; NaN never passes.
    reason: where the tolerance comes from, in words.
    where: the place of the largest difference, such as ``L2H5``; empty if there is none.
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
        """Return how its tolerance comes about, and why."""
        return f"{self.tolerance.words}: {self.reason}"


@dataclass(frozen=True)
class Check:
    """One line of a verification.

    group: what it belongs to: a case of the own attention, or empty.
    name: what is checked. against: what it is compared with; empty where the name says it.
    claim: what must be true, in one sentence.
    measures: its numbers; every one must pass.
    skipped: why it was not made; None where it was.
    notes: what else was seen, in sentences.
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
        """Return the verdict in four letters: SKIP of what is missing, N/A of what cannot be."""
        if self.skipped is not None:
            return "N/A" if self.claim else "SKIP"
        return self.verdict.upper()


@dataclass(frozen=True)
class Sizes:
    """The shape of the own attention that is verified.

    tokens: queries of each text. keys: those of the other text of cross-attention.
    kv_heads: of the grouped case; None where one head has nothing to share.
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
    """A named array of a step; its last two axes are rows and columns."""

    symbol: str
    values: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)


@dataclass(frozen=True)
class ComputationStep:
    """One step of the computation.

    name: such as ``scores``. formula: what is computed, such as ``S = Q Kᵀ``.
    axes: the names of the axes of what is found.
    given: weights that come in here. found: what comes out.
    note: what a reader should know; may be empty.
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


@dataclass(frozen=True)
class Backends:
    """A checkpoint run by NumPy and by torch, over the same tokens.

    dtypes: in which each of them computed. texts, tokens: what was run.
    apart: (layer, head) largest absolute difference of the two's attention weights.
    """

    dtypes: Mapping[str, str]
    texts: int
    tokens: int
    apart: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.apart.ndim != 2:
            raise ValueError(f"expected differences (layer, head), got {self.apart.shape}")


@dataclass(frozen=True, repr=False)
class VerifyReport(Report):
    """All that one run of ``attnviz verify`` found.

    dtype: what is verified computes in it.
    rounds_in: the dtype of its least exact steps. epsilon: the machine epsilon of that one.
    checks: in the order in which they are shown.
    model: the model that was verified; None for the own attention.
    sizes: of the own attention; None for a model.
    cases: of the own attention, what each group of checks is about, in words.
    steps: the own attention step by step; empty where they were not asked for.
    causal: whether the steps hide later tokens.
    text, target: what a model read; None if there is none. tokens: their numbers.
    versions: of the libraries that took part.
    backends: of a checkpoint that NumPy and torch have run.
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
        from attnviz.learn.verify.data import verification_data

        return verification_data(self)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.learn.verify.data import verification_rows

        return verification_rows(self)

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.learn.verify.document import verification_document

        return verification_document(self, explain=explain, hints=hints)

    def require_passed(self) -> None:
        """Raise AttnvizError if a check failed."""
        if self.failed:
            from attnviz.learn.verify.words import failure_words

            raise AttnvizError(failure_words(self))

    def count(self, verdict: Verdict) -> int:
        """Return how many checks ended so."""
        return sum(check.verdict == verdict for check in self.checks)

    @property
    def numbers_shown(self) -> bool:
        """Return whether the steps are small enough for their numbers."""
        return self.sizes is not None and max(self.sizes.tokens, self.sizes.d_model) <= MOST

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.verdict == "fail")
