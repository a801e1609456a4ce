"""What each label and trait says of a head, in plain words: the one place where this is written."""

from __future__ import annotations

__all__ = ["MEANINGS", "meaning"]

MEANINGS = {
    "previous": "looks at the token just before",
    "first": "looks at the very first token: often a place to rest when nothing is to be found",
    "self": "looks at the token itself",
    "next": "looks at the token just after",
    "duplicate": "looks at earlier copies of the same token",
    "induction": "looks at what followed earlier copies of the same token, and so can repeat it",
    "separator": "looks at the special tokens that open, close or part a text: like the first "
    "token a place to rest",
    "delimiter": "looks at punctuation, where a clause or a sentence ends",
    "rare": "looks at the rarest words of the text, more than their number would give them",
    "subject": "of a verb and its subject, one looks most at the other",
    "object": "of a verb and its object, one looks most at the other",
    "determiner": "of a noun and its determiner, one looks most at the other",
    "adjective": "of a noun and its adjective, one looks most at the other",
    "auxiliary": "of a verb and its auxiliary, one looks most at the other",
    "coreference": "from a pronoun looks most at the noun that it stands for",
    "alignment": "moves through the other text step by step as the output is written",
    "spread": "spreads its attention widely; the score is its entropy, 1 is even",
    "peaked": "rests on few tokens, but by none of these rules; the score is its largest weight",
}
"""By name; each goes on from the words "a head that"."""


def meaning(name: str) -> str:
    """What a label or trait says; of a relation that a person annotated, just that."""
    return MEANINGS.get(name) or "looks most at the word that the annotation of your file names"
