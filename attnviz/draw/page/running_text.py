"""Turns the tokens of a text back into running text, as the tokenizer says, never by a guess.

A piece is what stands in the text between the end of the token before and the token's own end, so
that all pieces together are the text. Where the tokenizer said nothing of places, tokens are looked
for in the text in their order; if one is missing there, every token stands as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.draw.labels import token_labels
from attnviz.records import PAIR, Tokens

Spans = Sequence[tuple[int, int]]


def running_pieces(tokens: Tokens, text: str) -> list[str]:
    """Return the stretch of the text that each token covers, with the blanks before it.

    Of several tokens of one character, the first has it and the others are empty. A token that the
    tokenizer added to the ``text`` has its name, such as ``[CLS]``.
    """
    names, spans = token_labels(tokens), token_spans(tokens, text)
    if not spans:
        return [f" {name}" for name in names]
    pieces, end, regions = list[str](), spans[0][0] if tokens.kept else 0, tokens.regions
    for at, (name, special, (start, stop)) in enumerate(
        zip(names, tokens.special, spans, strict=True)
    ):
        if stop <= end:
            pieces.append(name if special else "")
            continue
        added = at > 1 and tokens.special[at - 1] and spans[at - 1][0] == spans[at - 1][1]
        joined = added or regions[at - 1 : at + 1] == PAIR  # the line feed of ``both_texts``
        blank = text[end:start] if text[end:start].isspace() and not joined else ""
        pieces.append(blank + (name if special else text[max(start, end) : stop]))
        end = stop
    return pieces


def token_spans(tokens: Tokens, text: str) -> Spans:
    """Return the characters of the text that each token stands for; empty if that is unknown."""
    spans = tokens.spans or _located(tokens, text)
    return () if spans and max(stop for _, stop in spans) > len(text) else spans


def _located(tokens: Tokens, text: str) -> Spans:
    """Return where each token stands in the text, in order; empty if one is not found."""
    folded, spans, end = text.lower(), list[tuple[int, int]](), 0
    if len(folded) != len(text):
        return ()
    for name, special in zip(tokens.texts, tokens.special, strict=True):
        bare = name.removeprefix("##")
        wanted = (bare.strip() or bare).lower()
        start = folded.find(wanted, end) if wanted else end
        if start < 0 or text[end:start].strip():
            if not special:
                return ()
            start, wanted = end, ""  # the tokenizer added it
        end = start + len(wanted)
        spans.append((start, end))
    return spans
