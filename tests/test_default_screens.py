"""The default screens of the bundled model: their words, and that a larger one shows more."""

import re
from itertools import permutations
from pathlib import Path

import pytest
import yaml
from rich.cells import cell_len

from attnviz.draw.theme import Theme

from .first_screens import SIZES, command_lines, fitting
from .test_words import REPLACED

SCREENS, MORE = command_lines("default"), command_lines("more")
SHOWN = {
    "lens": r"\(final\)",
    "link": r"^(L1H2 attends|L5H3|6 prompts).*query × key",
    "why": r"^(?=.*\bL0)(?=.*\bsum\b)(Next: |No clear|6 prompts)",
}
"""What a screen has below its first line."""

FORBIDDEN = yaml.safe_load(Path(__file__).with_name("forbidden_words.yaml").read_text("utf-8"))
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


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", MORE)
def test_others_fit(name, size, fitted, checkpoint, tmp_path):
    pairs = permutations(("Nancy", "Jim", "Will"), 2)
    prompts = (f"When {one} met {other}, nobody knew why {one} met" for one, other in pairs)
    (tmp_path / "names.txt").write_text("\n".join(prompts))
    words = [str(checkpoint(word[2:])) if word.startswith("./") else word for word in MORE[name]]
    shown = fitted(*size, *words)
    assert re.search(SHOWN[words[0]], "\n".join(shown.lines[1:]), re.DOTALL)
    assert shown.lines[-1].endswith("--full: everything")
    fitted(*size, *words, "--color", "always")


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
        said = r"sink heads: \d+ of 24 \(first token\)"
        assert re.search(said if name == "heads" else "sink heads on these texts", text)


def test_a_table_of_labels_stands_once_however_tall_the_screen(document):
    lines = fitting(document("heads"), Theme(colour=False), 80, 60)
    assert sum(line.startswith("induction (ind)") for line in lines) == 1
