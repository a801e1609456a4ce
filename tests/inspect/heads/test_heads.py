"""``attnviz heads`` as a pipe sees it: screens, JSON, of the bundled model and of checkpoints."""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import attnviz
from attnviz.errors import UsageError
from attnviz.measures.registry import find_label
from attnviz.models.bundled import Bundled

from ...bert_by_hand import TEXTS

SENTENCE = "The cat sat on the mat because it was tired."
LAYERS, HEADS = Bundled().info.layers, Bundled().info.heads
NAMES = [f"L{layer}H{head}" for layer in range(LAYERS) for head in range(HEADS)]


def titles(out):
    """The names of the heads whose full maps were drawn, in their order."""
    starts = (part.split(" · ")[0] for line in out.splitlines() for part in line.split("   "))
    lines = (start.strip() for start in starts)
    return [start for start in lines if start in NAMES]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--layer", "2"], NAMES[2 * HEADS : 3 * HEADS]),
        (["-l", "-1"], NAMES[-HEADS:]),
        (["--head", "3"], [f"L{layer}H3" for layer in range(LAYERS)]),
        (["-H", "L0H1", "-H", "2.0"], ["L0H1", "L2H0"]),
        (["--layer", "1", "--head", "0,2"], ["L1H0", "L1H2"]),
    ],
)
def test_chosen_heads(document, options, expected):
    heads = document(SENTENCE, *options)["heads"]
    assert [f"L{head['layer']}H{head['head']}" for head in heads] == expected


def test_names_from_one(run, document):
    options = ("--head", "L1H1", "--index-base", "1")
    assert titles(run("heads", SENTENCE, *options).out) == ["L1H1"] * 2
    head = document(SENTENCE, *options)["heads"][0]
    assert (head["layer"], head["head"]) == (0, 0)


def test_a_token_is_typed_as_it_is_read_whatever_the_index_base(run):
    """``--index-base`` counts layers and heads; tokens count from 0 on screens and in options."""
    text, base = "the cat saw the dog", ("--index-base", "1")
    pairs = run("heads", text, "--top", "2", *base).out
    read = re.findall(r"the \([0-9]+\)", pairs)
    assert read
    for typed in {*read}:
        assert f"“the” {typed[4:]}" in run("heads", text, "--token", typed, *base).out


@pytest.mark.parametrize("wanted", ["cat", "2", "-11"])
def test_a_word_through_all_heads(run, wanted):
    result = run("heads", SENTENCE, "--token", wanted)
    assert (result.code, result.err) == (0, "")
    assert "cat" in result.out
    assert all(name in result.out for name in NAMES)
    assert result.out == run("heads", SENTENCE, "--token", "cat").out


@pytest.mark.parametrize("measure", ["entropy", "previous"])
def test_sorting(document, measure):
    found = document(SENTENCE, "--sort", measure)
    scores = [head[measure] for head in found["heads"]]
    assert found["sorted_by"] == measure
    assert scores == sorted(scores, reverse=True)
    turned = document(SENTENCE, "--sort", measure, "--reverse")
    assert [head[measure] for head in turned["heads"]] == sorted(scores)


def test_a_text_too_long_is_refused_or_cut(refused, document):
    text = "tired " * 1500
    line = refused(2, "heads", text)
    assert "takes at most 1,024: shorten it, or add --truncate to cut it there" in line
    assert "the text has 1,50" in line
    found = document(text, "--truncate", "--head", "L0H0", "--save", "a.txt")
    assert len(found["tokens"]) == 1024
    assert len(Path("a.txt").read_text(encoding="utf-8").splitlines()) < 200


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_streams_that_carry_less(run, encoding):
    text = "나는 오늘 “학교”에 갔다 ."
    for arguments in (
        ("heads", text, "--model", "mha"),
        ("heads", text),
        ("heads", text, "--explain"),
        ("heads", text, "--token", "갔다", "--model", "mha"),
        ("heads", text, "--top", "2", "--model", "mha"),
        ("heads", "--help"),
        ("--help",),
    ):
        result = run(*arguments, encoding=encoding)
        assert (result.code, result.err) == (0, ""), arguments
        assert result.out.strip()


def test_a_known_induction_head_that_follows_a_repetition_is_the_finding(redrawn):
    text = "When Nancy met John, nobody knew why Nancy met"
    said = " ".join(redrawn("heads", text).out.split())
    assert "Induction: “met” (10) attends to “John”, which followed “met” (3) (L1H2 .94)." in said
    unknown = " ".join(redrawn("heads", text, "--no-known-labels").out.split())
    assert "which followed" not in unknown
    assert (
        "in L1H2 (.94, control .23); with 24 heads to choose from, this may be chance." in unknown
    )


