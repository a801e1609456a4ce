"""The options of ``link``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnviz.options import IndexBase, Known, Options, Seed, Truncation, option
from attnviz.prompts.request import PromptRequest


@dataclass(frozen=True)
class _Question(Options, panel="What to explain"):
    """The options on which link is explained: a head, the token that attends, and the key."""

    head: str | None = option(
        "HEAD",
        "The head, such as L1H2, or a label such as induction (default: the head with the most "
        "significant link; with --query or --key, the labelled head that attends most strongly "
        "from or to that token).",
        short="-H",
        brief="The head: L1H2, induction (default: picked automatically).",
    )
    query: str | None = option(
        "WORD|INDEX",
        "The token that attends (default: chosen together with the head; with --head, the last "
        "token).",
        words=True,
        brief="The token that attends (default: picked automatically).",
    )
    key: str | None = option(
        "WORD|INDEX",
        "The token attended to (default: the one with the highest weight, skipping the first token "
        "unless its weight exceeds .9).",
        words=True,
        brief="The token attended to (default: picked automatically).",
    )
    than: str | None = option(
        "WORD|INDEX",
        "The key to compare with (default: the mean of all other keys visible to the query).",
        words=True,
        brief="The key to compare with (default: all others).",
    )
    controls: int | None = option(
        "N",
        "Number of prompts with random words around the query and the key (default: 20, or 5 per "
        "prompt with --texts; 0: none). Each costs one forward pass.",
        min=0,
        max=1000,
    )


@dataclass(frozen=True)
class _Stack(Options):
    """The options on which attention of an encoder–decoder is explained, and over which text."""

    kind: Literal["self", "encoder", "decoder", "cross"] | None = option(
        "KIND",
        "Which attention of an encoder–decoder: encoder (default) or decoder; cross-attention is "
        "not supported.",
        brief="For an encoder–decoder: encoder, decoder or cross.",
    )
    target: str | None = option(
        "TEXT",
        "Decoder text for --kind decoder (default: the model's own greedy output).",
        words=True,
    )


@dataclass(frozen=True)
class LinkRequest(_Question, _Stack, PromptRequest, Truncation, Known, IndexBase, Seed):
    """All options of ``link``."""

    own = ("query", "key", "than")
