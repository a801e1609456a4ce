"""The options of ``attnviz why``, and which of them do not go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnviz import options
from attnviz.cli import options as shared
from attnviz.options import Options, argument, flag, option


@dataclass(frozen=True)
class Prompts(shared.Text):
    """One prompt or many."""

    text: str | None = argument("PROMPT", "The prompt, in quotes; - reads standard input.")
    texts: Path | None = option(
        "FILE",
        "Many prompts: one a line, or JSON lines or CSV with prompt, and where wanted answer, foil "
        "and position.",
    )


@dataclass(frozen=True)
class Question(Options, panel="What is explained"):
    """Which logit, and at which position."""

    answer: str | None = option(
        "TOKEN",
        "Explain this token's logit (default: the model's top prediction).",
        words=True,
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
        "Prompts of the base rate, in which another token stands where the answer stood before "
        "(default: 20, for many prompts 5 each; 0: none): a run of the model each.",
        min=0,
        max=1000,
    )


@dataclass(frozen=True)
class Kind(options.Kind):
    """Which heads of a decoder that attends to an encoder as well."""

    kind: Literal["decoder", "cross"] | None = option(
        "KIND", "Of an encoder–decoder: the heads of decoder or cross attention alone."
    )
    target: str | None = option(
        "TEXT", "Decoder text of an encoder–decoder (default: its own greedy output).", words=True
    )


@dataclass(frozen=True)
class View(Options, panel="View"):
    """What is to be seen."""

    top: int = option("N", "List so many heads that write for the answer.", 8, min=1)
    copying: bool = flag(
        "Add each head's copy score: how often it writes back the token of a one-token text."
    )


@dataclass(frozen=True)
class ExplainedModel(shared.Model):
    """The model whose prediction is explained."""

    seed: int = option("N", "Random seed (weights, base rate, bootstrap).", 0, min=0)


@dataclass(frozen=True)
class Request:
    """All that a person asked."""

    question: Question
    kind: Kind
    heads: options.HeadChoice
    counted: options.IndexBase
    view: View
    truncation: options.Truncation
    seed: int
