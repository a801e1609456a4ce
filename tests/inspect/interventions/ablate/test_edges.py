"""``ablate --edge``: which edges are meant, which are drawn at random, and what a person sees."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import attnviz
from attnviz.errors import UsageError
from attnviz.inspect.interventions.ablate.ablate import ablate
from attnviz.inspect.interventions.ablate.plan import EDGE_DRAWS, EdgeAxes
from attnviz.inspect.interventions.ablate.request import AblateRequest, read_edges
from attnviz.records import Tokens
from attnviz.texts import Texts

from ....conftest import without_times
from ....models.test_picture_texts import opened, prompt, written

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
        ("it→4,7,it→3,12", [("it", "4,7"), ("it", "3,12")]),
        ("it→4,7→2", [("it", "4"), ("7", "2")]),
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
    assert 1 < len(draws) <= EDGE_DRAWS
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
        {"query": "it", "key": "cat", "pairs": [[9, 2]], "moved": "both"},
        {"query": "it", "key": "mat", "pairs": [[9, 6], [9, 7]], "moved": "both"},
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


@pytest.mark.parametrize("name", ["llava", "smolvlm", "gemma3"])
@pytest.mark.parametrize("edge", ["is→picture", "?→picture", "is→1,0"])
def test_an_edge_to_a_picture_is_hidden_as_by_a_mask(name, edge):
    """A loop of plain passes of the model, with a hook that hides the edge in the mask of heads."""
    model, processor, known = opened(name, layers=2, tower_layers=1)
    text = prompt((24, 40))
    tokens, (word, end) = known.encode(text), edge.split("→")
    kinds, query = np.array(tokens.layout.kinds), tokens.texts.index(word)
    images = np.flatnonzero(kinds != "text").tolist()
    keys = images if end == "picture" else [tokens.texts.index(end)]
    words = [at for at in np.flatnonzero(kinds == "text") if at and not tokens.special[at]]
    images_of = [[Image.fromarray(text.pictures[0].pixels)]]
    made = processor(text=written(name, processor, text), images=images_of, return_tensors="pt")
    model.set_attn_implementation("eager")

    def logits(places):
        def hide(module, args, named):
            mask = named["attention_mask"].expand(1, 4, len(tokens), len(tokens)).clone()
            for head in (head for layer, head in places if layer == module.layer_idx):
                mask[0, head, query, keys] = torch.finfo(mask.dtype).min
            return args, named | {"attention_mask": mask}

        layers = [layer.self_attn for layer in model.get_decoder().layers]
        hooks = [one.register_forward_pre_hook(hide, with_kwargs=True) for one in layers]
        with torch.no_grad():
            found = model(**made).logits[0].double().log_softmax(-1)
        for hook in hooks:
            hook.remove()
        return found

    def loss(found):
        return -float(np.mean([found[at - 1, made["input_ids"][0, at]] for at in words]))

    plain = logits(())
    report = ablate(known, Texts((text,), ""), AblateRequest(edge=edge))
    assert report.baseline["loss"] == pytest.approx(loss(plain), abs=1e-5)
    assert report.metric == ("kl" if query == len(tokens) - 1 else "loss_delta")
    for effect in (*report.joint, *report.singles):
        changed = logits(effect.variant.heads)
        apart = (plain.exp() * (plain - changed)).sum(-1)
        mean = float(apart[[at - 1 for at in words] + [-1]].mean())
        assert effect.value("loss_delta") == pytest.approx(loss(changed) - loss(plain), abs=1e-5)
        assert effect.value("kl") == pytest.approx(mean, abs=1e-6)
    whole = end == "picture"
    assert report.edges[0].moved == ("query" if whole else "key")
    for pairs in EdgeAxes(tokens, tokens, True).random(report.edges, 0):
        moved = {pair[0 if whole else 1] for pair in pairs}
        assert len(pairs) == len(keys)
        assert moved <= set(words if whole else images) - {query, *keys}
    assert ("other words" if whole else "other patches") in report.finding


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
    assert len(report.random_edges) == 4
    assert words in replace(report, random_edges=changes).finding


def test_without_another_edge_the_finding_says_so(reported):
    report = reported("ablate", SENTENCE, "--edge", "it→cat")
    alone = replace(report, random_edges=(), edge_draws=0)
    assert "; the text has no other edge of this distance to compare with. " in alone.finding


def test_an_edge_that_is_named_twice_is_hidden_once(run):
    once, twice = (
        run("ablate", SENTENCE, "--edge", edges, "--json").document
        for edges in ("it→cat", "it→cat,it->cat")
    )
    assert without_times(once) == without_times(twice)


def test_an_edge_to_a_special_token_has_a_control_too(reported):
    assert len(reported("ablate", SENTENCE, "--edge", "it→0").random_edges) >= 2
