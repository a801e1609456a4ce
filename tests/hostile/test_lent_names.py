"""Labels that were measured once never go to a checkpoint that is not the one they are of."""

import json
import shutil
from pathlib import Path

import pytest

from attnviz.engine.known_labels import known_labels, label_file, labels_json
from attnviz.measures.labels import KnownLabel, KnownLabels
from attnviz.models.model import weights_fingerprint
from attnviz.models.resolve import load

from ..small_models import SPECIAL, VOCABULARY, bert_fields, random_model


@pytest.fixture
def copied(checkpoint, tmp_path):
    return Path(shutil.copytree(checkpoint("bert"), tmp_path / "m"))


def change_weights(directory, name, change):
    from safetensors.torch import load_file, save_file

    path = directory / "model.safetensors"
    tensors = load_file(path)
    (found,) = (key for key in tensors if key.endswith(name))
    change(tensors[found])
    save_file(tensors, path, {"format": "pt"})


def test_what_is_changed_in_place_makes_another_checkpoint(copied):
    """One head or another that is switched off, one number, and other numbers of heads."""
    import torch

    torch.manual_seed(3)  # as wide a model that its values cannot all be looked at one by one
    classes = ("BertForMaskedLM", "BertConfig", bert_fields(192, 192, 19, 12, 1))
    random_model(classes, vocab_size=VOCABULARY, **SPECIAL).save_pretrained(copied)
    file, config = copied / "model.safetensors", copied / "config.json"
    weights, fields = file.read_bytes(), config.read_text()
    found = {weights_fingerprint(load(str(copied)))}
    for head in range(12):
        change_weights(
            copied,
            "attention.output.dense.weight",
            lambda weight, head=head: weight[:, 16 * head : 16 * (head + 1)].zero_(),
        )
        found.add(weights_fingerprint(load(str(copied))))
        file.write_bytes(weights)
    change_weights(copied, "attention.self.query.weight", lambda weight: weight[101, 37].add_(1e-3))
    found.add(weights_fingerprint(load(str(copied))))
    file.write_bytes(weights)
    config.write_text(json.dumps(json.loads(fields) | {"num_attention_heads": 2}))
    found.add(weights_fingerprint(load(str(copied))))
    assert len(found) == 15


def test_the_same_files_elsewhere_are_the_same_checkpoint(copied, tmp_path):
    other = shutil.copytree(copied, tmp_path / "elsewhere")
    first, second = (weights_fingerprint(load(str(each))) for each in (copied, other))
    assert first == second


def test_a_forged_file_of_labels_counts_as_none(copied, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = load(str(copied))
    place = label_file(model, "self")
    place.parent.mkdir(parents=True)
    known = KnownLabels("patterns", {(0, 0): KnownLabel("previous", 0.5)})
    content = labels_json(place.stem.split("-")[0], "self", known).decode()
    place.write_text(content)
    assert known_labels(model, "self") is not None
    for heads in (
        *("[[Infinity, 0, null, null]]", '[[0, 0, "previous", Infinity]]'),
        *('[[0, 0, "previous", NaN]]', '[[0, 0, "previous", 7.5]]', '[[0, 0, "previous", -1]]'),
        *(f'[[0, 0, "previous", {10**400}]]', '[[0, 0, ["previous"], 0.5]]'),
        *('[[0, 0, {"previous": 1}, 0.5]]', '{"0": 1}', "3", "[[0]]", "[" * 100_000),
    ):
        place.write_text(content[: content.index("[")] + heads + "}")
        assert known_labels(model, "self") is None, heads[:40]
