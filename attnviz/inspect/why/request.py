"""The options of ``why``."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from attnviz.errors import UsageError
from attnviz.options import Options, Seed, flag, option
from attnviz.prompts.request import LogitRequest, position


@dataclass(frozen=True)
class _Question(Options, panel="What to explain"):
    answer: str | None = option(
        "TOKEN",
        "Explain this token's logit (default: the model's top prediction).",
        words=True,
        brief="Explain this token's logit (default: the top one).",
    )
    foil: str | None = option("TOKEN", "Explain logit(answer) - logit(foil) instead.", words=True)
    position: str | None = position()
    controls: int | None = option(
        "N",
        "Number of control prompts, in which another token replaces every occurrence of the answer "
        "(default: 20, or 5 per prompt with --texts; 0: none). Each costs one forward pass.",
        min=0,
        max=1000,
    )


@dataclass(frozen=True)
class _Inputs(Options, panel="What to explain"):
    inputs: bool = flag(
        "Show how much the answer's log-probability (with --foil: the logit difference) drops when "
        "each word is replaced by other words, and when attention to it is blocked. Texts over 128 "
        "tokens: integrated gradients instead."
    )
    draws: int = option(
        "N", "For --inputs: number of other words to try at each position.", 20, min=2
    )


@dataclass(frozen=True)
class _Neurons(Options, panel="What to explain"):
    ffn: str | None = option(
        "LAYER",
        "Show the neurons in the MLP of this layer, such as L2, that contribute most to the "
        "answer's logit, and the tokens on which they are active.",
        brief="Show the neurons of this layer's MLP, such as L2.",
    )

    def block(self, layers: Collection[int], index_base: int) -> int | None:
        """Return the layer whose neurons are shown, from 0; None if none are.

        layers: those with a feed-forward block. Raises UsageError for any other.
        """
        if self.ffn is None:
            return None
        typed = re.fullmatch(r"[Ll]?(\d{1,4})", self.ffn.strip())
        if typed is None or int(typed[1]) - index_base not in layers:
            first, last = (end(layers) + index_base for end in (min, max))
            raise UsageError(
                f"--ffn {self.ffn!r} is not a layer of this model: expected L{first} to L{last}"
            )
        return int(typed[1]) - index_base


@dataclass(frozen=True)
class _View(Options, panel="View"):
    top: int = option("N", "Number of heads to list.", 8, min=1)


@dataclass(frozen=True)
class WhyRequest(_Question, _Inputs, _Neurons, LogitRequest, _View, Seed):
    """All options of ``why``."""

    own = ("answer", "foil", "position")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ffn is not None and self.inputs:
            raise UsageError("--ffn looks into a block, --inputs at words: leave one of them out")
