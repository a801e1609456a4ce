"""What a person asked ``attnviz patterns`` to score and to show, and what does not go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnviz.errors import UsageError
from attnviz.measures.rows import View
from attnviz.records import Kind

__all__ = ["PatternWish", "ViewWish", "chosen_view"]


@dataclass(frozen=True)
class PatternWish:
    """What is to be scored; the options of the same names, as typed.

    Raises UsageError on creation for options that do not go together.
    """

    text: str | None = None
    file: Path | None = None
    probes: tuple[Path, ...] = ()
    view: View = "raw"
    control: Literal["random-weights"] | None = None
    layers: str | None = None
    heads: tuple[str, ...] = ()
    index_base: int = 0
    kind: Kind | None = None
    target: str | None = None
    truncate: bool = False

    def __post_init__(self) -> None:
        if self.target is not None and not self.own_text:
            raise UsageError("--target is the decoder's text of one text: give TEXT or --file")

    @property
    def own_text(self) -> bool:
        """Whether a person's own text is scored rather than probes."""
        return self.text is not None or self.file is not None


@dataclass(frozen=True)
class ViewWish:
    """What is to be seen; the options of the same names."""

    watch: str | None = None
    stats: bool = False
    top: int | None = None
    explain: bool = False


def chosen_view(raw: bool, without_first: bool, norm_weighted: bool) -> View:
    """The view of the three switches; UsageError where two are given."""
    given: list[View] = []
    given += ["raw"] if raw else []
    given += ["without-first"] if without_first else []
    given += ["norm-weighted"] if norm_weighted else []
    if len(given) > 1:
        raise UsageError(f"expected one view: --{given[0]} and --{given[1]} exclude each other")
    return given[0] if given else "raw"
