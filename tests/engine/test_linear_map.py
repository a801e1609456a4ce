"""Linear maps are told by what they compute: packed, scaled, wrapped, and no map at all."""

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from attnviz.engine.linear_map import matrix_of, packed_layers, require_rows_apart, weight_axis
from attnviz.errors import UnsupportedError


class Rows(nn.Linear):
    """Whole numbers of 8 bits, with a scale for each output."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        whole = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
        self.weight = nn.Parameter(whole, requires_grad=False)
        self.scale = torch.rand(outputs, 1) / 50

    @property
    def matrix(self):
        return (self.weight.float() * self.scale).T

    def forward(self, x):
        return x @ self.matrix + self.bias


class Together(Rows):
    """Rounds its inputs to steps of the largest one, as dynamic quantisation does."""

    def forward(self, x):
        step = x.abs().max().clamp(min=1e-9) / 127
        return super().forward((x / step).round() * step)


class Wrapped(nn.Module):
    """An adapter around a layer, whose weight is the base's alone, as in peft."""

    def __init__(self, base):
        super().__init__()
        self.base, self.more = base, nn.Linear(base.in_features, base.out_features, bias=False)
        self.in_features, self.out_features = base.in_features, base.out_features

    @property
    def weight(self):
        return self.base.weight

    @property
    def matrix(self):
        return (self.base.weight + self.more.weight).T

    def forward(self, x):
        return self.base(x) + self.more(x)


class Bent(nn.Linear):
    """No linear map, though a subclass of one."""

    def forward(self, x):
        return super().forward(x).abs()


@torch.no_grad()
def test_a_weight_counts_if_the_module_multiplies_by_it():
    torch.manual_seed(0)
    assert weight_axis(nn.Linear(5, 5)) == 1
    assert weight_axis(Conv1D(5, 5)) == 0
    assert weight_axis(Rows(5, 7)) is None
    assert weight_axis(Wrapped(nn.Linear(5, 5))) is None


@torch.no_grad()
@pytest.mark.parametrize("make", [Rows, Together, lambda *size: Wrapped(nn.Linear(*size))])
def test_a_basis_shows_the_matrix(make):
    torch.manual_seed(0)
    module = make(5, 7)
    torch.testing.assert_close(matrix_of(module, torch.zeros(1)), module.matrix)


@torch.no_grad()
def test_what_is_not_linear_is_refused_by_name():
    torch.manual_seed(0)
    with pytest.raises(UnsupportedError, match="Bent multiplies by no matrix"):
        matrix_of(Bent(5, 7), torch.zeros(1))


def test_tokens_that_are_quantised_together_are_refused_by_name():
    torch.manual_seed(0)
    root = nn.Sequential(nn.Linear(5, 5), Rows(5, 5))
    root.dtype, root.device = torch.float32, torch.device("cpu")
    require_rows_apart(root)
    assert packed_layers(nn.Sequential(nn.Linear(5, 5))) == ""
    root.append(Together(5, 5))
    with pytest.raises(UnsupportedError, match="Together layers quantise the tokens"):
        require_rows_apart(root)
    assert "Rows layers: merge its adapter" in packed_layers(root)


class Packed(Tensor):
    """A weight of another library, in a layer of torch's own class."""


def test_a_layer_with_a_packed_weight_is_named_by_the_weight():
    layer = nn.Linear(5, 5)
    layer.weight = nn.Parameter(torch.zeros(5, 5).as_subclass(Packed))
    assert "Packed layers: merge its adapter" in packed_layers(nn.Sequential(layer))
