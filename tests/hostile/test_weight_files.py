"""An index of shards names plain files inside its directory, and none of another kind."""

import json

import pytest
import torch
from safetensors.torch import load_file


@pytest.fixture
def indexed(llama):
    """A Llama whose weights lie in ``shard``, which its index calls ``named``."""

    def make(shard, named, index="model.safetensors.index.json"):
        directory = llama()
        path = directory / "model.safetensors"
        tensors = load_file(path)
        if shard.endswith(".bin"):
            torch.save(tensors, directory / shard)
            path.unlink()
        else:
            (directory / shard).parent.mkdir(exist_ok=True)
            path.rename(directory / shard)
        table = {"metadata": {}, "weight_map": dict.fromkeys(tensors, named)}
        (directory / index).write_text(json.dumps(table))
        return directory

    return make


@pytest.mark.parametrize(
    ("shard", "named"),
    [
        ("pytorch_model.bin", "pytorch_model.bin"),
        ("../outside.safetensors", "../outside.safetensors"),
        ("sub/a.safetensors", "sub/../../m/sub/a.safetensors"),
        ("a.safetensors", "/a.safetensors"),
        ("a.safetensors", "..\\a.safetensors"),
        ("a.safetensors", "a" * 5_000 + ".safetensors"),
        ("a.safetensors", "a.safetensors\0"),
        ("a.safetensors", ""),
    ],
    ids=lambda name: ascii(name)[:30],
)
def test_an_index_that_names_other_files(shard, named, indexed, refused):
    said = refused(3, "heads", "the cat", "--model", str(indexed(shard, named)))
    assert "model.safetensors.index.json names the file" in said
    assert "expected names that end in .safetensors of files inside its directory" in said


def test_pickles_are_named_by_an_index_of_pickles_alone(indexed, run, refused):
    index = "pytorch_model.bin.index.json"
    plain = indexed("a.bin", "a.bin", index)
    asked = ("heads", "the cat", "--model", str(plain))
    assert "only as pickles" in refused(3, *asked)
    assert run(*asked, "--allow-pickle").code == 0
    table = json.loads((plain / index).read_text())
    table["weight_map"] = dict.fromkeys(table["weight_map"], "../a.bin")
    (plain / index).write_text(json.dumps(table))
    assert "names that end in .bin" in refused(3, *asked, "--allow-pickle")


def test_a_folder_and_links_to_a_cache_are_followed(indexed, run, tmp_path):
    """A snapshot in the hub's cache is a directory of links to ../../blobs."""
    directory = indexed("sub/a.safetensors", "sub/a.safetensors")
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for number, path in enumerate(path for path in directory.rglob("*") if path.is_file()):
        path.rename(blobs / str(number))
        path.symlink_to(blobs / str(number))
    assert run("heads", "the cat", "--model", str(directory)).code == 0
