"""Array files, read back by NumPy and by safetensors."""

import io
import json

import numpy as np
import pytest
from attnviz.heads.files import write_heads_npz, write_heads_safetensors
from safetensors import safe_open


def _npz(report, target=None):
    stream = io.BytesIO()
    write_heads_npz(report, "a text", target, stream)
    stream.seek(0)
    with np.load(stream, allow_pickle=False) as archive:
        return dict(archive)


@pytest.fixture
def opened(tmp_path):
    def write(report, target=None):
        path = tmp_path / "weights.safetensors"
        with path.open("wb") as stream:
            write_heads_safetensors(report, "a text", target, stream)
        with safe_open(path, framework="np") as archive:
            tensors = {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118 - an archive is no mapping
            return tensors, archive.metadata()

    return write


def test_npz_holds_every_weight_with_its_place(report):
    read = _npz(report)
    assert read["weights"].dtype == np.float32
    for layer, head, weights in report.record:
        place = (read["layers"] == layer) & (read["heads"] == head)
        np.testing.assert_array_equal(read["weights"][place][0], weights)
    assert read["tokens"].tolist() == list(report.record.queries.texts)
    assert read["token_ids"].tolist() == list(report.record.queries.ids)
    provenance = json.loads(str(read["provenance"]))
    assert provenance["schema"] == "attnviz.heads/1"
    assert provenance["model"]["revision"] == "0123456789abcdef"
    assert provenance["text"] == "a text"
    assert len(provenance["heads"]) == 6
    assert "weights" not in provenance["heads"][0]


def test_npz_of_cross_attention_and_hostile_tokens(make, hostile):
    read = _npz(make(texts=hostile, keys=("x", "나는"), kind="cross"), "a target")
    assert read["weights"].shape == (6, len(hostile), 2)
    assert read["key_tokens"].tolist() == ["x", "나는"]
    provenance = json.loads(str(read["provenance"]))
    assert provenance["tokens"] == list(hostile)  # with the NUL that a NumPy string drops
    assert provenance["target"] == "a target"


def test_npz_keeps_float64(make):
    assert _npz(make(dtype=np.float64))["weights"].dtype == np.float64


def test_safetensors_hold_a_tensor_a_layer(make, opened):
    report = make(heads=5, kept=(1, 3), selected=True)
    tensors, metadata = opened(report)
    assert sorted(tensors) == ["layer.0.weights", "layer.1.weights"]
    for layer in report.record.layers:
        read = tensors[f"layer.{layer.layer}.weights"]
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, layer.weights)
    assert metadata["schema"] == "attnviz.heads/1"
    assert json.loads(metadata["heads"]) == {"0": [1, 3], "1": [1, 3]}
    assert json.loads(metadata["tokens"]) == list(report.record.queries.texts)
    assert json.loads(metadata["token_ids"]) == list(report.record.queries.ids)
    assert json.loads(metadata["provenance"])["model"]["name"] == "tiny"


def test_safetensors_of_weights_that_are_a_view(make, opened):
    report = make(dtype=np.float64, kind="cross", keys=("x", "y"))
    for layer in report.record.layers:
        object.__setattr__(layer, "weights", np.asfortranarray(layer.weights))
    tensors, metadata = opened(report)
    for layer in report.record.layers:
        np.testing.assert_array_equal(tensors[f"layer.{layer.layer}.weights"], layer.weights)
    assert json.loads(metadata["key_tokens"]) == ["x", "y"]


def test_safetensors_carry_hostile_tokens(make, opened, hostile):
    _, metadata = opened(make(texts=hostile))
    assert json.loads(metadata["tokens"]) == list(hostile)
