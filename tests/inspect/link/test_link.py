"""``attnviz link``: the defaults, the sums, what is said, the control, files and refusals."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest

import attnviz
from attnviz.attention.checkpoint import llama_stack
from attnviz.engine.attribution.scores import AskedLink, StreamPart
from attnviz.inspect.link.link import _controls, link, most_telling
from attnviz.inspect.link.report import LinkChoice, LinkPart, LinkReport
from attnviz.inspect.link.request import LinkRequest
from attnviz.inspect.link.screen import _finding, pair_grid, part_table
from attnviz.models.bundled import Bundled
from attnviz.models.resolve import random_twin
from attnviz.prompts.study import Prompt
from attnviz.records import AttentionRecord, Input, LayerWeights, ModelInfo, Tokens

PROMPT = "When Nancy met John, nobody knew why Nancy met"
MANY = (
    PROMPT,
    "Then Mary saw Tom. Then Mary saw",
    "Peter asked Susan about the garden, and Peter asked",
    "My sister likes Henry more than George. My sister likes",
    "The cat chased the mouse, then the cat chased",
)
TIRED = "The cat sat on the mat because it was tired."
SMOKE = "The pilot warned the passenger because she saw smoke."
WORDS = 10
"""The words of a prompt, as few as the control replaces many of."""


def reported(model, *texts, **question):
    request = LinkRequest(**question)
    return link(model, [Prompt(text) for text in texts], request)


def of(found, side, kind, head=None):
    (part,) = (
        one
        for one in found["parts"]
        if (one["side"], one["kind"], one["head"]) == (side, kind, head)
    )
    return part


def test_the_induction_head_looks_there_by_what_the_head_before_wrote(run):
    found = run("link", PROMPT, "--head", "L1H2", "--json").document
    assert found["chosen"] is None
    assert (found["layer"], found["head"], found["query"], found["key"]) == (1, 2, 10, 4)
    assert found["weight"] == pytest.approx(0.936944, abs=1e-4)
    assert found["score"] == pytest.approx(8.945828, abs=1e-4)
    assert found["sum"] == pytest.approx(9.060115, abs=1e-4)
    assert found["lead"] == pytest.approx(found["sum"], abs=found["tolerance"])
    assert found["tallies"]
    assert found["controls"] == 20
    head = of(found, "key", "head", 0)
    assert head["lead"] == pytest.approx(8.456452, abs=1e-4)
    assert head["weight_without"] == pytest.approx(0.008, abs=5e-4)
    assert head["reached"] == 0
    assert head["base_rate"] < 0.5
    assert int(np.argmax(head["by_token"])) == 3
    assert of(found, "query", "token")["weight_without"] == pytest.approx(0.276, abs=5e-4)
    for side in ("query", "key"):
        parts = [one["lead"] for one in found["parts"] if one["side"] == side]
        assert sum(parts) == pytest.approx(found["sum"], abs=1e-4)
    assert sum(one["lead"] for one in found["pairs"]) == pytest.approx(found["sum"], abs=1e-4)
    assert sum(one["score"] for one in found["pairs"]) == pytest.approx(found["score"], abs=1e-4)
    key = next(at for at, one in enumerate(found["parts"]) if one is head)
    column = [one["lead"] for one in found["pairs"] if one["key"] == key]
    assert sum(column) == pytest.approx(head["lead"], abs=1e-4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TIRED, "auto-selected: by the head's label · control weight .21"),
        (PROMPT, "auto-selected: an induction head at a repeated word · control weight .2"),
        (SMOKE, "attends (.75) from “ger” in “passenger” (9) to “ed” in “warned” (5) because"),
        (SMOKE, "auto-selected: by the head's label\n"),  # no control, which is one of words
        ("Hello", "auto-selected: of 3 word pairs the closest to significance"),
        (
            "It",
            "auto-selected: the strongest link from the last token · no two words to test",
        ),
    ],
)
def test_the_default_is_the_link_that_heads_names(run, text, said):
    """The oracle is ``heads``: its first link, and the largest weight between the two words."""
    heads = run("heads", text, "--json").document
    report = attnviz.link("tiny", text, controls=0)
    assert said in str(report)
    found = report.to_dict()
    listed = heads["links"]["told"]
    if not listed:
        assert found["chosen"]["habit"] is None
        return
    link = listed[0]
    place = link["layer"], link["head"]
    assert (found["layer"], found["head"]) == place
    (weights,) = (one["weights"] for one in heads["heads"] if (one["layer"], one["head"]) == place)
    cells = [(query, key) for query in range(*link["query"]) for key in range(*link["key"])]
    assert (found["query"], found["key"]) == max(cells, key=lambda at: weights[at[0]][at[1]])
    names = ("why", "habit", "chance", "heads", "beats_chance")
    chosen = {name: found["chosen"][name] for name in names}
    assert chosen == {name: link[name] for name in chosen}
    assert found["chosen"]["pairs"] == heads["links"]["pairs"]


def test_uniform_attention_has_no_telling_link():
    tokens = Tokens(tuple(range(6)), tuple(f" w{place}" for place in range(6)), (False,) * 6)
    info = ModelInfo("made", None, "None", "float32", 1, 8, 8, 8)
    layers = (LayerWeights(0, tuple(range(8)), np.full((8, 6, 6), 1 / 6)),)
    record = AttentionRecord(info, "self", False, tokens, tokens, layers)
    assert most_telling(record, {}) == LinkChoice(30)


def test_another_key_changes_the_question(run):
    found = run(
        *("link", PROMPT, "--head", "L1H2", "--key", "John", "--than", "0", "--controls", "0"),
        "--json",
    ).document
    assert (found["than"], found["controls"]) == (0, 0)
    assert found["sum"] == pytest.approx(3.0455, abs=1e-3)
    assert of(found, "key", "mlp")["lead"] == pytest.approx(-4.36, abs=5e-3)
    assert {one["base_rate"] for one in found["parts"]} == {None}


def test_controls_keep_the_link_and_change_the_words_around():
    model = Bundled()
    given = Input(model.encode(PROMPT))
    asked = AskedLink(("self", 1, 2), 10, 4)
    others = list(_controls(model.vocabulary(), given, asked, 5, (0, 0)))
    assert len({other.ids for other in others}) == 5
    for other in others:
        same = [at for at in range(11) if other.ids[at] == given.ids[at]]
        assert {0, 4, 10} <= set(same)
        assert len(same) <= 5
        texts = model.vocabulary().texts(other.ids)
        assert all(texts[at].startswith(" ") for at in range(1, 11) if at not in same)


def test_many_prompts_have_intervals_and_paired_differences():
    report = reported(Bundled(), *MANY, head="L1H2")
    found = report.to_dict()
    assert len(found["prompts"]) == 5
    assert found["controls"] == 5
    head = of(found, "key", "head", 0)
    each = [reported(Bundled(), text, head="L1H2", controls=0) for text in MANY]
    alone = [of(one.to_dict(), "key", "head", 0)["lead"] for one in each]
    assert head["lead"] == pytest.approx(np.mean(alone), abs=1e-4)
    assert head["ci_low"] < head["lead"] < head["ci_high"]
    assert head["p"] is not None
    assert "reached" in head
    assert head["reached"] is None
    assert (
        "5 prompts: L1H2 attends to its key because of what L0H0 (previous token) wrote"
        in report.finding
    )
    few = reported(Bundled(), *MANY[:2], head="L1H2")
    assert "too few prompts for intervals" in few.finding
    assert of(few.to_dict(), "key", "head", 0)["p"] is None


def test_the_finding_claims_no_more_than_the_sum():
    """Of every head: a part of it is named, of either side the largest where none decides."""
    model = Bundled()
    for layer in range(6):
        for head in range(4):
            report = reported(model, MANY[0], head=f"L{layer}H{head}", controls=0)
            assert report.tallies
            words = report.finding
            leads = [part.lead for part in report.parts]
            if report.sum > 0:
                assert any(f"{lead:+.2f}" in words for lead in leads if lead > 0)
                assert ("-nat margin" in words) != ("whole margin" in words)
            assert "p " not in words
            assert "stands out" not in words


def test_random_weights_are_said_to_be_arbitrary():
    report = reported(Bundled(), TIRED, controls=0)
    untrained = replace(report, model=replace(report.model, weights="random"))
    assert "one furthest above its control in any head" in str(untrained)
    report = reported(random_twin(Bundled(), 3), PROMPT, head="L2H1", controls=2)
    assert report.tallies
    assert report.finding.startswith("Random weights, so by chance: L2H1")


def test_rows_of_a_file_ask_their_own_question(run, tmp_path):
    rows = [{"prompt": PROMPT, "key": "Nancy"}, {"prompt": MANY[1], "query": "Tom"}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result = run("link", "--texts", "p.jsonl", "--head", "L1H1", "--controls", "1", "--json")
    first, second = result.document["prompts"]
    assert first["key"] == 2
    assert second["query"] == 4


def test_files_have_parts_and_arrays(run, tmp_path):
    asked = ("--head", "L1H2", "--controls", "2")
    result = run("link", PROMPT, *asked, "--save", "a.csv", "--save", "a.npz")
    assert result.code == 0, result.err
    rows = list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text(encoding="utf-8"))))
    assert [row["side"] for row in rows] == ["query"] * 6 + ["key"] * 6
    with np.load(tmp_path / "a.npz") as arrays:
        assert arrays["lead_parts"].shape == (1, 6, 6)
        assert arrays["lead_parts"].sum() == pytest.approx(9.060115, abs=1e-4)
        assert arrays["score_parts"].sum() == pytest.approx(8.945828, abs=1e-4)
        assert list(arrays["names"][:2]) == ["token", "L0H0"]


def test_rows_of_zeros_are_left_out():
    """Such are the biases of a model whose biases are zero; in JSON they stay."""
    report = attnviz.link("tiny", PROMPT, controls=0)
    first = report.first
    query, key = first.split.query.copy(), first.split.key.copy()
    query[1] = key[1] = 0
    split = replace(first.split, query=query, key=key)
    zeroed = replace(report, prompts=(replace(first, split=split),))
    name, count = report.name(first.split.parts[1]), len(report.parts)
    assert len(part_table(report).rows) == count + 1  # a row says where the query's parts begin
    assert len(part_table(zeroed).rows) == count - 1
    assert name in pair_grid(report, count, 999).rows
    assert name not in pair_grid(zeroed, count, 999).rows
    assert len(zeroed.parts) == count


def random_link(seed, prompts):
    """Return the report on a head of a random model over random prompts.

    The prompts differ from their controls in nothing but the draw, so that each part that stands
    out is a false alarm. The head and the key are drawn, not chosen because the link is strong.
    """
    model, generator = Bundled(seed=seed), np.random.default_rng(seed)
    large = {name: each * 4 if each.ndim > 1 else each for name, each in model.tensors.items()}
    model.stack = llama_stack(model.checkpoint.config, large, "float32")  # so that heads are sharp
    vocabulary = model.vocabulary()
    texts = vocabulary.texts(vocabulary.plain.tolist())
    words = [text for text in texts if text.startswith(" ") and text.strip().isalpha()]
    drawn = ["".join(generator.choice(words, WORDS)).strip() for _ in range(prompts)]
    head, key = f"L{generator.integers(1, 3)}H{generator.integers(4)}", generator.integers(1, WORDS)
    asked = [Prompt(text) for text in drawn]
    report = link(model, asked, LinkRequest(head=head, key=str(key), seed=seed))
    # A random model has no p at all; as if a checkpoint held these weights.
    return replace(report, model=replace(report.model, weights="checkpoint"))


@pytest.mark.long
def test_few_parts_stand_out_where_nothing_is_to_be_found():
    """Of 200 models at most eight in a hundred; these four are a sample."""
    reports = [random_link(seed, prompts=5) for seed in range(4)]
    assert all(part.p is not None for report in reports for part in report.parts)
    assert sum(any(part.stands_out for part in report.parts) for report in reports) <= 1


@pytest.mark.parametrize(
    ("query", "key", "said"),
    [
        ([5, 1], [2.5, 1, 1, 1, 0.5], "both are “Nancy”: the embedding contributes +5.00 (query)"),
        ([1, 5], [2, 4], "of the two positions: +5.00 at the query and +4.00 at the key, of the"),
        ([4, 2], [0, 0, 4, 4, -2], "wrote there: +4.00 and +4.00 of a net 6.00-nat margin"),
        ([2, 2, 2], [1.5, 1.4, 1, 1.1, 1], "at the query, the embedding contributes +2.00 and the"),
        ([1.2, 1, 0.9], [1.1, 1, 0.9], "largest of many parts is the query's own embedding: +1.20"),
    ],
)
def test_the_finding_names_the_main_parts_of_one_side_or_of_both(query, key, said):
    """Parts below 1 are needless here. Those of both sides never stand in one list."""
    report = reported(Bundled(), PROMPT, head="L1H2", query="Nancy:2", key="Nancy:1", controls=0)
    names = [StreamPart(kind) for kind in ("token", "position", "mlp", "head", "bias")]
    parts = [
        LinkPart(side, names[at], lead, without=float(lead < 1))
        for side, leads in (("query", query), ("key", key))
        for at, lead in enumerate(leads)
    ]
    made = type("Made", (LinkReport,), {"sum": 6.0, "parts": parts})
    assert said in _finding(made(**vars(report)))
