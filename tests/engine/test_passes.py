"""The pass of a torch model: how far two ways of one attention call may differ by rounding."""

import pytest
import torch

from attnviz.engine.attention_calls import AttentionCall
from attnviz.engine.passes import _rounding_of


def test_rounding_grows_with_the_longest_query_and_key():
    """Lengths are over the dimensions of a head: (3, 4) is 5 long, (0, 2) is shorter."""

    def rounding(row):
        query = torch.tensor([[[[1.0, 0.0], row]]])
        key = torch.tensor([[[[0.0, 2.0], [1.0, 0.0]]]])
        return _rounding_of(AttentionCall(None, (query, key, key), None, {"scaling": 0.5}, None))

    assert rounding([3.0, 4.0]) / rounding([0.0, 1.0]) == pytest.approx((1 + 5) / (1 + 1))
