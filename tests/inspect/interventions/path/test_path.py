"""``attnviz path``: what listens to a head, on the bundled model and on grouped heads."""

import re

import pytest

from attnviz.engine.attribution.circuits import path_effects
from attnviz.models.bundled import Bundled
from attnviz.records import Input

CLEAN = "The old doctor knew Robert Harris well. Every Sunday Mary and Robert"
CORRUPT = CLEAN.replace("Harris", "Carr")


def test_the_previous_token_head_is_in_the_keys_of_the_induction_heads(run):
    found = run("path", "L0H0", "--json", "-q").document
    assert found["schema"] == "attnviz.path/1"
    assert found["pair_count"] == 10
    keys = {(one["layer"], one["head"]): one for one in found["heads"] if one["into"] == "key"}
    assert all(0.6 < keys[1, head]["share"] < 0.95 for head in (0, 2, 3))
    assert all(abs(one["other_heads"]) < 0.05 for one in keys.values())
    assert all(one["ci_low"] < one["share"] < one["ci_high"] for one in keys.values())
    assert all(0.9 < one["explained"] < 1.1 for one in found["heads"])
    assert all(one["share"] < 0.1 for place, one in keys.items() if place[0] > 1)
    said = "of the difference in L1H0's keys between the prompts"
    assert said in " ".join(run("path", "L0H0", "-q").out.split())


def test_one_pair_is_what_the_engine_says(run):
    found = run("path", "L1H2", CLEAN, CORRUPT, "--into", "value", "--json", "-q").document
    model = Bundled()
    both = Input(model.encode(CLEAN)), Input(model.encode(CORRUPT))
    (effects,) = path_effects(model, *both, [("self", 1, 2)])
    assert len(found["heads"]) == 16
    for one in found["heads"]:
        key = "self", one["layer"], one["head"]
        assert one["share"] == pytest.approx(effects.share("value", key), rel=1e-4, abs=1e-7)
        assert one["ci_low"] is None


def test_shared_keys_are_named_so(run, checkpoint):
    model = "--model", str(checkpoint("llama"))
    shown = run("path", "L0H1", "the cat sat", "the mat sat", *model, "--full").out
    assert re.search("KV0 +KV1", shown)
    assert "L1H5 query" in shown
    assert "1 pair, not tested." in " ".join(shown.split())
