from __future__ import annotations

import pytest
import torch
from torch import nn

from attnviz.attention.module import MultiHeadAttention
from attnviz.engine.hook_points import observe_hook_points
from attnviz.engine.observer import KeepWeights


class Stack(nn.Module):
    """Self-attention, cross-attention and once more the first self-attention."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = MultiHeadAttention(12, 4, causal=True)
        self.blocks = nn.ModuleList([MultiHeadAttention(12, 3, key_width=5), nn.Linear(12, 12)])
        self.last = MultiHeadAttention(12, 2, 1)
        self.again = self.first

    def forward(self, text: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        residual = self.first(text)
        residual = self.blocks[1](residual + self.blocks[0](residual, key=other, value=other))
        return self.last(query=residual, key=residual)


class Log:
    """Wants some layers and writes down what it is told."""

    def __init__(self, *wanted) -> None:
        self.wanted = wanted
        self.calls = []

    def wants(self, kind, layer) -> bool:
        return (kind, layer) in self.wanted

    def observe(self, text, kind, layer, start, weights, norms) -> None:
        before = [self.calls.pop()[2]] if text else []  # one entry a call, of all texts
        self.calls.append((kind, layer, torch.cat([*before, weights[None]])))


@pytest.fixture
def stack() -> Stack:
    return Stack().eval()


@pytest.fixture
def texts() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(2, 5, 12, generator=generator), torch.randn(2, 7, 5, generator=generator)


def hooks(root: nn.Module) -> int:
    """How many hooks there are on all modules."""
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in root.modules()
    )


def test_each_call_is_handed_over_with_its_kind(stack, texts):
    log = Log(("self", 0), ("cross", 1), ("self", 2))
    with observe_hook_points(stack, log):
        output = stack(*texts)
    assert [(kind, layer, tuple(weights.shape)) for kind, layer, weights in log.calls] == [
        ("self", 0, (2, 4, 5, 5)),
        ("cross", 1, (2, 3, 5, 7)),
        ("self", 2, (2, 2, 5, 5)),
    ]
    _, expected = stack.first(texts[0], return_weights=True)
    assert torch.equal(log.calls[0][2], expected)
    torch.testing.assert_close(output, stack(*texts))


def test_layers_that_are_not_wanted_run_at_full_speed(stack, texts):
    log = Log(("cross", 1), ("cross", 2))
    with observe_hook_points(stack, log):
        assert not stack.first.weights_point.watched
        assert stack.blocks[0].weights_point.watched
        stack(*texts)
    assert [(kind, layer) for kind, layer, _ in log.calls] == [("cross", 1)]


def test_the_key_may_be_given_by_place_or_name(stack, texts):
    log = Log(("self", 0), ("cross", 0))
    text, other = texts[0], texts[0].clone()
    with observe_hook_points(stack, log):
        for arguments in ([text], [text, text], [text, other]):
            stack.first(*arguments)
        stack.first(query=text)
        stack.first(text, value=other)
        stack.first(text, key=text)
        stack.first(key=other, query=text)
    kinds = [kind for kind, _, _ in log.calls]
    assert kinds == ["self", "self", "cross", "self", "self", "self", "cross"]


def test_it_serves_the_observer_that_keeps_weights(stack, texts):
    observer = KeepWeights("self", {0: {1, 3}})
    with observe_hook_points(stack, observer):
        stack(*texts)
    (layer,) = observer.layers
    _, expected = stack.first(texts[0], return_weights=True)
    assert layer.heads == (1, 3)
    assert torch.equal(torch.from_numpy(layer.weights), expected[0, [1, 3]])


def test_the_hooks_of_others_stay(stack, texts):
    seen = []
    stack.first.weights_point.register_forward_hook(lambda *call: seen.append(call))
    before = hooks(stack)
    with observe_hook_points(stack, Log(("self", 0))):
        assert hooks(stack) == before + 2
    assert hooks(stack) == before
    stack(*texts)
    assert len(seen) == 1


@pytest.mark.parametrize("at", ["wants", "observe"])
def test_the_hooks_are_gone_after_an_exception(at, stack, texts, monkeypatch):
    def fail(self, *given) -> None:
        raise RuntimeError("observer failed")

    monkeypatch.setattr(Log, at, fail)
    with (
        pytest.raises(RuntimeError, match="observer failed"),
        observe_hook_points(stack, Log(("self", 2))),
    ):
        stack(*texts)
    assert hooks(stack) == 0
