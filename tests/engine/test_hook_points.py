import pytest
import torch
from torch import nn

from attnviz.attention.module import MultiHeadAttention
from attnviz.engine.hook_points import OwnHookPoints


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
    """Writes the attention patterns of each layer down."""

    def __init__(self):
        self.patterns = {}

    def edit(self, number, point, outputs):
        if point.sort == "pattern":
            self.patterns[point.layer] = outputs.transpose(1, 2)
        return outputs


@pytest.fixture
def stack():
    return Stack().eval()


@pytest.fixture
def text():
    return torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(5))


def intervening(stack, log):
    return OwnHookPoints(stack).intervening(log, inside=("pattern",))


def hooks(root):
    """How many hooks there are on all modules."""
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in root.modules()
    )


def test_each_layer_is_met_once(stack, text):
    log = Log()
    with intervening(stack, log):
        output = stack(text)
    first, expected = stack.first(text, return_weights=True)
    torch.testing.assert_close(log.patterns[0], expected)
    torch.testing.assert_close(log.patterns[1], stack.blocks[0](first, return_weights=True)[1])
    assert log.patterns.keys() == {0, 1}
    torch.testing.assert_close(output, stack(text))


def test_the_hooks_of_others_stay(stack, text):
    seen = []
    stack.first.weights_point.register_forward_hook(lambda *call: seen.append(call))
    before = hooks(stack)
    with intervening(stack, Log()):
        assert hooks(stack) > before
    assert hooks(stack) == before
    stack(text)
    assert len(seen) == 1


def test_the_hooks_are_gone_after_an_exception(stack, text, monkeypatch):
    def fail(self, *given):
        raise RuntimeError("intervention failed")

    monkeypatch.setattr(Log, "edit", fail)
    with pytest.raises(RuntimeError, match="intervention failed"), intervening(stack, Log()):
        stack(text)
    assert hooks(stack) == 0
