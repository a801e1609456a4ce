"""Which of NumPy and torch runs a checkpoint, that both say the same, and what is read for it."""

import json
import os
from functools import cache

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import attnviz
from attnviz.attention.checkpoint import DecoderConfig, config_to_llama
from attnviz.attention.families import NotUnderstoodError
from attnviz.engine.capture import Choice, capture_text
from attnviz.models.numpy_checkpoint import open_numpy
from attnviz.models.stored_tensors import StoredTensors
from attnviz.models.work import Work

from ..quick import one_in
from .test_numpy_checkpoint import made

TEXT = "The cat sat on the mat and the cat sat on a dog."
COMMANDS = {
    "heads": ("heads", TEXT),
    "pair": ("heads", TEXT, "--pair", "cat", "mat"),
    "token": ("heads", TEXT, "--token", "dog", "--layer", "0"),
    "rollout": ("rollout", TEXT),
    "patterns": ("patterns",),
    "patterns of a text": ("patterns", TEXT, "--norm-weighted"),
    "scaling": ("scaling", TEXT, "--from-model"),
    "ablate": ("ablate", TEXT, "--mode", "mean"),
    "ablate by token": ("ablate", TEXT, "--head", "1", "--by-token"),
}
TORCH_ONLY = {
    "control": ("patterns", "--control", "random-weights"),
    "ablate": ("ablate", TEXT, "--layer", "0", "--method", "gradient"),
    "prune": ("prune", TEXT, "--heads", "1", "--method", "gradient"),
}


ASKED = [
    *(("gpt2", command) for command in COMMANDS),
    *(("bert", command) for command in ("heads", "ablate")),
    *(("mistral", command) for command in ("token", "patterns of a text")),
]
"""Every command once, and some of a model that reads both ways and of one with a window.

The quick run has every second of them: each command has tests on NumPy and on torch.
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """The directory of a checkpoint of a family, saved once."""
    return cache(lambda kind: str(made(tmp_path_factory.mktemp("model"), kind)))


def same(one, other, path=""):
    """Two JSON documents but for what tells who ran it, and the last digits."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for name in one.keys() - {"backend", "seconds"}:
            same(one[name], other[name], f"{path}.{name}")
    elif isinstance(one, list):
        assert len(one) == len(other), path
        for place, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            same(mine, theirs, f"{path}[{place}]")
    elif isinstance(one, float) and not isinstance(other, str | None):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-4), path
    else:
        assert one == other, path


@pytest.mark.parametrize(("kind", "command"), one_in(2, ASKED))
def test_both_say_the_same(run, directory, kind, command, tmp_path):
    """The whole of ``--json``; and ``patterns`` keeps the labels under the same name."""
    asked = (*COMMANDS[command], "--model", directory(kind), "--json")
    found, kept = {}, {}
    for backend in ("auto", "torch"):
        cache = tmp_path / backend
        result = run(*asked, "--backend", backend, env={"XDG_CACHE_HOME": str(cache)})
        assert (result.code, result.err) == (0, ""), backend
        found[backend] = json.loads(result.out)
        kept[backend] = sorted(path.name for path in cache.rglob("*.json"))
    assert found["auto"]["model"]["backend"] == "numpy"
    assert found["torch"]["model"]["backend"] == "torch"
    same(found["auto"], found["torch"])
    assert kept["auto"] == kept["torch"]
    assert len(kept["auto"]) == (command == "patterns")


@pytest.mark.parametrize(
    ("command", "model"), [(command, "checkpoint") for command in TORCH_ONLY] + [("ablate", "tiny")]
)
def test_what_runs_on_torch_refuses_numpy_and_says_torch(run, checkpoint, command, model):
    name = model if model == "tiny" else str(checkpoint("gpt2"))
    asked = (*TORCH_ONLY[command], "--model", name)
    result = run(*asked, "--backend", "numpy")
    assert (result.code, result.out) == (5, "")
    assert result.err == (
        f"attnviz: --backend numpy cannot run {name!r}: this command runs on torch; leave it out\n"
    )
    if model == "tiny":
        assert json.loads(run(*asked, "--json").out)["model"]["backend"] == "torch"


def test_the_python_api_takes_the_backend(directory):
    place = directory("gpt2")
    runs = [attnviz.capture(attnviz.load(place, backend=name), TEXT) for name in ("numpy", "torch")]
    assert [one.report.record.model.backend for one in runs] == ["numpy", "torch"]
    assert attnviz.capture(place, TEXT).report.record.model.backend == "numpy"
    for mine, theirs in zip(*(one.report.record.layers for one in runs), strict=True):
        np.testing.assert_allclose(mine.weights, theirs.weights, atol=1e-5)
    found = attnviz.rollout(attnviz.load(place, backend="torch"), TEXT).to_dict()
    assert found["model"]["backend"] == "torch"


# What is read -----------------------------------------------------------------------------------


def test_only_what_is_needed_is_read(tmp_path):
    """Of the layer that is wanted no more than makes its weights, of later ones nothing."""
    model = open_numpy(str(made(tmp_path, "gpt2")), None, None)
    assert model.stored.read == set()
    capture_text(model, TEXT, Choice(layers="0"))
    parts = {name.split("h.0.")[-1].rpartition(".")[0] for name in model.stored.read}
    assert parts == {"transformer.wte", "transformer.wpe", "ln_1", "attn.c_attn", "attn.c_proj"}
    capture_text(model, TEXT, Choice(layers="1"))
    assert not {name for name in model.stored.read if "ln_f" in name or "h.1.mlp" in name}


def test_numbers_that_nothing_reads_are_not_looked_at(tmp_path):
    file = made(tmp_path, "gpt2") / "model.safetensors"
    tensors = load_file(file)
    tensors["transformer.h.1.attn.c_attn.weight"][0, 0] = torch.nan
    save_file(tensors, file, {"format": "pt"})
    for layer, broken in (("0", ()), ("1", ("transformer.h.1.attn.c_attn.weight",))):
        model = open_numpy(str(tmp_path), None, None)
        record, _ = capture_text(model, TEXT, Choice(layers=layer))
        assert record.model.not_finite == model.info.not_finite == broken
        assert any("not finite" in note for note in record.model.notes) == bool(broken)


def llama_7b(directory):
    """Llama 2 7B in float16, of which only the header is written: 13 GB that take no room."""
    sizes = {"heads": 32, "kv_heads": 32, "head_dim": 128, "d_ff": 11008, "context": 4096}
    config = DecoderConfig(vocabulary=32000, d_model=4096, layers=32, norm_eps=1e-5, **sizes)
    header = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in config.tensor_shapes().items():
        start, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [start, end]}
    raw = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + end)
    (directory / "config.json").write_text(json.dumps(config_to_llama(config, "float16")))
    return directory


def test_a_7b_model_is_left_to_torch_before_a_tensor_is_read(tmp_path, monkeypatch):
    """There is no tokenizer either: what is too large is known before one is opened."""
    opened = []
    start = StoredTensors.__init__

    def told(self, *words):
        start(self, *words)
        opened.append(self)

    monkeypatch.setattr(StoredTensors, "__init__", told)
    directory = llama_7b(tmp_path)
    assert os.stat(directory / "model.safetensors").st_size > 13e9
    with pytest.raises(NotUnderstoodError, match="10 tokens run faster in torch"):
        open_numpy(str(directory), None, Work(10))
    (stored,) = opened
    assert stored.read == set()
    assert sum(map(np.prod, stored.shapes.values())) == 6_738_415_616  # as Meta counts it
