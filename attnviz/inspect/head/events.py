"""Tokens that a card points at: the strongest link of a text, and one that is predicted worse."""

from __future__ import annotations

from typing import NamedTuple

from attnviz.draw.labels import cut, token_label, word_label
from attnviz.measures.words import joined, word_ranges
from attnviz.records import Tokens

_LONGEST = 14
_BEFORE, _AFTER = 4, 3
"""The tokens before and after a token that are shown with it."""


class Firing(NamedTuple):
    """The strongest link of a head in one text; the sink and a token's own position are left out.

    text: the index of the text. queries, keys: its tokens. query, key: the token indices of the
        link. weight: the attention weight from query to key.
    """

    text: int
    queries: Tokens
    keys: Tokens
    query: int
    key: int
    weight: float


class Hurt(NamedTuple):
    """A token whose loss rises much if the head is ablated.

    text: the index of the text. tokens: those that are predicted. place: the index of the token.
    change: the rise of its loss in nats.
    """

    text: int
    tokens: Tokens
    place: int
    change: float


def link_words(link: Firing) -> str:
    """Return a link as a string, such as ``Tom → saw``; within one word, its two tokens."""
    return " → ".join(link_ends(link))


def link_ends(link: Firing) -> tuple[str, str]:
    """Return the words of the query and of the key of a link, or their tokens within one word."""
    ends = (link.queries, link.query), (link.keys, link.key)
    query, key = (word_at(*end) for end in ends)
    if query == key:
        query, key = (cut(token_label(tokens.texts[at]), _LONGEST) for tokens, at in ends)
    return query, key


def word_at(tokens: Tokens, place: int) -> str:
    """Return the word that contains a token. place: the index of the token."""
    words = (word for word in word_ranges(tokens) if place in word)
    word = next(words, range(place, place + 1))
    return cut(word_label(tokens.texts[word.start : word.stop]), _LONGEST)


def around(hurt: Hurt, longest: int = 60) -> str:
    """Return a token with its neighbours as a string of at most ``longest`` characters."""
    tokens, at = hurt.tokens, hurt.place
    first, last = max(at - _BEFORE, 0), min(at + _AFTER, len(tokens))
    near = tokens.taken(range(first, last))
    text = joined(near) if any(" " in text for text in tokens.texts) else " ".join(near.texts)
    return cut(token_label(f"{'…' * (first > 0)}{text}{'…' * (last < len(tokens))}"), longest)
