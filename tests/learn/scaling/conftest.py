"""Small reports of random queries and keys and of the library's own attention."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnviz.learn.scaling.report import ScalingReport
from attnviz.learn.scaling.scaling import model_scaling, random_scaling
from attnviz.models.own import OwnAttention

TEXT = "The cat sat on the mat because the cat was tired of the [red]mat[/] ."


@pytest.fixture(scope="session")
def random_report() -> ScalingReport:
    return random_scaling([8, 64, 512], seq=31, samples=23, seed=1)


@pytest.fixture(scope="session")
def one_report() -> ScalingReport:
    return random_scaling([64], seq=7, samples=1, seed=1)


@pytest.fixture(scope="session")
def head_report() -> ScalingReport:
    model = OwnAttention(256, 8, seed=2)
    report = model_scaling(model, model.encode(TEXT), by_head=True, index_base=1)
    return replace(report, text=TEXT, source="built in: no text was given")


@pytest.fixture(scope="session")
def layer_report() -> ScalingReport:
    model = OwnAttention(64, 8, 2, causal=True, seed=2)
    return replace(model_scaling(model, model.encode(TEXT)), text=TEXT)
