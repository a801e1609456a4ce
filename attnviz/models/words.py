"""Tokens of a model that has no tokenizer: the words of the text, numbered as they come."""

from __future__ import annotations

from attnviz.errors import UsageError
from attnviz.records import Tokens

__all__ = ["word_tokens"]


def word_tokens(text: str, vocabulary: int, reserved: int | None = None) -> Tokens:
    """The words of ``text``, split at white space; equal words have equal ids.

    Ids count up from 0 in order of first appearance, modulo ``vocabulary``, and leave out
    ``reserved``, the padding id, which some models take for no word at all.
    """
    words = text.split()
    if not words:
        raise UsageError("expected a text of at least one word, got none")
    free = [number for number in range(min(vocabulary, len(words) + 1)) if number != reserved]
    numbers = {word: free[place % len(free)] for place, word in enumerate(dict.fromkeys(words))}
    return Tokens(
        ids=tuple(numbers[word] for word in words),
        texts=tuple(words),
        special=(False,) * len(words),
    )
