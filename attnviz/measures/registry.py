"""The table of all measures of a head, from which columns, legends and explanations are made.

To add a measure, add a row here and its formula in ``rows``, under the same name. Papers: Olsson et
al. 2022 (previous), Clark et al. 2019 (next, and the relations), Xiao et al. 2023 (first), Wang et
al. 2022 (duplicate), Elhage et al. 2021 (induction), Voita et al. 2019 (confidence).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from attnviz.errors import UsageError
from attnviz.reading import finite

Family = Literal["position", "identity", "content", "relation", "alignment", "statistic"]
"""What a measure depends on: the position of a key, its equality with another token, the kind of
token, its annotation by a person, its position in another text. The base rate is uniform attention,
for *identity* the same head over shuffled tokens, for *relation* also the best fixed offset. A
statistic measures how attention is spread, not what is attended to."""

Need = Literal["one text", "two texts", "the future", "the first token", "ranks"]

NEEDS: Mapping[Need, str] = {
    "one text": "queries and keys of cross attention are different texts",
    "two texts": "queries and keys are the same text",
    "the future": "causal attention: no query sees the next token",
    "the first token": "the first token is left out in this view",
    "ranks": "the order of the vocabulary does not tell how rare a token is",
}
"""What a measure may need, and the message if that is missing."""

View = Literal["raw", "without-first", "norm-weighted"]
"""Weights as they are; without key 0, the rest of each row scaled to one; or each weight times the
norm of the value it moves, ‖v_j W_O^h‖, each row scaled to one (Kobayashi et al. 2020)."""

NEAR = 2  # the most tokens between a query and the keys around it that ``local`` measures
_OWN_COLOUR = "d9d2ff"  # the colour of relations from a user's own probe file


class Measure(NamedTuple):
    """One measure of a head, and the label that it can give.

    name: of the score and of the label, in JSON and from Python. family: see ``Family``.
    text: a description of the number of each query; the score is the mean over queries.
    target: the tokens whose weights are summed, if that is the number of each query.
    meaning: a description of heads with this label.
    letter: the label in one letter, different for each label; empty if the measure gives no label.
    colour: the label's colour as RRGGBB, different for each label.
    short: ``said`` in three or four letters, for a cell of a grid.
    said: the name that people read and type, as used in papers.
    scored: the name of its score, if the label's word stands for another number as well.
    needs: conditions without which it cannot be measured.
    absent: the reason if a text has no number although these hold; ``{text}`` is the text's name.
    unit: ``share`` (in [0, 1]), ``nats`` or ``tokens``.
    """

    name: str
    family: Family
    text: str = ""
    meaning: str = ""
    letter: str = ""
    colour: str = ""
    short: str = ""
    said: str = ""
    needs: tuple[Need, ...] = ()
    absent: str = ""
    unit: Literal["share", "nats", "tokens"] = "share"
    target: str = ""
    scored: str = ""


def _relation(name: str, letter: str, colour: str, short: str, meaning: str) -> Measure:
    """Return the measure of a relation between words; the arguments are fields of ``Measure``."""
    text = f"whether the largest weight is on the word of its {name}"
    measure = Measure(name, "relation", text, meaning, said=name, needs=("one text",))
    return measure._replace(letter=letter, colour=colour, short=short)


def _between(dependent: str, head: str) -> str:
    return f"a {head} attends most to its {dependent}, or vice versa"


# fmt: off
MEASURES: Mapping[str, Measure] = {
    measure.name: measure._replace(text=measure.text or f"weight on {measure.target}")
    for measure in (
        Measure(
            name="previous", family="position", target="the token before",
            meaning="attends to the token just before",
            letter="P", colour="56b4e9", short="prev", said="previous token", needs=("one text",),
        ),
        Measure(
            name="first", family="position", target="the first token",
            meaning="attends to the very first token: an attention sink, often a no-op",
            letter="F", colour="a8adb5", short="sink", said="sink", needs=("the first token",),
            scored="first token",  # the sink's weight is that of all its tokens
        ),
        Measure(
            name="self", family="position",
            target="the token itself", meaning="attends from each token to itself",
            letter="S", colour="f0e442", short="curr", said="current token", needs=("one text",),
        ),
        Measure(
            name="next", family="position", target="the token after",
            meaning="attends to the token just after", letter="N", colour="009e73", short="next",
            said="next token", needs=("one text", "the future"),
        ),
        Measure(
            name="local", family="position",
            target=f"the tokens at most {NEAR} away, itself included",
            meaning=f"attends to tokens within {NEAR} positions of the current one",
            letter="l", colour="3fb6a8", short="loc", said="local", needs=("one text",),
            absent="no query of {text} sees tokens further away",
        ),
        Measure(
            name="duplicate", family="identity", target="earlier copies of the token",
            meaning="attends to earlier copies of the same token",
            letter="D", colour="e69f00", short="dup", said="duplicate token", needs=("one text",),
            absent="no token of {text} repeats",
        ),
        Measure(
            name="induction", family="identity", target="the token after an earlier copy",
            meaning="attends to the token after an earlier occurrence of the current one, and so "
            "can copy that token",
            letter="I", colour="ff6a3d", short="ind", said="induction", needs=("one text",),
            absent="no token of {text} repeats far enough",
        ),
        Measure(
            name="separator", family="content", target="the special tokens but the first",
            meaning="attends to the special tokens that open, close or part a text: an attention "
            "sink, like the first token",
            letter="E", colour="6f7f99", short="sep", said="separator",
            absent="the text has no separator token",
        ),
        Measure(
            name="delimiter", family="content", target="punctuation and special tokens",
            meaning="attends to punctuation at the end of a clause or sentence",
            letter="L", colour="a0794a", short="punc", said="punctuation",
            absent="{text} has no punctuation and no special token",
        ),
        Measure(
            name="rare", family="content",
            text="weight on the rarest tokens, less their share of what is seen",
            meaning="attends to the rarest words of the text, more than their share", letter="R",
            colour="cc79a7", short="rare", said="rare token", needs=("one text", "ranks"),
            absent="{text} has too few different tokens to call some rare",
        ),
        _relation("subject", "s", "b18cf2", "subj", _between("subject", "verb")),
        _relation("object", "o", "6f6cf5", "obj", _between("object", "verb")),
        _relation("determiner", "d", "9bd84a", "det", _between("determiner", "noun")),
        _relation("adjective", "a", "f7b8d3", "adj", _between("adjective", "noun")),
        _relation("auxiliary", "x", "2f86d6", "aux", _between("auxiliary", "verb")),
        _relation("coreference", "c", "ff4f9a", "cor", "a pronoun attends most to its noun"),
        Measure(
            name="alignment", family="alignment", text="nearness to the diagonal of two texts",
            meaning="moves through the other text step by step as the output is written",
            letter="A", colour="4fe0d0", short="algn", said="alignment", needs=("two texts",),
        ),
        Measure(
            "monotone", "alignment",
            "correlation of the attended place with the query's, from -1 to 1", said="monotone",
            needs=("two texts",), absent="every head attends to one place, whatever the query",
        ),
        Measure(
            "entropy", "statistic", "entropy of the weights", said="entropy", unit="nats",
        ),
        Measure(
            "normalised_entropy", "statistic", "entropy over that of uniform attention",
            said="normalised entropy",
        ),
        Measure(
            "distance", "statistic", "mean distance to what is attended to", said="distance",
            needs=("one text",), unit="tokens",
        ),
        Measure(
            "confidence", "statistic", "largest weight, special tokens' queries left out",
            said="confidence",
        ),
        Measure(
            "signed_distance", "statistic", "mean distance, positive where later keys prevail",
            said="signed distance", needs=("one text", "the future"), unit="tokens",
        ),
    )
}
# fmt: on
"""Every measure in its order; of two equally strong ones the earlier names the head."""

LABELS: Mapping[str, Measure] = {
    name: measure for name, measure in MEASURES.items() if measure.letter
}
"""The measures that can name a head."""

# fmt: off
UNLABELLED: Mapping[str, Measure] = {
    "spread": Measure(
        "spread", "statistic", MEASURES["normalised_entropy"].text,
        "spreads its attention (score: normalised entropy, 1 = uniform)",
        "-", short="diff", said="diffuse",
    ),
    "peaked": Measure(
        "peaked", "statistic", MEASURES["confidence"].text,
        "attends to few tokens, but by none of these rules; the score is its largest weight",
        "^", short="peak", said="peaked",
    ),
}
# fmt: on
"""The descriptions of a head that no measure names over one text."""


def of_family(*families: Family) -> tuple[str, ...]:
    """Return the names of the measures of some families, in their order."""
    return tuple(name for name, measure in MEASURES.items() if measure.family in families)


RELATIONS = of_family("relation")  # the relations of the annotated sentences in the package
_ALWAYS = tuple(name for name in of_family("statistic") if "the future" not in MEASURES[name].needs)

STATISTICS = (*_ALWAYS, "first")  # the measures that are reported for every head beside its label

DESCRIBED = (*STATISTICS, *(name for name in of_family("statistic") if name not in _ALWAYS))
"""``STATISTICS`` and those that only attention in both directions has."""

OF_ONE_TEXT = (*of_family("position", "identity"), *_ALWAYS)
"""The measures that a single short text can show."""

# fmt: off
Sorting = Literal[
    "previous", "first", "self", "next", "local", "duplicate", "induction", "entropy",
    "normalised_entropy", "distance", "confidence",
]
# fmt: on
"""The same names, which editors offer for ``attnviz.heads(sort=...)``."""


def read_score(name: str, score: Any) -> float | None:
    """Return a measure's number from a file; None if it has none.

    Raises TypeError or ValueError for what is no number, or no share where it should be one. A
    share may be below zero, as that of rare words, which counts from its chance.
    """
    number = None if score is None else finite(score)
    share = name in MEASURES and MEASURES[name].unit == "share"
    if share and number is not None and abs(number) > 1 + 1e-6:
        raise ValueError(f"{name} of {number:g}, expected a share")
    return number


def label_named(name: str) -> Measure:
    """Return the measure of the label ``name``; an unknown one is a user's relation."""
    known = LABELS.get(name) or UNLABELLED.get(name)
    return known or _relation(
        name, "r", _OWN_COLOUR, name[:4], "attends most to the word that your annotation names"
    )


