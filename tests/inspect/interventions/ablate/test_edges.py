"""``ablate --edge``: which edges are meant, which are drawn at random, and what a person sees."""

import json
from dataclasses import replace

import numpy as np
import pytest

import attnviz
from attnviz.errors import UsageError
from attnviz.inspect.interventions.ablate.edges import DRAWS, EdgeAxes
from attnviz.inspect.interventions.ablate.request import read_edges
from attnviz.records import Tokens

from ....conftest import without_times

SENTENCE = "The cat sat on the mat because it was tired."
PIECES = ("<s>", " it", " saw", " A", "nn", " and", " it", " ran", " on", "</s>")
SPECIAL = tuple(piece.startswith("<") for piece in PIECES)
TOKENS = Tokens(tuple(range(len(PIECES))), PIECES, SPECIAL)
CAUSAL, BOTH_WAYS = EdgeAxes(TOKENS, TOKENS, True), EdgeAxes(TOKENS, TOKENS, False)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("it→cat", [("it", "cat")]),
        (" it -> cat ", [("it", "cat")]),
        ("it→cat,it->the mat", [("it", "cat"), ("it", "the mat")]),
        (",→,,it→,", [(",", ","), ("it", ",")]),
        ("it:2→-1", [("it:2", "-1")]),
    ],
)
def test_what_is_typed(typed, words):
    assert read_edges(typed) == words


@pytest.mark.parametrize("typed", ["", "it", "→", "it→", "→cat", "a→b→c", "a→b,→c"])
def test_what_is_no_edge(typed):
    with pytest.raises(UsageError, match="cannot read --edge"):
        read_edges(typed)


@pytest.mark.parametrize(
    ("axes", "typed", "pairs"),
    [
        (CAUSAL, "ran→Ann", {(7, 3), (7, 4)}),
        (CAUSAL, "Ann→Ann", {(3, 3), (4, 3), (4, 4)}),  # the mask hides (3, 4)
        (BOTH_WAYS, "Ann→Ann", {(3, 3), (3, 4), (4, 3), (4, 4)}),
        (CAUSAL, "it:2→it,8→-3", {(6, 1), (8, 7)}),
        (BOTH_WAYS, "saw→ran", {(2, 7)}),
    ],
)
def test_a_word_means_all_of_its_tokens(axes, typed, pairs):
    found = axes.edges(typed)
    assert {pair for edge in found for pair in edge.pairs} == pairs


@pytest.mark.parametrize(
    ("axes", "typed", "said"),
    [
        (CAUSAL, "saw→ran", r"'saw' \(token 2\) comes before 'ran' \(token 7\)"),
        (CAUSAL, "dog→saw", "no query 'dog' in the text"),
        (CAUSAL, "saw→dog", "no key 'dog' in the text: give a word of it, WORD:2"),
        (CAUSAL, "0→0", "'<s>' .token 0. sees no other key: nothing would be left"),
        (CAUSAL, "1→0,1→1", "'it' .token 1. sees no other key"),
    ],
)
def test_an_edge_that_cannot_be_hidden(axes, typed, said):
    with pytest.raises(UsageError, match=said):
        axes.edges(typed)


@pytest.mark.parametrize("axes", [CAUSAL, BOTH_WAYS])
@pytest.mark.parametrize("typed", ["ran→saw", "Ann→saw,ran→it:2", "it→it"])
def test_random_edges_have_the_same_distances_elsewhere(axes, typed):
    edges = axes.edges(typed)
    named = {pair for edge in edges for pair in edge.pairs}
    distances = sorted(query - key for edge in edges for query, key in edge.pairs)
    draws = axes.random(edges, seed=3)
    assert 1 < len(draws) <= DRAWS
    assert draws == axes.random(edges, seed=3)
    assert len(edges) > 1 or len(set(draws)) == len(draws)
    assert CAUSAL.random(CAUSAL.edges("on→1"), 0) == ()  # no other place has its distance
    for pairs in draws:
        assert sorted(query - key for query, key in pairs) == distances
        assert named.isdisjoint(pairs)
        assert not any(SPECIAL[at] for pair in pairs for at in pair)
        assert not axes.causal or all(query >= key for query, key in pairs)


@pytest.fixture
def hidden(redrawn):
    """The JSON object of ``attnviz ablate SENTENCE --edge EDGE ARGUMENTS --json``."""
    return lambda edge, *more: (
        redrawn("ablate", SENTENCE, "--edge", edge, *more, "--json", "-q").document
    )


