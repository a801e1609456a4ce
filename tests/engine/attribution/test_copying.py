"""A head copies what the model's own modules make it raise most."""

from __future__ import annotations

import pytest
import torch

from attnviz.engine.attribution.copying import copying_scores
from attnviz.engine.attribution.one_token import COPIED
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.prepare import prepared
from attnviz.models.resolve import load, random_twin

from ..architectures import ARCHITECTURES, small_model, state_of
from .attribution_oracle import ROUTES, Recorded, head_written

CPU = torch.device("cpu")


def ready(name):
    model = small_model(name, attention="eager")
    return model, prepared(name, model, None, CPU, seed=0)


@pytest.mark.parametrize("name", ["gpt2", pytest.param("gemma2", marks=pytest.mark.long)])
def test_the_share_is_that_of_a_loop_over_tokens_and_heads(name):
    model, opened = ready(name)
    before = state_of(model)
    found = copying_scores(opened, tokens=1000)
    assert state_of(model) == before
    plain = opened.vocabulary().plain.tolist()
    assert (found.tokens, found.all_tokens, found.chance) == (len(plain), True, COPIED / 97)
    route, layers = ROUTES[name], len(ARCHITECTURES[name].layers)
    copied = dict.fromkeys(found.copying, 0)
    suppressed = dict.fromkeys(found.copying, 0)
    for token in plain:
        run = Recorded(model, {"input_ids": torch.tensor([[token]])})
        for kind, layer, head in found.copying:
            total = sum(key[:2] == (kind, layer) for key in found.copying)
            merged = run.entered[route.heads[kind][0].format(layer)][0, 0]
            alone = torch.zeros(total, len(merged) // total)
            alone[head] = merged.view(total, -1)[head]
            logits = head_written(run, route, layers, kind, layer, alone.flatten(), 0)
            copied[kind, layer, head] += token in logits.topk(COPIED).indices
            suppressed[kind, layer, head] += token in (-logits).topk(COPIED).indices
    shares = {key: count / len(plain) for key, count in copied.items()}
    assert found.copying == pytest.approx(shares, abs=1.5 / len(plain))  # a tie by rounding
    shares = {key: count / len(plain) for key, count in suppressed.items()}
    assert found.suppressing == pytest.approx(shares, abs=1.5 / len(plain))
    assert 0 < sum(copied.values()) < len(plain) * len(copied) / 2


def test_the_bundled_induction_heads_copy_and_those_of_random_weights_do_not():
    seen = []
    found = copying_scores(load("tiny"), tokens=64, on_progress=lambda *at: seen.append(at))
    assert seen[-1] == (80, 80)
    assert not found.all_tokens
    for head in (0, 2):
        assert found.copying["self", 1, head] > 0.9
        assert found.suppressing["self", 1, head] == 0
    assert found.control < 0.05
    twin = copying_scores(random_twin(load("tiny"), 3), tokens=64)
    assert max(twin.copying.values()) < 0.1
    again = copying_scores(load("tiny"), tokens=64)
    assert again == found


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("bert", UsageError, "does not predict the next token"),
        ("t5", UsageError, "no language model of one stack"),
        ("mha", UsageError, "predicts no tokens"),
    ],
)
def test_what_copies_nothing_is_refused(name, error, said):
    opened = load("mha") if name == "mha" else ready(name)[1]
    with pytest.raises((error, UnsupportedError), match=said):
        copying_scores(opened, tokens=3)


def test_no_token_is_refused():
    with pytest.raises(UsageError, match="at least 1 token"):
        copying_scores(load("tiny"), tokens=0)
