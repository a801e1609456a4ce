"""The options of ``attnviz diff``, and which of them do not go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnviz import options
from attnviz.cli import options as shared
from attnviz.errors import UsageError
from attnviz.options import Options, argument, flag, option


@dataclass(frozen=True)
class Sides(Options):
    """What is compared."""

    a: str = argument(
        "A", "A model as --model takes it, or a result saved by patterns or ablate as .json.", ...
    )
    b: str | None = argument("B", "What it is compared with; A again where it is left out.")


@dataclass(frozen=True)
class ConditionB(Options, panel="B under another condition"):
    """How B differs where it is A's model; as for A where nothing is said."""

    dtype_b: Literal["auto", "float32", "float16", "bfloat16", "float64"] | None = option(
        "DTYPE", "Compute B in this dtype."
    )
    revision_b: str | None = option("REVISION", "Branch, tag or commit of B on the hub.")
    backend_b: Literal["auto", "numpy", "torch"] | None = option("BACKEND", "What runs B.")
    text_b: str | None = option(
        "TEXT", "What B reads in place of --text, as many tokens.", words=True
    )
    texts_b: Path | None = option("FILE", "What B reads in place of --texts, line by line.")


@dataclass(frozen=True)
class Compared(Options, panel="What is compared"):
    """Over which texts, and what of the heads."""

    texts: Path | None = option(
        "FILE", "Texts: one a line, or JSON lines with a text field (default: 10 built-in texts)."
    )
    text: str | None = option("TEXT", "One text: no intervals, an anecdote.", words=True)
    kind: Literal["self", "encoder", "decoder", "cross"] | None = option(
        "KIND", "Which attention of an encoder–decoder: encoder (default), decoder or cross."
    )
    importance: bool = flag("Compare the loss increase when each head is ablated, too.")
    match: bool = flag("Pair the heads by least divergence, not by index.")
    noise_floor: float | None = option(
        "BITS", "Take this noise floor in place of measuring one (JS divergence).", min=0.0, max=1.0
    )
    top: int = option("N", "List so many heads.", 8, min=1)

    def __post_init__(self) -> None:
        if self.text is not None and self.texts is not None:
            raise UsageError("expected one source of texts: give --text or --texts, not both")


@dataclass(frozen=True)
class Drawn(Options, panel="Model"):
    """What is drawn at random."""

    seed: int = option("N", "Random seed (weights, random tokens, bootstrap).", 0, min=0)


@dataclass(frozen=True)
class Request:
    """All that a person asked for; UsageError for options that do not go together."""

    sides: Sides
    condition: ConditionB
    compared: Compared
    truncation: options.Truncation
    counted: options.IndexBase
    loading: shared.Loading
    seed: int

    def __post_init__(self) -> None:
        for other, own in (("text_b", "text"), ("texts_b", "texts")):
            if getattr(self.condition, other) is not None and getattr(self.compared, own) is None:
                name = other.replace("_", "-")
                raise UsageError(f"--{name} is what B reads in place of --{own}: add --{own}")

    @property
    def two_texts(self) -> bool:
        """Whether the sides read different texts."""
        return self.condition.text_b is not None or self.condition.texts_b is not None
