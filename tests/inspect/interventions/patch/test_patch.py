"""``attnviz patch`` as a pipe and as a program see it: on the bundled model and on small ones."""

import json
import math
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image

import attnviz
from attnviz.engine.patching import ATTENDED, SITES, WHOLE_LAYER, Hook, What
from attnviz.errors import UsageError
from attnviz.inspect.interventions.patch.patch import Runs, effects, no_shares, shares
from attnviz.inspect.interventions.patch.request import PatchRequest
from attnviz.models.bundled import Bundled
from attnviz.options import options_of
from attnviz.prompts.request import picture_pair
from attnviz.prompts.study import control_pairs, encode_pair

from ....command_line import json_of
from ....models.test_picture_texts import opened, prompt, written
from ..make_pairs import made

CLEAN = "The old doctor knew Robert Harris well. Every Sunday Mary and Robert"
CORRUPT = CLEAN.replace("Harris", "Carr")
ASKED = (CLEAN, CORRUPT, "--answer", "Harris", "--foil", "Carr")
INDUCTION = {"L1H0", "L1H2", "L1H3"}

patch = json_of("patch", "-q", runner="redrawn")
PLACES = [((0, 0),), ((0, 1),), ((1, 0),)]


def strongest(document, count):
    order = sorted(document["heads"], key=lambda entry: -entry["effect"])
    return [entry["name"] for entry in order[:count]]


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


def runs(pairs, seed=0, factor=0.4):
    """Three patches: one carries ``factor`` of each pair's difference, one a tenth, one nothing."""
    rng = np.random.default_rng(seed)
    base, difference = rng.normal(-4, 1, pairs), rng.uniform(4, 12, pairs)
    noise = rng.normal(0, 0.3, (pairs, 3))
    patched = base[:, None] + difference[:, None] * [factor, 0.1, 0.0] + noise
    control = base[:, None] + difference[:, None] * [factor / 4, 0.1, 0.0] - noise
    return Runs(base, base + difference, patched, control)


def test_one_pair_has_the_effect_of_wang_et_al():
    """(−1 − (−3)) / (5 − (−3)) = .25, (−3 + 3) / 8 = 0, (6 + 3) / 8 = 1.125."""
    one = Runs(*map(np.array, ([-3.0], [5.0], [[-1.0, -3.0, 6.0]], [[-3.0, -2.0, np.nan]])))
    found = effects(one, PLACES, True, True, 0)
    assert [each.share.value for each in found] == pytest.approx([0.25, 0, 1.125])
    assert [each.metric for each in found] == [-1, -3, 6]
    assert [each.share.base_rate for each in found[:2]] == pytest.approx([0, 0.125])
    assert found[2].share.base_rate is None
    assert all(each.share.interval is None and math.isnan(each.q) for each in found)
    assert not any(each.carries for each in found)


def test_over_pairs_it_is_the_ratio_of_the_means():
    """(2 + 1) / (4 + 16), not the mean of 1/2 and 1/16: a pair counts by its difference."""
    two = Runs(*map(np.array, ([0.0, 0.0], [4.0, 16.0], [[2.0], [1.0]], [[0.0], [0.0]])))
    assert effects(two, PLACES[:1], True, False, 0)[0].share.value == pytest.approx(3 / 20)
    values = shares(two, two.patched)
    assert values.mean(axis=0) == pytest.approx([0.15])


def test_the_interval_is_that_of_a_bootstrap_of_the_ratio_itself():
    """Percentiles of the ratios of 4,000 draws of 200 pairs, where both must agree."""
    many = runs(200)
    (found, *_) = effects(many, PLACES, True, False, 0)
    rng = np.random.default_rng(1)
    change, apart = many.patched[:, 0] - many.base, many.source - many.base
    drawn = [change[some].sum() / apart[some].sum() for some in rng.integers(0, 200, (4000, 200))]
    assert found.share.interval == pytest.approx(np.percentile(drawn, (2.5, 97.5)), abs=5e-4)


def test_what_carries_is_above_its_base_rate():
    """The second patch has an effect, and so has any other source in its place."""
    first, second, third = effects(runs(40), PLACES, True, True, 0)
    assert first.carries
    assert not first.share.unclear
    assert first.q < 0.01
    assert not second.share.unclear
    assert not second.carries
    assert second.q > 0.05
    assert third.share.unclear


def test_chance_is_rarely_said_to_carry():
    """300 runs of 20 pairs in which no patch is above its base rate: 5 % may name one."""
    named = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        base, source = rng.normal(-4, 1, 20), rng.normal(4, 1, 20)
        both = [base[:, None] + rng.normal(2, 1, (20, 8)) for _ in range(2)]
        found = effects(
            Runs(base, source, *both), [((0, head),) for head in range(8)], True, False, 0
        )
        named += any(each.carries for each in found)
    assert named / 300 <= 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5


