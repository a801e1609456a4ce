"""What a person asks of ``scaling``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from attnviz.errors import UsageError
from attnviz.options import HeadChoice, IndexBase, Options, Truncation, option

_NUMBER = re.compile(r"[0-9]{1,15}")
_RANDOM = ("--d-k", "--seq", "--samples")
"""The options of random queries and keys; all others but the seed are those of a model."""

OF_MODEL = "is for the queries and keys of a model: add --from-model"
"""Why an option of a model is refused where queries and keys are random."""


@dataclass(frozen=True)
class _Seed(Options):
    """The seed of everything that is random."""

    seed: int = option("N", "Random seed (queries and keys, random weights).", 0, min=0)


@dataclass(frozen=True)
class _RandomVectors(Options, panel="Random queries and keys"):
    """Queries and keys of independent standard normal entries; None for the usual number."""

    d_k: str | None = option("LIST", "Sizes of a query and a key (default: 8,64,512).")
    seq: int | None = option("N", "Number of queries and keys in a sample (default: 64).", min=2)
    samples: int | None = option("N", "Number of independent samples (default: 100).", min=1)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return each d_k, smallest first; raise UsageError for what is not a list of sizes."""
        typed = self.d_k if self.d_k is not None else "8,64,512"
        sizes = set()
        for part in typed.split(","):
            if not _NUMBER.fullmatch(part.strip()) or int(part) < 1:
                raise UsageError(
                    f"cannot read {part.strip()!r} in --d-k {typed!r}: expected whole numbers from "
                    "1, such as 8,64,512"
                )
            sizes.add(int(part))
        return tuple(sorted(sizes))


@dataclass(frozen=True)
class ScalingRequest(Truncation, HeadChoice, IndexBase, _Seed, _RandomVectors):
    """Everything that a person asked about the scale 1/√d_k."""

    def check_source(self, of_model: bool) -> None:
        """Raise UsageError for an option that says nothing about these queries and keys.

        of_model: whether they are those of a model; random ones otherwise.
        """
        reason = "counts random queries and keys: leave --from-model out" if of_model else OF_MODEL
        for name in self.given():
            if name != "--seed" and (name in _RANDOM) == of_model:
                raise UsageError(f"{name} {reason}")
