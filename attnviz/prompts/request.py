"""The options that questions about prompts share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from attnviz.options import (
    ChatOption,
    HeadChoice,
    IndexBase,
    Kind,
    Known,
    SecondText,
    Truncation,
    option,
)


@dataclass(frozen=True)
class PromptRequest(ChatOption):
    """The option that reads a chat in place of a prompt.

    own: the names of the options of which each prompt in a file may have a value of its own.
    """

    own: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class _Texts(PromptRequest, SecondText, Kind):
    kind: Literal["decoder", "cross"] | None = option(
        "KIND", "Of an encoder–decoder: the heads of decoder or cross attention alone."
    )
    target: str | None = option(
        "TEXT", "Decoder text of an encoder–decoder (default: its own greedy output).", words=True
    )


@dataclass(frozen=True)
class LogitRequest(HeadChoice, _Texts, Truncation, Known, IndexBase):
    """The options on the prompt and the heads of a question about one predicted logit."""
