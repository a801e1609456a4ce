"""The options of ``atlas``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnviz.options import AttentionKind, IndexBase, Options, Truncation, option


@dataclass(frozen=True)
class _Kept(Options, panel="What to keep"):
    """The options on how many places are kept, and where the atlas is written."""

    top: int = option("N", "Keep the N top-activating examples for each head.", 10, min=1, max=1000)
    out: Path | None = option("DIR", "Write the atlas to DIR, which must not exist yet.")


@dataclass(frozen=True)
class AtlasRequest(Truncation, AttentionKind, _Kept, IndexBase):
    """All options of ``atlas``."""
