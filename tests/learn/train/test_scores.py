"""Scores of a stored model's heads against transformers' weights and plain loops."""

import math
from statistics import mean, stdev

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from attnviz.learn.train.train import head_scores, open_decoder, random_twice, text_windows

COPIES, COPY = 5, 7
WINDOW = np.zeros((1, 3), np.int64)


@pytest.fixture
def trained(finished):
    return finished[0]


def weights_and_logits(directory, ids):
    """By layer, head, query and key, as transformers has them."""
    model = LlamaForCausalLM.from_pretrained(directory, attn_implementation="eager")
    with torch.inference_mode():
        output = model(torch.tensor([ids]), output_attentions=True)
    return [layer[0].tolist() for layer in output.attentions], output.logits[0]


def by_hand(name, ids, attention, random):
    """DEFINITIONS, one loop a score."""
    n, found = len(ids), []
    for i in range(n):
        equal = [j for j in range(i) if ids[j] == ids[i]]
        if name == "previous" and i >= 1:
            found.append(attention[i][i - 1])
        if name == "first" and i >= 1:
            found.append(attention[i][0])
        if name == "duplicate" and equal:
            found.append(sum(attention[i][j] for j in equal))
        if name == "induction" and random and i > n // 2:
            found.append(attention[i][i - n // 2 + 1])
        earlier = [j for j in equal if j < i - 1]
        if name == "induction" and not random and earlier:
            found.append(sum(attention[i][j + 1] for j in earlier))
    return mean(found) if found else math.nan


def test_scores_equal_loops_over_transformers_weights(trained):
    ids = trained.tokenizer.encode("the cat sat on the mat. the dog sat on the log").ids[1:]
    windows = text_windows(np.array(ids), 15, 0)[:3]
    scores = head_scores(
        open_decoder(trained.directory), windows, beginning=0, copies=COPIES, copy_tokens=COPY
    )
    twice = random_twice(trained.trainer.model.config.vocabulary, 0, COPY, COPIES, 0)
    for probe, sequences in (("text", windows), ("random", twice)):
        runs = [weights_and_logits(trained.directory, row)[0] for row in sequences.tolist()]
        for name in ("previous", "first", "duplicate", "induction"):
            scored = scores.score(name, probe)
            for layer in range(2):
                for head in range(2):
                    values = [
                        by_hand(name, row, weights[layer][head], probe == "random")
                        for row, weights in zip(sequences.tolist(), runs, strict=True)
                    ]
                    known = [value for value in values if not math.isnan(value)]
                    estimate = scored.heads[layer][head]
                    assert estimate.mean == pytest.approx(mean(known), abs=1e-5)
                    if len(known) > 1:
                        error = stdev(known) / math.sqrt(len(known))
                        assert estimate.error == pytest.approx(error, abs=1e-5)


def test_losses_of_the_copies_equal_transformers(trained):
    scores = head_scores(
        open_decoder(trained.directory), WINDOW, beginning=0, copies=COPIES, copy_tokens=COPY
    )
    first, second = [], []
    for row in random_twice(trained.trainer.model.config.vocabulary, 0, COPY, COPIES, 0).tolist():
        logits = weights_and_logits(trained.directory, row[:-1])[1].log_softmax(-1)
        losses = [-float(logits[at, token]) for at, token in enumerate(row[1:])]
        first.append(mean(losses[:COPY]))
        second.append(mean(losses[COPY + 1 :]))  # nothing tells that the second copy begins
    assert scores.first_copy.mean == pytest.approx(mean(first), abs=1e-4)
    assert scores.second_copy.mean == pytest.approx(mean(second), abs=1e-4)
    assert scores.second_copy.error == pytest.approx(stdev(second) / 5**0.5, abs=1e-4)


def test_random_tokens_differ_and_stand_there_twice():
    rows = random_twice(50, 3, 20, 9, seed=1)
    assert rows.shape == (9, 41)
    assert np.all(rows[:, 0] == 3)
    assert np.array_equal(rows[:, 1:21], rows[:, 21:])
    assert all(len(set(row)) == 21 for row in rows.tolist())
    assert not np.array_equal(rows, random_twice(50, 3, 20, 9, seed=2))


def test_windows_lie_evenly_over_a_text():
    ids = np.arange(1, 101)
    windows = text_windows(ids, 3, 0)
    assert windows.shape == (32, 4)
    assert windows[:, 0].tolist() == [0] * 32
    assert windows[[0, 1, -1], 1].tolist() == [1, 4, 98]
    assert np.all(np.diff(windows[:, 1:]) == 1)
    assert len(text_windows(ids, 10, 0)) == 10
    assert text_windows(ids[:5], 10, 0).tolist() == [[0, 1, 2, 3, 4, 5]]
