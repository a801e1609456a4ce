"""Labels that were measured once never go to a checkpoint that is not the one they are of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnviz.engine.known_labels import known_labels, label_file, labels_json
from attnviz.measures.labels import KnownLabel, KnownLabels
from attnviz.models.model import weights_fingerprint
from attnviz.models.resolve import load


@pytest.fixture
def copied(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint("bert"), tmp_path / "m"))


def change_weights(directory: Path, name: str, change: Callable[[Any], None]) -> None:
    from safetensors.torch import load_file, save_file

    path = directory / "model.safetensors"
    tensors = load_file(path)
    (found,) = (key for key in tensors if key.endswith(name))
    change(tensors[found])
    save_file(tensors, path, {"format": "pt"})


def widened(directory: Path) -> None:
    """As wide a model that its values cannot all be looked at one by one."""
    import torch

    from ..small_models import SPECIAL, VOCABULARY, bert_fields, random_model

    torch.manual_seed(3)
    classes = ("BertForMaskedLM", "BertConfig", bert_fields(192, 192, 19, 12, 1))
    random_model(classes, vocab_size=VOCABULARY, **SPECIAL).save_pretrained(directory)


@pytest.mark.parametrize("head", range(12))
def test_one_head_switched_off_in_place_makes_another_checkpoint(copied: Path, head: int) -> None:
    widened(copied)
    before = weights_fingerprint(load(str(copied)))

    def off(weight: Any) -> None:
        weight[:, 16 * head : 16 * (head + 1)] = 0

    change_weights(copied, "attention.output.dense.weight", off)
    assert weights_fingerprint(load(str(copied))) != before


def test_one_number_changed_in_place_makes_another_checkpoint(copied: Path) -> None:
    widened(copied)
    before = weights_fingerprint(load(str(copied)))

    def nudge(weight: Any) -> None:
        weight[101, 37] += 1e-3

    change_weights(copied, "attention.self.query.weight", nudge)
    assert weights_fingerprint(load(str(copied))) != before


def test_the_same_weights_as_other_heads_are_another_checkpoint(copied: Path) -> None:
    before = weights_fingerprint(load(str(copied)))
    path = copied / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_attention_heads": 2}))
    assert weights_fingerprint(load(str(copied))) != before


def test_the_same_files_elsewhere_are_the_same_checkpoint(copied: Path, tmp_path: Path) -> None:
    other = shutil.copytree(copied, tmp_path / "elsewhere")
    first, second = (weights_fingerprint(load(str(each))) for each in (copied, other))
    assert first == second


@pytest.mark.parametrize(
    "heads",
    [
        "[[Infinity, 0, null, null]]",
        "[[0, 0, \"previous\", Infinity]]",
        "[[0, 0, \"previous\", NaN]]",
        "[[0, 0, \"previous\", 7.5]]",
        "[[0, 0, \"previous\", -1]]",
        f"[[0, 0, \"previous\", {10**400}]]",
        "[[0, 0, [\"previous\"], 0.5]]",
        "[[0, 0, {\"previous\": 1}, 0.5]]",
        "{\"0\": 1}",
        "[" * 100_000,
    ],
    ids=range(10),
)  # fmt: skip
def test_a_forged_file_of_labels_counts_as_none(
    copied: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, heads: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = load(str(copied))
    place = label_file(model, "self")
    assert place is not None
    place.parent.mkdir(parents=True)
    known = KnownLabels("patterns", {(0, 0): KnownLabel("previous", 0.5)})
    content = labels_json(place.stem.split("-")[0], "self", known).decode()
    place.write_text(content)
    assert known_labels(model, "self") is not None
    place.write_text(content[: content.index("[")] + heads + "}")
    assert known_labels(model, "self") is None
