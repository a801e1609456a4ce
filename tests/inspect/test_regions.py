"""Regions in every command: one number everywhere, screens that fit, pages and files."""

import csv
import io
import json

import numpy as np
import pytest

import attnviz
from attnviz.draw.theme import Theme
from attnviz.errors import AttnvizError
from attnviz.inspect.explore import screen
from attnviz.inspect.explore.session import open_session
from attnviz.inspect.explore.view import View, command_line
from attnviz.inspect.heads.saved import read_heads
from attnviz.options import RegionOptions

from ..chat_models import CHAT, CHATML, write_chat_model
from ..first_screens import SIZES, fitting

TEXT = "The cat sat on the mat because it was tired."
SPANS = ("--span", "who=The cat", "--span", "why=because … .")


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    return str(write_chat_model(tmp_path_factory.mktemp("chat") / "model", CHATML))


def rows_of(result, path):
    assert result.code == 0, result.err
    return [*csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))]


def test_tables_have_columns_of_regions(run, tmp_path):
    file = tmp_path / "heads.csv"
    rows = rows_of(run("heads", TEXT, *SPANS, "--save", str(file), "--quiet"), file)
    found = [row for row in rows if row["layer"] == row["head"] == "0"]
    assert {row["query_region"] for row in found} == {"who", "why", "other"}
    assert {row["key_token"] for row in found if row["key_region"] == "who"} == {"The", " cat"}


def test_steps_give_the_mean_of_their_weights(run, chat_model, tmp_path):
    """The share of a region is the mean, over the steps, of what each gives it."""
    chat, file = tmp_path / "chat.json", tmp_path / "run.csv"
    chat.write_text(json.dumps([*CHAT[:2]]))
    asked = ("generate", "--chat", str(chat), "--model", chat_model, "--tokens", "5")
    asked += ("--head", "L1H2")
    found = run(*asked, "--json").document
    rows = rows_of(run(*asked, "--save", str(file), "--quiet"), file)
    (head,) = (one for one in found["heads"] if (one["layer"], one["head"]) == (1, 2))
    assert head["regions"]["queries"] == ["assistant"]
    for name, share in zip(head["regions"]["keys"], head["regions"]["share"][0], strict=True):
        steps = [float(row[f"region_{name}"]) for row in rows]
        assert share == pytest.approx(np.mean(steps), abs=1e-5)
    begin = len(found["tokens"])  # of the prompt; a step sees all that was read before it
    sizes = {one["name"]: sum(e - s for s, e in one["ranges"]) for one in found["regions"]}
    even = [sizes["user"] / (begin + step) for step in range(len(found["steps"]))]
    at = head["regions"]["keys"].index("user")
    assert head["regions"]["uniform"][0][at] == pytest.approx(np.mean(even), abs=1e-6)


def test_nothing_is_said_of_regions_without_any(run):
    found = run("heads", TEXT, "--json").document
    assert "regions" not in found
    assert "regions" not in found["heads"][0]


@pytest.mark.parametrize("command", ["heads", "generate", "pair", "chosen"])
def test_first_screens_fit(chat_model, command):
    if command == "heads":
        report = attnviz.heads(chat_model, chat=[*CHAT])
    elif command == "generate":
        report = attnviz.generate(chat_model, chat=[*CHAT[:2]], tokens=12)
    elif command == "pair":
        report = attnviz.heads("tiny", TEXT, second="Then it slept.")
    else:
        report = attnviz.heads("tiny", TEXT, head="L5H2", spans={"who": (1, 3), "why": (8, 13)})
    for size, colour in zip(SIZES, (True, False, True), strict=True):
        shown = fitting(report.document(hints=True), Theme(colour=colour), *size)
        assert any("uniform" in line for line in shown)
        if command != "pair":
            assert any("system" in line or "who" in line for line in shown[3:])


def test_the_finding_is_about_the_regions(redrawn):
    said = redrawn("heads", TEXT, *SPANS, "--head", "L5H2", "--full").out
    assert "Region “why” attends to region “who” more than uniform attention: L5H2 .52" in said
    assert "|why" in said
    few = redrawn("heads", TEXT, "--span", "it=9:10", "--span", "who=1:3", "--full").out
    assert " has 1 token: too few to tell from chance" in " ".join(few.split())
    random = redrawn("heads", "a b c d", "--span", "x=a b", "--model", "mha", "--full").out
    assert "regions say nothing about the model" in " ".join(random.split())


def test_bands_stand_in_pictures_and_pages(run, tmp_path):
    for ending in ("svg", "html", "md", "txt"):
        file = tmp_path / f"heads.{ending}"
        result = run("heads", TEXT, *SPANS, "--head", "L5H2", "--save", str(file), "--quiet")
        assert result.code == 0, result.err
        content = file.read_text(encoding="utf-8")
        assert content.count("who") > 2
        assert "attention between regions" in content


def test_explore_reads_and_tells_regions(chat_model):
    session = open_session(chat_model, regions=RegionOptions(chat=json.dumps([*CHAT])))
    frame = session.frame(session.text)
    view = View.of(frame).at(40, 5)
    (cell, *_) = screen.word_lines(view, Theme(colour=False), 160, 4)
    said = "".join(segment.text for segment in cell)
    assert "in system" in said
    row = frame.weights(view.head)[40]
    regions = frame.report.record.keys.regions
    share = sum(row[at] for at in range(41) if regions[at] == "user")
    assert f"user .{round(100 * share):02d} (" in said
    assert {*session.frame("another text").report.record.keys.regions} == {"other"}
    again = command_line(view, ("--chat", "chat.json"))
    assert again.startswith("attnviz heads --chat chat.json")
    assert frame.text not in again


def test_a_saved_file_keeps_the_regions(run, tmp_path):
    """``explore`` of a saved file shows them under the text, as it does of a live model."""
    arguments = ("heads", "The cat sat on the mat.", "--span", "who=The cat", "-q")
    assert run(*arguments, "--save", "a.json").code == 0
    content = (tmp_path / "a.json").read_bytes()
    (report,) = read_heads(content, "a.json").reports
    assert report.record.keys.regions == ("other", "who", "who", *["other"] * 6)
    assert report.record.queries.regions == report.record.keys.regions
    facts = json.loads(content)
    for ranges in ([[0, 99]], [[1, 3]], [[0, 1], [3, 10**12]]):
        facts["regions"][0]["ranges"] = ranges
        with pytest.raises(AttnvizError):
            read_heads(json.dumps(facts).encode(), "a.json")
