"""What a phase changes while the model stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attnviz.train.corpus import Corpus
from attnviz.train.optimisation import learning_rate
from attnviz.train.recipe import Recipe
from attnviz.train.run import TrainingRun

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
    steps = run.steps()
    while run.recipe.phase(run.trainer.used) == 0:
        next(steps)
    before = {name: one.detach().clone() for name, one in run.model.named_parameters()}
    rate = learning_rate(run.recipe.optimiser, run.trainer.used, 0)
    next(steps)
    return before, {name: one.detach() for name, one in run.model.named_parameters()}, rate


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


def test_a_phase_has_its_own_beta2(
    texts: tuple[Corpus, Corpus], recipe: Recipe, tmp_path: Path
) -> None:
    first, last = recipe.phases
    wanted = replace(recipe, phases=(first, replace(last, beta2=0.9)))
    run = TrainingRun(*texts, wanted, tmp_path / "m", CPU)
    steps = run.steps()
    while run.trainer.used < first.until:
        next(steps)
    before = run.trainer.state()
    squares = {at: one["exp_avg_sq"].clone() for at, one in before["optimiser"]["state"].items()}
    next(steps)
    after = run.trainer.state()["optimiser"]["state"]
    # At 0.98, no mean of squares falls below 98 % of itself in a step, at 0.9 none below 90 %.
    ratios = torch.cat([(after[at]["exp_avg_sq"] / one).flatten() for at, one in squares.items()])
    assert ratios.min().item() == pytest.approx(0.9, abs=1e-3)


def test_a_resumed_phase_decays_on(resumed_alike: ResumedAlike, decaying: Recipe) -> None:
    resumed_alike(decaying, (3, 40))  # in the phase before it and in its midst


def test_a_phase_with_enough_tokens_makes_way_for_the_next(
    texts: tuple[Corpus, Corpus], recipe: Recipe, tmp_path: Path, resumed_alike: ResumedAlike
) -> None:
    first, last = recipe.phases
    short = replace(recipe, phases=(replace(first, tokens=200), last))
    run = TrainingRun(*texts, short, tmp_path / "m", CPU)
    read = [(run.trainer.phase, run.trainer.tokens) for _ in run.steps()]
    tokens = first.batch * first.length
    steps = -(-200 // tokens)
    assert read[steps - 1] == (first.name, steps * tokens)
    assert read[steps][0] == last.name
    resumed_alike(short, (2, 10))
