"""The options of ``atlas``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnviz.errors import UsageError
from attnviz.options import IndexBase, Options, Truncation, option


@dataclass(frozen=True)
class _Kept(Options, panel="What is kept"):
    """The options on how many places are kept, and where the atlas is written."""

    top: int = option("N", "Keep the N places where each head fires most.", 10, min=1, max=1000)
    out: Path | None = option("DIR", "Write the atlas as a new directory.")
    format: Literal["page", "headvis"] = option(
        "FORMAT", "In DIR, beside the JSON lines: page (index.html) or headvis (data/).", "page"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out is None and self.format != "page":
            raise UsageError(f"--format {self.format} is of a directory: add --out DIR")


@dataclass(frozen=True)
class AtlasRequest(Truncation, _Kept, IndexBase):
    """All options of ``atlas``."""
