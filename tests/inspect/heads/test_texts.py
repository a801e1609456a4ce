"""``attnviz heads --texts``: several texts side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnviz

TEXTS = ["The cat sat on the mat.", "She said that he said so.", "Mary met John."]


@pytest.fixture
def texts(tmp_path: Path) -> str:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    return "texts.txt"


def test_each_text_has_the_numbers_of_its_own_run(document: Any, texts: str) -> None:
    found = document("--texts", texts)
    assert [each["text"] for each in found["variants"]] == TEXTS
    assert found["text"] is None
    assert {"text", "sink"} <= {*found["compared"]}
    for at, text in enumerate(TEXTS):
        alone = document(text)
        assert found["variants"][at]["tokens"] == alone["tokens"]
        mine = [each for each in found["heads"] if each.get("variant") == at]
        for one, other in zip(mine, alone["heads"], strict=True):
            assert one.pop("variant") == at
            assert one.pop("moved") is None
            np.testing.assert_allclose(one.pop("weights"), other.pop("weights"), atol=1e-6)
            assert one["trait"]["name"] == other["trait"]["name"]


def test_python_takes_a_list(document: Any, texts: str) -> None:
    report = attnviz.heads("tiny", TEXTS)
    assert report.to_dict() == document("--texts", texts)
    assert [each.text for each in report.reports] == TEXTS


@pytest.mark.parametrize("ending", ["json", "npz", "safetensors"])
def test_what_was_saved_is_read_back(run: Any, document: Any, texts: str, ending: str) -> None:
    run("heads", "--texts", texts, "--save", f"a.{ending}")
    saved = document("--from", f"a.{ending}")
    assert saved == document("--texts", texts)


def test_the_finding_counts_the_heads_at_the_sink(redrawn: Any, texts: str) -> None:
    resting = [
        {(each.layer, each.head) for each in alone.heads if alone.rests(each.layer, each.head)}
        for alone in (attnviz.heads("tiny", text).first for text in TEXTS)
    ]
    always, ever = set.intersection(*resting), set.union(*resting)
    words = " ".join(redrawn("heads", "--texts", texts).out.split())
    assert f"{len(always)} of 24 heads attend mostly to the attention sink in each" in words
    assert f"{len(ever - always)} more in some" in words


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--kind", "self,cross", "--model", "mha"], "--texts takes one run of each text"),
        (["--span", "a=0:1"], "--span names regions of one text: leave out --texts"),
        (["--cut", "a→b"], "--cut names two words of one text: leave out --texts"),
        (["--token", "cat"], "text 2 (line 2): no token 'cat' in the text"),
        (["A text."], "give TEXT, --file or --texts, not two"),
        (["--from", "x.npz"], "leave out --texts"),
    ],
)
def test_usage_ends_with_2(refused: Any, texts: str, arguments: list[str], line: str) -> None:
    assert line in refused(2, "heads", "--texts", texts, *arguments)


def test_json_lines_are_read(document: Any, tmp_path: Path) -> None:
    lines = "\n".join(json.dumps({"text": text}) for text in TEXTS)
    (tmp_path / "texts.jsonl").write_text(lines)
    assert [each["text"] for each in document("--texts", "texts.jsonl")["variants"]] == TEXTS
