"""``attnviz heads --cut``: one edge knocked out, told to people and to programs."""

from __future__ import annotations

import csv
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from rich.cells import cell_len

import attnviz
from attnviz.models.bundled import Bundled

TEXT = "The animal didn't cross the street because it was too tired."
CUT = ("heads", TEXT, "--cut", "it→animal")


def predicted(cut: bool, heads: Any = None) -> np.ndarray:
    """Log-probabilities (token, word) of the bundled model, edges hidden by its own mask."""
    from attnviz.attention.torch_decoder import TorchDecoder

    model = Bundled()
    decoder = TorchDecoder.from_llama(model.checkpoint.config, model.checkpoint.tensors).eval()
    ids = model.encode(TEXT).ids
    visible = torch.ones(1, model.info.heads, len(ids), len(ids), dtype=torch.bool)
    query, key = (model.encode(TEXT).texts.index(word) for word in (" it", " animal"))
    visible[0, :, query, key] = not cut
    with torch.inference_mode():
        logits: torch.Tensor = decoder(torch.tensor([ids]), visible)
    return logits[0].double().log_softmax(-1).numpy()


def test_the_numbers_are_those_of_a_masked_run(run: Any) -> None:
    found = run(*CUT, "--json").document
    ids = Bundled().encode(TEXT).ids
    before, after = predicted(False), predicted(True)
    rows = np.arange(len(ids) - 1)
    losses = [-each[rows, ids[1:]] for each in (before, after)]
    assert found["schema"] == "attnviz.cut/1"
    assert found["loss"]["before"] == pytest.approx(losses[0].mean(), abs=1e-5)
    assert found["loss"]["after"] == pytest.approx(losses[1].mean(), abs=1e-5)
    assert found["loss"]["tokens"] == len(ids) - 1
    assert found["loss"]["deltas"][0] is None
    assert found["loss"]["deltas"][1:] == pytest.approx(losses[1] - losses[0], abs=1e-4)
    assert [each["index"] for each in found["predictions"]] == [
        found["query"]["indices"][0],
        len(ids) - 1,
    ]
    for each in found["predictions"]:
        old, new = before[each["index"]], after[each["index"]]
        assert each["kl"] == pytest.approx(np.sum(np.exp(old) * (old - new)), abs=1e-6)
        for listed, logs in ((each["before"], old), (each["after"], new)):
            assert [one["id"] for one in listed] == np.argsort(-logs)[:5].tolist()
            likely = [one["probability"] for one in listed]
            assert likely == pytest.approx(np.sort(np.exp(logs))[::-1][:5], abs=1e-5)


def test_the_weight_is_that_of_the_map(run: Any) -> None:
    found = run(*CUT, "--head", "L5H2", "--json").document
    (head,) = run("heads", TEXT, "--head", "L5H2", "--json").document["heads"]
    ((query, key),) = found["edges"]
    assert found["weight"] == pytest.approx(head["weights"][query][key])
    (alone,) = found["alone"]
    assert alone["heads"] == found["heads"] == [[5, 2]]
    assert alone["weight"] == found["weight"]
    assert alone["kl"] == pytest.approx(found["predictions"][0]["kl"], rel=1e-6)
    delta = found["loss"]["after"] - found["loss"]["before"]
    assert alone["loss_delta"] == pytest.approx(delta, abs=1e-9)


def test_the_finding_and_the_ranking_are_in_the_numbers(redrawn: Any) -> None:
    found = redrawn(*CUT, "--json").document
    shown = redrawn(*CUT).out
    asked = found["predictions"][0]
    likely = asked["before"][0]
    assert f"stays “{likely['token'].strip()}” ({likely['probability']:.2f}"[:-4] in shown
    assert f"KL {asked['kl']:.2g}" in shown
    kls = [each["kl"] for each in found["alone"]]
    assert kls == sorted(kls, reverse=True)
    assert len(kls) == 24
    ranked = [line.split()[0] for line in shown.splitlines() if line.startswith("L")]
    assert ranked == [
        f"L{layer}H{head}" for ((layer, head),) in (e["heads"] for e in found["alone"])
    ]


def test_a_word_that_comes_twice(run: Any) -> None:
    text = "The cat saw the dog and the dog saw the cat."
    found = run("heads", text, "--cut", "cat:2→dog:2", "--head", "L0H0", "--json").document
    texts = Bundled().encode(text).texts
    places = [
        [place for place, each in enumerate(texts) if each == word] for word in (" cat", " dog")
    ]
    assert found["edges"] == [[places[0][1], places[1][1]]]


