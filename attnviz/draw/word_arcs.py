"""The arcs of a head over one line of text, as a part of a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from attnviz.draw.theme import Words

if TYPE_CHECKING:
    from attnviz.records import Tokens

LEAST_ARC, STRONG_ARC = 0.1, 0.5
"""The weight from which an arc is drawn, and that from which its line is heavy."""


class Arc(NamedTuple):
    """An arc of a drawing: the attention weight of a head from one word to another.

    query: the token indices of the word that attends. key: those of the word that is attended to.
    """

    query: range
    key: range
    weight: float


class Arcs(NamedTuple):
    """Arcs of one head over one line of text.

    tokens: the text. arcs: one for each query word and key word. title: a heading and remarks.
    lines: the most lines on a terminal, 0 for any number.
    """

    tokens: Tokens
    arcs: Sequence[Arc]
    title: Words = ()
    lines: int = 0
