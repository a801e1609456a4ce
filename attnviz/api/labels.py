"""The tokens of a map's two axes, as Python code gives them."""

from __future__ import annotations

from collections.abc import Iterable

from attnviz.errors import UsageError
from attnviz.records import Tokens

__all__ = ["TokenLabels", "axis_tokens", "joined_labels"]

TokenLabels = str | Iterable[str]
"""A list of tokens, or a text whose words, split at white space, are the tokens."""


def axis_tokens(labels: TokenLabels | None, name: str, axis: str, length: int) -> Tokens:
    """The tokens of one axis; without labels their places. Equal tokens have equal ids.

    name: of the argument. axis: ``query`` or ``key``. length: of that axis of the weights.

    Raises UsageError where the labels are no texts, or not as many as the axis is long.
    """
    texts = _texts(labels, name) if labels is not None else tuple(map(str, range(length)))
    if len(texts) != length:
        raise UsageError(
            f"{name} has {len(texts)} token{'s' * (len(texts) != 1)}, the weights have {length} "
            f"along their {axis} axis: expected one for each {axis}"
        )
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return Tokens(tuple(numbers[text] for text in texts), texts, (False,) * length)


def _texts(labels: TokenLabels, name: str) -> tuple[str, ...]:
    if isinstance(labels, str):
        return tuple(labels.split())
    texts = tuple(labels)
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise UsageError(
                f"expected {name} as texts, got {text!r} at [{place}]: token ids are turned into "
                "texts by their tokenizer's convert_ids_to_tokens"
            )
    return tuple(map(str, texts))


def joined_labels(tokens: Tokens) -> str:
    """The tokens as one text: as they are where they bring their own blanks, else set apart."""
    spaced = any(text[:1].isspace() for text in tokens.texts)
    return ("" if spaced else " ").join(tokens.texts).strip()
