"""GGUF files written by the package's own writer, counted from their header."""

import struct

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from attnviz.count.params.params import params
from attnviz.count.params.request import NamedModel, ParamsRequest
from attnviz.errors import LoadError, UsageError

WIDE, INNER, VOCAB, HEADS, KV_HEADS, LAYERS = 64, 96, 40, 4, 2, 3
BLOCKS = {Kind.F32: (1, 4), Kind.F16: (1, 2), Kind.Q8_0: (32, 34), Kind.Q4_0: (32, 18)}
SHAPES = {
    "token_embd": (VOCAB, WIDE, Kind.Q8_0),
    "output_norm": (1, WIDE, Kind.F32),
    **{
        f"blk.{layer}.{name}": shape
        for layer in range(LAYERS)
        for name, shape in {
            "attn_q": (WIDE, WIDE, Kind.Q4_0),
            "attn_k": (WIDE // 2, WIDE, Kind.Q4_0),
            "attn_v": (WIDE // 2, WIDE, Kind.F16),
            "attn_output": (WIDE, WIDE, Kind.Q4_0),
            "ffn_up": (INNER, WIDE, Kind.Q4_0),
            "ffn_down": (WIDE, INNER, Kind.Q8_0),
        }.items()
    },
}
NAME = struct.pack("<Q", 3) + b"abc"


def write(path, names=SHAPES, **fields):
    """A small Llama; ``fields`` add to the header or change it, as (kind of value, value)."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, number in {
        "context_length": 512,
        "embedding_length": WIDE,
        "block_count": LAYERS,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        **fields,
    }.items():
        if isinstance(number, list):
            writer.add_array(f"llama.{key}", number)
        else:
            writer.add_uint32(key if key.startswith("split") else f"llama.{key}", number)
    writer.add_token_list([f"token {n}" for n in range(VOCAB)])
    writer.add_token_scores([0.5] * VOCAB)
    for name in names:
        rows, columns, kind = SHAPES[name]
        content = np.linspace(-1, 1, rows * columns, dtype=np.float32).reshape(rows, columns)
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(content, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def counted(path, **options):
    (case,) = params([NamedModel(str(path))], ParamsRequest(**options)).cases
    return case.built


def test_parameters_bytes_and_cache(tmp_path):
    built = counted(write(tmp_path / "m.gguf"), tokens=100, memory="1GB")
    assert built.total == sum(rows * columns for rows, columns, _ in SHAPES.values())
    sizes = dict.fromkeys(BLOCKS, 0)
    for rows, columns, kind in SHAPES.values():
        block, size = BLOCKS[kind]
        sizes[kind] += rows * columns // block * size
    assert {line.label: line.bytes for line in built.storage.lines} == {
        kind.name: size for kind, size in sizes.items()
    }
    assert built.weight_bytes == sum(sizes.values())
    assert built.cache.bytes == 100 * LAYERS * 2 * KV_HEADS * (WIDE // HEADS) * 2
    assert built.limit == 512


def test_windows_of_some_layers(tmp_path):
    slides = {
        "attention.sliding_window": 10,
        "attention.sliding_window_pattern": [True, True, False],
    }
    built = counted(write(tmp_path / "m.gguf", **slides), tokens=100)
    assert built.cache.bytes == (2 * 10 + 100) * 2 * KV_HEADS * (WIDE // HEADS) * 2
    unlisted = write(tmp_path / "n.gguf", **{"attention.sliding_window": 10})
    assert counted(unlisted).cache is None
    with pytest.raises(UsageError, match="nothing tells what"):
        counted(unlisted, memory="1GB")


def test_heads_of_each_layer_and_states(tmp_path):
    built = counted(write(tmp_path / "m.gguf", **{"attention.head_count_kv": [1, 2, 4]}), tokens=1)
    assert built.cache.bytes == (1 + 2 + 4) * 2 * (WIDE // HEADS) * 2
    assert counted(write(tmp_path / "n.gguf", **{"ssm.state_size": 8})).cache is None
    assert counted(write(tmp_path / "o.gguf", block_count=LAYERS + 1)).cache is None


def test_several_files_are_one_model(tmp_path):
    names, paths = list(SHAPES), [tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2)]
    write(paths[0], names[:7], **{"split.count": 2})
    with pytest.raises(LoadError, match=r"m-00002-of-00002\.gguf is missing"):
        counted(paths[0])
    write(paths[1], names[7:], **{"split.count": 2})
    assert counted(paths[0]).total == counted(write(tmp_path / "all.gguf")).total
    with pytest.raises(LoadError, match="name the first of them"):
        counted(paths[1])


def head(tensors, fields):
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, fields)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"GGUF", "ends early"),
        (b"GGUF" + struct.pack("<I", 99) + bytes(60), "version 99"),
        (head(2**60, 0) + bytes(60), "tensors"),
        (head(1, 1) + NAME + struct.pack("<IIQ", 9, 8, 2**50) + bytes(60), "texts"),
        (head(1, 1) + NAME + struct.pack("<IIQ", 9, 0, 2**62) + bytes(60), "ends early"),
        (head(1, 1) + NAME + struct.pack("<IQ", 8, 2**62) + bytes(60), "ends early"),
        (head(1, 1) + NAME + struct.pack("<IIQ", 9, 9, 1) * 5000 + bytes(60), "lists of lists"),
        (head(1, 0) + NAME + struct.pack("<IQQIQ", 2, 2**62, 2**62, 0, 0) + bytes(60), "m.gguf"),
        (head(1, 0) + NAME + struct.pack("<IQIQ", 1, 32, 999, 0) + bytes(60), "999"),
    ],
)
def test_what_is_no_header_is_refused_at_once(tmp_path, content, said):
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=said) as error:
        counted(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("architecture", "kind", "said"),
    [
        ("llama", "adapter", "a LoRA adapter"),
        ("clip", None, "an encoder of images"),
        ("llama", None, "a vocabulary without weights"),
    ],
)
def test_a_file_without_a_model_is_named(tmp_path, architecture, kind, said):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", architecture)
    if kind is not None:
        writer.add_type(kind)
    if not said.startswith("a vocabulary"):
        writer.add_tensor("blk.0.attn_q.weight", np.zeros((4, 8), np.float32))
    writer.add_description("a model, no adapter and no clip")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(LoadError, match=f"a GGUF file of {said}"):
        counted(tmp_path / "m.gguf")


def test_a_cut_file_is_refused(tmp_path):
    content = write(tmp_path / "m.gguf").read_bytes()
    for length in (30, 500, len(content) // 2, len(content) - 64):
        (tmp_path / "cut.gguf").write_bytes(content[:length])
        with pytest.raises(LoadError, match="ends early"):
            counted(tmp_path / "cut.gguf")
    with pytest.raises(LoadError, match="no file"):
        counted(tmp_path / "none.gguf")
