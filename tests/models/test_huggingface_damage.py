"""Directories that cannot be opened: each is one line that says what is wrong, and exit 3."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save, save_file

from attnviz.errors import LoadError
from attnviz.models import memory
from attnviz.models.huggingface import load_transformers
from attnviz.models.work import LoadOptions

from .damages import WEIGHTS, cut, edit, fields, put

OTHER = save({"other": torch.zeros(2)}, {"format": "pt"})


def refusal(directory, **options):
    """The one line with which a directory is refused."""
    with pytest.raises(LoadError) as caught:
        load_transformers(str(directory), LoadOptions(**options))
    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert "\n" not in message
    assert message.strip()
    return message


def pickle_only(directory):
    tensors = load_file(directory / "model.safetensors")
    torch.save(tensors, directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()


def lose_a_shard(directory):
    names = list(load_file(directory / WEIGHTS))
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    (directory / WEIGHTS).rename(directory / shards[0])
    index = {"metadata": {}, "weight_map": {name: shards[n % 2] for n, name in enumerate(names)}}
    (directory / f"{WEIGHTS}.index.json").write_text(json.dumps(index))


def spoil_the_index(directory):
    (directory / WEIGHTS).rename(directory / "model-00001-of-00001.safetensors")
    (directory / f"{WEIGHTS}.index.json").write_text('{"weight_map": [1]}')


def take_away_weights(directory):
    tensors = load_file(directory / WEIGHTS)
    for gone in ("transformer.h.0.attn.c_attn.weight", "transformer.h.1.ln_1.bias"):
        del tensors[gone]
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})


def take_away_the_tokenizer(directory, kept=""):
    for path in directory.glob("*token*"):
        if path.name != kept:
            path.unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda directory: (directory / "config.json").unlink(), "no config.json"),
        *((put("config.json", content), "JSON") for content in ("{", "[]", "\udcff")),
        (fields(model_type="gpt77"), "'gpt77', which transformers"),
        *((fields(**wrong), "") for wrong in ({"n_head": "many"}, {"n_head": 4}, {"n_embd": -6})),
        (
            lambda directory: (directory / WEIGHTS).rename(directory / "tf_model.h5"),
            "found only tf_model.h5",
        ),
        (put(WEIGHTS, "version https://git-lfs.github.com/spec/v1\n"), "a pointer of Git LFS"),
        (fields(rope_parameters={"rope_type": "linear", "factor": 0.0}), "factor = 0.0: expected"),
        *(
            (cut(WEIGHTS, kept), f"{WEIGHTS} is not a complete safetensors file")
            for kept in (0, 5, 200, -1)
        ),
        (lose_a_shard, "model-00002-of-00002.safetensors is missing"),
        (spoil_the_index, "no 'weight_map'"),
        (take_away_weights, "lacks 2 weights"),
        (take_away_weights, "first transformer.h.0.attn.c_attn.weight"),
        (fields(n_positions=19), "wpe.weight is 17×6 in the file and should be 19×6"),
        (put(WEIGHTS, OTHER), "weights of a GPT2LMHeadModel, first transformer.wte.weight"),
        (put(WEIGHTS, OTHER), "another model"),
        (take_away_the_tokenizer, "tokenizer"),
        (partial(take_away_the_tokenizer, kept="tokenizer_config.json"), "tokenizer"),
        *(
            (put("tokenizer.json", content), "the tokenizer of")
            for content in ("{", '{"model": {}}', "[]")
        ),
    ],
)
def test_what_is_damaged_is_said(checkpoint, damage, said):
    directory = checkpoint("gpt2")
    damage(directory)
    assert said in refusal(directory)


def test_pickles_are_refused_unless_allowed(checkpoint):
    directory = checkpoint("gpt2")
    pickle_only(directory)
    assert "--allow-pickle" in refusal(directory)
    model = load_transformers(str(directory), LoadOptions(allow_pickle=True))
    assert model.info.architecture == "GPT2LMHeadModel"


def test_a_damaged_pickle(checkpoint):
    directory = checkpoint("gpt2")
    pickle_only(directory)
    (directory / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    assert "cannot be read" in refusal(directory, allow_pickle=True)


def own_code(directory):
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


def test_code_of_the_checkpoint_runs_only_when_trusted(checkpoint, monkeypatch, tmp_path):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    directory = checkpoint("gpt2")
    trace = own_code(directory)
    assert "--trust-remote-code" in refusal(directory)
    assert not trace.exists()
    model = load_transformers(str(directory), LoadOptions(trust_remote_code=True))
    assert trace.exists()
    assert model.info.architecture == "OwnModel"
    assert model.encode("the cat").ids == (1, 4, 5, 2)


def test_code_of_the_tokenizer_runs_only_when_trusted(checkpoint):
    directory = checkpoint("gpt2")
    edit(
        directory / "tokenizer_config.json",
        tokenizer_class="OwnTokenizer",
        auto_map={"AutoTokenizer": ["own.OwnTokenizer", None]},
    )
    assert "--trust-remote-code" in refusal(directory)


def test_what_does_not_fit_is_refused_before_it_is_read(checkpoint, monkeypatch):
    directory = checkpoint("gpt2")
    monkeypatch.setattr(memory, "free_memory", lambda device: 1000)
    assert "1.00 kB are free on cpu" in refusal(directory)


def test_a_path_that_is_no_directory():
    assert "neither a directory nor" in refusal(Path("no") / "such" / "directory")
