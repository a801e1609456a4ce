"""Designs of small primes, counted, and their sheets on a console without colour."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from attnviz.draw.theme import Theme
from attnviz.params.counting.account import count_cost
from attnviz.params.design_options import spec_from_options
from attnviz.params.metrics import Case
from attnviz.params.screen import sheet_screen
from attnviz.params.sheet import Sheet
from attnviz.params.specs import (
    AttentionSpec,
    Dense,
    ExpertsSpec,
    FeedForwardSpec,
    LayerGroup,
    LayerSpec,
    ModelSpec,
    Norm,
    StackSpec,
    Table,
)

FORWARD = FeedForwardSpec(14, 17, gated=True)
MIXTURE = ExpertsSpec(FORWARD, experts=5, active=2, shared=FORWARD)


def attention(**more: Any) -> AttentionSpec:
    return AttentionSpec(14, 7, 7, 2, 2, **more)


def decoder() -> ModelSpec:
    """Two kinds of layers: full with a feed-forward part, sliding with experts."""
    norms = (Norm("attention norm", 14), Norm("feed-forward norm", 14))
    full = LayerSpec((attention(query_bias=True),), FORWARD, norms)
    sliding = LayerSpec((attention(window=3),), MIXTURE, norms)
    groups = (LayerGroup(full, 2, (0, 2)), LayerGroup(sliding, 3, (1, 3, 4)))
    stack = StackSpec(
        "decoder",
        groups,
        embeddings=(Table("token embedding", 19, 14), Dense("patch embedding", 3, 14, bias=True)),
        norms=(Norm("final norm", 14, shift=True),),
        head=Dense("head", 14, 19),
        max_positions=23,
    )
    return ModelSpec("two kinds", "a paper", (stack,), notes=("made up",))


def pair() -> ModelSpec:
    """An encoder and a decoder that reads it, with a shared table."""
    plain = FeedForwardSpec(14, 17)
    norm = (Norm("norm", 14),)
    encoder = StackSpec(
        "encoder", (LayerGroup(LayerSpec((attention(),), plain, norm), 2),), causal=False,
        reads="source",
    )  # fmt: skip
    both = (attention(), attention(cross=True, source_width=14))
    decoder = StackSpec("decoder", (LayerGroup(LayerSpec(both, plain, norm), 3),))
    return ModelSpec("pair", "", (encoder, decoder), embeddings=(Table("token embedding", 19, 14),))


DESIGNS: dict[str, Callable[[], ModelSpec]] = {
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


@pytest.fixture(params=DESIGNS)
def any_case(request: pytest.FixtureRequest) -> Case:
    """Each of the designs, counted for eleven tokens."""
    spec = DESIGNS[request.param]()
    return Case(spec.name, cost=count_cost(spec, tokens=11))


@pytest.fixture
def case() -> Callable[..., Case]:
    """A design by its name here, counted: ``case("whole", tokens=5)``."""

    def make(name: str, **more: Any) -> Case:
        spec = DESIGNS[name]()
        return Case(spec.name, cost=count_cost(spec, **more))

    return make


@pytest.fixture
def drawn() -> Callable[..., list[str]]:
    """The lines of a sheet: ``drawn(sheet, 80, ascii_only=True)``."""

    def draw(sheet: Sheet, width: int = 80, *, ascii_only: bool = False, **more: Any) -> list[str]:
        console = Console(
            file=io.TextIOWrapper(io.BytesIO(), "utf-8"), width=width, soft_wrap=True, markup=False,
            highlight=False, emoji=False,
        )  # fmt: skip
        theme = Theme.of(console, "viridis", ascii_only)
        block = sheet_screen(sheet, width, theme, **more)
        console.print(block, end="")
        console.file.flush()
        assert console.file.buffer.getvalue().decode().splitlines() == block.plain.splitlines()
        return block.plain.splitlines()

    return draw
