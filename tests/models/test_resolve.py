"""Which of NumPy and torch runs a checkpoint; a file that is no model is named as what it is."""

import json
import os
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import attnviz
from attnviz.attention.checkpoint import DecoderConfig, config_to_llama
from attnviz.attention.families import NotUnderstoodError
from attnviz.engine.capture import Choice, capture_text
from attnviz.errors import LoadError, UnsupportedError
from attnviz.models.checkpoint_files import read_config
from attnviz.models.numpy_checkpoint import open_numpy
from attnviz.models.resolve import resolve
from attnviz.models.stored_tensors import StoredTensors
from attnviz.models.whole import embedding_rows
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


FILES = {
    "model.gguf": (b"GGUF\3\0\0\0", "a GGUF file.*attnviz params .*model.gguf counts it"),
    "model.safetensors": (b"\x40\0\0\0\0\0\0\0{", "a safetensors file"),
    "config.json": (b'{"model_type": "gpt2"}', "a JSON file"),
    "pytorch_model.bin": (b"PK\3\4", "a zip archive"),
    "old.bin": (b"\x80\2", "a pickle"),
    "weights.h5": (b"\x89HDF\r\n", "an HDF5 file"),
    "model.onnx": (b"\x08\x07", "an ONNX file"),
    "empty": (b"", "an empty file"),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("beside", [True, False])
def test_a_file_is_named_and_its_directory_offered(name, beside, tmp_path):
    first, kind = FILES[name]
    (tmp_path / name).write_bytes(first)
    if beside:
        (tmp_path / "config.json").touch()
    with pytest.raises(LoadError, match=kind) as refused:
        resolve(str(tmp_path / name))
    is_offered = f"type {tmp_path}" in str(refused.value)
    assert is_offered == ((beside or name == "config.json") and name != "model.gguf")


def test_a_trainers_directory_names_its_last_checkpoint(tmp_path):
    for number in (2, 10):
        (tmp_path / f"checkpoint-{number}").mkdir()
        config = tmp_path / f"checkpoint-{number}" / "config.json"
        config.touch()
        os.utime(config, (number, number))
    with pytest.raises(LoadError, match=f"'checkpoint-10' has one: type {tmp_path}"):
        read_config("a", tmp_path)


def test_a_link_to_nowhere_is_named(tmp_path):
    (tmp_path / "model").symlink_to("gone")
    with pytest.raises(LoadError, match="is a link to 'gone', which is not there"):
        resolve(str(tmp_path / "model"))


def test_a_name_that_is_too_long_is_not_there():
    with pytest.raises(LoadError, match="no directory"):
        resolve("/" + 300 * "a")


def test_a_bare_name_with_an_ending_is_the_file_and_without_one_the_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a-model", "model.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    assert resolve("a-model").kind == "hub"
    with pytest.raises(LoadError, match="a GGUF file"):
        resolve("model.gguf")


class Reads(nn.Module):
    """A model whose embedding is the given module; None is one that transformers cannot tell."""

    def __init__(self, table):
        super().__init__()
        self.table, self.config = table, SimpleNamespace(is_encoder_decoder=False)
        part = SimpleNamespace(model_type="clip_text_model")
        self.config.get_text_config = lambda: part

    def get_input_embeddings(self):
        if self.table is None:
            raise NotImplementedError
        return self.table


def test_the_number_of_embeddings_is_that_of_the_table_or_the_model_is_to_blame():
    wrapped = nn.Module()
    wrapped.weight = nn.Parameter(nn.Embedding(13, 2).weight.detach())
    assert [embedding_rows(Reads(table)) for table in (nn.Embedding(11, 2), wrapped)] == [11, 13]
    with pytest.raises(UnsupportedError, match=r"Reads is not opened.*clip_text_model alone"):
        embedding_rows(Reads(None))
