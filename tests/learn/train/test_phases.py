"""What a phase changes: how the model learns, and how large it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attnviz.errors import UsageError
from attnviz.learn.train.recipe import Phase, Recipe
from attnviz.learn.train.texts import Corpus
from attnviz.learn.train.train import TrainingRun
from attnviz.learn.train.trainer import learning_rate

CPU = torch.device("cpu")
ResumedAlike = Callable[[Recipe, Sequence[int]], None]
STRONG = 4.0


@pytest.fixture(scope="module")
def decaying(recipe: Recipe) -> Recipe:
    first, last = recipe.phases
    return replace(recipe, phases=(first, replace(last, weight_decay=STRONG)))


def first_step_of_the_second_phase(
    run: TrainingRun,
) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
    """The weights before and after it, and its learning rate."""
    steps = run.trainer.steps()
    while run.recipe.phase(run.trainer.used) == 0:
        next(steps)
    before = {name: one.detach().clone() for name, one in run.trainer.model.named_parameters()}
    rate = learning_rate(run.recipe.optimiser, run.trainer.used, 0)
    next(steps)
    return before, {name: one.detach() for name, one in run.trainer.model.named_parameters()}, rate


def test_a_phase_decays_matrices_as_it_says(
    texts: tuple[Corpus, Corpus], recipe: Recipe, decaying: Recipe, tmp_path: Path
) -> None:
    plain = TrainingRun(*texts, recipe, tmp_path / "plain", CPU)
    strong = TrainingRun(*texts, decaying, tmp_path / "strong", CPU)
    before, weak_after, rate = first_step_of_the_second_phase(plain)
    same, strong_after, _ = first_step_of_the_second_phase(strong)
    # AdamW takes its decay beside the gradient's step (Loshchilov & Hutter 2019, algorithm 2).
    more = rate * (STRONG - recipe.optimiser.weight_decay)
    for name, weight in before.items():
        assert torch.equal(weight, same[name])  # nothing changed in the first phase
        expected = more * weight if weight.ndim > 1 else torch.zeros_like(weight)
        torch.testing.assert_close(
            weak_after[name] - strong_after[name], expected, rtol=1e-3, atol=1e-8
        )


def test_a_phase_with_enough_tokens_makes_way_for_the_next(
    texts: tuple[Corpus, Corpus], recipe: Recipe, tmp_path: Path
) -> None:
    first, last = recipe.phases
    short = replace(recipe, phases=(replace(first, tokens=200), last))
    run = TrainingRun(*texts, short, tmp_path / "m", CPU)
    read = [(run.trainer.phase, run.trainer.tokens) for _ in run.trainer.steps()]
    tokens = first.batch * first.length
    steps = -(-200 // tokens)
    assert read[steps - 1] == (first.name, steps * tokens)
    assert read[steps][0] == last.name


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
    for _ in run.trainer.steps():
        config = run.trainer.model.config
        widths.append((config.layers, config.d_model, config.head_dim, config.d_ff))
        logits = run.trainer.model(ids)
    assert set(widths) == {(1, 12, 4, 20), (2, 16, 8, 24)}
    assert widths == sorted(widths)
    result = run.finish()
    assert result.parameters == sum(one.numel() for one in run.trainer.model.parameters())
    assert (result.model.layers, result.model.head_dim) == (2, 8)
    assert logits.shape == (1, 7, 270)


def test_a_run_that_grows_is_resumed_to_the_same_weights(
    resumed_alike: ResumedAlike, growing: Recipe
) -> None:
    resumed_alike(growing, (3,))  # before the model grows


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
