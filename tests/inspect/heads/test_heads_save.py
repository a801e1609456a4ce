"""``--save FILE``: every ending, beside whatever else is printed."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from safetensors import safe_open

from attnviz.cli.heads import HeadsOutput

SENTENCE = "The cat sat on the mat because it was tired."
ENDINGS = HeadsOutput().endings
MAGIC = {".png": b"\x89PNG\r\n", ".pdf": b"%PDF-", ".npz": b"PK\x03\x04"}


def test_every_ending_in_one_run(run: Any, tmp_path: Path) -> None:
    options = [option for ending in ENDINGS for option in ("--save", f"map{ending}")]
    result = run("heads", SENTENCE, "--layer", "1", *options)
    assert result.code == 0
    assert result.err.splitlines() == [f"saved map{ending}" for ending in ENDINGS]
    assert "L1H0" in result.out
    for ending in ENDINGS:
        content = (tmp_path / f"map{ending}").read_bytes()
        assert content.startswith(MAGIC.get(ending, b""))
        assert len(content) > 500
    assert len(list(tmp_path.iterdir())) == len(ENDINGS)


def test_json_is_what_json_prints(run: Any, tmp_path: Path) -> None:
    printed = run("heads", SENTENCE, "--json", "--save", "map.json")
    assert printed.err == ""
    assert (tmp_path / "map.json").read_text() == printed.out


def test_arrays_are_the_weights(run: Any, document: Any, tmp_path: Path) -> None:
    document(SENTENCE, "--save", "a.npz", "--save", "a.safetensors", "--save", "a.csv")
    heads = document(SENTENCE)["heads"]
    expected = np.array([head["weights"] for head in heads], dtype=np.float32)
    total = expected.astype(np.float64).sum()
    with np.load(tmp_path / "a.npz") as arrays:
        found = [arrays[name] for name in arrays.files if arrays[name].ndim >= 3]
        assert sum(part.astype(np.float64).sum() for part in found) == pytest.approx(total)
    with safe_open(tmp_path / "a.safetensors", "numpy") as arrays:
        metadata = arrays.metadata()
        names = list(arrays.keys())
        stored = [arrays.get_tensor(name) for name in names]
    big = [part.astype(np.float64).sum() for part in stored if part.ndim >= 3]
    assert sum(big) == pytest.approx(total)
    assert SENTENCE in json.dumps(metadata)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text())))
    assert sum(float(row["weight"]) for row in rows) == pytest.approx(total)


def test_text_is_the_plain_screen(run: Any, tmp_path: Path) -> None:
    plain = run("heads", SENTENCE, "--width", "100")
    coloured = run(
        "heads", SENTENCE, "--width", "100", "--color", "always", "--save", "a.txt", "--json"
    )
    assert coloured.code == 0
    drawn = (tmp_path / "a.txt").read_text().splitlines()
    assert drawn == [line.rstrip() for line in plain.lines]


@pytest.mark.parametrize("ending", [".svg", ".html"])
def test_pictures_need_nothing_from_elsewhere(run: Any, tmp_path: Path, ending: str) -> None:
    run("heads", "a <b>&amp;</b> \x1b[31m", "--save", f"a{ending}")
    content = (tmp_path / f"a{ending}").read_text()
    assert "\x1b" not in content
    assert "a <b>" not in content
    for loading in ("@import", "<link", 'src="http', "url(", "<script src"):
        assert loading not in content
    assert ("<script" in content) == (ending == ".html")  # tests/draw/page has the policy
    if ending == ".svg":
        ElementTree.fromstring(content)


def test_the_ending_may_be_in_capitals(run: Any, tmp_path: Path) -> None:
    assert run("heads", SENTENCE, "--save", "A.JSON").code == 0
    assert json.loads((tmp_path / "A.JSON").read_text())["schema"] == "attnviz.heads/1"


def test_quiet_says_nothing(run: Any) -> None:
    assert run("heads", SENTENCE, "--quiet", "--save", "a.csv").err == ""


def test_a_width_is_needed_only_for_text(run: Any, refused: Any) -> None:
    assert run("heads", SENTENCE, "--json", "--width", "10", "--save", "a.csv").code == 0
    refused(2, "heads", SENTENCE, "--json", "--width", "10", "--save", "a.txt")


def test_a_run_of_generate_is_sent_to_what_replays_it(run: Any, refused: Any) -> None:
    run("generate", "Once there was", "--tokens", "3", "--save", "run.jsonl")
    assert "attnviz explore replays it" in refused(3, "heads", "--from", "run.jsonl")
