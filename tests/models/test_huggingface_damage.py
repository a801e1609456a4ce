"""Directories that cannot be opened: each is one line that says what is wrong, and exit 3."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from attnviz.errors import LoadError
from attnviz.models import memory
from attnviz.models.huggingface import load_transformers

Checkpoint = Callable[..., Path]


def refusal(directory: Path, **options: bool) -> str:
    """The one line with which a directory is refused."""
    with pytest.raises(LoadError) as caught:
        load_transformers(str(directory), **options)
    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert "\n" not in message
    assert message.strip()
    return message


def edit(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def pickle_only(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    torch.save(tensors, directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()


def test_no_config(checkpoint: Checkpoint) -> None:
    directory = checkpoint("gpt2")
    (directory / "config.json").unlink()
    assert "no config.json" in refusal(directory)


@pytest.mark.parametrize("content", ["{", "[]", "\udcff"])
def test_a_config_that_is_no_json_object(checkpoint: Checkpoint, content: str) -> None:
    directory = checkpoint("gpt2")
    (directory / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    assert "JSON" in refusal(directory)


def test_an_unknown_model_type(checkpoint: Checkpoint) -> None:
    directory = checkpoint("gpt2")
    edit(directory / "config.json", model_type="gpt77")
    assert "'gpt77', which transformers" in refusal(directory)


@pytest.mark.parametrize("field", [{"n_head": "many"}, {"n_head": 4}, {"n_embd": -6}])
def test_a_config_that_makes_no_sense(checkpoint: Checkpoint, field: dict[str, object]) -> None:
    directory = checkpoint("gpt2")
    edit(directory / "config.json", **field)
    refusal(directory)


def test_no_weights(checkpoint: Checkpoint) -> None:
    directory = checkpoint("gpt2")
    (directory / "model.safetensors").rename(directory / "tf_model.h5")
    assert "found only tf_model.h5" in refusal(directory)


@pytest.mark.parametrize("kept", [0, 5, 200, -1])
def test_a_cut_weight_file(checkpoint: Checkpoint, kept: int) -> None:
    path = checkpoint("gpt2") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert "model.safetensors is no whole safetensors file" in refusal(path.parent)


def test_a_missing_shard(checkpoint: Checkpoint) -> None:
    directory = checkpoint("gpt2")
    names = list(load_file(directory / "model.safetensors"))
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    (directory / "model.safetensors").rename(directory / shards[0])
    index = {"metadata": {}, "weight_map": {name: shards[n % 2] for n, name in enumerate(names)}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    assert f"{shards[1]} is missing" in refusal(directory)


def test_a_damaged_index_of_shards(checkpoint: Checkpoint) -> None:
    directory = checkpoint("gpt2")
    (directory / "model.safetensors").rename(directory / "model-00001-of-00001.safetensors")
    (directory / "model.safetensors.index.json").write_text('{"weight_map": [1]}')
    assert "no 'weight_map'" in refusal(directory)


def test_missing_weights_are_never_drawn(checkpoint: Checkpoint) -> None:
    directory = checkpoint("gpt2")
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for gone in ("transformer.h.0.attn.c_attn.weight", "transformer.h.1.ln_1.bias"):
        del tensors[gone]
    save_file(tensors, path, metadata={"format": "pt"})
    message = refusal(directory)
    assert "lacks 2 weights" in message
    assert "first transformer.h.0.attn.c_attn.weight" in message


def test_weights_of_another_size(checkpoint: Checkpoint) -> None:
    directory = checkpoint("gpt2")
    edit(directory / "config.json", n_positions=19)
    message = refusal(directory)
    assert "wpe.weight is 17×6 in the file and should be 19×6" in message


def test_weights_of_another_model(checkpoint: Checkpoint) -> None:
    directory = checkpoint("gpt2")
    save_file({"other": torch.zeros(2)}, directory / "model.safetensors", metadata={"format": "pt"})
    message = refusal(directory)
    assert "weights of a GPT2LMHeadModel, first transformer.wte.weight" in message
    assert "another model" in message


def test_pickles_are_refused_unless_allowed(checkpoint: Checkpoint) -> None:
    directory = checkpoint("gpt2")
    pickle_only(directory)
    assert "--allow-pickle" in refusal(directory)
    model = load_transformers(str(directory), allow_pickle=True)
    assert model.info.architecture == "GPT2LMHeadModel"


def test_a_damaged_pickle(checkpoint: Checkpoint) -> None:
    directory = checkpoint("gpt2")
    pickle_only(directory)
    (directory / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    assert "cannot be read" in refusal(directory, allow_pickle=True)


@pytest.mark.parametrize("kept", [(), ("tokenizer_config.json",)])
def test_no_tokenizer(checkpoint: Checkpoint, kept: tuple[str, ...]) -> None:
    directory = checkpoint("gpt2")
    for path in directory.glob("*token*"):
        if path.name not in kept:
            path.unlink()
    assert "tokenizer" in refusal(directory)


@pytest.mark.parametrize("content", ["{", '{"model": {}}', "[]"])
def test_a_damaged_tokenizer(checkpoint: Checkpoint, content: str) -> None:
    directory = checkpoint("gpt2")
    (directory / "tokenizer.json").write_text(content)
    assert "the tokenizer of" in refusal(directory)


def own_code(directory: Path) -> Path:
    """Give a checkpoint a model type that only the code beside it knows; it leaves a trace."""
    trace = directory / "ran"
    (directory / "own.py").write_text(
        "from pathlib import Path\n"
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        f"Path({str(trace)!r}).touch()\n"
        "class OwnConfig(GPT2Config):\n    model_type = 'own'\n"
        "class OwnModel(GPT2LMHeadModel):\n    config_class = OwnConfig\n"
    )
    edit(
        directory / "config.json",
        model_type="own",
        architectures=["OwnModel"],
        auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"},
    )
    return trace


def test_code_of_the_checkpoint_runs_only_when_trusted(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    directory = checkpoint("gpt2")
    trace = own_code(directory)
    assert "--trust-remote-code" in refusal(directory)
    assert not trace.exists()
    model = load_transformers(str(directory), trust_remote_code=True)
    assert trace.exists()
    assert model.info.architecture == "OwnModel"
    assert model.encode("the cat").ids == (1, 4, 5, 2)


def test_code_of_the_tokenizer_runs_only_when_trusted(checkpoint: Checkpoint) -> None:
    directory = checkpoint("gpt2")
    edit(
        directory / "tokenizer_config.json",
        tokenizer_class="OwnTokenizer",
        auto_map={"AutoTokenizer": ["own.OwnTokenizer", None]},
    )
    assert "--trust-remote-code" in refusal(directory)


def test_what_does_not_fit_is_refused_before_it_is_read(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = checkpoint("gpt2")
    monkeypatch.setattr(memory, "free_memory", lambda device: 1000)
    assert "1.00 kB are free on cpu" in refusal(directory)


def test_a_path_that_is_no_directory() -> None:
    assert "neither a directory nor" in refusal(Path("no") / "such" / "directory")
