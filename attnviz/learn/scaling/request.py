"""The options of ``attnviz scaling``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from attnviz.errors import UsageError
from attnviz.options import HeadChoice, IndexBase, Options, Truncation, flag, option

_NUMBER = re.compile(r"[0-9]{1,15}")
_RANDOM = ("--d-k", "--seq", "--samples")  # options of random vectors; others are of a model
OF_MODEL = "is for the queries and keys of a model: add --from-model"
"""Why an option of a model is refused if queries and keys are random."""


@dataclass(frozen=True)
class _Seed(Options):
    seed: int = option("N", "Random seed (queries and keys, random weights).", 0, min=0)


@dataclass(frozen=True)
class _RandomVectors(Options, panel="Random queries and keys"):
    """The options of random queries and keys; None stands for the default."""

    d_k: str | None = option("LIST", "d_k values (default: 8,64,512).")
    seq: int | None = option("N", "Number of queries and keys per sample (default: 64).", min=2)
    samples: int | None = option("N", "Number of independent samples (default: 100).", min=1)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the values of d_k, smallest first; raise UsageError if the list is not valid."""
        typed = self.d_k if self.d_k is not None else "8,64,512"
        parts = [part.strip() for part in typed.split(",")]
        for part in parts:
            if not _NUMBER.fullmatch(part) or int(part) < 1:
                raise UsageError(
                    f"cannot read {part!r} in --d-k {typed!r}: expected whole numbers from 1, such "
                    "as 8,64,512"
                )
        return tuple(sorted(set(map(int, parts))))


@dataclass(frozen=True)
class _Activation(Options):
    activation: bool = flag(
        "Plot the activation functions of feed-forward blocks instead: ReLU, GELU, SiLU and gated "
        "variants.",
        brief="Plot ReLU, GELU, SiLU and gated variants instead.",
    )


@dataclass(frozen=True)
class ScalingRequest(Truncation, HeadChoice, IndexBase, _Seed, _RandomVectors, _Activation):
    """All options of ``attnviz scaling``."""

    def check_source(self, of_model: bool) -> None:
        """Raise UsageError for options that a model's vectors, or random ones, do not have."""
        others = [*["--from-model"] * of_model, *(n for n in self.given() if n != "--activation")]
        if self.activation and others:
            raise UsageError(f"--activation plots functions, from no text: leave out {others[0]}")
        reason = "counts random queries and keys: leave --from-model out" if of_model else OF_MODEL
        for name in self.given():
            if name not in ("--seed", "--activation") and (name in _RANDOM) == of_model:
                raise UsageError(f"{name} {reason}")
