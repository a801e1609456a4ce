"""One number for one word: what the screens, the pages and the JSON of a text say of a head agrees.

The test reads what is printed. It knows how a table, a title and a grid look, and nothing of how
their numbers are measured.
"""

from __future__ import annotations

import html
import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from attnviz.engine.known_labels import label_file, labels_json
from attnviz.inspect.explore.session import LiveSession
from attnviz.measures.labels import KnownLabel, KnownLabels
from attnviz.measures.registry import LABELS, UNLABELLED, find_label
from attnviz.models.resolve import load

from ..bert_by_hand import TEXTS
from .explore.playing import explorer, play

NAMES = {measure.name: measure for measure in (*LABELS.values(), *UNLABELLED.values())}
SAID = {text: one.said for one in NAMES.values() for text in (one.said, one.short)}
WORD = "|".join(sorted(map(re.escape, SAID), key=len, reverse=True))
NUMBER = r"(1\.0|\.\d\d\d?)"
CLAIM = re.compile(
    rf"(?<![\w-])({WORD}) +{NUMBER}(?:(?: ·|,| \([^)]*\),|  ) ?on this text {NUMBER})?"
)
HEAD = re.compile(r"\bL(\d+)H(\d+)\b")
BEST = re.compile(rf"^(?:on this text: )?({WORD})(?: \([a-z]+\))? +\d+ +(L\d+H\d+) {NUMBER}$")
LEADER = re.compile(rf"^({WORD})[ ━╸]+(L\d+H\d+) +{NUMBER} ")
ROW = re.compile(r"^L(\d+) ")


class Claim(NamedTuple):
    """A number that is printed: of which head, under which word, and whether it is of this text."""

    head: tuple[int, int]
    word: str
    here: bool


Claims = dict[Claim, list[tuple[float, str]]]


class Said:
    """Every number of every screen, by what it claims to be."""

    def __init__(self):
        self.found: Claims = defaultdict(list)

    def add(self, head, word, here, value, where):
        if value is not None:
            self.found[Claim(head, SAID[word], here)].append((float(value), where))

    def read(self, text, screen, here=False):
        """Read the lines of a screen. here: all its scores are of this text."""
        for line in (each.strip() for each in text.splitlines()):
            where = f"{screen}: {line}"
            if "over the" in line:  # what a head did while the model wrote, and says so
                line = line.partition(" over the ")[0]
            for pattern in (BEST, LEADER):
                if best := pattern.match(line):
                    self.add(_place(best[2]), best[1], here, best[3], where)
            if row := ROW.match(line):
                self._grid(int(row[1]), line, here, where)
            elif (named := HEAD.match(line)) and (claim := CLAIM.search(line)):
                head = int(named[1]), int(named[2])
                self.add(head, claim[1], here, claim[2], where)
                self.add(head, claim[1], True, claim[3], where)

    def _grid(self, layer, line, here, where):
        line = re.sub(r"\bH\d+ (?=[a-z])", "", line)  # where cells say whose they are
        cells = re.findall(rf"[█▓▒░ ](\w+|·)(?![\w.])(?: +{NUMBER})?", line[line.index(" ") :])
        for head, (short, value) in enumerate(cells):
            if value and short in SAID:
                self.add((layer, head), short, here, value, where)

    def told(self, place, label, where):
        """Read a label of a JSON object."""
        if label is None or label["name"] not in NAMES:
            return
        said = NAMES[label["name"]].said
        if label["name"] in ("first", "separator"):
            if label["source"] != "none":
                return  # a score of the probes, which no screen of a text shows
            said = "sink"
        self.add(place, said, False, label["score"], where)
        if "on_text" in label and label["source"] != "none":
            self.add(place, said, True, label["on_text"], where)


def _place(name):
    layer, head = re.findall(r"\d+", name)
    return int(layer), int(head)


def page_lines(page):
    """The texts of a page, a line for each row of a table, title and tip."""
    tips = re.findall(r'title="([^"]*)"', page) + re.findall(r"<title>(.*?)</title>", page)
    body = re.sub(r"<(style|script)\b.*?</\1>", "", page, flags=re.S)
    body = re.sub(r"</(tr|p|div|h\d|figcaption|text|li)>", "\n", body)
    return html.unescape("\n".join([*tips, re.sub(r"<[^>]*>", " ", body)])).replace(" · ", "  ")


