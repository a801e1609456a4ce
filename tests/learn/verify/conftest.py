"""Made-up verifications."""

import math
from dataclasses import replace

import numpy as np

from attnviz.learn.verify.report import Checked, ComputationStep, Sizes, VerifyReport
from attnviz.records import ModelInfo

WITHIN = {"epsilon": 2.0**-23, "largest": 6.25}
ROUNDINGS = {"outputs": 152, "weights": 83}


def comparison(case, check, against, *differences):
    for (number, roundings), apart in zip(ROUNDINGS.items(), differences, strict=False):
        measured = {"number": number, "difference": apart, "roundings": roundings}
        yield Checked(case, check, against, **measured, **WITHIN)


def own_found(broken=False, steps=False, **fields):
    """Two cases and a library that is missing."""
    numbers = []
    for case in ("self", "grouped"):
        numbers += [
            *comparison(case, "NumPy", "naive loop", 5.6e-7, 0.0),
            *comparison(case, "torch", "torch.nn.MultiheadAttention", 3.2e-6, 1.5e-6),
            *comparison(case, "fused", "naive loop", 0.02 if broken else 1.2e-6),
            *comparison(case, "torch", "F.scaled_dot_product_attention", 1e-7, 2e-7),
        ]
    skipped = "not installed, skipped"
    numbers.append(Checked("", "keras.layers.MultiHeadAttention", skipped=skipped))
    found = VerifyReport(
        "float32",
        "float32",
        2.0**-23,
        tuple(numbers),
        sizes=Sizes(4, 2, 1, 3, 7, 2, 5) if steps else Sizes(64, 8, 2, 7, 11, 2, 5),
        cases={"self": "2 texts of 7 tokens, no mask", "grouped": "8 heads share 2"},
        steps=make_steps() if steps else (),
        causal=True,
        versions={"numpy": "2.0.0", "torch": "2.6.0"},
    )
    return replace(found, **fields)


def make_steps():
    step, square = ComputationStep, ("heads", "queries", "keys")
    x = np.array([[1.0, -2.0], [0.0, 3.0]])
    weights = np.array([[[1.0, 0.0], [0.25, 0.75]], [[1.0, 0.0], [1 / 3, 2 / 3]]])
    masked = np.array([[[0.5, -np.inf], [-0.0, 2.0]]] * 2)
    return (
        step("input", "X", ("tokens", "d_model"), {"X": x}),
        step("queries", "Q = X W_Q", ("tokens", "heads × head_dim"), {"Q": x}, {"W_Q": x.T}),
        step("masked", "masked keys become −∞", square, {"masked": masked}),
        step("weights", "A", square, {"A": weights}, note="each row sums to one"),
    )


def model_found(broken=False):
    """A few checks: one that passes, one that does not apply, one of two numbers."""
    plain, within = ("", "plain pass", "", "the logits stay"), {"roundings": 152, **WITHIN}
    rows = {"difference": 2.1e-7, "roundings": 83, **WITHIN, "where": "L1H0"}
    numbers = (
        Checked("", "rows sum to one", claim="sums of one", number="row sums", **rows),
        Checked("", "hidden keys", claim="c", skipped="no mask hides a key of this text"),
        Checked(*plain, number="logits", difference=math.nan if broken else 7e-6, **within),
        Checked(*plain, number="tokens", difference=0.5 if broken else 0.0, reason="equal"),
    )
    weights = {"weights": "random", "seed": 7, "notes": ("a note",)}
    info = ModelInfo("made", None, "Made", "bfloat16", 3, 5, 5, 8, **weights)
    return VerifyReport(
        *("bfloat16", "bfloat16", 2.0**-7, numbers, info), text="Old Tom saw Ann.", tokens=(13,)
    )
