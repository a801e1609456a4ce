"""What an atlas shows and writes: the first screen and the directory."""

import json
import re

import pytest

import attnviz
from attnviz.errors import LoadError, UsageError

from .conftest import TEXTS


@pytest.fixture(scope="module")
def directory(whole, tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("atlas") / "page"
    whole.write(path, tiny)
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


@pytest.mark.long
def test_lines_for_programs(whole, directory):
    heads = lines(directory / "heads.jsonl")
    assert heads == whole.to_dict()["heads"]
    texts = {each["text"]: each["tokens"] for each in lines(directory / "texts.jsonl")}
    for head in heads:
        for place in (*head["fires"], *(each for tenth in head["tenths"] for each in tenth)):
            tokens = texts[place["text"]]
            assert tokens[place["query"]] == place["query_token"]
            assert tokens[place["key"]] == place["key_token"]
    rows = whole.to_dicts()
    assert [row["fires"] for row in rows] == [head["scores"]["fires"] for head in heads]
    assert [row["weight"] for row in rows] == [head["fires"][0]["weight"] for head in heads]


def test_the_page_shows_where_the_first_heads_fire(whole, tiny, directory):
    page = (directory / "index.html").read_text("utf-8")
    shown = whole.with_maps(tiny)
    assert len(shown.maps) == 5
    (found,) = re.findall(r'id="data">(.*?)</script>', page)
    written = json.loads(found)
    assert [each["name"] for each in written["captures"]] == [f"text {at}" for at in shown.maps]
    assert written["look"]
    for look in written["look"]:
        text = [*shown.maps][look["capture"]]
        head = next(
            each
            for each in whole.heads
            if (each.layer, each.head) == (look["head"] // 4, look["head"] % 4)
        )
        first = head.fires[0].link
        assert (first.text, first.query, first.key) == (text, look["query"], look["key"])
    best = whole.ranking[0]
    name = whole.head_name((best.layer, best.head))
    assert f"{name} fires most" in page
    assert f"{name} by tenths of the sampled texts" in page


def test_findings(whole):
    assert re.match(
        r"\d+ of 24 heads fire most on one token, beyond chance: L\dH\d (to|from) “", whole.finding
    )
    few = attnviz.atlas("tiny", TEXTS[:5])
    assert few.finding.startswith(
        "No head attends to any token significantly more than expected by chance. L"
    )
    random = attnviz.atlas("mha", TEXTS[:5])
    assert random.finding.startswith("Random weights")
    none = attnviz.atlas("tiny", TEXTS[:5], shard="1/2")
    assert none.finding == "Incomplete: 0 texts. This shard has no text."
    assert str(none)
    assert none.to_dicts() == []
    assert attnviz.atlas("tiny", ["The"]).finding == "No text has two words: no head can fire."


def test_bad_input(run, tmp_path, tiny):
    (tmp_path / "long.txt").write_text("The cat.\n" + "word " * 1200)
    result = run("atlas", "--texts", "long.txt")
    assert result.code == 2
    assert "text 2 (line 2) has " in result.err
    kept = ("--texts", "short.txt", "--resume", "kept.record", "-q")
    (tmp_path / "short.txt").write_text("The cat sat on the mat.\nThe dog sat on the cat.\n")
    assert run("atlas", *kept).code == 0
    again = run("atlas", *kept, "--out", "atlas", "--json")
    assert again.document == run("atlas", "--texts", "short.txt", "--json", "-q").document
    assert (tmp_path / "atlas" / "index.html").exists()
    with pytest.raises(UsageError, match="--out is of all texts"):
        attnviz.atlas(tiny, TEXTS, shard="0/2", out=tmp_path / "part")
    with pytest.raises(UsageError, match="top=0 is out of range"):
        attnviz.atlas(tiny, TEXTS, top=0)
    with pytest.raises(LoadError, match="no such file"):
        attnviz.atlas(tiny, "nowhere.txt")
