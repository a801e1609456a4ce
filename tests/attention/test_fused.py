"""The way that learns in bfloat16 on a CPU, against torch's kernel in float32."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from attnviz.attention.module import fused_attention

BATCH, HEADS, TOKENS, WIDTH = 2, 3, 7, 5


@pytest.mark.parametrize("scale", [None, 0.7])
def test_attention_learns_in_bfloat16_what_it_learns_in_float32(scale):
    torch.manual_seed(0)
    parts = [torch.randn(BATCH, HEADS, TOKENS, WIDTH) for _ in range(3)]
    narrow = [part.to(torch.bfloat16).requires_grad_() for part in parts]
    wide = [part.detach().float().requires_grad_() for part in narrow]
    output = fused_attention(*narrow, causal=True, scale=scale)
    expected = functional.scaled_dot_product_attention(*wide, is_causal=True, scale=scale)
    direction = torch.randn(expected.shape)
    output.backward(direction.to(torch.bfloat16))
    expected.backward(direction)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, atol=0.03, rtol=0.03)
    for ours, theirs in zip(narrow, wide, strict=True):
        torch.testing.assert_close(ours.grad.float(), theirs.grad, atol=0.05, rtol=0.05)


def test_no_later_token_is_seen_while_learning():
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(BATCH, HEADS, TOKENS, WIDTH, dtype=torch.bfloat16).requires_grad_()
        for _ in range(3)
    )
    before = fused_attention(query, key, value, causal=True)
    changed = value.detach().clone()
    changed[..., -1, :] += 100
    after = fused_attention(query, key, changed, causal=True)
    assert torch.equal(before[..., :-1, :], after[..., :-1, :])
    assert not torch.equal(before[..., -1, :], after[..., -1, :])
