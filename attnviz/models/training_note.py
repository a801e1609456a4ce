"""What a trained model's file says beside its tensors: which they are, how long the texts were.

Anyone may have written it, so what does not look as ``attnviz train`` writes it counts as unsaid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from attnviz.records import Tokens

__all__ = ["beyond_training", "stated_revision", "trained_tokens"]


def stated_revision(metadata: Mapping[str, str]) -> str | None:
    """The digest of the tensors, or None."""
    stated = metadata.get("revision", "")
    return stated if re.fullmatch(r"[0-9a-f]{12,64}", stated) else None


def trained_tokens(metadata: Mapping[str, str]) -> int | None:
    """Tokens of the longest sequence of the training, from a checkpoint's metadata, or None."""
    stated = metadata.get("trained_tokens", "")
    return int(stated) if re.fullmatch(r"[0-9]{1,9}", stated) else None


def beyond_training(trained: int | None, tokens: Tokens) -> tuple[str, ...]:
    """A note where a text is longer than every one of the training."""
    if trained is None or len(tokens) <= trained:
        return ()
    return (f"trained on sequences of up to {trained:,} tokens, not {len(tokens):,}",)
