"""First screens: goldens that a person has looked at, and whether they fit every terminal."""

import dataclasses
import re

import pytest
from rich.cells import cell_len

from attnviz.draw.terminal import first_screen
from attnviz.draw.theme import Theme
from attnviz.engine.capture import capture
from attnviz.engine.known_labels import known_labels
from attnviz.inspect.heads.heads import heads_report
from attnviz.inspect.heads.report import HeadsReport, HeadsView, compare_heads
from attnviz.measures.words import find_word
from attnviz.models.bundled import Bundled

from ...first_screens import SIZES

SENTENCE = "The cat sat on the mat because it was tired."
LONG = " ".join(f"{SENTENCE[:-1]} again, and nobody knew why." for _ in range(22))
THEMES = (Theme(), Theme(colour=False), Theme(colour=False, ascii=True, encoding="ascii"))


def lines_of(report, size, theme, view=None):
    found = report if isinstance(report, HeadsReport) else compare_heads([report])
    document = dataclasses.replace(found, view=view or HeadsView()).document(hints=True)
    means = dataclasses.replace(theme, lines=size[1])
    return first_screen(document, means, size[0], size[1] - 1).plain.split("\n")[:-1]


@pytest.fixture(scope="module")
def bundled():
    model = Bundled()
    known = known_labels(model, "self")

    def make(text, *, sink=True, heads=None):
        record = capture(model, model.encode(text, 400), kind="self", heads=heads)
        return heads_report(record, heads is not None, text=text, sink=sink, known=known)

    return make


GOLDEN = {
    "first_80": ((80, 24), {}, None),
    "first_120": ((120, 40), {}, None),
    "first_long_80": ((80, 24), {"text": LONG}, None),
    "first_head_80": ((80, 24), {"heads": {1: {0}}, "sink": False}, None),
    "first_token_80": (
        (80, 24),
        {},
        lambda report: HeadsView(words=[find_word(report.record, "it")]),
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name, bundled, golden):
    size, options, view = GOLDEN[name]
    report = bundled(**{"text": SENTENCE, **options})
    shown = lines_of(report, size, THEMES[1], None if view is None else view(report))
    golden(name, "\n".join(shown) + "\n")


MADE = {
    "bert": {"causal": False, "heads": (12,) * 6, "texts": [f" w{i}" for i in range(16)]},
    "bert, long": {"causal": False, "heads": (12,) * 2, "texts": [f" w{i}" for i in range(200)]},
    "144 heads": {"heads": (12,) * 12, "texts": [f" w{i}" for i in range(20)]},
    "384 heads": {"heads": (16,) * 24, "texts": [f" w{i}" for i in range(13)]},
    "one token": {"texts": ["hi"]},
    "cross": {"texts": list("abcd"), "keys": list("uvwxyz"), "kind": "cross"},
    "wide": {"texts": ["<s>", "나는", " 오늘", "👩\u200d🚀", "🇰🇷", "e\u0301", "学校" * 12]},
    "sorted": {"heads": (6, 6), "sorted_by": "normalised_entropy"},
    "chosen": {"heads": (6, 6), "kept": (2,), "selected": True},
    "few": {"heads": (8,), "causal": False},
}


def check(shown, size):
    assert len(shown) < size[1]  # and a line for the prompt
    assert max(map(cell_len, shown)) <= size[0]
    assert shown[0].startswith(("made · ", "tiny · ", "made - ", "tiny - "))
    assert shown[1][:1].strip()  # the finding


@pytest.mark.parametrize("kind", MADE)
def test_it_fits_and_says_its_finding(reports, kind):
    report = reports(**MADE[kind], text="a text " * 30)
    report = heads_report(
        report.record,
        report.selected,
        sort=report.sorted_by,
        text=report.text,
        target=report.target,
    )
    found = compare_heads([report])
    for size, theme in zip(SIZES, THEMES, strict=True):
        shown = lines_of(found, size, theme)
        check(shown, size)
        assert any(
            word in shown[1] for word in (" link", " pair", "L0H", "local", "normalised entropy")
        )
    views = HeadsView(words=[find_word(report.record, "0")]), HeadsView(top=3)
    for view, size, theme in zip(views, SIZES, THEMES, strict=False):
        check(lines_of(found, size, theme, view), size)


def test_a_text_without_two_words_says_why_no_link_is_tested(fitted):
    shown = " ".join([fitted(*size, "heads", "...", "-q").lines for size in SIZES][1])
    assert "No link is tested: without sinks, punctuation and unknown tokens" in shown


@pytest.mark.parametrize("text", ["The animal didn't cross the street.", LONG])
def test_an_encoder_that_rests_on_its_ends(fitted, text, trained_bert):
    asked = ("heads", text, "--model", str(trained_bert), "-q")
    shown = [fitted(*size, *asked).lines for size in SIZES][1]
    assert shown[1].startswith("No word pair is significant; the closest is ")
    assert any("sink heads: 6 of 8 (" in line for line in shown)
    assert "induction" not in "\n".join(shown)


@pytest.mark.parametrize(
    "text",
    [
        "Captain Amelia Thorne came home, and the crowd cheered Captain Amelia",
        "In 1987 the harbour had 312 boats, and by 1995 it had 312 boats.",
    ],
)
def test_the_coloured_text_has_the_weight_of_the_finding(run, text):
    """Of a word of several tokens the one is shown whose weight the finding gives."""
    shown = run("heads", text, "--no-full", "--quiet", env={"COLUMNS": "100", "LINES": "30"}).lines
    weight = re.search(r"L\dH\d attends \((\.\d\d)\)", shown[1])[1]
    title = next(line for line in shown if "attention from" in line)
    assert re.search("attention from “.+” in “", title)
    below = "\n".join(shown[shown.index(title) + 1 :][:2])
    assert f"max {weight}" in below


def test_the_text_of_a_card_begins_where_its_finding_does(run):
    text = "The captain thanked the sailors because they were brave and had saved the old ship."
    size = {"COLUMNS": "80", "LINES": "24"}
    shown = run("head", "L5H2", text, "--no-full", "--quiet", env=size).out
    assert "attends (.66) from “saved” to “captain”" in shown
    assert "attention from “saved” (14)" in shown
