"""The options of ``why``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnviz.options import (
    ChatOption,
    HeadChoice,
    IndexBase,
    Kind,
    Known,
    Options,
    SecondText,
    Seed,
    Truncation,
    flag,
    option,
)


@dataclass(frozen=True)
class _Question(Options, panel="What is explained"):
    """The options on which logit is explained, and at which position."""

    answer: str | None = option(
        "TOKEN", "Explain this token's logit (default: the model's top prediction).", words=True
    )
    foil: str | None = option("TOKEN", "Explain logit(answer) - logit(foil) instead.", words=True)
    position: str | None = option(
        "WORD|INDEX",
        "Where it is predicted: behind this token (default: the last; of a masked model at its "
        "mask token).",
        words=True,
    )
    controls: int | None = option(
        "N",
        "Prompts of the control, in which another token stands where the answer stood before "
        "(default: 20, for many prompts 5 each; 0: none): a run of the model each.",
        min=0,
        max=1000,
    )


@dataclass(frozen=True)
class _Inputs(Options, panel="What is explained"):
    """The options on which words of the prompt the prediction needs."""

    inputs: bool = flag(
        "Show what the prediction loses without each word: with other words in its place, and "
        "hidden from all others (integrated gradients for more than 128 tokens)."
    )
    draws: int = option("N", "For --inputs: try so many other words in each place.", 20, min=2)


@dataclass(frozen=True)
class OtherText(ChatOption, SecondText, Kind):
    """The options on a chat or a second text, and on the heads and the text of a decoder."""

    kind: Literal["decoder", "cross"] | None = option(
        "KIND", "Of an encoder–decoder: the heads of decoder or cross attention alone."
    )
    target: str | None = option(
        "TEXT", "Decoder text of an encoder–decoder (default: its own greedy output).", words=True
    )


@dataclass(frozen=True)
class _View(Options, panel="View"):
    """The options on what is shown of the contributions."""

    top: int = option("N", "List so many heads that write for the answer.", 8, min=1)


@dataclass(frozen=True)
class WhyRequest(
    _Question, _Inputs, HeadChoice, OtherText, Truncation, _View, Known, IndexBase, Seed
):
    """All options of ``why``."""
