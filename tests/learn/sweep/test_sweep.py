"""``attnviz sweep`` from the outside: screens, documents, files, refusals, Ctrl-C."""

import json

import pytest

from ...terminals import interrupted, on_screen, rows

QUICK = ("--steps", "12", "--d-model", "8", "--heads", "1,2", "--seeds", "2")
ONE_SEED = (*QUICK[:-1], "1")


@pytest.fixture
def story(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text("Once upon a time there was a cat, and the cat sat on a mat.\n" * 30)
    return path


def test_the_document(run):
    result = run("sweep", *QUICK, "--json")
    document = result.document
    assert list(document)[:2] == ["schema", "model"]
    assert document["complete"] is True
    order = [(model["seed"], model["heads"]) for model in document["models"]]
    assert order == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert len({model["parameters"] for model in document["models"]}) == 1
    assert [result["head_dim"] for result in document["results"]] == [8, 4]
    for result in document["results"]:
        losses = [one["loss"] for one in document["models"] if one["heads"] == result["heads"]]
        mean = sum(losses) / 2
        assert result["loss"]["mean"] == pytest.approx(mean)
        assert result["loss"]["deviation"] == pytest.approx(abs(losses[0] - losses[1]) / 2**0.5)
    assert [point["step"] for point in document["models"][0]["curve"]] == list(range(1, 13))
    assert document["task"]["chance"]["accuracy"] == pytest.approx(1 / 9)


def test_a_text(run, story):
    result = run("sweep", *ONE_SEED, "--text", str(story), "--width", "120")
    assert result.code == 0, result
    assert "guess the next character of the text, story.txt" in result.out
    assert "by the character before" in result.out
    assert "best possible" not in result.out


def test_bad_texts(refused, story, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("The cat sat on the mat.")
    assert "23 characters: expected at least 1,000" in refused(2, "sweep", "--text", str(short))
    both = refused(2, "sweep", "--text", str(story), "--task", "copy")
    assert both == "--task and --text both say what is learned: give one of them"
    assert "cannot read" in refused(3, "sweep", "--text", str(tmp_path / "none.txt"))


@pytest.mark.long
def test_ctrl_c_keeps_what_is_trained(start, tmp_path):
    path = tmp_path / "sweep.json"
    arguments = ("--steps", "60", "--d-model", "8", "--heads", "1,2,4", "--save", str(path))
    child = start("sweep", *arguments, rows=50, columns=100)
    child.expect("held-out loss")
    output = interrupted(child)
    document = json.loads(path.read_text())
    done = len(document["models"])
    assert document["complete"] is False
    assert 1 <= done < 9
    text = "\n".join(rows(on_screen(output, columns=100)))
    assert f"interrupted: {done} of 9 models are trained" in text
    assert "held-out" in text
    assert f"stopped: {done} of 9 models are trained" in text
    assert "attnviz: interrupted" in text
