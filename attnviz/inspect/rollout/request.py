"""The options of ``rollout``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnviz.options import ChatOption, Options, Reduction, Truncation, flag, option


@dataclass(frozen=True)
class _SelfAttention(Options):
    kind: Literal["self", "encoder", "decoder"] | None = option(
        "KIND", "Trace the encoder (default) or the decoder of an encoder–decoder."
    )
    target: str | None = option(
        "TEXT",
        "Decoder text for --kind decoder (default: the model's own greedy output).",
        words=True,
    )


@dataclass(frozen=True)
class _View(Options, panel="View"):
    token: str | None = option("WORD|INDEX", "Trace this word instead of the last.", words=True)
    values: bool = flag("Print the values in the cells.")
    sink: bool = option(
        "",
        "Keep the attention sink (first token, special tokens), or leave it out and rescale.",
        False,
        name="--sink/--no-sink",
        brief="Keep the attention sink (default: left out).",
    )


@dataclass(frozen=True)
class RolloutRequest(ChatOption, Truncation, _SelfAttention, _View, Reduction):
    """All options of ``rollout``."""