def said_name(name: str) -> str:
    """Return a score's name as people read and type it; one that a user has made is unchanged."""
    measure = MEASURES.get(name)
    return name if measure is None else measure.scored or measure.said


def find_label(name: str, known: Iterable[str] = tuple(LABELS), noun: str = "label") -> str:
    """Return the name of the label that a person calls ``name``.

    Its name on screens, its short form, its letter or an unambiguous beginning will do.
    known: names to choose from. noun: for such names in the message.
    Raises UsageError, with the nearest name, if there is none.
    """
    names = list(dict.fromkeys(known))
    typed = typed_names(names)
    wanted = plain_name(name)
    if wanted in typed:
        return typed[wanted]
    letters = {LABELS[label].letter: label for label in names if label in LABELS}
    if name.strip() in letters:
        return letters[name.strip()]
    begins = {label for text, label in typed.items() if wanted and text.startswith(wanted)}
    if len(begins) == 1:
        return begins.pop()
    from difflib import get_close_matches  # only for mistyped names

    near = get_close_matches(wanted, typed, n=1)
    read = (lambda label: label_named(label).said) if noun == "label" else said_name
    shown = {label: read(label) for label in names}
    hint = f"did you mean {shown[typed[near[0]]]}? " if near else ""
    listed = ", ".join(shown.values())
    raise UsageError(f"no {noun} {name!r}: {hint}{noun}s are {listed}")


def complete_measure(incomplete: str, known: Iterable[str]) -> list[str]:
    """Return display names that begin with ``incomplete``, with hyphens for a shell."""
    names = (said_name(name).replace(" ", "-") for name in known)
    return [name for name in names if name.startswith(incomplete)]


def typed_names(known: Iterable[str]) -> dict[str, str]:
    """Return measures' names by the strings, in small letters, that a person may type."""
    typed: dict[str, str] = {}
    for name in known:
        measure = MEASURES.get(name)
        texts = (measure.said, measure.short, measure.scored) if measure else ()
        for text in filter(None, (name, *texts)):
            typed.setdefault(plain_name(text), name)
    return typed


def plain_name(name: str) -> str:
    """Return a name of a measure in small letters, with blanks for hyphens."""
    return name.strip().lower().replace("_", " ").replace("-", " ")
