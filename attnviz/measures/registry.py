"""Every measure of a head: one row each, from which columns, legends and explanations are made.

A new measure is a row here and its formula in ``rows``, under the same name. Papers: Olsson et al.
2022 (previous), Clark et al. 2019 (next, and the relations), Xiao et al. 2023 (first), Wang et al.
2022 (duplicate), Elhage et al. 2021 (induction), Voita et al. 2019 (confidence).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Family = Literal["position", "identity", "content", "relation", "alignment", "statistic"]
"""What a measure depends on, which decides its base rate, see ``BASES``: where a key stands, that
it equals another token, what it is, how a person annotated it, where it stands in another text.
A statistic tells how a head looks, not at what."""

Need = Literal["one text", "two texts", "the future", "the first token", "ranks"]

NEEDS: Mapping[Need, str] = {
    "one text": "queries and keys of cross attention are different texts",
    "two texts": "queries and keys are the same text",
    "the future": "attention is causal: no query sees the next token",
    "the first token": "the first token is taken out in this view",
    "ranks": "the order of the vocabulary does not tell how rare a token is",
}
"""What a measure needs, with what is said where that is not there."""

_UNIFORM = "what attention spread evenly over all that a token sees would give"

BASES: Mapping[Family, str] = {
    "position": _UNIFORM,
    "content": _UNIFORM,
    "identity": "what the same head gives where the tokens are shuffled, so that copies stand "
    "where they mean nothing",
    "relation": "what looking always the same number of words back or ahead would find, at the "
    "best such number",
    "alignment": "what attention spread evenly over the other text would give",
}
"""The base rate of a family's scores: what they would be without the pattern."""


class Measure(NamedTuple):
    """One number of a head, and the label of the heads that it names.

    name: of the score, and of the label.
    family: see ``Family``.
    text: what is measured, of each query; the score is the mean over queries.
    meaning: of its label; goes on from the words "a head that".
    letter: its label's sign where there is no room for the name; no two share one. Empty where no
        head is named after the measure.
    colour: its label's, as RRGGBB.
    needs: what must be there to measure it.
    absent: why a text may have no number all the same; ``{text}`` stands for the text's name.
    unit: ``share`` (in [0, 1]), ``nats`` or ``tokens``.
    """

    name: str
    family: Family
    text: str
    meaning: str = ""
    letter: str = ""
    colour: str = ""
    needs: tuple[Need, ...] = ()
    absent: str = ""
    unit: Literal["share", "nats", "tokens"] = "share"


_RELATION_COLOUR = "b18cf2"
"""Relations share a violet, their letters tell them apart."""

_ANNOTATED = "looks most at the word that the annotation of your file names"


def _relation(name: str, letter: str, meaning: str) -> Measure:
    """A relation between words has no formula by rows: see ``patterns.relations``."""
    text = f"whether the largest weight is on the word of its {name}"
    return Measure(name, "relation", text, meaning, letter, _RELATION_COLOUR, ("one text",))


def _between(dependent: str, head: str) -> str:
    return f"of {head} and its {dependent}, one looks most at the other"


