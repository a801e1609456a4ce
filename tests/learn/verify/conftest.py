"""Made-up verifications."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnviz.learn.verify.report import (
    Check,
    ComparedNumber,
    ComputationStep,
    Sizes,
    Tolerance,
    VerifyReport,
    exact,
)
from attnviz.records import ModelInfo

EPSILON = 2.0**-23
OUTPUTS, WEIGHTS = Tolerance(EPSILON, 152, 6.25), Tolerance(EPSILON, 83, 6.25)


def comparison(group: str, name: str, against: str, *differences: float) -> Check:
    names = (("outputs", OUTPUTS), ("weights", WEIGHTS))
    measures = tuple(
        ComparedNumber(one, difference, tolerance)
        for (one, tolerance), difference in zip(names, differences, strict=False)
    )
    return Check(group, name, against, measures=measures)


def make_own(broken: bool = False, steps: bool = False, **fields: Any) -> VerifyReport:
    """Two cases and a library that is missing."""
    checks = []
    for group in ("self", "grouped"):
        checks += [
            comparison(group, "NumPy", "naive loop", 5.6e-7, 0.0),
            comparison(group, "torch", "torch.nn.MultiheadAttention", 3.2e-6, 1.5e-6),
            comparison(group, "fused", "naive loop", 0.02 if broken else 1.2e-6),
            comparison(group, "torch", "F.scaled_dot_product_attention", 1e-7, 2e-7),
        ]
    checks.append(Check("", "keras.layers.MultiHeadAttention", skipped="not installed, skipped"))
    found = VerifyReport(
        "float32",
        "float32",
        EPSILON,
        tuple(checks),
        sizes=Sizes(4, 2, 1, 3, 7, 2, 5) if steps else Sizes(64, 8, 2, 7, 11, 2, 5),
        cases={"self": "2 texts of 7 tokens, all visible", "grouped": "8 heads share 2"},
        steps=make_steps() if steps else (),
        causal=True,
        versions={"numpy": "2.0.0", "torch": "2.6.0"},
    )
    return replace(found, **fields)


def make_steps() -> tuple[ComputationStep, ...]:
    x = np.array([[1.0, -2.0], [0.0, 3.0]])
    weights = np.array([[[1.0, 0.0], [0.25, 0.75]], [[1.0, 0.0], [1 / 3, 2 / 3]]])
    masked = np.array([[[0.5, -np.inf], [-0.0, 2.0]]] * 2)
    return (
        ComputationStep("input", "X", ("tokens", "d_model"), {"X": x}),
        ComputationStep(
            "queries",
            "Q = X W_Q",
            ("tokens", "heads × head_dim"),
            {"Q": x},
            {"W_Q": x.T},
        ),
        ComputationStep("masked", "masked keys become −∞", _SQUARE, {"masked": masked}),
        ComputationStep("weights", "A", _SQUARE, {"A": weights}, note="each row sums to one"),
    )


_SQUARE = ("heads", "queries", "keys")


def make_model(broken: bool = False, **fields: Any) -> VerifyReport:
    """A few properties: one that passes, one that does not apply, one of whole numbers."""
    terms = "a sum of 13 terms"
    long = "3 layers × 1,825 roundings; scores 32.9 apart"
    within = replace(OUTPUTS, reason=long)
    checks = (
        Check(
            "",
            "rows sum to one",
            claim="the weights of each query are shares of one",
            measures=(
                ComparedNumber("max row-sum error", 2.1e-7, replace(WEIGHTS, reason=terms), "L1H0"),
                exact("most negative weight", 0.0, reason="a share is never negative"),
            ),
            notes=("a learned sink takes 0.010 to 0.980 of a row",),
        ),
        Check(
            "", "causality", claim="c", skipped="bidirectional attention: no causal mask to test"
        ),
        Check(
            "",
            "outputs unchanged",
            claim="outputs with capture equal those without it",
            measures=(
                ComparedNumber("against sdpa", math.nan if broken else 7e-6, within, "L2"),
                exact("against eager", 0.5 if broken else 0.0, reason="bit for bit"),
            ),
        ),
    )
    found = VerifyReport(
        "bfloat16",
        "bfloat16",
        2.0**-7,
        checks,
        model=ModelInfo(
            "made", None, "Made", "bfloat16", 3, 5, 5, 8, "random", 7, notes=("a note",)
        ),
        text="Old Tom saw Ann.",
        tokens=(13,),
    )
    return replace(found, **fields)


@pytest.fixture(scope="session")
def own_found() -> Callable[..., VerifyReport]:
    return make_own


@pytest.fixture(scope="session")
def model_found() -> Callable[..., VerifyReport]:
    return make_model
