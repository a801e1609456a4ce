"""What a person asked ``attnviz ablate`` to measure and to show, and what does not go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnviz.ablate.head_choice import RemovalChoice
from attnviz.cli.options import Budget, read_budget, read_bytes
from attnviz.engine.effects import Method, Metric, Mode, Positions
from attnviz.errors import UsageError
from attnviz.records import Kind

__all__ = ["DRAWS", "ScanWish", "ViewWish"]

DRAWS = 4
"""How many other texts stand in for each text where nobody says."""


@dataclass(frozen=True)
class ViewWish:
    """What is to be seen; the options of the same names."""

    by_token: bool = False
    top: int = 8
    explain: bool = False


@dataclass(frozen=True)
class ScanWish:
    """What is to be measured; the options of the same names, as typed.

    Raises UsageError on creation for options that do not go together or cannot be read.
    """

    choice: RemovalChoice
    mode: Mode = "zero"
    reference: Path | None = None
    draws: int | None = None
    metric: Metric | None = None
    answer: str | None = None
    foil: str | None = None
    positions: Positions = "all"
    method: Method | None = None
    budget: str | None = None
    max_memory: str | None = None
    resume: Path | None = None
    kind: Kind | None = None
    target: str | None = None
    truncate: bool = False

    def __post_init__(self) -> None:
        self._check_removal()
        self._check_measure()
        self._check_method()

    @property
    def way(self) -> Method:
        """The method; a budget alone asks for ``budget``."""
        return self.method or ("budget" if self.budget is not None else "exact")

    @property
    def amount(self) -> Budget | None:
        """What ``--method budget`` may spend."""
        return read_budget(self.budget) if self.budget is not None else None

    @property
    def memory(self) -> int | None:
        """The most bytes of a scan; None for a share of what is free."""
        return read_bytes(self.max_memory) if self.max_memory is not None else None

    def _check_removal(self) -> None:
        if self.reference is not None and self.mode == "zero":
            raise UsageError(
                "--reference is what mean and resample draw from: add --mode mean or resample"
            )
        if self.draws is not None and self.mode != "resample":
            raise UsageError("--draws counts the texts of a resample: add --mode resample")

    def _check_measure(self) -> None:
        if (self.answer is None) != (self.foil is None):
            missing = "--foil" if self.foil is None else "--answer"
            raise UsageError(f"a logit difference needs both --answer and --foil: add {missing}")
        if self.metric == "logit_diff" and self.answer is None:
            raise UsageError("--metric logit_diff compares two tokens: add --answer and --foil")
        _ = self.memory  # a size that cannot be read is told now

    def _check_method(self) -> None:
        _ = self.amount
        if self.way == "budget" and self.budget is None:
            raise UsageError(
                "--method budget needs --budget: a time such as 30s or a number of heads such as 20"
            )
        if self.budget is not None and self.way != "budget":
            raise UsageError(f"--budget is for --method budget, not {self.way}")
        if self.way == "exact":
            return
        if self.choice.unit != "head" or self.choice.together:
            raise UsageError(
                f"--method {self.way} ranks single heads: leave out --together and --unit, or "
                "choose --method exact"
            )
        if self.way == "gradient" and (self.mode != "zero" or self.resume is not None):
            option = "--mode" if self.mode != "zero" else "--resume"
            raise UsageError(f"--method gradient removes nothing: {option} is for exact or budget")
        if self.metric not in (None, "loss_delta"):
            raise UsageError(
                f"--method {self.way} ranks by the gradient of the loss: --metric {self.metric} is "
                "for --method exact"
            )
