"""Specs from options: what they mean, and one clear line for each that does not fit."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from attnviz.count.params.cost import count_cost
from attnviz.count.params.request import SHAPE, spec_from_options
from attnviz.count.params.specs import shares_of
from attnviz.errors import UsageError

LATENT = {"kv_lora": 3, "rope_dim": 2, "nope_dim": 2}
_MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text("utf-8"))["options"]


def counted(**options):
    return count_cost(spec_from_options(**options), tokens=1)


def refused(**options):
    with pytest.raises(UsageError) as caught:
        spec_from_options(**options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_options_that_are_not_given_are_none():
    missing = dict.fromkeys(set(SHAPE) - {"d_model", "heads"})
    assert spec_from_options(d_model=6, heads=2, **missing) == spec_from_options(d_model=6, heads=2)


def test_a_whole_decoder():
    sizes = {"layers": 32, "d_ff": 11008, "vocab": 32000, "max_positions": 4096}
    kinds = {"ffn": "swiglu", "tied": False, "norm": "rmsnorm", "positions": "rotary"}
    llama = counted(d_model=4096, heads=32, **kinds, **sizes)
    assert llama.total == 6_738_415_616
    assert llama.cache.bytes_per_token == 524_288
    sizes = {"layers": 12, "d_ff": 3072, "vocab": 50257, "max_positions": 1024}
    gpt2 = counted(d_model=768, heads=12, bias=True, norm="layernorm", positions="learned", **sizes)
    assert gpt2.total == 124_439_808


def test_norms_and_heads_are_counted_once():
    shape = {"d_model": 6, "heads": 2, "d_ff": 5, "norm": "rmsnorm"}
    norms = [
        shares_of(counted(**shape, **more).spec.placed)["norm"] for more in ({}, {"layers": 1})
    ]
    assert norms == [12, 18]
    shape = {"d_model": 6, "heads": 2, "vocab": 11}
    tied, untied = counted(**shape, tied=True), counted(**shape, tied=False)
    assert counted(**shape).total == tied.total == 144 + 66
    assert untied.total == 144 + 132
    assert tied.flops.head == untied.flops.head == 2 * 66


def test_mixture_and_latent_attention():
    experts = {"experts": 5, "active_experts": 2, "shared_experts": 3, "d_expert": 4}
    mixture = counted(d_model=6, heads=2, ffn="geglu", **experts).spec
    assert shares_of(mixture.placed)["feed_forward"] == 5 * 72 + 30 + 3 * 72
    assert mixture.total - mixture.active == 3 * 72
    widths = {"kv_lora": 512, "q_lora": 1536, "rope_dim": 64, "nope_dim": 128, "v_head_dim": 128}
    latent = counted(d_model=7168, heads=128, **widths)
    assert latent.total == 187_107_328 - 2048  # without its norms
    assert latent.cache.bytes_per_token == 2 * 576


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))
def test_heads_divide_or_are_refused(d_model, heads, kv_heads):
    options = {"d_model": d_model, "heads": heads, "kv_heads": kv_heads}
    if d_model % heads == 0 and heads % kv_heads == 0:
        width = d_model // heads
        assert counted(**options).total == 2 * d_model**2 + 2 * d_model * kv_heads * width
    elif d_model % heads:
        message = refused(**options)
        named = message.split(": ")[1].split(" do;")[0].split(", ")
        assert all(d_model % int(number) == 0 for number in named)
        assert "--head-dim, which lifts the rule" in message
    else:
        assert "does not divide --heads" in refused(**options)


@pytest.mark.parametrize(("options", "says"), _MISTAKES)
def test_what_does_not_fit_together(options, says):
    assert says in refused(**{"d_model": 12, "heads": 4, **options})
