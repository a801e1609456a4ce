"""``attnviz diff`` from the command line: what it prints, writes and refuses."""

import copy
import csv
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import attnviz
from attnviz.draw.values import model_facts
from attnviz.errors import UsageError
from attnviz.inspect.diff.report import UNMEASURED
from attnviz.models.bundled import Bundled
from attnviz.models.vision import handed_pictures
from tests.models.picture_models import tiny
from tests.models.vision_models import build, noise, processor

from ...first_screens import SIZES
from .planted import permute_queries

TINY = Path(attnviz.__file__).parent / "data" / "tiny"
PICTURES = [noise(seed=seed) for seed in range(6)]


@pytest.fixture(scope="session")
def tuned(tmp_path_factory):
    """The bundled model as a checkpoint, its tensors changed."""

    def make(change=lambda tensors: None):
        folder = tmp_path_factory.mktemp("tuned") / "model"
        shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("*.md", "*.csv", "labels.json"))
        tensors = {
            name: array.copy() for name, array in load_file(TINY / "model.safetensors").items()
        }
        change(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return str(folder)

    return make


@pytest.fixture(scope="session")
def permuted(tuned):
    return str(tuned(lambda tensors: permute_queries(tensors, (1, 2), 0)))


def test_two_sides_that_are_the_same_are_not_measured(run, checkpoint, tmp_path, monkeypatch):
    first, second = str(checkpoint("llama")), str(tmp_path / "copy")
    shutil.copytree(first, second)
    text = ("--text", "the cat sat on the mat")
    measured = run("diff", first, *text, "--text-b", "the cat sat on the cat", "--json").document
    with monkeypatch.context() as patched:
        patched.setattr("attnviz.inspect.diff.diff.model_maps", lambda *_: pytest.fail("measured"))
        for sides in (("tiny",), ("tiny", "tiny"), (first, "--match")):
            found = run("diff", *sides, *text, "--json", "-q").document
            assert found.keys() == measured.keys()
            assert (found["heads"], found["changed"], found["noise_floor"]) == ([], 0, None)
            assert (found["notes"][-1], found["text_count"]) == (UNMEASURED, 1)
            assert found["model_b"]["layers"] == found["model_a"]["layers"]
            assert f"{UNMEASURED}." in run("diff", *sides, *text).out
        assert run("diff", first, *text, "--save", "a.csv", "--full", "--explain").code == 0
    shown = run("diff", first, second, *text, "--no-full")
    assert "Nothing changed: all " in shown.out  # a copy is measured


def test_a_changed_head(run, redrawn, permuted, tmp_path):
    names = [f"out{ending}" for ending in (".json", ".csv", ".md", ".html", ".svg", ".txt")]
    saves = [word for name in names for word in ("--save", name)]
    shown = redrawn("diff", "tiny", permuted, *saves, "--explain")
    assert shown.code == 0, shown.err
    assert "most of all L1H2" in shown.out
    assert "L1H2 in A" in shown.out
    assert "How to read this" in shown.out
    assert all((tmp_path / name).stat().st_size > 1000 for name in names)
    found = json.loads((tmp_path / "out.json").read_text())
    heads = {(head["layer"], head["head"]): head for head in found["heads"]}
    best = heads[1, 2]
    assert max(heads.values(), key=lambda head: head["js_divergence"]) is best
    for head in heads.values():
        assert head["changed"] == (head["ci_low"] > found["noise_floor"])
        assert head["ci_low"] <= head["js_divergence"] <= head["ci_high"]
        assert head["changed"] == (head["layer"] > 1 or head is best)
    assert (best["label_a"], best["label_b"]) == ("induction", None)
    (move,) = best["moves"]
    assert move["significant"]
    assert move["change"] == pytest.approx(
        best["scores_b"]["induction"] - best["scores_a"]["induction"]
    )
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [float(row["js_divergence"]) for row in rows] == [
        head["js_divergence"] for head in found["heads"]
    ]
    scores = {
        (head["layer"], head["head"]): head["scores"]
        for head in run("patterns", "--json").document["heads"]
    }
    assert all(head["scores_a"] == scores[place] for place, head in heads.items())


def test_what_is_no_number_is_refused(run, tuned):
    def damage(tensors):
        tensors["model.layers.4.self_attn.q_proj.weight"][35, 3] = np.nan

    result = run("diff", "tiny", tuned(damage), "-q")
    assert (result.code, result.out) == (3, "")
    assert "the attention of L4H1 over text 1 of" in result.err
    assert "weights that are not finite: model.layers.4.self_attn.q_proj.weight" in result.err


def test_a_floor_by_hand_is_of_the_divergence_alone(redrawn, reported, permuted):
    asked = ("diff", "tiny", permuted, "--noise-floor", "0.1", "--index-base", "1")
    shown = redrawn(*asked, "--no-full", "-q").out
    assert "most of all L2H3" in shown
    assert (
        "JS divergence, nats · shaded above .0693   Output, cosine distance · not tested" in shown
    )
    full = redrawn(*asked, "--full", "-q").out
    assert "noise floor .0693 nats (given as .100 bits); outputs are not tested" in full
    assert len(re.findall(r"\bbits\b", full)) == 1
    found = reported(*asked).to_dict()
    most = max(head["js_divergence"] for head in found["heads"])
    apart = f"attention {most * math.log(2):.3f} nats apart".replace(" 0.", " .")
    assert apart in " ".join(shown.split())
    assert (found["changed"], found["output_changed"]) == (1, 0)


def test_saved_results(run, permuted):
    run("patterns", "-q", "--save", "base.json")
    found = run("diff", "base.json", permuted, "--json", "-q").document
    assert [head["changed"] for head in found["heads"]] == [
        (head["layer"], head["head"]) == (1, 2) for head in found["heads"]
    ]
    assert (found["noise_floor"], found["kl"], found["saved"]) == (None, None, True)
    shown = run("diff", "base.json", "base.json").lines
    assert "None of the 24 heads changed" in " ".join(shown)
    assert run("diff", "base.json", "tiny", "--no-full").lines[0].startswith("tiny → tiny")


def saved():
    """Return what ``patterns`` saves of one head."""
    entry = {"layer": 0, "head": 0, "label": None, "scores": {}, "intervals": {}}
    model = model_facts(Bundled().info)
    base = {"schema": "attnviz.patterns/1", "model": model, "kind": "self", "text": None}
    return {**base, "source": None, "heads": [entry]}


REFUSED = {
    ("tiny", "twice.json"): (3, "'twice.json' is damaged (a head that is there twice)"),
    ("tiny", "nan.json"): (3, "'nan.json' is damaged (expected a number, got nan)"),
    ("base.json", "--dtype-b", "float64"): (2, "leave out --dtype-b"),
    ("base.json", "tiny", "--match"): (2, "--match pairs heads by their maps"),
    ("base.json", "text.json"): (2, "measured over different texts"),
    ("cost.json", "tiny"): (3, "holds the schema 'attnviz.ablate/1'"),
}


@pytest.mark.parametrize("asked", REFUSED, ids=" ".join)
def test_bad_input_is_one_line(refused, tmp_path, asked):
    base = saved()
    (entry,) = base["heads"]
    contents = {
        "base": json.dumps(base),
        "cost": json.dumps({**base, "schema": "attnviz.ablate/1"}),
        "text": json.dumps({**base, "text": "A cat."}),
        "twice": json.dumps({**base, "heads": [entry, entry]}),
        "nan": json.dumps({**base, "heads": [{**entry, "scores": {"first": math.nan}}]}),
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_text(content)
    code, words = REFUSED[asked]
    assert words in refused(code, "diff", *asked, "-q")


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("model", "name"), None),
        (("model", "layers"), "6"),
        (("heads", 0, "layer"), math.inf),
        (("heads", 0, "layer"), 6),
        (("heads", 0, "head"), 4),
        (("heads", 0, "scores"), {"first": 1.5}),
        (("heads", 0, "scores"), {"subject": -7}),
        (("heads", 0, "label"), ["first"]),
        (("heads", 0, "scores"), None),
        (("text",), 3),
    ],
    ids=str,
)
def test_a_saved_result_of_other_types(refused, where, value):
    """Whatever stands in the place of a value is refused by name, not met later by accident."""
    held = data = saved()
    for key in where[:-1]:
        held = held[key]
    held[where[-1]] = value
    Path("other.json").write_text(json.dumps(data), encoding="utf-8")
    assert refused(3, "diff", "other.json", "tiny", "-q").startswith("'other.json' is damaged (")


