"""Names what a question about a prompt is about: its tokens, its prediction, amounts."""

from __future__ import annotations

from attnviz.draw.labels import cut, numbered, token_label, token_labels
from attnviz.errors import UnsupportedError
from attnviz.measures.words import text_of, word_ranges, word_text, words_of_tokens
from attnviz.records import ModelInfo, Tokens

LONGEST_TOKEN = 14
"""The most characters of a token in a sentence or a table."""


def quoted(text: str) -> str:
    """Return a token in quotes, cut if it is long."""
    return f"“{cut(token_label(text), LONGEST_TOKEN)}”"


def placed(tokens: Tokens, place: int, quotes: bool = True) -> str:
    """Return a token's whole word and the token's index as a string, such as ``“Tom” (4)``.

    place: the index of the token. quotes: put it in quotes.
    """
    word = words_of_tokens(tokens)[place]
    label = token_label(word_text(tokens, word)) if word[1:] else token_labels(tokens)[place]
    label = cut(label, LONGEST_TOKEN)
    return numbered(f"“{label}”" if quotes else label, place)


def next_word(tokens: Tokens, position: int, piece: str) -> str:
    """Return the token predicted behind a position in quotes, and whether it may be a piece.

    tokens: of the prompt. piece: the text of the predicted token.

    A token that ends a word is ``“sail·or”``. One that begins a longer word of the text is ``piece
    “sail”``: which word the model goes on to write is not known.
    """
    last, words = len(tokens) - 1, words_of_tokens(tokens)
    if position == last and not tokens.special[last]:
        begun = tokens.texts[words[last].start :]
        longer = Tokens((0,) * (len(begun) + 1), (*begun, piece), (False,) * (len(begun) + 1))
        if any(text.startswith(" ") for text in begun) and not word_ranges(longer)[1:]:
            return f"“{cut(f'{token_label(text_of(begun))}·{piece}', LONGEST_TOKEN)}”"
    begins = (words[at][1:] and words[at].start == at for at in range(len(words)))
    is_piece = any(text == piece and more for text, more in zip(tokens.texts, begins, strict=True))
    return f"{'piece ' * is_piece}{quoted(piece)}"


def logits(value: float) -> str:
    """Return a contribution in logits as a string, such as ``+3.59``; small ones get two digits."""
    return f"{value:+.2f}" if abs(value) >= 0.01 or not value else f"{value:+.1g}"


def nats(value: float) -> str:
    """Return a difference of scores in nats as a string, such as ``+8.46``."""
    return f"{value:+.2f}" if abs(value) >= 0.005 else "0.00"


def not_summed(model: ModelInfo, to: str, apart: float, unknown: str) -> UnsupportedError:
    """Return the error for parts of a model that do not sum to what it computes.

    to: such as ``its logit``. apart: by how much they miss it. unknown: what is not known then.
    """
    return UnsupportedError(
        f"the parts of {model.name!r} do not sum to {to} (apart by {apart:.2g}): {unknown} not "
        "known; attnviz ablate measures heads in another way"
    )
