"""The options that questions about prompts share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

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


def position() -> Any:
    """Return the option that names the token behind which a word is predicted."""
    return option(
        "WORD|INDEX",
        "Predict after this token (default: the last; for a masked LM, its mask token).",
        words=True,
        brief="Predict after this token (default: the last).",
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
        "KIND", "For an encoder–decoder: decoder or cross-attention heads only."
    )
    target: str | None = option(
        "TEXT", "Decoder text for an encoder–decoder (default: its own greedy output).", words=True
    )


@dataclass(frozen=True)
class LogitRequest(HeadChoice, _Texts, Truncation, Known, IndexBase):
    """The options on the prompt and the heads of a question about one predicted logit."""
