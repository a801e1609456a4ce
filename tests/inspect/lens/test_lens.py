"""``attnviz lens``: what it says, where it says nothing, and its screens."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from attnviz.engine.attribution.parts import BlockReading
from attnviz.inspect.lens.lens import lens
from attnviz.inspect.lens.request import LensRequest
from attnviz.models.bundled import Bundled
from attnviz.models.resolve import random_twin

PROMPT = "When Nancy met John, nobody knew why Nancy met"


@pytest.fixture(scope="module")
def report():
    return lens(Bundled(), PROMPT, LensRequest())


def with_ranks(report, *ranks):
    blocks = [
        BlockReading(at - 1 if at else None, 0.5, rank, 2.0 if rank > 9 else 0.1, report.end.top)
        for at, rank in enumerate(ranks)
    ]
    return replace(report, reading=replace(report.reading, blocks=tuple(blocks)))


def test_the_finding_names_where_the_answer_stays_first(report):
    assert report.finding == (
        "“John” is the top token from L1 on (p = .95 there, .97 at the end); at L0 it ranks "
        "3,882nd. In L1, L1H2 (induction) adds +4.22 logits."
    )
    assert "“John” is the top token from L2 on " in with_ranks(report, 9, 1, 2, 1, 1).finding
    assert "at L1 it ranks 2nd" in with_ranks(report, 9, 1, 2, 1, 1).finding
    assert "only at the end, L2 (p = " in with_ranks(report, 2, 3, 13, 1).finding
    assert "at L1 it ranks 13th" in with_ranks(report, 1, 1, 13, 1).finding


def test_the_finding_names_the_token_that_leads_until_the_last_block(report):
    other = ((report.reading.answer + 1, 0.4),)
    words = dict(report.words) | {report.reading.answer + 1: "Ann"}
    late = with_ranks(report, 2, 2, 2, 1)
    blocks = [block._replace(top=other) for block in late.reading.blocks[:-1]]
    blocks = (*blocks, late.reading.blocks[-1])
    late = replace(late, words=words, reading=replace(late.reading, blocks=blocks))
    assert late.finding.startswith("“Ann” leads at L1 (p = .40); “John” overtakes it only at L2")


def test_the_finding_says_from_where_the_lens_is_near_the_output(report):
    early = with_ranks(report, 1, 1, 1, 1)
    unlike = [block._replace(kl=3.0, probability=0.01) for block in early.reading.blocks[:2]]
    first = unlike[0]._replace(rank=9)
    blocks = (first, unlike[1], *early.reading.blocks[2:])
    early = replace(early, reading=replace(early.reading, blocks=blocks))
    assert "from L0 on (p = .01 there" in early.finding
    assert "close to the output only from L1 on (p = .50)" in early.finding
    assert "is the top token from the embedding on" in with_ranks(report, 1, 1, 1).finding


def test_a_word_that_is_not_predicted_enters_nowhere():
    report = lens(Bundled(), PROMPT, LensRequest(answer="James"))
    assert report.entry is None
    assert "“James” ranks 2nd at the end" in report.finding
    assert "top token “John”, p = .97" in report.finding


def test_random_weights_say_so():
    report = lens(random_twin(Bundled(), 3), PROMPT, LensRequest())
    assert report.finding.startswith("Random weights: where a prediction forms is arbitrary")


def test_far_readings_are_warned_about(report):
    assert report.far == 2
    assert "KL exceeds 1 nat before L1: predictions there may be misleading." in str(report)
    assert "tokens there may be misleading" not in str(with_ranks(report, 1, 1, 1))


def test_its_objects_agree(run, report):
    found = run("lens", PROMPT, "--json", "--save", "a.csv", "--save", "a.html").document
    assert found["schema"] == "attnviz.lens/1"
    assert found["answer"] == {"id": report.reading.answer, "token": " John", "rest_of_word": ""}
    assert (found["entry"], found["position"]) == (2, 10)
    assert [one["layer"] for one in found["layers"]] == [None, 0, 1, 2, 3, 4, 5]
    assert found["apart"] <= found["tolerance"]
    why = run("why", PROMPT, "--foil", "James", "--controls", "0", "--json").document
    parts = {
        (p["layer"], p["head"]): p["contribution"] for p in why["parts"] if p["kind"] == "head"
    }
    other = run("lens", PROMPT, "--answer", "James", "--json").document
    for one, james in zip(found["heads"], other["heads"], strict=True):
        place = one["layer"], one["head"]
        assert one["answer"] - james["answer"] == pytest.approx(parts[place], abs=1e-5)
    with open("a.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["rank"] for row in rows[:7]] == [str(one["rank"]) for one in found["layers"]]
    assert len(rows) == 7 + 24
    with open("a.html", encoding="utf-8") as file:
        assert "What each head writes" in file.read()


def test_it_asks_at_a_position_and_of_heads(run):
    whole = run("lens", PROMPT, "--position", "John", "--head", "L1H2,L0H0", "--json").document
    begun = run("lens", "When Nancy met John", "--json").document
    assert whole["position"] == 4
    for one, other in zip(whole["layers"], begun["layers"], strict=True):
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-6)
    screen = run("lens", PROMPT, "--head", "L1H2,L0H0", "--index-base", "0").out
    assert "L1H2" in screen
    assert "L1H0" not in screen
    shifted = run("lens", PROMPT, "--index-base", "1").out
    assert "“John” is the top token from L2 on " in shifted
    assert "L6 (final)" in shifted


def test_many_blocks_keep_the_entry_and_the_end(report):
    deep = with_ranks(report, *[99] * 61, *[1] * 20)
    first = deep.document().first
    (blocks, _), *_ = (group.parts for group in first(80, 20))
    names = [row.cells[0] for row in blocks.rows]
    assert len(names) < 18
    assert {"embedding", "L59", "L60", "L79 (final)"} <= set(names)
    assert names == sorted(names, key=lambda name: int("".join(filter(str.isdigit, name)) or -1))
    assert blocks.more == f"{81 - len(names)} more: --full"


def test_arrays_are_those_of_the_json(run, tmp_path):
    found = run("lens", PROMPT, "--json", "--save", str(tmp_path / "lens.npz")).document
    with np.load(tmp_path / "lens.npz") as arrays:
        for name in ("probability", "rank", "kl"):
            assert arrays[name].tolist() == pytest.approx([one[name] for one in found["layers"]])
        assert arrays["top_ids"][-1].tolist() == [one["id"] for one in found["layers"][-1]["top"]]
        assert arrays["top_probability"].shape == (7, 5)
        assert arrays["blocks"].tolist()[:2] == ["embedding", "L0"]
        heads = [f"L{one['layer']}H{one['head']}" for one in found["heads"]]
        assert arrays["heads"].tolist() == heads
        assert arrays["logits"].tolist() == pytest.approx([one["answer"] for one in found["heads"]])
