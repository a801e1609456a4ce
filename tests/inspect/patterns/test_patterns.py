"""``attnviz patterns``: screens, JSON and files of the bundled model and of small checkpoints."""

import re
import shlex

import pytest

from attnviz.cli.options import complete_label
from attnviz.measures.registry import LABELS, find_label

from ...command_line import json_of

PROBES = "text\tpairs\nThe dog saw the cat.\tsubject:1>2 mine:4>2\nA bird sang.\tsubject:1>2\n"

document = json_of("patterns", runner="redrawn")


def test_the_next_step_looks_at_the_same_head(redrawn):
    shown = redrawn("patterns", "--watch", "induction", "--index-base", "1", "--width", "200").out
    command = re.search(r"attnviz (ablate .*?): does it matter", shown)
    words = shlex.split(command[1])
    assert words[3:] == ["--index-base", "1"]
    again = redrawn(*words, "--width", "200").out
    assert re.search(rf"{words[2]} .*pattern|{words[2]} .*induction", again)


def test_probe_files(redrawn, document, tmp_path):
    (tmp_path / "pairs.tsv").write_text(PROBES, encoding="utf-8")
    found = document("--probe", "pairs.tsv")
    pairs = next(probe["pairs"] for probe in found["probes"] if probe["pairs"])
    assert pairs == {"subject": 2, "mine": 1}
    assert all("mine" in entry["scores"] for entry in found["heads"])
    assert found["source"] == "pairs.tsv"
    watched = redrawn("patterns", "--probe", "pairs.tsv", "--watch", "mine")
    assert watched.code == 0
    assert "mine: score of every head" in watched.out


@pytest.mark.parametrize("kind", ["gpt2", "llama", "t5"])
def test_checkpoints(run, document, checkpoint, kind):
    text = "the cat sat on the mat because the cat sat"
    options = ["--model", str(checkpoint(kind))]
    found = document(text, *options)
    assert len(found["heads"]) == found["model"]["layers"] * found["model"]["heads"]
    assert found["kind"] == ("encoder" if kind == "t5" else "self")
    if kind == "t5":
        crossed = document(text, *options, "--kind", "cross", "--target", text)
        assert crossed["kind"] == "cross"
        assert crossed["target"] == text
        assert any("alignment" in entry["scores"] for entry in crossed["heads"])
        assert all(entry["scores"].get("previous") is None for entry in crossed["heads"])


def test_labels_are_offered():
    assert complete_label("in") == ["induction"]
    assert complete_label("pre") == ["previous-token"]
    assert len(complete_label("")) == len(LABELS)
    assert [find_label(name) for name in complete_label("")] == list(LABELS)
