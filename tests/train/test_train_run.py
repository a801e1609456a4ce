"""A training run that is stopped when all is learned and only the measuring is left."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import cast

import pytest
import torch
from rich.console import Console

from attnviz.train.corpus import Corpus
from attnviz.train.recipe import Budget, Phase, Recipe, Shape
from attnviz.train.run import TrainingRun
from attnviz.train.show import finished

SHAPE = Shape(layers=1, heads=2, kv_heads=2, head_dim=4, d_model=8, d_ff=12, context=16)
TEXT = "the cat sat on the mat while the dog sat on the log\n" * 40


class Asked:
    """A run that is asked to end while it measures."""

    def finish(self) -> None:
        signal.raise_signal(self.number)

    def __init__(self, number: signal.Signals) -> None:
        self.number = number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_end_is_no_failure(number: signal.Signals) -> None:
    run = cast("TrainingRun", Asked(number))
    assert finished(run, Console(quiet=True)) is None


def test_what_was_not_measured_is_measured_when_it_is_resumed(tmp_path: Path) -> None:
    corpus = Corpus(("a.txt",), (TEXT,), "0" * 12)
    phase = Phase(length=8, batch=2, period=(2, 3))
    recipe = Recipe(vocabulary=262, model=SHAPE, phases=(phase,), budget=Budget(tokens=64))
    device = torch.device("cpu")
    run = TrainingRun(corpus, corpus, recipe, tmp_path, device)
    list(run.steps())
    run.save_state()
    resumed = TrainingRun(corpus, corpus, recipe, tmp_path, device, resume=True)
    assert not list(resumed.steps())
    result = finished(resumed, Console(quiet=True))
    assert result is not None
    assert result.finished
    assert (tmp_path / "README.md").exists()
