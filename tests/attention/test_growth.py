"""A decoder made larger computes what it did, and what is new can learn."""

from dataclasses import replace

import pytest
import torch

from attnviz.attention.torch_decoder import TorchDecoder, grown
from attnviz.errors import UsageError

from ..small_models import decoder_config

SMALL = decoder_config(51, 16, 22, (4, 2, 4), context=32, norm_eps=1e-12, initializer_range=0.4)

SIZES = [
    {},
    {"layers": 5},
    {"d_model": 28},
    {"head_dim": 8},
    {"head_dim": 12},
    {"d_ff": 23},
    {"layers": 3, "d_model": 32, "head_dim": 8, "d_ff": 40},
]


def decoder(**changes):
    torch.manual_seed(3)
    made = TorchDecoder(replace(SMALL, **changes))
    with torch.no_grad():  # norms and biases too
        for parameter in made.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def ids():
    return torch.arange(3 * 17).view(3, 17) * 7 % 51


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    "changes", [{}, {"tied": True}, {"attention_bias": True, "mlp_bias": True}]
)
def test_a_grown_decoder_has_the_logits_of_the_small_one(sizes, changes):
    small = decoder(**changes)
    large = grown(small, replace(small.config, **sizes))
    assert large.config == replace(small.config, **sizes)
    torch.testing.assert_close(large(ids()), small(ids()), rtol=1e-4, atol=2e-5)
    assert small(ids()).std() > 0.1


def test_everything_that_is_new_learns():
    small = decoder(tied=True)
    large = grown(small, replace(small.config, layers=3, d_model=32, head_dim=8, d_ff=40))
    before = [parameter.detach().clone() for parameter in large.parameters()]
    optimiser = torch.optim.Adam(large.parameters(), lr=1e-2)
    for _ in range(4):  # what reads only from new dimensions waits until they are written to
        optimiser.zero_grad()
        logits = large(ids())[:, :-1].flatten(0, 1)
        torch.nn.functional.cross_entropy(logits, ids()[:, 1:].flatten()).backward()
        optimiser.step()
    for (name, parameter), old in zip(large.named_parameters(), before, strict=True):
        used = parameter[ids().unique()] if name == "embed_tokens.weight" else parameter
        old = old[ids().unique()] if name == "embed_tokens.weight" else old
        assert (used != old).all(), name


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"layers": 1}, "layers must not shrink, got 2 and then 1"),
        ({"d_model": 12}, "d_model must not shrink, got 16 and then 12"),
        ({"d_ff": 21}, "d_ff must not shrink, got 22 and then 21"),
        ({"head_dim": 6}, "head_dim must grow by a whole factor, got 4 and then 6"),
        ({"kv_heads": 4}, "only layers, d_model, head_dim, d_ff may grow"),
        ({"rope_theta": 5e5}, "only layers, d_model, head_dim, d_ff may grow"),
    ],
)
def test_what_cannot_grow_is_refused(changes, rule):
    with pytest.raises(UsageError, match=rule):
        grown(decoder(), replace(SMALL, **changes))
