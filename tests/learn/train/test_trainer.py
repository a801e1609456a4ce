"""One step of training, and the loss on validation text, against loops written by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from attnviz.learn.train.recipe import Optimiser
from attnviz.learn.train.train import TrainingRun
from attnviz.learn.train.trainer import learning_rate, make_optimiser, take_step, unigram_loss

WANTED = Optimiser(learning_rate=0.5, final_share=0.2, warmup_steps=3, clip=0.3)
VOCABULARY, WIDTH = 7, 5
CPU = torch.device("cpu")
STRONG = 4.0


def model():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
    )


@pytest.mark.parametrize(
    ("used", "steps", "expected"),
    [
        (0.0, 0, 0.5 / 4),  # a quarter of the peak: one step of four
        (0.0, 2, 0.5 * 3 / 4),
        (0.0, 3, 0.5),
        (0.0, 100, 0.5),
        (0.5, 100, 0.5 * (0.2 + 0.8 * 0.5)),
        (1.0, 100, 0.5 * 0.2),
        (2.0, 100, 0.5 * 0.2),
        (0.5, 0, 0.5 * (0.2 + 0.8 * 0.5) / 4),  # a new phase warms up again
    ],
)
def test_the_learning_rate_by_hand(used, steps, expected):
    assert learning_rate(WANTED, used, steps) == pytest.approx(expected, rel=1e-12)


def reference_step(parameters, means, gradients, step, rate):
    """AdamW with clipping, as the papers write it, in float64."""
    norm = math.sqrt(sum(float((one**2).sum()) for one in gradients))
    for parameter, (first, second), gradient in zip(parameters, means, gradients, strict=True):
        clipped = gradient * min(1.0, WANTED.clip / norm)
        first.mul_(WANTED.beta1).add_((1 - WANTED.beta1) * clipped)
        second.mul_(WANTED.beta2).add_((1 - WANTED.beta2) * clipped**2)
        if parameter.ndim > 1:
            parameter -= rate * WANTED.weight_decay * parameter
        corrected = first / (1 - WANTED.beta1**step)
        spread = (second / (1 - WANTED.beta2**step)).sqrt() + 1e-8
        parameter -= rate * corrected / spread


def test_steps_equal_a_loop_by_hand():
    learned, by_hand = model(), model().double()
    optimiser = make_optimiser(learned, WANTED)
    parameters = [one.data for one in by_hand.parameters()]
    means = [(torch.zeros_like(one), torch.zeros_like(one)) for one in parameters]
    generator = torch.Generator().manual_seed(1)
    for step in range(1, 6):
        ids = torch.randint(0, VOCABULARY, (3, 11), generator=generator)
        weights = torch.rand(3, 10, generator=generator)
        weights[0, :4] = 0
        rate = 0.01 * step
        loss = take_step(
            learned, optimiser, ids, weights, rate=rate, clip=WANTED.clip, autocast=None
        )
        scores = by_hand(ids[:, :-1])
        chosen = scores.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        expected = -(chosen * weights).sum() / weights.double().sum()
        gradients = torch.autograd.grad(expected, list(by_hand.parameters()))
        reference_step(parameters, means, list(gradients), step, rate)
        torch.testing.assert_close(loss.double(), expected.detach(), rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(learned.parameters(), parameters, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)


def test_the_unigram_loss_by_hand():
    """Of 5 tokens learnt and 4 in the vocabulary: 3/9, 2/9, 3/9 and 1/9."""
    found = unigram_loss(np.array([0, 0, 1, 2, 2]), np.array([0, 3, 1]), 4)
    assert found == pytest.approx(-(math.log(3 / 9) + math.log(1 / 9) + math.log(2 / 9)) / 3)


def first_step_of_the_second_phase(run):
    """The weights before and after it, and its learning rate."""
    steps = run.trainer.steps()
    while run.recipe.phase_at(run.trainer.used) == 0:
        next(steps)
    before = {name: one.detach().clone() for name, one in run.trainer.model.named_parameters()}
    rate = learning_rate(run.recipe.optimiser, run.trainer.used, 0)
    next(steps)
    return before, {name: one.detach() for name, one in run.trainer.model.named_parameters()}, rate


def test_a_phase_decays_matrices_as_it_says(texts, recipe, tmp_path):
    shape = dict.fromkeys(("layers", "d_model", "head_dim", "d_ff"))
    first, last = (replace(phase, **shape) for phase in recipe.phase)
    recipe = replace(recipe, phase=(first, last))
    decaying = replace(recipe, phase=(first, replace(last, weight_decay=STRONG)))
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


def test_a_phase_with_enough_tokens_makes_way_for_the_next(texts, recipe, tmp_path):
    first, last = recipe.phase
    short = replace(recipe, phase=(replace(first, tokens=200), last))
    run = TrainingRun(*texts, short, tmp_path / "m", CPU)
    read = [(run.trainer.phase, run.trainer.tokens) for _ in run.trainer.steps()]
    tokens = first.batch * first.length
    steps = -(-200 // tokens)
    assert read[steps - 1] == (first.name, steps * tokens)
    assert read[steps][0] == last.name
