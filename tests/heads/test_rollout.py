"""``attnviz rollout``: the two maps, JSON and files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnviz.heads.rollout_command import EXAMPLES

TEXT = "The cat sat on the mat because it was tired."


def matrices(run: Any, text: str, *options: str) -> list[np.ndarray]:
    """Each layer's mean over its heads, from the weights of ``attnviz heads``."""
    found = run("heads", text, *options, "--json").document
    layers: dict[int, list[Any]] = {}
    for entry in found["heads"]:
        layers.setdefault(entry["layer"], []).append(entry["weights"])
    return [np.mean(layers[layer], axis=0) for layer in sorted(layers)]


@pytest.mark.parametrize("options", [[], ["--model", "mha", "--causal"]], ids=["tiny", "mha"])
def test_json_is_the_product_of_the_layers(run: Any, options: list[str]) -> None:
    """Abnar & Zuidema 2020, worked out from what ``heads`` prints."""
    layers = matrices(run, TEXT, *options)
    expected = np.eye(len(layers[0]))
    for weights in layers:
        expected = (0.5 * weights + 0.5 * np.eye(len(weights))) @ expected
    found = run("rollout", TEXT, *options, "--json").document
    assert found["schema"] == "attnviz.rollout/1"
    assert next(iter(found)) == "schema"
    assert found["layers"] == len(layers)
    assert found["text"] == TEXT
    np.testing.assert_allclose(found["rollout"], expected, atol=1e-5)
    np.testing.assert_allclose(found["last_layer"], layers[-1], atol=1e-5)
    np.testing.assert_allclose(np.sum(found["rollout"], axis=1), 1, atol=1e-6)


def test_the_screen_has_both_maps(run: Any) -> None:
    result = run("rollout", TEXT, "--width", "130", "--values", "--explain")
    assert (result.code, result.err) == (0, "")
    found = run("rollout", TEXT, "--json").document
    titles = rf"rollout through {found['layers']} layers {{3,}}last layer, mean of its heads"
    assert re.search(titles, result.out)
    assert "How to read this: " in result.out
    row = next(line for line in result.lines if line.strip().startswith("sat "))
    shown = [float(number) for number in re.findall(r"(?:\d)?\.\d\d?", row)]
    wanted = [*found["rollout"][3][:4], *found["last_layer"][3][:4]]
    kept = [round(value, 2) for value in wanted if value >= 0.005]
    assert shown[: len(kept)] == pytest.approx(kept, abs=0.011)


@pytest.mark.parametrize("width", ["20", "47", "80", "200"])
def test_every_width(run: Any, width: str) -> None:
    result = run("rollout", TEXT, "--width", width)
    assert result.code == 0
    assert max(map(len, result.lines)) <= int(width)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_an_encoder_decoder(run: Any, checkpoint: Any, kind: str) -> None:
    options = ["--model", str(checkpoint("t5")), "--kind", kind]
    target = ["--target", "the mat sat"] if kind == "decoder" else []
    found = run("rollout", "the cat sat", *options, *target, "--json").document
    assert found["kind"] == kind
    assert found["causal"] == (kind == "decoder")
    assert np.shape(found["rollout"]) == (len(found["tokens"]),) * 2


def test_saving(run: Any, tmp_path: Path) -> None:
    endings = ("json", "csv", "svg", "html", "png", "txt")
    options = [word for ending in endings for word in ("--save", f"a.{ending}")]
    result = run("rollout", TEXT, *options)
    assert result.code == 0
    assert result.err.splitlines() == [f"saved a.{ending}" for ending in endings]
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == result.out


def test_every_example_of_the_help_runs(run: Any, tmp_path: Path) -> None:
    (tmp_path / "story.txt").write_text("The cat sat on the mat.")
    examples = [line for line in EXAMPLES.splitlines() if line.startswith("attnviz ")]
    assert len(examples) == 3
    for example in examples:
        assert run(*shlex.split(example)[1:]).code == 0, example


@pytest.mark.parametrize(
    ("code", "arguments", "line"),
    [
        (2, [], 'expected a text: attnviz rollout "The cat'),
        (2, [""], "the text is empty"),
        (2, ["a", "--kind", "cross"], "'cross' is not one of 'self', 'encoder', 'decoder'"),
        (2, ["a", "--kind", "decoder"], "'tiny' has no decoder attention"),
        (2, ["a", "--target", "b"], "add --kind decoder"),
        (2, ["a", "--save", "a.xyz"], "end it in one of .json"),
        (2, ["word " * 2000], "tokens, 'tiny' takes at most 1,024"),
        (2, ["a", "--width", "10"], "--width is 10 columns"),
        (3, ["--file", "missing.txt"], "cannot read missing.txt"),
    ],
)
def test_bad_input(refused: Any, code: int, arguments: list[str], line: str) -> None:
    assert line in refused(code, "rollout", *arguments)
