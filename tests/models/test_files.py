"""A file that is given as a model is named as what it is, with what to type in its place."""

import os
from types import SimpleNamespace

import pytest
from torch import nn

from attnviz.errors import LoadError, UnsupportedError
from attnviz.models.checkpoint_files import read_config
from attnviz.models.resolve import resolve
from attnviz.models.whole import embedding_rows

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
