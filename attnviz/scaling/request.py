"""What a person asked ``attnviz scaling`` to measure, read and held against what there is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnviz.cli.groups import Options
from attnviz.errors import UsageError

__all__ = ["ModelWish", "RandomWish", "random_wish", "refuse_unused"]

_SIZES, _SEQ, _SAMPLES = "8,64,512", 64, 100
_NUMBER = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True)
class RandomWish:
    """Random queries and keys; the options of the same names."""

    sizes: tuple[int, ...]
    seq: int
    samples: int
    seed: int


@dataclass(frozen=True)
class ModelWish:
    """Queries and keys of a model; the options of the same names, as typed."""

    text: str | None = None
    file: Path | None = None
    layers: str | None = None
    heads: tuple[str, ...] = ()
    index_base: int = 0
    truncate: bool = False


def random_wish(d_k: str | None, seq: int | None, samples: int | None, seed: int) -> RandomWish:
    """The options with their defaults; UsageError for a list that is none."""
    return RandomWish(
        _read_sizes(d_k if d_k is not None else _SIZES),
        seq if seq is not None else _SEQ,
        samples if samples is not None else _SAMPLES,
        seed,
    )


def _read_sizes(text: str) -> tuple[int, ...]:
    """The numbers of a list such as ``8,64,512``, smallest first, each once."""
    sizes = set()
    for part in text.split(","):
        if not _NUMBER.fullmatch(part.strip()) or int(part) < 1:
            raise UsageError(
                f"cannot read {part.strip()!r} in --d-k {text!r}: expected whole numbers from 1, "
                "such as 8,64,512"
            )
        sizes.add(int(part))
    return tuple(sorted(sizes))


def refuse_unused(groups: Sequence[Options], reason: str) -> None:
    """Raise UsageError for the first option that was given though it says nothing here."""
    for group in groups:
        for name in group.given():
            raise UsageError(f"{name} {reason}")
