"""A training run whose numbers are simple."""

from __future__ import annotations

import pytest

from attnviz.records import ModelInfo
from attnviz.train.records import (
    CorpusFacts,
    CurvePoint,
    Estimate,
    ModelScores,
    ScoredHeads,
    TrainedModel,
)


def scored(name: str, probe: str, best: float) -> ScoredHeads:
    """Head L1H2 has ``best``, every other one a tenth of it."""
    heads = tuple(
        tuple(Estimate(best if (layer, head) == (1, 2) else best / 10, 0.001) for head in range(3))
        for layer in range(2)
    )
    return ScoredHeads(name, probe, heads, 0.05)


@pytest.fixture
def result() -> TrainedModel:
    """100 points; the loss falls from 6 to 0 in one phase and from 8 to 4 in the next."""
    points = tuple(
        CurvePoint(
            step=10 * number,
            tokens=10_000 * number,
            seconds=1.5 * number,
            learning_rate=1e-3,
            loss=6 - number / 4 if number <= 20 else 8 - (number - 20) / 20,
            valid_loss=9 - number / 20 if number % 20 == 0 or number == 1 else None,
            phase="repetition" if number <= 20 else "text",
        )
        for number in range(1, 101)
    )
    names = ("previous", "first", "duplicate", "induction")
    scores = ModelScores(
        tuple(
            scored(name, probe, 0.9 - 0.2 * place)
            for probe in ("text", "random")
            for place, name in enumerate(names)
        ),
        windows=32,
        window_tokens=256,
        copies=32,
        copy_tokens=60,
        seed=0,
        first_copy=Estimate(9.5, 0.01),
        second_copy=Estimate(0.25, 0.02),
    )
    return TrainedModel(
        directory="a \x1b[31mmodel",
        model=ModelInfo(
            "a \x1b[31mmodel", "0123456789ab", "LlamaForCausalLM", "float32", 2, 3, 3, 16, seed=7
        ),
        parameters=1_234_567,
        vocabulary=4096,
        d_model=128,
        train=CorpusFacts(("one.txt", "[red]two.txt"), 4_000_000, 1_000_000, "aaaaaaaaaaaa"),
        valid=CorpusFacts(("three.txt",), 400_000, 100_000, "bbbbbbbbbbbb"),
        points=points,
        shares={"text": 0.7, "repeated_tokens": 0.25, "repeated_passages": 0.05},
        valid_loss=4.0,
        valid_windows=256,
        curve_windows=256,
        dtype="bfloat16",
        stored="float16",
        seed=7,
        budget="1,000,000 tokens",
        finished=True,
        scores=scores,
    )
