"""Choose the tokens of a text that a model is asked to predict."""

from __future__ import annotations

from attnviz.errors import UsageError
from attnviz.records import Input


def require_two(given: Input) -> None:
    """Raise UsageError for a text, or a decoder's text, in which no token can be predicted.

    It has fewer than two tokens.
    """
    read = given.predicted
    if len(read) < 2:
        name = "text" if given.target is None else "target"
        raise UsageError(
            f"a {name} of {len(read)} token is too short for a loss: expected at least 2"
        )


def words_to_mask(given: Input, mask: int) -> list[int]:
    """Return the positions of a text that a masked model may predict.

    mask: the id of the mask token. Raises UsageError if there is none.
    """
    read = given.predicted
    words = [
        position
        for position, (token, special) in enumerate(zip(read.ids, read.special, strict=True))
        if not special and token != mask
    ]
    if not words:
        raise UsageError("the text has no word that could be masked: expected at least 1")
    return words