def test_runs_that_hardly_differ():
    rng = np.random.default_rng(0)
    base = rng.normal(0, 1, 30)
    none = np.zeros((30, 1))

    def why(measured):
        return no_shares(measured, 0.1, "logit_diff", 0)

    assert "95% CI [-" in why(Runs(base, base + rng.normal(0, 1, 30), none, none))
    assert why(runs(30)) == ""
    assert why(Runs(base, base + 0.09, none, none)).endswith("+0.09 logits apart, less than 0.1")
    assert why(Runs(base[:1], base[:1] - 0.2, none[:1], none[:1])) == ""
    assert why(Runs(base * np.nan, base, none, none)).endswith("is no number")
    changed = effects(Runs(base, base, none, none), PLACES[:1], False, False, 0)[0]
    assert math.isnan(changed.share.value)
    assert changed.change == pytest.approx(-base.mean())


def pixels(*sizes):
    return [picture.pixels for picture in prompt(*sizes).pictures]


def test_a_head_is_carried_from_one_picture_to_the_other():
    """Its output at all tokens of the clean run is put into the corrupt one by a hook."""
    name, asked = "llava", "what is in the picture ?"
    model, processor, _ = opened(name, layers=2, tower_layers=1)
    images = pixels((24, 40), (24, 40))
    report = attnviz.patch(
        model, asked, image=images, processor=processor, answer="dog", foil="cat", layer=1
    )
    answer, foil = processor.tokenizer.convert_tokens_to_ids(["dog", "cat"])
    project = model.model.language_model.layers[1].self_attn.o_proj
    kept = []

    def run(picture, head=None):
        def note(module, args):
            if head is None:
                kept.append(args[0].clone())
                return None
            changed = args[0].clone()
            changed[..., 4 * head : 4 * head + 4] = kept[0][..., 4 * head : 4 * head + 4]
            return (changed,)

        hook = project.register_forward_pre_hook(note)
        made = processor(
            text=written(name, processor, prompt((24, 40))),
            images=[[Image.fromarray(picture)]],
            return_tensors="pt",
        )
        with torch.no_grad():
            logits = model(**made).logits[0, -1].double()
        hook.remove()
        return float(logits[answer] - logits[foil])

    clean, corrupt = run(images[0]), run(images[1])
    effects = {one.places[0]: one.change for one in report.effects}
    for head in range(4):
        moved = run(images[1], head) - corrupt
        assert effects[1, head] == pytest.approx(moved, abs=1e-5)
    assert clean != corrupt


def test_the_control_is_a_picture_with_the_same_pixels_in_another_order():
    _, _, known = opened("llava", layers=1)
    images = pixels((24, 40), (24, 40))
    (pair,) = picture_pair("what is", None, images).prompts
    tokens = encode_pair(known, pair, None, None)
    assert tokens.changed[0] == tuple(tokens.clean.layout.of_kind("patch").tolist())
    controls, _ = control_pairs(known, [tokens], "denoise", 2, 0)
    assert len({one.clean.ids for _, one in controls}) == 2
    for (_, shown), _ in list(known.read.items())[2:]:
        (mixed,) = shown
        assert not np.array_equal(mixed.pixels, images[0])
        assert np.array_equal(
            np.sort(mixed.pixels.reshape(-1, 3), 0), np.sort(images[0].reshape(-1, 3), 0)
        )


def test_what_is_no_pair_of_pictures():
    with pytest.raises(UsageError, match="give --image twice, got 1"):
        picture_pair("what is", None, pixels((24, 40)))
    with pytest.raises(UsageError, match="expected a prompt, CLEAN"):
        picture_pair(None, None, pixels((24, 40), (24, 40)))
    _, _, known = opened("qwen2_vl", layers=1)
    (pair,) = picture_pair("what is", None, pixels((24, 40), (40, 24))).prompts
    with pytest.raises(UsageError, match="the images have 3 x 5 and 5 x 3 patches"):
        encode_pair(known, pair, None, None)


def test_the_table_has_a_row_for_each_sort():
    assert tuple(SITES) == get_args(What)
    assert {sort.hook for sort in SITES.values()} == set(get_args(Hook))
    assert {what for what, sort in SITES.items() if sort.hook == "input"} == set(ATTENDED)
    assert {"mlp", "residual"} == WHOLE_LAYER
    assert {what for what, sort in SITES.items() if sort.shared} == {"key", "value"}


def test_the_help_lists_every_sort():
    words = options_of(PatchRequest)["what"].field.metadata["help"]
    heads, layers = words.split(";")
    assert "output, query, key, value or pattern (attention weights)" in heads
    assert "mlp or residual stream." in layers