@pytest.fixture
def named(checkpoint):
    """A checkpoint by its kind, some of whose heads have labels in the cache."""

    def get(kind):
        name = str(checkpoint(kind))
        model = load(name)
        for attention in ("self", "encoder"):
            place = label_file(model, attention)  # type: ignore[arg-type]
            assert place is not None
            heads = {
                (0, 0): KnownLabel("previous", 0.83),
                (0, 1): KnownLabel("first", 0.71),
                (1, 0): KnownLabel("duplicate", 0.64),
                (1, 1): KnownLabel("self", 0.52),
            }
            known = KnownLabels("patterns", heads, "2026-11-21")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(labels_json(place.stem.split("-")[0], attention, known, model.info))
        return name

    return get


def screens(redrawn, model, text, writes):
    """Each command over one text: as a screen, as JSON and as a page."""
    for command in ("heads", "patterns", *(["ablate", "why", "generate"] if writes else [])):
        more = ["--tokens", "2"] if command == "generate" else []
        arguments = (command, text, "--model", model, *more)
        yield (
            command,
            redrawn(*arguments, "--json", "--save", "page.html", "--save", "page.txt").document,
        )
        yield f"{command} page", page_lines(Path("page.html").read_text(encoding="utf-8"))
        yield f"{command} whole", Path("page.txt").read_text(encoding="utf-8")
        for width, lines in (("80", "24"), ("200", "60"))[command != "heads" :]:
            look = ("--width", width, "--no-full", "--quiet")
            yield f"{command} {width}", redrawn(*arguments, *look, env={"LINES": lines}).out
    session = LiveSession(load(model))
    for size in ((80, 24), (200, 60)):
        yield f"explore {size[0]}", play(explorer(text, session=session), size=size).screen


def test_an_encoder_calls_one_thing_the_sink(redrawn, trained_bert):
    said = read_screens(redrawn, str(trained_bert), TEXTS[1], writes=False)
    assert not (wrong := differing(said.found)), "\n".join(wrong)
    sinks = [claim for claim in said.found if claim.word == "sink"]
    assert len(sinks) >= 6


def read_screens(redrawn, model, text, writes):
    said = Said()
    for screen, content in screens(redrawn, model, text, writes):
        if isinstance(content, str):
            said.read(content, screen, here=screen.startswith("patterns"))
            continue
        for entry in content.get("heads") or content.get("parts") or ():
            place = entry["layer"], entry["head"]
            if screen == "patterns":
                if entry["label"] is not None:
                    word = NAMES[entry["label"]].said
                    word = "sink" if word == "separator" else word
                    said.add(place, word, True, entry["score"], "patterns --json")
            elif place[1] is not None:
                label = entry.get("trait") or entry.get("label")
                said.told(place, label, f"{screen} --json")
                if label is not None and (label["name"] or "") in ("first", "separator"):
                    said.add(place, "sink", True, entry.get("sink_weight"), f"{screen} --json")
    return merged(said)


def merged(said):
    """Let what only describes a text count as measured on it, wherever it stands."""
    described = {"sink", "diffuse", "peaked"}
    for claim in [*said.found]:
        if claim.word in described and not claim.here:
            said.found[claim._replace(here=True)] += said.found.pop(claim)
    return said


def differing(found):
    """What is printed for the same word of the same head with another value."""
    wrong = []
    for claim, told in found.items():
        (low, below), (high, above) = min(told), max(told)
        if high - low > 0.0101:  # each is rounded
            wrong.append(f"{claim}: {low} in {below!r}, {high} in {above!r}")
    return wrong


def test_the_score_of_the_first_token_is_not_called_sink(run, trained_bert):
    """Of an encoder the sink's weight is that of [CLS] and [SEP], this score that of [CLS]."""
    shown = run("heads", TEXTS[1], "--model", str(trained_bert), "--head", "L0H0", "--full").out
    entry = run("heads", TEXTS[1], "--model", str(trained_bert), "--json").document["heads"][0]
    assert entry["sink_weight"] - entry["first"] > 0.02
    columns, row = next(
        (names.split("  "), values.split())
        for names, values in pairwise(shown.splitlines())
        if names.startswith("head") and "first token" in names
    )
    at = [name.strip() for name in columns if name.strip()].index("first token")
    assert float(row[at]) == pytest.approx(entry["first"], abs=0.0006)
    assert not [name for name in columns if name.strip() == "sink"]
    assert find_label("sink") == find_label("first token") == "first"
