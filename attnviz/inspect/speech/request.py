"""The options of ``heads`` on a sound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from attnviz.errors import UsageError
from attnviz.options import HeadChoice, IndexBase, Options, option

if TYPE_CHECKING:
    from attnviz.inspect.heads.request import HeadsRequest

SoundKind = Literal["cross", "encoder"]
KINDS: tuple[SoundKind, ...] = ("cross", "encoder")


@dataclass(frozen=True)
class SpeechOptions(Options, panel="Audio"):
    """The options that only sounds have, for the command line."""

    audio: str | None = option(
        "FILE", "Use this audio file (.wav) instead of a text, with a Whisper model."
    )
    transcript: str | None = option(
        "TRANSCRIPT",
        "Transcript of the audio (default: the model's own).",
        name="--text",
        words=True,
    )


@dataclass(frozen=True)
class SpeechRequest(HeadChoice, IndexBase):
    """All options of ``heads`` on a sound.

    kind: ``cross`` (words look at the sound) or ``encoder`` (the sound at itself).
    transcript: the words of the sound; None lets the model write them.
    """

    kind: SoundKind = "cross"
    transcript: str | None = None


_OF_SOUNDS = ("--layer", "--head", "--kind", "--index-base")


def speech_request(
    given: HeadsRequest, beside: Sequence[str], transcript: str | None
) -> SpeechRequest:
    """Return what ``heads`` is asked of a sound; UsageError for options of texts alone."""
    unused = [*beside, *(name for name in given.given() if name not in _OF_SOUNDS)]
    if unused:
        raise UsageError(f"{unused[0]} is for texts: leave it out next to --audio")
    kinds = [kind for kind in KINDS if kind == (given.kind or "cross")]
    if not kinds:
        raise UsageError(f"audio has --kind cross, encoder or decoder: got {given.kind!r}")
    if transcript is not None and kinds[0] == "encoder":
        raise UsageError("the encoder hears no words: leave out --text or --kind encoder")
    chosen = {name: getattr(given, name) for name in ("layer", "head", "index_base")}
    return SpeechRequest(**chosen, kind=kinds[0], transcript=transcript)
