"""The options of ``generate``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from attnviz.options import (
    HeadChoice,
    IndexBase,
    Known,
    Options,
    RegionOptions,
    Seed,
    option,
    spelled_heads,
)

if TYPE_CHECKING:
    from attnviz.engine.generation import Sampling


@dataclass(frozen=True)
class _Written(Options, panel="Generation"):
    tokens: int = option("N", "Generate at most N tokens.", 40, min=1)
    temperature: float = option(
        "T",
        "Divide the logits by T before the softmax; 0 takes the likeliest token (greedy).",
        0.0,
        brief="Sampling temperature; 0 is greedy.",
    )
    top_k: int | None = option("K", "Sample from the K likeliest tokens only (Fan et al. 2018).")
    top_p: float | None = option(
        "P",
        "Sample from the smallest set of tokens with total probability P (Holtzman et al. 2020).",
    )
    ablate: tuple[str, ...] = option(
        "HEADS",
        "Zero-ablate these heads, named as in --head, at every token.",
        (),
        brief="Generate without these heads.",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "ablate", spelled_heads(self.ablate))
        super().__post_init__()


@dataclass(frozen=True)
class _Kind(Options):
    kind: Literal["decoder", "cross"] | None = option(
        "KIND", "For an encoder–decoder: decoder (default) or cross-attention heads."
    )


@dataclass(frozen=True)
class GenerateRequest(_Written, HeadChoice, _Kind, RegionOptions, Known, IndexBase, Seed):
    """All options of ``generate``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.sampling

    @property
    def sampling(self) -> Sampling:
        """Return the sampling options."""
        from attnviz.engine.generation import Sampling

        return Sampling(self.tokens, self.temperature, self.top_k, self.top_p, self.seed)
