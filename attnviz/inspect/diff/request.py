"""The options of ``diff``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from attnviz.options import IndexBase, Options, Reduction, Seed, Truncation, flag, option


@dataclass(frozen=True)
class _ConditionOfB(Options, panel="B under different settings"):
    dtype_b: Literal["auto", "float32", "float16", "bfloat16", "float64"] | None = option(
        "DTYPE", "Run B in this dtype."
    )
    revision_b: str | None = option("REVISION", "Branch, tag or commit of B on the Hub.")
    backend_b: Literal["auto", "numpy", "torch"] | None = option("BACKEND", "Backend for B.")


@dataclass(frozen=True)
class _Compared(Options, panel="What to compare"):
    kind: Literal["self", "encoder", "decoder", "cross"] | None = option(
        "KIND",
        "Which attention of an encoder–decoder: encoder (default), decoder or cross.",
        brief="For an encoder–decoder: encoder, decoder or cross.",
    )
    match: bool = flag("Pair the heads by lowest divergence, not by index.")
    noise_floor: float | None = option(
        "BITS", "Use this noise floor (JS divergence) instead of measuring one.", min=0.0, max=1.0
    )
    top: int = option("N", "Number of heads to list.", 8, min=1)


@dataclass(frozen=True)
class DiffRequest(_Compared, _ConditionOfB, Truncation, Reduction, IndexBase, Seed):
    """All options of ``diff``."""

    def named_condition(self) -> dict[str, Any]:
        """Return the options given for B, by their names in ``LoadOptions``, such as ``dtype``."""
        given = {"dtype": self.dtype_b, "revision": self.revision_b, "backend": self.backend_b}
        return {name: value for name, value in given.items() if value is not None}