def test_the_word_that_came_before_is_quoted_whole(run):
    """The tokens of “Anna” are “An”, “n” and “a”; the last one is what repeats."""
    said = " ".join(run("heads", "Anna found the key, so Peter asked Anna").out.split())
    assert "Induction: “Anna” (11) attends to “found”, which followed “Anna” (1) (" in said


# For programs: the fields of --json ---------------------------------------------------------------


def test_the_views_change_nothing(run):
    plain = run("heads", SENTENCE, "--json").out
    views = (
        *("--values", "--top", "2", "--sink", "--explain"),
        *("--ascii", "--quiet", "--full", "--width", "10"),
    )
    env = {"COLUMNS": "10000", "FORCE_COLOR": "1"}
    assert run("heads", SENTENCE, "--json", *views, env=env).out == plain


# Ablated and weighted by norms --------------------------------------------------------------------


def maps(run, *options):
    """The facts, and each head's weights."""
    found = json.loads(run("heads", SENTENCE, "--json", *options).out)
    return found, {
        (head["layer"], head["head"]): np.array(head["weights"]) for head in found["heads"]
    }


def test_an_ablated_head_changes_what_lies_behind_it(run):
    _, plain = maps(run)
    found, ablated = maps(run, "--ablate", "1.*")
    assert found["ablated"] == [[1, head] for head in range(4)]
    moved = {head for head in plain if np.abs(plain[head] - ablated[head]).max() > 1e-4}
    assert moved == {head for head in plain if head[0] > 1}
    _, one_based = maps(run, "--ablate", "L2H1,L2H2,L2H3,L2H4", "--index-base", "1")
    assert all(np.array_equal(one_based[head], ablated[head]) for head in plain)


def test_norm_weights_are_those_of_values_computed_by_hand(run):
    """Layer 0 alone: its input is the embedding, RMS-normed (Kobayashi et al. 2020, eq. 3)."""
    _, plain = maps(run)
    found, weighted = maps(run, "--norm-weighted", "--layer", "0")
    assert found["norm_weighted"] is True
    model = Bundled()
    config, tensors = model.checkpoint.config, model.tensors
    part = {name.removeprefix("model."): np.asarray(t, np.float64) for name, t in tensors.items()}
    x = part["embed_tokens.weight"][list(found["token_ids"])]
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + config.norm_eps)
    x = x * part["layers.0.input_layernorm.weight"]
    values = (x @ part["layers.0.self_attn.v_proj.weight"].T).reshape(len(x), config.kv_heads, -1)
    dim = values.shape[-1]
    for head in range(config.heads):
        output = part["layers.0.self_attn.o_proj.weight"][:, head * dim : (head + 1) * dim]
        norms = np.linalg.norm(
            values[:, head * config.kv_heads // config.heads] @ output.T, axis=-1
        )
        expected = plain[0, head] * norms
        expected /= expected.sum(-1, keepdims=True)
        np.testing.assert_allclose(weighted[0, head], expected, atol=2e-6)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ablate", "L0H1"], "without L0H1"),
        (["--norm-weighted", "--head", "L3H1"], "norm-weighted"),
        (
            ["--ablate", "0.*,1.*", "--norm-weighted", "--no-sink"],
            "without L0H0, L0H1, 6 more · norm-weighted",
        ),
    ],
)
def test_the_first_screen_says_so(redrawn, options, said, size):
    place = {"COLUMNS": str(size[0]), "LINES": str(size[1])}
    result = redrawn("heads", SENTENCE, "--no-full", *options, env=place)
    assert said in result.lines[0]
    assert any(
        each in result.lines[1] for each in ("is labelled", "links “", "local: “", "No word")
    )
    assert len(result.lines) <= size[1]


def test_what_does_not_go_together_is_refused(run):
    for options in (["--ablate", "L9H0"], ["--pair", "it", "cat", "--norm-weighted"]):
        result = run("heads", SENTENCE, *options)
        assert (result.code, result.out) == (2, "")
        assert len(result.err.splitlines()) <= 3


TEXT = "the cat sat on the mat"


def test_a_cut_edge_is_refused_with_the_words_to_type(refused):
    assert 'attnviz ablate TEXT --edge "it→cat"' in refused(2, "heads", SENTENCE, "--cut", "it→cat")
    with pytest.raises(UsageError, match='attnviz ablate TEXT --edge "it→cat"'):
        attnviz.cut("tiny", SENTENCE, "it→cat")


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