def test_a_text_too_short_for_a_test_has_its_map_before_and_after(run, permuted):
    found = run("diff", "tiny", permuted, "--text", "A cat saw the cat on a mat.").out
    assert "too few to test a head" in " ".join(found.split())
    assert all(words in found for words in ("L1H2 in A", "L1H2 in B", "L1H2, B - A"))


@pytest.mark.parametrize(("columns", "lines"), SIZES)
def test_first_screens_fit(fitted, permuted, checkpoint, columns, lines):
    words = "A cat saw the cat on a mat and the dog sat ."
    other = ("--text", words, "--text-b", words[::-1].replace(".", "a"))
    for asked, name, verdict in (
        (("tiny", permuted), "tiny → ", "changed by more than rounding, most of all L1H2"),
        ((str(checkpoint("bert")), *other), "…/bert: another text", "1 text, too few to test a"),
    ):
        shown = fitted(columns, lines, "diff", *asked, "-q").lines
        assert verdict in " ".join(shown[1:3])
        assert shown[0].startswith(name)
        tests = re.search(r"ranked by +JS, nats.*FDR 5%, \d+ tests", "\n".join(shown))
        assert bool(tests) == (asked[0] == "tiny")


@pytest.fixture(scope="module")
def sides():
    """A model, and the same one with another query in one head."""
    model = build("Dinov2WithRegistersModel")
    changed = copy.deepcopy(model)
    query = changed.encoder.layer[1].attention.q_proj.weight
    with torch.no_grad():
        query[24:36] = query[24:36].roll(5, 0)  # of L1H2
    return model, changed


