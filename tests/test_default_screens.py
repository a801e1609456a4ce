"""The default screens of the bundled model: their words, and that a larger one shows more."""

import re

import pytest
from rich.cells import cell_len

from attnviz.draw.theme import Theme

from .first_screens import SIZES, command_lines, fitting
from .test_words import REPLACED

SCREENS = command_lines("default")

FORBIDDEN = {
    r"\brests? on\b": "sink",
    r"base rate": "chance, control",
    r"adjusted p": "significant",
    r"(?<!--)\bfoil\b(?! \(wrong token\)| “)": "foil (wrong token), where it is explained",
    r"\bM\b(?! parameters|  |\d)(?<!\d M)": "logit difference",
    r"random dir\.": "control",
    r"top-1": "prediction changed",
    r"\bexplained\b": "all parts",
    r"\bdiffers\b(?! in)": "difference",
    r"\bnorms (held|kept)": "direct path",
    r"\b1 ?[-−] ?cosine": "cosine distance",
    r"\b(FF|FFN)\b|(?<!MLP: )feed-forward": "MLP",
    r"\bdelimiter\b": "punctuation",
    r"\bself\b(?! attention)": "current token",
    r"\bprevious\b(?! token)": "previous token",
    r"\bspread\b|\bpeaked\b(?! \(peak\)| \.\d)": "diffuse; peaked (peak)",
    r"\b1 (heads|layers|pairs|prompts|steps|texts|tokens|words)\b": "the singular",
    r"[^\W_]#\d": "her (12)",
    r"\btraits?\b|\bflips?\b|\bpooled\b": "label; changed; downsampled",
}
"""What a newcomer does not know, or what has another name elsewhere, and what is said instead."""


@pytest.fixture
def document(reported):
    return lambda name: reported(*SCREENS[name]).document(hints=True)


@pytest.fixture
def screens(document):
    def drawn(name):
        return [fitting(document(name), Theme(colour=False), *size) for size in SIZES]

    return drawn


@pytest.mark.parametrize("name", SCREENS)
def test_a_default_screen(name, screens):
    shown = screens(name)
    for lines in shown:
        text = " ".join("\n".join(lines).split())
        for words, instead in FORBIDDEN.items():
            found = re.search(words, text)
            assert not found, f"{found[0]!r} on the screen of {name}: say {instead}"
        assert not [words for words in REPLACED if words in text.lower()]
    cells = [sum(cell_len("".join(line.split())) for line in lines) for lines in shown]
    assert cells == sorted(cells), "a larger screen shows less"
    names = [set(re.findall(r"\bL\d+H\d+\b", "\n".join(lines))) for lines in shown]
    assert names[1] <= names[2], "heads of the middle screen are missing on the large one"
    hidden = [
        sum(int(n) for n in re.findall(r"^(\d+) more: --full", "\n".join(lines), re.M))
        for lines in shown
    ]
    assert hidden[1] >= hidden[2]


def test_short_words_colours_and_counts_are_explained(screens):
    """At 200 columns ``heads`` has small maps in place of the shaded grid.

    The text of ``heads`` and the probes of ``patterns`` have other sinks, which is said.
    """
    for lines in screens("heads"):
        text = "\n".join(lines)
        for word in ("peak", "diff"):
            known = f"{word}: " in text or f"({word})" in text
            assert known or not re.search(rf"\b{word}\b", text)
    for name in ("heads", "patterns"):
        for lines in screens(name)[:2]:
            assert "shade: score 0–1" in "\n".join(lines)
        text = " ".join("\n".join(screens(name)[0]).split())
        said = r"sinks here: \d+ of 24 heads \(first token\)"
        assert re.search(said if name == "heads" else "attention sinks on these texts", text)


def test_a_table_of_labels_stands_once_however_tall_the_screen(document):
    lines = fitting(document("heads"), Theme(colour=False), 80, 60)
    assert sum(line.startswith("induction (ind)") for line in lines) == 1
