from __future__ import annotations

import pytest
import torch
from torch import nn

from attnviz.attention.module import MultiHeadAttention
from attnviz.engine.inside_attention import observe_hook_points
from attnviz.engine.observer import KeepWeights


class Stack(nn.Module):
    """Self-attention twice; the first one is registered once more."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = MultiHeadAttention(12, 4, causal=True)
        self.blocks = nn.ModuleList([MultiHeadAttention(12, 3), nn.Linear(12, 12)])
        self.again = self.first

    def forward(self, text):
        residual = self.first(text)
        return self.blocks[1](residual + self.blocks[0](residual))


class Log:
    """Wants some layers and writes down what it is told."""

    def __init__(self, *wanted):
        self.wanted = wanted
        self.calls = []

    def wants(self, kind, layer):
        return (kind, layer) in self.wanted

    def observe(self, text, kind, layer, start, weights, beside):
        before = [self.calls.pop()[2]] if text else []  # one entry a call, of all texts
        self.calls.append((kind, layer, torch.cat([*before, weights[None]])))


@pytest.fixture
def stack():
    return Stack().eval()


@pytest.fixture
def text():
    return torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(5))


def hooks(root):
    """How many hooks there are on all modules."""
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in root.modules()
    )


def test_each_wanted_layer_is_handed_over(stack, text):
    log = Log(("self", 1))
    with observe_hook_points(stack, log):
        output = stack(text)
    ((kind, layer, weights),) = log.calls
    assert (kind, layer) == ("self", 1)
    _, expected = stack.blocks[0](stack.first(text), return_weights=True)
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(output, stack(text))


def test_it_serves_the_observer_that_keeps_weights(stack, text):
    observer = KeepWeights("self", {0: {1, 3}})
    with observe_hook_points(stack, observer):
        stack(text)
    (layer,) = observer.layers
    _, expected = stack.first(text, return_weights=True)
    assert layer.heads == (1, 3)
    assert torch.equal(torch.from_numpy(layer.weights), expected[0, [1, 3]])


def test_the_hooks_of_others_stay(stack, text):
    seen = []
    stack.first.weights_point.register_forward_hook(lambda *call: seen.append(call))
    before = hooks(stack)
    with observe_hook_points(stack, Log(("self", 0))):
        assert hooks(stack) > before
    assert hooks(stack) == before
    stack(text)
    assert len(seen) == 1


@pytest.mark.parametrize("at", ["wants", "observe"])
def test_the_hooks_are_gone_after_an_exception(at, stack, text, monkeypatch):
    def fail(self, *given):
        raise RuntimeError("observer failed")

    monkeypatch.setattr(Log, at, fail)
    with (
        pytest.raises(RuntimeError, match="observer failed"),
        observe_hook_points(stack, Log(("self", 1))),
    ):
        stack(text)
    assert hooks(stack) == 0