def test_every_head_at_once_and_each_alone_beside_random_edges(hidden):
    found = hidden("it→cat,it->mat")
    assert found["mode"] == "edge"
    assert found["edges"] == [
        {"query": "it", "key": "cat", "pairs": [[9, 2]]},
        {"query": "it", "key": "mat", "pairs": [[9, 6], [9, 7]]},
    ]
    assert len(found["heads"]) == 24
    (joint,) = found["together"]
    assert (joint["name"], len(joint["removed"])) == ("every head", 24)
    assert joint["kl"] > max(entry["kl"] for entry in found["heads"]) / 2 > 0
    compared = [entry for entry in found["heads"] if "random_edges" in entry]
    assert 8 <= len(compared) <= 12
    assert joint["random_edges"]["kl"] > 0
    assert "chance" not in found
    weights = attnviz.capture("tiny", SENTENCE)
    for entry in found["heads"]:
        own = weights[entry["name"]][9, [2, 6, 7]].sum()
        assert entry["edge_weight"] == pytest.approx(own, abs=1e-6)


def test_the_control_is_the_mean_of_its_draws(hidden):
    """Of one distance all other places are drawn: each can be named in its turn."""
    found = hidden("it→cat", "--head", "L1H1")
    (entry,) = found["heads"]
    assert found["together"] == []
    others = [hidden(f"{at}→{at - 7}", "--head", "L1H1")["heads"][0] for at in (8, 10, 11, 12)]
    mean = np.mean([other["loss_delta"] for other in others])
    assert entry["random_edges"]["loss_delta"] == pytest.approx(mean, abs=1e-6)


def test_other_kinds_of_attention(redrawn, checkpoint):
    model = ("--model", str(checkpoint("bert")))
    seen = redrawn("ablate", "the cat sat", "--edge", "cat→sat", *model, "--json").document
    assert seen["edges"][0]["query"] == "cat"  # which a causal model would refuse
    assert seen["together"][0]["output_mse"] > 0
    model = ("--model", str(checkpoint("t5")), "--target", "the mat")
    for kind, edge, pairs in (
        ("encoder", "the→sat", [[1, 3]]),
        ("decoder", "mat→the", [[3, 2]]),
        ("cross", "mat→cat", [[3, 2]]),
    ):
        asked = ("the cat sat", "--edge", edge, "--kind", kind)
        found = redrawn("ablate", *asked, *model, "--json").document
        assert found["edges"][0]["pairs"] == pairs, kind
        assert found["together"][0]["output_mse"] > 0


def test_an_interrupted_run_goes_on(hidden, tmp_path):
    file = tmp_path / "edge.jsonl"
    whole = hidden("it→cat", "--resume", str(file))
    lines = file.read_text().splitlines()
    parts = [json.loads(line).get("part") for line in lines[1:]]
    assert parts.count("control") == 4
    file.write_text("\n".join(lines[:-2]) + "\n")
    again = hidden("it→cat", "--resume", str(file))
    assert again["heads"] == whole["heads"]
    assert again["together"] == whole["together"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ((0.001, 0.002, -0.02, 0.03), ", no more than random edges of the same distance. "),
        ((0.001, 0.002, -0.003, 0.03), ", more than 3 of 4 random edges of the same distance. "),
        ((0.001, -0.002), ", more than all 2 random edges of the same distance. "),
        ((0.001,), ", more than the only random edge of the same distance. "),
        ((), " (4.345 → 4.351). "),
    ],
)
def test_the_finding_compares_with_random_edges(reported, changes, words):
    """By the size of the change: 0.0066 of it here."""
    report = reported("ablate", SENTENCE, "--edge", "it→cat")
    assert words in replace(report, random_edges=changes).finding


def test_without_another_edge_the_finding_says_so(reported):
    report = reported("ablate", SENTENCE, "--edge", "it→cat")
    alone = replace(report, random_edges=(), edge_draws=0)
    assert "; the text has no other edge of this distance to compare with. " in alone.finding


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--edge", "it→cat"), 2, "--edge names words of one text"),
        ((SENTENCE, "--edge", "it→cat", "--mode", "mean"), 2, "leave out --mode"),
        ((SENTENCE, "--edge", "it→cat", "--budget", "3"), 2, "--edge is measured exactly"),
        (("--edge", "it→cat", "--texts", "x", "--shard", "0/2"), 2, "--edge is not for a corpus"),
        (("a b", "--edge", "b→a", "--model", "mha"), 5, "is attention alone"),
    ],
)
def test_refused(refused, arguments, code, said):
    assert said in refused(code, "ablate", *arguments)


def test_an_edge_that_is_named_twice_is_hidden_once(run):
    once, twice = (
        run("ablate", SENTENCE, "--edge", edges, "--json").document
        for edges in ("it→cat", "it→cat,it->cat")
    )
    assert without_times(once) == without_times(twice)
