"""The options of ``report``."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.inspect.head.request import CardRequest
from attnviz.options import Options, option, read_budget


@dataclass(frozen=True)
class _Amount(Options, panel="How much to measure"):
    budget: str | None = option(
        "AMOUNT",
        "Ablate only the heads that the gradient ranks highest, up to a limit such as 30s, 5m or "
        "20 heads.",
        brief="Limit on ablations: 30s, 5m or 20 heads.",
    )
    cards: int = option("N", "Number of heads to show cards for.", 5, min=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget is not None:
            read_budget(self.budget)  # one that cannot be read is refused now


@dataclass(frozen=True)
class ReportRequest(CardRequest, _Amount):
    """All options of ``report``."""
