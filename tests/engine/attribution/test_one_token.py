"""A head copies what the model's own modules make it raise most."""

import pytest
import torch

from attnviz.engine.attribution import circuits
from attnviz.engine.attribution.circuits import COPIED, one_token_writes
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
    route, layers = ROUTES[name], len(ARCHITECTURES[name].layers)
    heads = [("self", layer, head) for layer in range(layers) for head in range(opened.info.heads)]
    found = one_token_writes(opened, heads, tokens=1000)
    assert state_of(model) == before
    plain = opened.vocabulary().plain.tolist()
    assert {(one.tokens, one.chance) for one in found.values()} == {(len(plain), COPIED / 97)}
    copied = dict.fromkeys(found, 0)
    for token in plain:
        run = Recorded(model, {"input_ids": torch.tensor([[token]])})
        for kind, layer, head in found:
            merged = run.entered[route.heads[kind][0].format(layer)][0, 0]
            alone = torch.zeros(opened.info.heads, len(merged) // opened.info.heads)
            alone[head] = merged.view(opened.info.heads, -1)[head]
            logits = head_written(run, route, layers, kind, layer, alone.flatten(), 0)
            copied[kind, layer, head] += token in logits.topk(COPIED).indices
    shares = {key: count / len(plain) for key, count in copied.items()}
    tie = 1.5 / len(plain)  # by rounding
    assert {key: one.copying for key, one in found.items()} == pytest.approx(shares, abs=tie)
    assert 0 < sum(copied.values()) < len(plain) * len(copied) / 2


def test_the_bundled_induction_heads_copy_and_those_of_random_weights_do_not():
    heads = [("self", 1, head) for head in range(4)]
    found = one_token_writes(load("tiny"), heads, tokens=64)
    assert found["self", 1, 0].tokens == 64
    assert all(found["self", 1, head].copying > 0.9 for head in (0, 2))
    twin = one_token_writes(random_twin(load("tiny"), 3), heads, tokens=64)
    assert max(one.copying for one in twin.values()) < 0.1


def test_logits_that_a_gpu_keeps_say_the_same(monkeypatch):
    heads = [("self", 1, head) for head in range(4)]
    expected = one_token_writes(load("tiny"), heads, tokens=64)
    plain = circuits._logits

    def kept(*asked):
        for head, batch, logits in plain(*asked):
            yield head, batch, torch.from_numpy(logits)

    monkeypatch.setattr(circuits, "_logits", kept)
    for head, found in one_token_writes(load("tiny"), heads, tokens=64).items():
        assert found._replace(strongest=()) == expected[head]._replace(strongest=())
        for one, other in zip(found.strongest, expected[head].strongest, strict=True):
            assert one == pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("bert", UsageError, "does not predict the next token"),
        ("t5", UsageError, "not a single-stack language model"),
        ("mha", UsageError, "predicts no tokens"),
    ],
)
def test_what_copies_nothing_is_refused(name, error, said):
    opened = load("mha") if name == "mha" else ready(name)[1]
    with pytest.raises((error, UnsupportedError), match=said):
        one_token_writes(opened, [("self", 0, 0)], tokens=3)


def test_no_token_is_refused():
    with pytest.raises(UsageError, match="at least 1 token"):
        one_token_writes(load("tiny"), [("self", 0, 0)], tokens=0)