def test_the_table_for_programs(run: Any, tmp_path: Any) -> None:
    assert run(*CUT, "--layer", "1", "--save", "a.csv", "--index-base", "1").code == 0
    content = (tmp_path / "a.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(content.splitlines()))
    assert {(row["layer"], row["head"]) for row in rows} == {("0", str(head)) for head in range(4)}
    assert all(float(row["kl"]) >= 0 for row in rows)


def test_a_masked_model_predicts_the_hidden_word(
    run: Any, refused: Any, checkpoint: Any, tmp_path: Any
) -> None:
    from transformers import AutoTokenizer

    where = str(checkpoint("bert"))
    arguments = ("heads", "the cat sat on the mat", "--cut", "sat→cat", "--model")
    assert "no mask token is known" in refused(5, *arguments, where)
    shutil.copytree(where, tmp_path / "masked")
    AutoTokenizer.from_pretrained(where, mask_token="tired").save_pretrained(tmp_path / "masked")
    found = run(*arguments, "masked", "--json").document
    (asked,) = found["predictions"]
    assert (asked["index"], asked["predicts"]) == (3, "the token itself, masked")
    assert found["loss"]["tokens"] == 6
    assert {each["loss_delta"] for each in found["alone"]} == {None}
    assert "of hidden “sat” (3)" in run(*arguments, "masked").out


def test_an_encoder_decoder(run: Any, checkpoint: Any) -> None:
    options = ("--model", str(checkpoint("t5")), "--kind", "cross", "--target", "the mat sat")
    found = run("heads", "the cat sat", *options, "--cut", "mat→cat", "--json").document
    assert (found["kind"], found["query"]["text"], found["key"]["text"]) == ("cross", "mat", "cat")
    assert found["predictions"][0]["token"] == "mat"
    options = ("--model", str(checkpoint("t5")), "--kind", "encoder")
    found = run("heads", "the cat sat", *options, "--cut", "sat→cat", "--json").document
    assert [each["index"] for each in found["predictions"]] == [len(found["loss"]["deltas"]) - 1]


def test_many_heads_are_cut_layer_by_layer(
    run: Any, checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnviz.inspect.heads.cut.MOST_ALONE", 5)
    arguments = ("heads", "the cat sat on", "--model", str(checkpoint("gpt2")), "--cut", "on→cat")
    found = run(*arguments, "--json").document
    assert [len(each["heads"]) for each in found["alone"]] == [3, 3]
    assert "Cut in one layer alone" in run(*arguments).out


@pytest.mark.parametrize(
    ("code", "arguments", "line"),
    [
        (2, ["--cut", "it"], "cannot read --cut 'it': expected two words"),
        (2, ["--cut", "it→"], "cannot read --cut"),
        (2, ["--cut", "it→was→too"], "cannot read --cut"),
        (2, ["--cut", "it→nothing"], "no token 'nothing' in the text"),
        (
            2,
            ["--cut", "animal→tired"],
            "a causal query attends to no later key; write the later word first",
        ),
        (2, ["--cut", "0→0"], "can attend to no other key than"),
        (2, ["--cut", "it→animal", "--top", "3"], "leave out --top"),
        (2, ["--cut", "it→animal", "--head", "L9H0"], "no layer 9"),
        (5, ["--cut", "it→animal", "--model", "mha"], "there is no prediction that a cut could"),
        (
            2,
            ["--cut", "it→animal", "--model", "mha", "--kind", "self,cross", "--target", "a"],
            "--cut takes one run",
        ),
    ],
)
def test_bad_input(refused: Any, code: int, arguments: list[str], line: str) -> None:
    assert line in refused(code, "heads", TEXT, *arguments)


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40), (200, 60)])
def test_the_first_screen(redrawn: Any, golden: Any, columns: int, lines: int) -> None:
    size = {"COLUMNS": str(columns), "LINES": str(lines)}
    result = redrawn(*CUT, "--no-full", env=size)
    assert len(result.lines) < lines
    assert max(map(len, result.lines)) <= columns
    assert result.lines[1].startswith("Without it → animal in all 24 heads the prediction after")
    golden(f"cut_first_{columns}", result.out)


LONG = " ".join(["The old captain saw the ship and the boat came home again."] * 30)


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize("kind", ["tiny", "gpt2"])
def test_the_first_screen_of_a_long_text(
    redrawn: Any, checkpoint: Any, columns: int, lines: int, kind: str
) -> None:
    where = kind if kind == "tiny" else str(checkpoint(kind))
    text = LONG if kind == "tiny" else "the cat sat on the mat because tired cat sat"
    cut = "boat:30→captain:30" if kind == "tiny" else "sat:2→cat"
    size = {"COLUMNS": str(columns), "LINES": str(lines)}
    options = ("--cut", cut, "--model", where, "--layer", "0", "--no-full")
    result = redrawn("heads", text, *options, env=size)
    assert result.code == 0
    assert len(result.lines) < lines
    assert max(map(cell_len, result.lines)) <= columns
    assert result.lines[1].startswith(f"Without {'boat → captain' if kind == 'tiny' else 'sat'}")


def test_pages_say_the_finding(run: Any, tmp_path: Any) -> None:
    assert run(*CUT, "--layer", "0", "--save", "a.html", "--save", "a.md", "--explain").code == 0
    for name in ("a.html", "a.md"):
        content = (tmp_path / name).read_text(encoding="utf-8")
        assert "Without it → animal in 4 heads" in content
        assert "Geva et al. 2023" in content


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_the_page_has_the_maps_of_the_cut_run(backend: str) -> None:
    """The edge's own weight is gone and its row rescaled; rows before it are those of the model."""
    text = "When Mary and John went out, John gave Mary a book."
    model = attnviz.load("tiny", backend=backend)
    whole, cut = attnviz.cut(model, text, "gave→John:2").maps
    for layer in range(2):
        for head in range(4):
            old, new = whole.weights(layer, head), cut.weights(layer, head)
            np.testing.assert_allclose(new[:9], old[:9], atol=1e-5)
            assert new[9, 8] == 0
            np.testing.assert_allclose(new.sum(-1), 1, atol=1e-5)
            if not layer:
                left = np.where(np.arange(len(old)) == 8, 0, old[9])
                np.testing.assert_allclose(new[9], left / left.sum(), atol=1e-4)
    assert any(
        abs(whole.weights(5, head)[10] - cut.weights(5, head)[10]).max() > 1e-3 for head in range(4)
    )
