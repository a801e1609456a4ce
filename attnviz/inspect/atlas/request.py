"""The options of ``atlas``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnviz.errors import UsageError
from attnviz.options import AttentionKind, IndexBase, Options, Truncation, option
from attnviz.records import Kind


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
class AtlasRequest(Truncation, AttentionKind, _Kept, IndexBase):
    """All options of ``atlas``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_format(self.kind, self.format)


def refuse_format(kind: Kind | None, form: Literal["page", "headvis"]) -> None:
    """Raise UsageError for attention of a kind that a format cannot hold."""
    if kind == "cross" and form == "headvis":
        raise UsageError("--format headvis has no queries of another text: leave it out")
