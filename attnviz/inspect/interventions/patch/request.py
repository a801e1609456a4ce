"""The options of ``patch``, and which of them do not go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnviz.draw.numbers import listed
from attnviz.engine.patching import SITES, WHOLE_LAYER, Direction, PatchMetric, What
from attnviz.errors import UsageError
from attnviz.options import (
    HeadChoice,
    IndexBase,
    Kind,
    Known,
    Options,
    Ranked,
    SecondText,
    Seed,
    flag,
    option,
    read_size,
    spelled_heads,
)
from attnviz.prompts.request import PromptPair

At = Literal["all", "last", "changed"]
"""The tokens to patch: all, the one that predicts, or those in which the prompts differ."""

Asked = Literal["exact", "gradient", "both"]
"""Whether effects are measured, estimated to first order, or both."""


def _names(whole: bool) -> str:
    """Return the kinds of patch sites for the help: those of heads, or those of layers."""
    names = [own + site.note for own, site in SITES.items() if (own in WHOLE_LAYER) == whole]
    return listed(names, "or")


@dataclass(frozen=True)
class _PromptChoice(PromptPair, SecondText):
    align: Literal["start", "end"] | None = option(
        "END",
        "Allow prompts of unequal length: align the shared tokens, and left- or right-align the "
        "span that differs (start or end).",
    )


@dataclass(frozen=True)
class _Patching(Options, panel="What to patch"):
    what: What = option(
        "WHAT", f"Patch each head's {_names(False)}; or each layer's {_names(True)}.", "output"
    )
    direction: Direction = option(
        "DIRECTION",
        "denoise (clean activations into the corrupt run) or noise (the reverse).",
        "denoise",
    )
    at: At | None = option(
        "TOKENS", "Patch at all tokens (default), the last one, or those that differ."
    )
    by_token: bool = flag(
        "Patch each token separately, for the chosen or the strongest heads.",
        brief="Patch each token separately, for the strongest heads.",
    )
    together: tuple[str, ...] = option(
        "HEADS", "Also patch these heads together, such as L1H0,L1H2.", ()
    )


@dataclass(frozen=True)
class _Measure(Options, panel="What to measure"):
    metric: PatchMetric = option(
        "METRIC",
        "logit_diff (answer - foil), log_prob (of the answer) or kl (from the clean prediction).",
        "logit_diff",
    )
    answer: str | None = option(
        "TOKEN", "The correct token (default: the top prediction on the clean prompt).", words=True
    )
    foil: str | None = option(
        "TOKEN", "The wrong token (default: the top prediction on the corrupt prompt).", words=True
    )
    method: Asked = option(
        "METHOD", "exact, gradient (first-order estimate, one backward pass) or both.", "exact"
    )
    fdr: bool = flag("Add Benjamini-Hochberg q-values to the tests over pairs.")
    max_memory: str | None = option(
        "SIZE", "Limit the memory of the scan, such as 2GB (default: a share of what is free)."
    )
    resume: Path | None = option(
        "FILE", "Save the result for each pair to FILE, and resume where an earlier run left off."
    )

    @property
    def memory(self) -> int | None:
        """Return the most bytes that a pass may use; None for a share of the free memory."""
        return read_size(self.max_memory) if self.max_memory is not None else None

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.memory  # what cannot be read is refused now
        if "" in (self.answer, self.foil):
            raise UsageError("--answer or --foil is empty: expected one token")
        if self.foil is not None and self.metric != "logit_diff":
            raise UsageError(f"--foil is for --metric logit_diff, not {self.metric}")


@dataclass(frozen=True)
class PatchRequest(
    _PromptChoice, _Patching, HeadChoice, _Measure, Kind, Ranked, Known, IndexBase, Seed
):
    """All options of patching."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "together", spelled_heads(self.together))
        super().__post_init__()
        alone, layers = self.clean is not None, self.what in WHOLE_LAYER
        named = "--head" if self.head else "--together"
        option = f"--what {self.what}" if self.what != "output" else "--by-token"
        refused = {
            f"--what {self.what} has no heads: leave out {named}, or choose --layer": layers
            and (self.head or self.together),
            "--by-token shows the tokens of one pair: give CLEAN and CORRUPT": self.by_token
            and not alone,
            "--by-token patches each token by itself: leave out --at": self.by_token and self.at,
            "--fdr needs many pairs to have a p-value at all: add --pairs FILE": self.fdr and alone,
            f"--method {self.method} estimates heads' outputs: not {option}": self.method != "exact"
            and (self.what != "output" or self.by_token),
            "--answer and --foil are of one pair: write them into the file": not alone
            and not (self.answer is None and self.foil is None),
        }
        for words, holds in refused.items():
            if holds:
                raise UsageError(words)

    @property
    def each_token(self) -> bool:
        """Return whether each token is patched alone, as for whole layers of a single pair."""
        alone, layers = self.clean is not None, self.what in WHOLE_LAYER
        return self.by_token or (alone and layers and self.at is None)

    @property
    def where(self) -> At:
        """Return at which tokens a patch replaces values, all of them at once.

        By default it is all tokens; for a residual stream only the last, since all its tokens carry
        everything.
        """
        return self.at or ("last" if SITES[self.what].last else "all")
