"""Texts as the model reads them, checked before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.cli.texts_input import Texts
from attnviz.engine.capture import Choice, target_tokens
from attnviz.errors import UsageError
from attnviz.models.model import Model, TwoStackModel
from attnviz.records import Tokens

__all__ = ["encode_texts", "single_token", "written_targets"]

_MOST_PIECES = 8


def encode_texts(
    model: Model, texts: Texts, truncate: bool, least: int, before: str = ""
) -> tuple[Tokens, ...]:
    """The tokens of every text.

    least: the tokens that a text needs; 2 where a loss is measured.
    before: what a message says before it names a text.
    Raises UsageError for a text that is too short, or longer than the model's context unless it
    may be cut.
    """
    return tuple(
        _encode(model, text, before + texts.place(index), truncate, least)
        for index, text in enumerate(texts.texts)
    )


def _encode(model: Model, text: str, place: str, truncate: bool, least: int) -> Tokens:
    tokens = model.encode(text)
    if model.context is not None and len(tokens) > model.context:
        if not truncate:
            raise UsageError(
                f"{place} has {len(tokens):,} tokens, {model.info.name!r} takes at most "
                f"{model.context:,}: shorten it, or add --truncate to cut it there"
            )
        tokens = model.encode(text, model.context)
    if len(tokens) < least:
        raise UsageError(
            f"{place} has {len(tokens)} token{'s' * (len(tokens) != 1)}: a loss needs at least "
            f"{least}, one to read and one to predict"
        )
    return tokens


def written_targets(
    model: Model, texts: Sequence[Tokens], choice: Choice | None = None
) -> tuple[Tokens, ...]:
    """What the decoder of an encoder–decoder writes for each text; empty for other models.

    choice: of a text of its own for the decoder; by default the model writes.
    """
    if not isinstance(model, TwoStackModel) or "decoder" not in model.kinds:
        return ()
    return tuple(target_tokens(model, text, choice or Choice()) for text in texts)


def single_token(model: Model, typed: str, option: str) -> tuple[int, str]:
    """The one token that ``typed`` is to the model: its id and its text.

    As typed, or with a blank before it, as a word has within a text; the latter if both are tokens.
    Raises UsageError, which says what the word splits into.
    """
    found: list[Tokens] = []
    for spelled in dict.fromkeys((typed if typed.startswith(" ") else f" {typed}", typed)):
        tokens = model.encode(spelled)
        own = [place for place, special in enumerate(tokens.special) if not special]
        found.append(
            Tokens(
                tuple(tokens.ids[place] for place in own),
                tuple(tokens.texts[place] for place in own),
                (False,) * len(own),
            )
        )
    for tokens in found:
        if len(tokens) == 1:
            return tokens.ids[0], tokens.texts[0]
    pieces = found[0].texts[:_MOST_PIECES]
    shown = " ".join(repr(piece) for piece in pieces) or "nothing"
    raise UsageError(
        f"{option} {typed!r} is {len(found[0])} tokens here ({shown}): a logit difference needs "
        "one, choose another word"
    )
