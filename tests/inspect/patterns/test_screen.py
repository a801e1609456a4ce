"""What is said of scored heads, read back from screens at fixed widths, pages and pictures."""

from dataclasses import replace
from itertools import combinations

import pytest

from attnviz.draw.files import document_files, save
from attnviz.draw.labels import width
from attnviz.draw.palette import colour_table
from attnviz.draw.terminal import first_screen, terminal_block
from attnviz.draw.theme import Theme
from attnviz.inspect.patterns.report import Probe
from attnviz.inspect.patterns.screen import finding, label_tint
from attnviz.measures.registry import LABELS
from attnviz.records import SINKS

from .conftest import pattern_reports

PLAIN = Theme("viridis", colour=False)
ASCII = Theme("viridis", colour=False, ascii=True, encoding="ascii")
COLOUR = Theme("viridis")
TEXT = "Old Tom saw Ann, and Ann saw Tom."
NO_REPEATS = {"missing": ("duplicate", "induction")}
EVIL = "<script>alert(1)</script>\x1b[31m[/]\x9b&\u202e\u200b"

CASES = {
    "all_80": ({}, {}, 80, PLAIN),
    "all_120": ({"control": True}, {"hints": True}, 120, PLAIN),
    "all_200": ({"layers": 12, "heads": 12}, {}, 200, PLAIN),
    "narrow_40": ({"view": "without-first"}, {}, 40, PLAIN),
    "ascii_80": ({"layers": 2, "heads": 19, **NO_REPEATS}, {}, 80, ASCII),
    "many_heads_80": ({"layers": 2, "heads": 47}, {}, 80, PLAIN),
    "own_text_80": (
        {**NO_REPEATS, "probes": (Probe("text", 1, 13, 13, ("previous", "first")),), "text": TEXT},
        {"explain": True},
        80,
        PLAIN,
    ),
    "watch_80": ({"control": True}, {"watch": "previous", "top": 3}, 80, PLAIN),
    "watch_140": ({"layers": 12, "heads": 12}, {"watch": "induction"}, 140, PLAIN),
    "watch_unmeasured_80": (NO_REPEATS, {"watch": "induction", "explain": True}, 80, PLAIN),
}


def document_of(report, *, explain=False, hints=False, **shown):
    return replace(report, **shown).document(explain=explain, hints=hints)


def screen(report, theme=PLAIN, room=80, **shown):
    return terminal_block(document_of(report, **shown), theme, room)


@pytest.mark.parametrize("name", CASES)
def test_golden(name, golden):
    fields, shown, room, theme = CASES[name]
    golden(name, screen(pattern_reports(**fields), theme, room, **shown).plain)


FIRST = {
    "first_80x24": ({"layers": 6, "heads": 4}, None, 80, 24),
    "first_twelve_heads_80x24": ({"layers": 6, "heads": 12}, None, 80, 24),
    "first_tall_80x24": ({"layers": 24, "heads": 16}, None, 80, 24),
    "first_120x40": ({"layers": 6, "heads": 4}, None, 120, 40),
    "first_watch_80x24": ({"layers": 6, "heads": 4}, "previous", 80, 24),
    "first_unmeasured_80x24": (NO_REPEATS, "induction", 80, 24),
}


def first(report, room, lines, watch=None):
    document = document_of(report, watch=watch, hints=True)
    return first_screen(document, PLAIN, room, lines - 1).plain.splitlines()


@pytest.mark.parametrize("name", FIRST)
def test_golden_first_screens(name, golden):
    fields, watch, room, lines = FIRST[name]
    report = pattern_reports(**fields, untestable={"adjective": 1.0})
    golden(name, "\n".join(first(report, room, lines, watch)) + "\n")


@pytest.mark.parametrize(("room", "lines"), [(80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize(
    ("shape", "watch"),
    [
        ((1, 1), None),
        ((6, 4), "previous"),
        ((6, 12), "subject"),
        ((12, 12), None),
        ((48, 25), None),
    ],
)
def test_the_first_screen_fits_and_begins_with_the_finding(shape, watch, room, lines):
    report = pattern_reports(layers=shape[0], heads=shape[1], untestable={"adjective": 1.0})
    shown = first(report, room, lines, watch)
    assert len(shown) < lines
    assert max(map(width, shown)) <= room
    assert shown[0].startswith(f"made · {shape[0] * shape[1]:,} head")
    told = finding(report, watch)
    assert len(told) <= 160
    assert " ".join(shown[1:3]).startswith(told)
    assert shown[-1].endswith("--full: everything")


def test_the_finding_counts():
    report = pattern_reports(layers=7, heads=5)
    told = finding(report, None)
    labels = [entry.label for entry in report.heads if entry.label is not None]
    sinks = sum(label in SINKS for label in labels)
    assert told.startswith(f"{len(labels) - sinks} of 35 heads have a label")
    assert f"; {sinks} more {'is a sink head' if sinks == 1 else 'are sink heads'} on" in told
    none = [replace(entry, label=None) for entry in report.heads]
    assert "None of 35 heads" in finding(replace(report, heads=tuple(none)), None)
    drawn = replace(report.model, weights="random", seed=0)
    assert finding(replace(report, model=drawn), None).startswith("Random weights")
    best = report.ranked("induction")[0]
    assert report.head_name((best.layer, best.head)) in finding(report, "induction")


def _full(name):
    tint = label_tint(name, 1.0)
    return colour_table(tint.palette)[tint.step]


def test_no_two_labels_share_a_colour():
    for one, other in combinations(LABELS, 2):
        distance = sum(abs(a - b) for a, b in zip(_full(one), _full(other), strict=True))
        assert distance > 60, (one, other)


@pytest.mark.parametrize("name", LABELS)
def test_a_stronger_label_is_brighter(name):
    tints = [label_tint(name, strength) for strength in (-1, 0.3, 0.6, 1)]
    shades = [sum(colour_table(tint.palette)[tint.step]) for tint in tints]
    assert shades == sorted(shades)
    assert tints[0] == label_tint(name, 0)


def saved(report, path, **shown):
    save(path, document_files(lambda: document_of(report, **shown), "viridis"))
    return path.read_text(encoding="utf-8")


def test_nothing_of_a_stranger_acts(tmp_path):
    report = pattern_reports(
        names=("previous", EVIL),
        layers=5,
        missing=(EVIL,),
        notes=(EVIL,),
        probes=(Probe(EVIL, 1, 4, 4, (EVIL,), skipped=(EVIL,)),),
        not_measured={EVIL: EVIL},
        text=EVIL,
        target=EVIL,
        file=EVIL,
    )
    for watch in (None, "previous", EVIL):
        shown = {"watch": watch, "explain": True}
        drawn = [saved(report, tmp_path / f"a{ending}", **shown) for ending in (".svg", ".html")]
        assert not [text for text in drawn if "<script>alert" in text]
        drawn += [screen(report, PLAIN, 90, **shown).plain, saved(report, tmp_path / "a.md")]
        assert not {"\x1b", "\x9b", "\u202e", "\u200b"} & set("".join(drawn))
