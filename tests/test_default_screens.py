"""The default screens of the bundled model: their words, and that a larger one shows more."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from rich.cells import cell_len

import attnviz
from attnviz.draw.document import Document
from attnviz.draw.theme import Theme

from .first_screens import SIZES, fitting
from .test_words import REPLACED

CAT = "The cat sat on the mat because it was tired."
MARY = "When Mary and John went to the shop, John gave a drink to Mary. Then Mary and"
SCREENS: dict[str, Callable[[], Any]] = {
    "heads": lambda: attnviz.heads("tiny", CAT),
    "heads, longer": lambda: attnviz.heads("tiny", MARY),
    "heads, one": lambda: attnviz.heads("tiny", MARY, head="L1H2"),
    "rollout": lambda: attnviz.rollout("tiny", CAT),
    "generate": lambda: attnviz.generate("tiny", CAT[:35], tokens=20),
    "why": lambda: attnviz.why("tiny", MARY),
    "why, inputs": lambda: attnviz.why("tiny", MARY, inputs=True),
    "lens": lambda: attnviz.lens("tiny", MARY),
    "link": lambda: attnviz.link("tiny", MARY),
    "patterns": lambda: attnviz.patterns("tiny"),
    "atlas": lambda: attnviz.atlas("tiny"),
    "patch": lambda: attnviz.patch("tiny"),
    "ablate": lambda: attnviz.ablate("tiny", MARY),
    "path": lambda: attnviz.path("tiny", "L0H0"),
    "params": lambda: attnviz.params("gpt2"),
    "params, cards": lambda: attnviz.params("gpt2", gpu="all"),
    "scaling": lambda: attnviz.scaling(samples=10),
    "retrieve": lambda: attnviz.retrieve("tiny", lengths="192,256", haystacks=3),
    "head": lambda: attnviz.head("tiny", "L1H2"),
    "report": lambda: attnviz.report("tiny"),
    "prune": lambda: attnviz.prune("tiny", fraction=0.2, draws=1),
}

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
    r"(?<!attnviz )\bdiff\b": "diffuse, difference",
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


@cache
def document(name: str) -> Document:
    return SCREENS[name]().document(hints=True)


def screens(name: str) -> list[list[str]]:
    return [fitting(document(name), Theme(colour=False), *size) for size in SIZES]


@pytest.mark.parametrize("name", SCREENS)
def test_a_default_screen(name: str) -> None:
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


@pytest.mark.parametrize("name", ["peak", "wide"])
def test_a_short_word_of_a_description_is_explained(name: str) -> None:
    for lines in screens("heads"):
        text = "\n".join(lines)
        assert name not in text or f"{name}: " in text or f"({name})" in text


def test_colour_has_a_legend_at_eighty_columns() -> None:
    """At 200 columns ``heads`` has small maps in place of the shaded grid."""
    for name in ("heads", "patterns"):
        for lines in screens(name)[:2]:
            assert "shade: score" in "\n".join(lines)


def test_a_table_of_labels_stands_once_however_tall_the_screen() -> None:
    lines = fitting(document("heads"), Theme(colour=False), 80, 60)
    assert sum(line.startswith("induction (ind)") for line in lines) == 1


@pytest.mark.parametrize("name", ["heads", "patterns"])
def test_a_count_of_sinks_says_on_what_it_was_counted(name: str) -> None:
    """The text of ``heads`` and the probes of ``patterns`` have other sinks."""
    text = " ".join("\n".join(screens(name)[0]).split())
    said = r"this text: \d+ of 24 sink on first token"
    assert re.search(said if name == "heads" else "attention sinks on these texts", text)
