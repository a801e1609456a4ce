"""A checkpoint is written whole, read lazily, and refused in one line where it is damaged."""

import hashlib
import json
import os

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, LlamaForCausalLM

from attnviz.attention.checkpoint import open_checkpoint, save_checkpoint, tensor_revision
from attnviz.errors import LoadError, UsageError

from ..small_models import decoder_config

CONFIG = decoder_config(5, 6, 7, (3, 1, 2), context=11, tied=True, bos=0, eos=0)


def random_tensors():
    generator = np.random.default_rng(3)
    return {
        name: generator.normal(size=shape).astype(np.float32)
        for name, shape in CONFIG.tensor_shapes().items()
    }


def word_tokenizer():
    vocabulary = {"<s>": 0, "the": 1, "cat": 2, "sat": 3, "?": 4}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    return tokenizer.to_str()


@pytest.fixture
def saved(tmp_path):
    directory = tmp_path / "new" / "model"
    save_checkpoint(directory, CONFIG, random_tensors(), word_tokenizer())
    return directory


def test_what_is_saved_is_read_back(saved):
    checkpoint = open_checkpoint(saved)
    assert checkpoint.config == CONFIG
    assert set(checkpoint.tensors) == set(CONFIG.tensor_shapes())
    assert len(checkpoint.tensors) == len(CONFIG.tensor_shapes())
    for name, tensor in random_tensors().items():
        np.testing.assert_array_equal(checkpoint.tensors[name], tensor)
    with pytest.raises(KeyError):
        checkpoint.tensors["lm_head.weight"]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_tensors_are_stored_in_the_type_asked_for(tmp_path, dtype):
    save_checkpoint(tmp_path, CONFIG, random_tensors(), word_tokenizer(), dtype=dtype)
    name = "model.norm.weight"
    stored = open_checkpoint(tmp_path).tensors[name]
    np.testing.assert_array_equal(stored, random_tensors()[name].astype(dtype))
    assert stored.dtype == dtype
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == dtype


def test_transformers_loads_model_and_tokenizer(saved):
    model, report = LlamaForCausalLM.from_pretrained(saved, output_loading_info=True)
    assert not any(report.values())
    name = "model.layers.1.self_attn.k_proj.weight"
    np.testing.assert_array_equal(model.state_dict()[name].numpy(), random_tensors()[name])
    tokenizer = AutoTokenizer.from_pretrained(saved)
    assert tokenizer("the cat sat down")["input_ids"] == [0, 1, 2, 3, 4]
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "<s>")
    assert tokenizer.model_max_length == 11


def test_the_same_tensors_make_the_same_file(saved, tmp_path):
    """In another process too, whose hashes have other seeds: the metadata is in order."""
    content = (saved / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    assert list(json.loads(content[8 : 8 + length])["__metadata__"]) == ["format", "revision"]
    more = {f"name {number}": "ü" * number for number in range(11)}
    twice = [tmp_path / "one", tmp_path / "two"]
    for directory in twice:
        save_checkpoint(directory, CONFIG, random_tensors(), word_tokenizer(), metadata=more)
    one, two = ((directory / "model.safetensors").read_bytes() for directory in twice)
    assert one == two
    assert open_checkpoint(twice[0]).metadata.items() >= more.items()


def test_the_revision_names_the_content(saved, tmp_path):
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(saved / "model.safetensors").items()):
        digest.update(name.encode() + tensor.tobytes())
    metadata = open_checkpoint(saved).metadata
    assert metadata["revision"] == digest.hexdigest()[:12]
    tensors = random_tensors()
    assert tensor_revision(tensors) == metadata["revision"]
    tensors["model.norm.weight"][0] += 1
    other = save_checkpoint(tmp_path, CONFIG, tensors, word_tokenizer(), metadata={"steps": "5"})
    assert other != metadata["revision"]
    assert open_checkpoint(tmp_path).metadata == {"format": "pt", "revision": other, "steps": "5"}


def test_no_file_changes_before_all_are_written(saved, monkeypatch):
    """Tensors of one shape beside the config of another could not be read."""
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    sync, written = os.fsync, []

    def fail_at_the_last(descriptor):
        written.append(descriptor)
        if len(written) == len(before):
            raise OSError(28, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_at_the_last)
    tensors = {name: tensor + 1 for name, tensor in random_tensors().items()}
    with pytest.raises(LoadError, match="cannot be written: No space left on device"):
        save_checkpoint(saved, CONFIG, tensors, word_tokenizer())
    assert len(written) == len(before)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_a_place_that_is_no_directory_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LoadError, match="cannot be written"):
        save_checkpoint(tmp_path / "file", CONFIG, random_tensors(), word_tokenizer())


@pytest.mark.parametrize("number", [70_000.0, float("nan"), float("-inf")])
def test_a_number_that_the_type_cannot_store_is_refused(tmp_path, number):
    tensors = random_tensors()
    tensors["model.norm.weight"][2] = number
    with pytest.raises(UsageError, match=r"model\.norm\.weight.*float16"):
        save_checkpoint(tmp_path, CONFIG, tensors, word_tokenizer(), dtype="float16")
    assert not list(tmp_path.iterdir())


def test_only_the_tensors_of_the_configuration_are_saved(tmp_path):
    tensors = random_tensors() | {"lm_head.weight": np.zeros((5, 6), np.float32)}
    with pytest.raises(ValueError, match=r"lm_head\.weight"):
        save_checkpoint(tmp_path, CONFIG, tensors, word_tokenizer())


def refused(directory):
    with pytest.raises(LoadError) as caught:
        open_checkpoint(directory)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[:100],
        lambda content: content + b"more",
        lambda content: b"",
        lambda content: b"<html>not found</html>" * 9,
        lambda content: content.replace(b'"F32"', b'"F99"', 1),
    ],
    ids=["truncated", "header cut", "longer", "empty", "a web page", "unknown type"],
)
def test_a_damaged_file_is_named(saved, damage):
    path = saved / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    message = refused(saved)
    assert message.startswith(f"{path} is not a complete safetensors file")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_and_a_directory_in_its_place_are_named(saved, name):
    (saved / name).unlink()
    assert f"{saved / name} was not found" in refused(saved)
    (saved / name).mkdir()
    assert str(saved / name) in refused(saved)
    assert str(saved / "nowhere") in refused(saved / "nowhere")


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[]", b'{"model_type": "gpt2"}'])
def test_a_damaged_configuration_is_named(saved, content):
    (saved / "config.json").write_bytes(content)
    assert str(saved) in refused(saved)


def test_a_missing_an_unknown_and_a_misshapen_tensor_are_named(saved):
    path = saved / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({key: one for key, one in tensors.items() if key != name}, path)
    assert f"{name} is missing" in refused(saved)
    save_file(tensors | {name: np.zeros((7, 5), np.float32)}, path)
    assert f"{name} is (7, 5), where (7, 6) is expected" in refused(saved)
    save_file(tensors | {"lm_head.weight": np.zeros((5, 6), np.float32)}, path)
    assert "lm_head.weight has no place" in refused(saved)


@pytest.mark.parametrize(("dtype", "stored"), [(torch.bfloat16, "BF16"), (torch.int32, "I32")])
def test_a_type_that_numpy_cannot_compute_in_is_named(saved, dtype, stored):
    path = saved / "model.safetensors"
    tensors = {key: torch.from_numpy(one).to(dtype) for key, one in load_file(path).items()}
    save_torch_file(tensors, path)
    assert f"model.embed_tokens.weight is stored as {stored}" in refused(saved)