def test_a_planted_change_is_found_on_pictures(sides, tmp_path):
    report = attnviz.diff(*sides, image=PICTURES, processor=processor())
    assert [change.head for change in report.changes if change.changed] == [(1, 2)]
    assert report.changed[0].js > 10 * report.noise.floor.js > 0
    assert (report.texts, report.tokens) == (6, 6 * 21)
    assert "L1H2" in report.finding
    found = report.to_dict()
    assert found["of_pictures"] is True
    assert {"local", "sink: registers"} <= found["heads"][0]["scores_a"].keys()
    report.save(tmp_path / "out.html")
    assert "L1H2 in B" in (tmp_path / "out.html").read_text()  # its map on a picture


def test_other_numbers_are_no_change_on_pictures(sides):
    again = copy.deepcopy(sides[0]).to(torch.bfloat16)
    report = attnviz.diff(sides[0], again, image=PICTURES, processor=processor())
    assert report.changed == ()


def test_two_vision_language_models_are_compared_over_a_prompt():
    model, reads = tiny("llava", layers=2, tower_layers=1)
    changed = copy.deepcopy(model)
    query = changed.get_decoder().layers[1].self_attn.q_proj.weight
    with torch.no_grad():
        query[:] = query.flip(0)
    report = attnviz.diff(
        model, changed, "what is in the picture ?", image=PICTURES[0], processor=reads
    )
    assert (report.texts, report.of_pictures) == (1, False)
    assert {change.head[0] for change in report.changes if change.js > 0} == {1}
    assert report.noise.floor.js > 0
    assert report.predictions.kl > 0


def test_pictures_whose_patches_do_not_match_are_refused(sides):
    small = handed_pictures(sides[0], processor())
    large = handed_pictures(build("Dinov2Model", image_size=40), processor(40, 40))
    with pytest.raises(UsageError, match="4 x 4 patches to A, 5 x 5"):
        attnviz.diff(small, large, image=PICTURES[0])