MEASURES: Mapping[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure(
            "previous",
            "position",
            "weight on the token before",
            "looks at the token just before",
            "P",
            "56b4e9",
            needs=("one text",),
        ),
        Measure(
            "first",
            "position",
            "weight on the first token",
            "looks at the very first token: often an attention sink when nothing is to be found",
            "F",
            "a8adb5",
            needs=("the first token",),
        ),
        Measure(
            "self",
            "position",
            "weight on the token itself",
            "looks at the token itself",
            "S",
            "f0e442",
            needs=("one text",),
        ),
        Measure(
            "next",
            "position",
            "weight on the token behind",
            "looks at the token just after",
            "N",
            "1fc493",
            needs=("one text", "the future"),
        ),
        Measure(
            "duplicate",
            "identity",
            "weight on earlier tokens equal to this one",
            "looks at earlier copies of the same token",
            "D",
            "e69f00",
            needs=("one text",),
            absent="no token of {text} repeats",
        ),
        Measure(
            "induction",
            "identity",
            "weight on the tokens that followed earlier equals of this one",
            "looks at what followed earlier copies of the same token, and so can repeat it",
            "I",
            "ff6a3d",
            needs=("one text",),
            absent="no token of {text} repeats far enough",
        ),
        Measure(
            "separator",
            "content",
            "weight on the special tokens but the first",
            "looks at the special tokens that open, close or part a text: an attention sink, like "
            "the first token",
            "E",
            "7f93b2",
            absent="no special token stands in the text but its first one",
        ),
        Measure(
            "delimiter",
            "content",
            "weight on punctuation and special tokens",
            "looks at punctuation, where a clause or a sentence ends",
            "L",
            "b89f74",
            absent="{text} has no punctuation and no special token",
        ),
        Measure(
            "rare",
            "content",
            "weight on the rarest tokens, less their share of what is seen",
            "looks at the rarest words of the text, more than their number would give them",
            "R",
            "e58ac0",
            needs=("one text", "ranks"),
            absent="{text} has too few different tokens to call some rare",
        ),
        _relation("subject", "s", _between("subject", "a verb")),
        _relation("object", "o", _between("object", "a verb")),
        _relation("determiner", "d", _between("determiner", "a noun")),
        _relation("adjective", "a", _between("adjective", "a noun")),
        _relation("auxiliary", "x", _between("auxiliary", "a verb")),
        _relation("coreference", "c", "from a pronoun looks most at the noun that it stands for"),
        Measure(
            "alignment",
            "alignment",
            "nearness to the diagonal of two texts",
            "moves through the other text step by step as the output is written",
            "A",
            "4fd1c5",
            needs=("two texts",),
        ),
        Measure(
            "monotone",
            "alignment",
            "correlation of the place looked at with the query's, from −1 to 1",
            needs=("two texts",),
            absent="every head looks at one place, whatever the query",
        ),
        Measure("entropy", "statistic", "entropy of the weights", unit="nats"),
        Measure("normalised_entropy", "statistic", "entropy over that of uniform attention"),
        Measure(
            "distance",
            "statistic",
            "mean distance to what is looked at",
            needs=("one text",),
            unit="tokens",
        ),
        Measure("confidence", "statistic", "largest weight, special tokens' queries left out"),
        Measure(
            "signed_distance",
            "statistic",
            "mean distance, positive where later keys prevail",
            needs=("one text", "the future"),
            unit="tokens",
        ),
    )
}
"""Every measure in its order; where two are equally strong the earlier one names the head."""

LABELS: Mapping[str, Measure] = {
    name: measure for name, measure in MEASURES.items() if measure.letter
}
"""Those that can name a head."""

UNLABELLED: Mapping[str, Measure] = {
    "spread": Measure(
        "spread",
        "statistic",
        MEASURES["normalised_entropy"].text,
        "spreads its attention widely; the score is its entropy, 1 is uniform",
        "-",
    ),
    "peaked": Measure(
        "peaked",
        "statistic",
        MEASURES["confidence"].text,
        "rests on few tokens, but by none of these rules; the score is its largest weight",
        "^",
    ),
}
"""What a head is called over one text where no measure stands out."""


def of_family(*families: Family) -> tuple[str, ...]:
    """The names of the measures of some families, in their order."""
    return tuple(name for name, measure in MEASURES.items() if measure.family in families)


RELATIONS = of_family("relation")
"""The relations of the annotated sentences that ship with the package."""

_ALWAYS = tuple(name for name in of_family("statistic") if "the future" not in MEASURES[name].needs)

STATISTICS = (*_ALWAYS, "first")
"""What is told of every head beside its label."""

DESCRIBED = (*STATISTICS, *(name for name in of_family("statistic") if name not in _ALWAYS))
"""The same with what only attention in both directions has."""

OF_ONE_TEXT = (*of_family("position", "identity"), *_ALWAYS)
"""What a single short text can show of a head."""


def label_named(name: str) -> Measure:
    """The label of this name; a relation of a person's own probe file gets the letter ``r``."""
    known = LABELS.get(name) or UNLABELLED.get(name)
    return known or _relation(
        name, "r", "looks most at the word that the annotation of your file names"
    )
