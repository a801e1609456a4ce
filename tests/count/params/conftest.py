"""Architectures of small primes, counted."""

import pytest

from attnviz.count.params import specs
from attnviz.count.params.cost import count_cost
from attnviz.count.params.parts import Case
from attnviz.count.params.request import spec_from_options

FORWARD = specs.FeedForwardSpec(14, 17, gated=True)
MIXTURE = specs.ExpertsSpec(FORWARD, experts=5, active=2, shared=FORWARD)


def attention(**more):
    return specs.AttentionSpec(14, 7, 7, 2, 2, **more)


def decoder():
    """Two kinds of layers: full with a feed-forward part, sliding with experts."""
    norms = (specs.Norm("attention norm", 14), specs.Norm("feed-forward norm", 14))
    full = specs.LayerSpec((attention(query_bias=True),), FORWARD, norms)
    sliding = specs.LayerSpec((attention(window=3),), MIXTURE, norms)
    groups = (specs.LayerGroup(full, 2, (0, 2)), specs.LayerGroup(sliding, 3, (1, 3, 4)))
    stack = specs.StackSpec(
        "decoder",
        groups,
        embeddings=(
            specs.LookupTable("token embedding", 19, 14),
            specs.Dense("patch embedding", 3, 14, bias=True),
        ),
        norms=(specs.Norm("final norm", 14, shift=True),),
        head=specs.Dense("head", 14, 19),
        max_positions=23,
    )
    return specs.ModelSpec("two kinds", "a paper", (stack,), notes=("made up",))


def pair():
    """An encoder and a decoder that reads it, with a shared table."""
    plain = specs.FeedForwardSpec(14, 17)
    norm = (specs.Norm("norm", 14),)
    read = (specs.LayerGroup(specs.LayerSpec((attention(),), plain, norm), 2),)
    encoder = specs.StackSpec("encoder", read, causal=False, reads="source")
    both = (attention(), attention(cross=True, source_width=14))
    decoder = specs.StackSpec("decoder", (specs.LayerGroup(specs.LayerSpec(both, plain, norm), 3),))
    return specs.ModelSpec(
        "pair", "", (encoder, decoder), embeddings=(specs.LookupTable("token embedding", 19, 14),)
    )


SPECS = {
    "attention": lambda: spec_from_options(d_model=14, heads=7),
    "biased": lambda: spec_from_options(d_model=14, heads=7, kv_heads=1, bias=True),
    "whole": lambda: spec_from_options(
        d_model=14, heads=7, layers=3, d_ff=17, ffn="swiglu", vocab=19, norm="rmsnorm", tied=False
    ),
    "tied": lambda: spec_from_options(
        d_model=14, heads=7, head_dim=5, layers=2, d_ff=17, vocab=19, bias=True
    ),
    "latent": lambda: spec_from_options(
        d_model=14, heads=7, layers=2, q_lora=5, kv_lora=11, rope_dim=3, nope_dim=2
    ),
    "linear": lambda: spec_from_options(d_model=14, heads=7, layers=2, linear=True),
    "huge": lambda: spec_from_options(d_model=10**15 - 10**5, heads=10, layers=10**15),
    "decoder": decoder,
    "pair": pair,
}


@pytest.fixture(params=SPECS)
def any_case(request):
    spec = SPECS[request.param]()
    return Case(spec.name, count_cost(spec, tokens=11))


@pytest.fixture
def case():
    """One of them by its name here, counted: ``case("whole", tokens=5)``."""

    def make(name, **more):
        spec = SPECS[name]()
        return Case(spec.name, count_cost(spec, **more))

    return make
