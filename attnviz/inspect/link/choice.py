"""Chooses the link that ``link`` explains if nobody names a head, a query or a key.

The strongest link of a text is no news: a previous-token head gives nearly all its weight to the
token before, whatever the text. So it is the link between words that ``heads`` names first, the one
that heads make beyond their habits (``measures.word_links``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from attnviz.measures.word_links import WordLink, agreed_links, is_repeat
from attnviz.records import AttentionRecord, HeadLabel


class LinkChoice(NamedTuple):
    """Why a link was chosen.

    pairs: how many pairs of words were tested for it; None if the text is too long to test each.
    link: the link between words; None if the strongest link from the last token was taken instead.
    induction: whether it is that of an induction head which follows a repetition, where no link
        beats chance.
    """

    pairs: int | None
    link: WordLink | None = None
    induction: bool = False


def most_telling(
    record: AttentionRecord, labels: Mapping[tuple[int, int], HeadLabel]
) -> LinkChoice:
    """Return the link that chance brings least often, as ``heads`` says it.

    record: the attention of all heads. labels: of heads that are known to do something.
    Where no link beats chance it is one by which an induction head follows a repetition, else the
    one that comes nearest. There is none if every link is about as usual, or if the text is too
    long to test each.
    """
    links = agreed_links(record)
    if links is None:
        return LinkChoice(None)
    if links.beyond_chance:
        return LinkChoice(links.pairs, links.beyond_chance[0])
    induction = {head for head, label in labels.items() if label.name == "induction"}
    link = links.nearest(record, induction)
    repeats = link is not None and is_repeat(record, link, induction)
    return LinkChoice(links.pairs, link, repeats)


def tokens_of(link: WordLink, weights: np.ndarray) -> tuple[int, int]:
    """Return the query and the key of the largest weight between the tokens of two words.

    weights: (query, key), of the link's head.
    """
    between = weights[link.query.start : link.query.stop, link.key.start : link.key.stop]
    query, key = divmod(int(np.nanargmax(between)), len(link.key))
    return link.query.start + query, link.key.start + key
