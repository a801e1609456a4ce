"""A model that grows between the phases of its training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from attnviz.attention.checkpoint import open_checkpoint
from attnviz.errors import UsageError
from attnviz.train.corpus import Corpus
from attnviz.train.recipe import Phase, Recipe
from attnviz.train.run import TrainingRun

CPU = torch.device("cpu")
ResumedAlike = Callable[[Recipe, Sequence[int]], None]


@pytest.fixture(scope="module")
def growing(recipe: Recipe) -> Recipe:
    """From one narrow layer to two."""
    first, last = recipe.phases
    return replace(recipe, phases=(replace(first, layers=1, d_model=12, head_dim=4, d_ff=20), last))


def test_a_model_grows_when_a_phase_says_so(
    texts: tuple[Corpus, Corpus], growing: Recipe, tmp_path: Path
) -> None:
    run = TrainingRun(*texts, growing, tmp_path / "m", CPU)
    ids = torch.arange(7)[None]
    widths = []
    for _ in run.steps():
        config = run.config
        widths.append((config.layers, config.d_model, config.head_dim, config.d_ff))
        logits = run.model(ids)
    assert set(widths) == {(1, 12, 4, 20), (2, 16, 8, 24)}
    assert widths == sorted(widths)
    result = run.finish()
    assert result.parameters == sum(one.numel() for one in run.model.parameters())
    assert (result.model.layers, result.model.head_dim) == (2, 8)
    assert logits.shape == (1, 7, 270)


def test_growth_is_no_jump_of_the_loss(
    texts: tuple[Corpus, Corpus], growing: Recipe, tmp_path: Path
) -> None:
    run = TrainingRun(*texts, growing, tmp_path / "m", CPU)
    for _ in run.steps():
        if run.trainer.used > 0.38:
            break
    before = run.trainer.validate()
    run.trainer._enter(1)
    assert run.config.layers == 2
    assert run.trainer.validate() == pytest.approx(before, rel=1e-3)


def test_a_run_that_grows_is_resumed_to_the_same_weights(
    resumed_alike: ResumedAlike, growing: Recipe
) -> None:
    resumed_alike(growing, (3, 40))  # before and after the model grows


def test_a_model_stored_before_it_grew_is_whole(
    texts: tuple[Corpus, Corpus], growing: Recipe, tmp_path: Path
) -> None:
    run = TrainingRun(*texts, growing, tmp_path / "m", CPU)
    next(run.steps())
    run.store()
    stored = open_checkpoint(tmp_path / "m")
    assert stored.config.layers == 1
    for name, tensor in run.model.llama_tensors().items():
        assert np.array_equal(stored.tensors[name], tensor)


@pytest.mark.parametrize(
    ("layers", "rule"),
    [
        ((2, 1), "layers must not shrink, got 2 and then 1"),
        ((1, 1), "the last phase has the model's own shape"),
        ((3, None), "layers must not shrink, got 3 and then 2"),
        ((0, None), "layers must be at least 1, got 0"),
    ],
)
def test_shapes_that_make_no_sense_are_refused(recipe: Recipe, layers, rule) -> None:
    phases = tuple(
        Phase(f"p{number}", until, layers=depth, length=13, period=(2, 5))
        for number, (until, depth) in enumerate(zip((0.5, 1.0), layers, strict=True))
    )
    with pytest.raises(UsageError, match=rule):
        replace(recipe, phases=phases)
