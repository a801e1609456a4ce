"""``attnviz patch`` as a pipe and as a program see it: on the bundled model and on small ones."""

import json

import pytest

import attnviz
from attnviz.models.bundled import Bundled

from ..make_pairs import made

CLEAN = "The old doctor knew Robert Harris well. Every Sunday Mary and Robert"
CORRUPT = CLEAN.replace("Harris", "Carr")
ASKED = (CLEAN, CORRUPT, "--answer", "Harris", "--foil", "Carr")
INDUCTION = {"L1H0", "L1H2", "L1H3"}


@pytest.fixture
def patch(redrawn):
    """The JSON object of ``attnviz patch ARGUMENTS --json``."""
    return lambda *arguments: redrawn("patch", *arguments, "--json", "-q").document


def strongest(document, count):
    order = sorted(document["heads"], key=lambda entry: -entry["effect"])
    return [entry["name"] for entry in order[:count]]


# What it finds -------------------------------------------------------------------------------


def test_the_built_in_pairs_find_the_induction_heads(run):
    """On top, above the base rate, and by far; the model prefers the right word eighty times."""
    result = run("patch", "--json", "-q", "--fdr")
    found = result.document
    assert found["schema"] == "attnviz.patch/1"
    assert set(strongest(found, 2)) == {"L1H0", "L1H2"}
    assert set(strongest(found, 3)) == INDUCTION
    assert (found["pair_count"], found["ratio"], found["reason"]) == (40, True, None)
    assert all(p["clean"]["metric"] > 0.5 > -0.5 > p["corrupt"]["metric"] for p in found["pairs"])
    for entry in found["heads"]:
        assert entry["ci_low"] < entry["effect"] < entry["ci_high"]
        assert entry["effect"] == pytest.approx(
            (entry["metric"] - found["corrupt"]["metric"])
            / (found["clean"]["metric"] - found["corrupt"]["metric"])
        )
        if entry["name"] in ("L1H0", "L1H2"):
            assert entry["carries"]
            assert entry["base_rate"] < 0.7 * entry["effect"]
            assert max(entry["adjusted_p"], entry["q"]) < 0.01
        elif entry["name"] not in INDUCTION:
            assert not entry["carries"]
            assert abs(entry["effect"]) < 0.03


def test_random_weights_carry_nothing():
    found = attnviz.patch(Bundled(seed=3), pairs=list(made())[:8], layer="0-2")
    assert found.finding.startswith("Random weights: nothing carries")
    assert found.to_dict()["ratio"] is False
    assert all(entry["effect"] is None for entry in found.to_dict()["heads"])


def test_tokens_one_by_one(patch):
    """Heads that copy do so at the last token; the stream moves there in two layers."""
    heads = patch(*ASKED, "--by-token", "--head", "L1H0,L1H2")["by_token"]
    assert {entry["index"] for entry in heads} == set(range(6, 14))
    for entry in heads:
        assert (entry["effect"] > 0.2) == (entry["index"] == 13)
    stream = patch(*ASKED, "--what", "residual")
    cells = {(entry["index"], entry["layer"]): entry["effect"] for entry in stream["by_token"]}
    assert all(entry["head"] is None for entry in stream["by_token"])
    assert (cells[6, 0], cells[13, 0]) == (pytest.approx(1, abs=1e-4), pytest.approx(0, abs=1e-4))
    assert cells[6, 5] < 0.1
    assert cells[13, 5] > 0.9


def test_together(patch):
    found = patch(*ASKED, "--together", "L1H0,L1H2,L1H3", "--head", "L0H0")
    joint = found["together"]
    assert joint["heads"] == [[1, 0], [1, 2], [1, 3]]
    assert joint["effect"] > 0.9
    assert [entry["name"] for entry in found["heads"]] == ["L0H0", "L1H0", "L1H2", "L1H3"]


def test_prompts_of_unequal_length(patch):
    longer = CLEAN.replace("Harris", "Fisher Brown")
    found = patch(CLEAN, longer, "--answer", "Harris", "--foil", "Fisher", "--align", "start")
    assert set(strongest(found, 2)) == {"L1H0", "L1H2"}
    assert len(found["corrupt"]["tokens"]) == len(found["clean"]["tokens"]) + 1


# What stays the same, and what it says --------------------------------------------------------


def test_a_run_that_was_cut_goes_on(patch, run, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(row) + "\n" for row in list(made())[:6]))
    kept = tmp_path / "kept.jsonl"
    asked = ("--pairs", str(pairs), "--head", "L1H0,L1H2", "--resume", str(kept))
    whole = patch(*asked)
    lines = kept.read_bytes().splitlines(keepends=True)
    kept.write_bytes(b"".join(lines[:5]) + lines[5][:20])
    again = patch(*asked)
    assert again | {"seconds": 0} == whole | {"seconds": 0}
    assert len(kept.read_bytes().splitlines()) == len(lines)
    assert "its direction is denoise" in run("patch", *asked, "--direction", "noise").err
    kept.write_bytes(lines[0] + b'{"part": "patches", "text": 0, "result": {"patches": 3}}\n')
    refusal = run("patch", *asked)
    assert (refusal.code, "is damaged" in refusal.err) == (3, True)


# What is refused -----------------------------------------------------------------------------


def test_pairs_that_do_not_fit_are_left_out_and_counted(patch, tmp_path):
    rows = [*list(made())[:3], {"clean": "the cat", "corrupt": "the Zebrany"}, next(made())]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = patch("--pairs", "pairs.jsonl", "--head", "L1H0")
    assert found["pair_count"] == 3
    assert found["heads"][0]["ci_low"] is None
    notes = " ".join(found["notes"])
    assert "1 of 5 pairs left out; pair 4 (line 4): the prompts have" in notes
    assert "1 of 4 pairs is a copy of another and left out" in notes
    assert "3 pairs are too few" in notes
