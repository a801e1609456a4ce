"""``attnviz params --save``: every format holds the numbers."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
REQUESTS = {
    "one": ("gpt2", "--memory", "1GB"),
    "several": ("gpt2", "t5-base"),
    "compared": ("--d-model", "64", "--heads", "8", "--compare", "kv-heads=8,3,1"),
}
TOTAL = {"one": 124_439_808, "several": 124_439_808, "compared": 16_384}


@pytest.fixture
def saved(run: Run, tmp_path: Path) -> Callable[..., str]:
    """The content of a file that was saved: ``saved("one", ".md")``."""

    def save(name: str, ending: str) -> str:
        result = run("params", *REQUESTS[name], "--save", f"x{ending}", "--json")
        assert (result.code, result.err) == (0, "")
        assert [path.name for path in tmp_path.iterdir()] == [f"x{ending}"]
        return (tmp_path / f"x{ending}").read_text(encoding="utf-8")

    return save


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("ending", [".csv", ".md", ".svg", ".html", ".txt"])
def test_the_total_is_in_every_file(saved: Any, name: str, ending: str) -> None:
    text = saved(name, ending)
    assert (str(TOTAL[name]) if ending == ".csv" else f"{TOTAL[name]:,}") in text
    assert text.endswith("\n")


def test_csv_adds_up_and_names_what_is_compared(saved: Any) -> None:
    rows = list(csv.DictReader(saved("one", ".csv").splitlines()))
    parts = [row for row in rows if row["section"] == "parameters"]
    assert sum(int(row["value"]) for row in parts if not row["detail"]) == TOTAL["one"]
    (total,) = [row for row in parts if row["item"] == "total"]
    assert int(total["value"]) == TOTAL["one"]
    rows = list(csv.DictReader(saved("compared", ".csv").splitlines()))
    assert {row["kv_heads"] for row in rows} == {"8", "3", "1"}
    (refused,) = [row for row in rows if row["section"] == "refused"]
    assert "does not divide" in refused["item"] + refused["detail"]


def test_names_of_strangers_are_harmless(run: Run, tmp_path: Path) -> None:
    shape = tmp_path / "odd.toml"
    shape.write_text(
        'name = "odd"\nsource = "<script>|`*\\u001b[31m"\nnotes = ["a|b <b>"]\n'
        "[shape]\nd_model = 64\nheads = 8\n",
        encoding="utf-8",
    )
    files = [f"x{ending}" for ending in (".md", ".svg", ".html", ".csv", ".txt")]
    saves = [word for file in files for word in ("--save", file)]
    result = run("params", "./odd.toml", *saves)
    assert result.code == 0, result.err
    assert "\x1b" not in result.out
    for file in files:
        text = (tmp_path / file).read_text(encoding="utf-8")
        assert "\x1b" not in text, file
        if not file.endswith((".txt", ".csv")):
            assert "<script>" not in text, file
