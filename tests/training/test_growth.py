"""Layers that join later: they add nothing before, learn nothing, and then do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnviz.errors import UsageError
from attnviz.training.corpus import Corpus
from attnviz.training.recipe import Phase, Recipe
from attnviz.training.run import TrainingRun

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def growing(recipe: Recipe) -> Recipe:
    first, last = recipe.phases
    return replace(recipe, phases=(replace(first, layers=1), last))


def flat(run: TrainingRun, layer: int) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in run.model.layers[layer].parameters()])


def test_a_layer_that_has_not_joined_neither_computes_nor_learns(
    texts: tuple[Corpus, Corpus], growing: Recipe, tmp_path: Path
) -> None:
    run = TrainingRun(*texts, growing, tmp_path / "m", CPU)
    before = [flat(run, layer) for layer in range(2)]
    steps = run.steps()
    next(steps)
    assert run.model.depth == 1
    assert not torch.equal(flat(run, 0), before[0])
    assert torch.equal(flat(run, 1), before[1])
    ids = torch.arange(7)[None]
    shallow = run.model(ids)
    run.model.depth = 2
    assert torch.equal(run.model(ids), shallow)  # what joins adds nothing yet
    for _ in steps:
        pass
    assert run.model.depth == 2
    assert not torch.equal(flat(run, 1), before[1])


def test_a_run_that_grows_is_resumed_to_the_same_weights(
    texts: tuple[Corpus, Corpus], growing: Recipe, tmp_path: Path
) -> None:
    whole = TrainingRun(*texts, growing, tmp_path / "whole", CPU)
    for _ in whole.steps():
        pass
    for stop in (3, 40):  # before and after the second layer joins
        directory = tmp_path / f"stopped-{stop}"
        stopped = TrainingRun(*texts, growing, directory, CPU)
        for number, _ in enumerate(stopped.steps()):
            if number == stop:
                break
        stopped.save_state()
        resumed = TrainingRun(*texts, growing, directory, CPU, resume=True)
        for _ in resumed.steps():
            pass
        for layer in range(2):
            assert torch.equal(flat(resumed, layer), flat(whole, layer))


@pytest.mark.parametrize(
    ("layers", "rule"),
    [
        ((2, 1), r"must not fall, .* got \[2, 1\]"),
        ((1, 1), r"all layers compute in the last one, got \[1, 1\]"),
        ((3, None), "must be 1 to the model's, 2, got 3"),
        ((0, None), "must be 1 to the model's, 2, got 0"),
        ((-1, None), "must be 1 to the model's, 2, got -1"),
    ],
)
def test_depths_that_make_no_sense_are_refused(recipe: Recipe, layers, rule) -> None:
    phases = tuple(
        Phase(f"p{number}", until, layers=depth, length=13, period=(2, 5))
        for number, (until, depth) in enumerate(zip((0.5, 1.0), layers, strict=True))
    )
    with pytest.raises(UsageError, match=rule):
        replace(recipe, phases=phases)
