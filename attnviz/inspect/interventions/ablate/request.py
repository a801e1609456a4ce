"""The options of ``ablate``, and which of them do not go together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

from attnviz.engine.effects import METRICS, Method, Metric, Mode, Positions, Unit
from attnviz.errors import UsageError
from attnviz.options import (
    Budget,
    ChatOption,
    HeadChoice,
    IndexBase,
    Kind,
    Known,
    Options,
    Ranked,
    SecondText,
    Seed,
    Truncation,
    flag,
    option,
    read_budget,
    read_size,
)
from attnviz.texts import Texts, texts_of

UNITS: Mapping[Unit, str] = {
    "head": "head",
    "kv-head": "key/value head",
    "attention": "attention block",
    "ffn": "MLP",
    "layer": "layer",
}
"""What is ablated at once, in words."""

FED: tuple[Unit, ...] = ("ffn", "layer")  # the units that take a feed-forward block away
*_OTHERS, _LAST = [name for name in METRICS if name != "loss_delta"]


@dataclass(frozen=True)
class _Written(ChatOption, SecondText, Kind):
    target: str | None = option(
        "TEXT",
        "The target text of an encoder–decoder (default: its own greedy output).",
        words=True,
    )


@dataclass(frozen=True)
class _Ablation(Options, panel="What to ablate"):
    edge: str | None = option(
        "WORD→WORD",
        "Instead of ablating heads, block attention from the first word (query) to the second "
        "(key): in all chosen heads at once, and in each alone; separate multiple edges with "
        "commas. With --image, the key may be “picture” or the ROW,COLUMN of a patch.",
        words=True,
    )
    together: bool = flag("Ablate the chosen heads together, not one at a time.")
    unit: Unit = option(
        "UNIT",
        "Ablate by head, kv-head (all query heads that share one), attention (all heads of a "
        "layer), ffn (a layer's feed-forward block) or layer (attention and ffn).",
        "head",
        brief="Ablate by head, kv-head, attention, ffn or layer.",
    )
    mode: Mode = option(
        "MODE",
        "Replace a head's output with zero, its mean over the reference texts, or its output on "
        "another text (resample).",
        "zero",
        brief="Ablation: zero, mean or resample.",
    )
    reference: Path | Texts | None = option(
        "FILE", "Texts that --mode mean and resample draw on (default: the evaluation texts)."
    )
    draws: int | None = option("N", "Number of other texts to resample from (default: 4).", min=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference is not None and self.mode == "zero":
            raise UsageError(
                "--reference is what mean and resample draw from: add --mode mean or resample"
            )
        if self.draws is not None and self.mode != "resample":
            raise UsageError("--draws counts the texts of a resample: add --mode resample")
        if self.edge is not None:
            read_edges(self.edge)
            if self.mode != "zero":
                raise UsageError("--edge blocks attention, nothing stands in: leave out --mode")
            if self.unit in FED:
                raise UsageError(
                    f"--edge blocks attention, not an MLP: choose --unit head, not {self.unit}"
                )
        object.__setattr__(self, "reference", texts_of(self.reference, "--reference"))


@dataclass(frozen=True)
class _Measure(Options, panel="What to measure"):
    metric: Metric | None = option(
        "METRIC", f"Rank and colour by loss_delta (default), {', '.join(_OTHERS)} or {_LAST}."
    )
    answer: str | None = option(
        "TOKEN",
        "With --foil, measure the change in logit(answer) - logit(foil). Without it, TOKEN is a "
        "class label: measure the change in the loss on that label.",
        words=True,
    )
    foil: str | None = option("TOKEN", "The wrong token to compare with --answer.", words=True)
    positions: Positions = option(
        "WHICH", "Measure over all predictions, or only over the last one of each text.", "all"
    )
    method: Method | None = option(
        "METHOD",
        "exact, gradient (first-order estimate, one backward pass) or budget (rank by gradient, "
        "then measure the top ones exactly).",
    )
    budget: str | None = option("AMOUNT", "Limit for --method budget, such as 30s, 5m or 20 heads.")
    max_memory: str | None = option(
        "SIZE", "Limit the memory of the scan, such as 2GB (default: a share of what is free)."
    )
    resume: Path | None = option(
        "FILE", "Save the result for each text to FILE, and resume where an earlier run left off."
    )

    @property
    def how(self) -> Method:
        """Return the method; ``budget`` if only a budget was given."""
        return self.method or ("budget" if self.budget is not None else "exact")

    @property
    def amount(self) -> Budget | None:
        """Return the limit of ``--method budget``; None if there is none."""
        return read_budget(self.budget) if self.budget is not None else None

    @property
    def memory(self) -> int | None:
        """Return the most bytes that a scan may use; None for a share of the free memory."""
        return read_size(self.max_memory) if self.max_memory is not None else None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.foil is not None and self.answer is None:
            raise UsageError("a logit difference needs both --answer and --foil: add --answer")
        if self.metric == "logit_diff" and self.foil is None:
            raise UsageError("--metric logit_diff compares two tokens: add --answer and --foil")
        _ = self.memory, self.amount  # a value that cannot be read is refused now
        if self.how == "budget" and self.budget is None:
            raise UsageError(
                "--method budget needs --budget: a time such as 30s or a number of heads such as 20"
            )
        if self.budget is not None and self.how != "budget":
            raise UsageError(f"--budget is for --method budget, not {self.how}")


@dataclass(frozen=True)
class _Tokens(Options, panel="View"):
    by_token: bool = flag("Show the text coloured by the Δ loss of each token.")


@dataclass(frozen=True)
class AblateRequest(
    Truncation, _Written, HeadChoice, _Ablation, _Measure, _Tokens, Ranked, Known, IndexBase, Seed
):
    """All options of an ablation scan."""

    def __post_init__(self) -> None:
        super().__post_init__()
        how, alone = self.how, self.how == "gradient"
        option = "--mode" if self.mode != "zero" else "--resume"
        refused = {
            f"--edge is measured exactly: leave out --method {how} and --budget": self.edge
            is not None,
            f"--method {how} ranks single heads: leave out --together and --unit, or choose "
            "--method exact": self.unit != "head" or self.together,
            f"--method gradient ablates nothing: {option} is for exact or budget": alone
            and (self.mode != "zero" or self.resume is not None),
            f"--method {how} ranks by the gradient of the loss: --metric {self.metric} is for "
            "--method exact": self.metric not in (None, "loss_delta"),
        }
        for words, holds in refused.items():
            if how != "exact" and holds:
                raise UsageError(words)


def read_edges(typed: str) -> list[tuple[str, str]]:
    """Return the words (query, key) of each edge of ``it→cat,it->mat``; UsageError for others."""
    first, *others = re.split(r"→|->", typed)
    # Between two arrows stand a key and the next query; a word may itself be a comma.
    # A patch has a comma, too.
    inner = [re.fullmatch(r"(\d+,\d+|.+?),(.+)", part, re.S) for part in others[:-1]]
    words = [first, *chain.from_iterable(two.groups() if two else ("",) for two in inner)]
    words = [word.strip() for word in (*words, *others[-1:])]
    if not others or not all(words):
        raise UsageError(
            f"cannot read --edge {typed!r}: expected two words of the text, query and key, such as "
            "--edge 'it→cat', 'it->cat' or 'it→cat,it→mat'"
        )
    return list(pairwise(words))[::2]
