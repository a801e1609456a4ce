"""The named shapes: every published number, and every clear line about a file that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnviz.count.params.counting.cost import CostReport, count_cost
from attnviz.count.params.find_spec import find_spec
from attnviz.count.params.meta_count import count_on_meta
from attnviz.count.params.shapes import spec_from_shape
from attnviz.count.params.specs import ModelSpec
from attnviz.errors import LoadError
from attnviz.models.shapes import find_shape, read_shape_file, shape_names

from ..quick import one_in

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "vit-base": 86_389_248,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "gemma-2-2b": 2_614_341_888,
    "phi-3-mini": 3_821_079_552,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "whisper-tiny": 37_760_640,
    "openvla-7b": 7_541_237_184,
    # 14,848 below the published 671,026,419,200: the routers' corrections are buffers.
    "deepseek-v3": 671_026_404_352,
}
CACHE_PER_TOKEN = {
    "llama-2-7b": 524_288,
    "llama-2-70b": 327_680,
    "llama-3-8b": 131_072,
    "deepseek-v3": 70_272,
}


def spec(name: str) -> ModelSpec:
    found = find_spec(name, shapes_first=True).spec
    assert found is not None
    return found


def counted(name: str) -> CostReport:
    return count_cost(spec(name))


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_parameters(name: str) -> None:
    assert counted(name).parameters.total == PUBLISHED[name]


@pytest.mark.parametrize("name", CACHE_PER_TOKEN)
def test_the_published_cache(name: str) -> None:
    assert counted(name).cache.bytes_per_token == CACHE_PER_TOKEN[name]


@pytest.mark.parametrize(
    "name", one_in(3, [name for name in shape_names() if find_shape(name).config])
)
def test_the_library_builds_as_many(name: str) -> None:
    shape = find_shape(name)
    built = count_on_meta(shape.config, name=name, architecture=shape.counts or None)
    count = counted(name).parameters
    assert (count.total, count.buffer_total) == (built.total, built.buffers)


def test_every_shape_that_is_promised_is_there() -> None:
    others = {"gpt-3-175b", "vit-large", "original-transformer", "textbook-vla"}
    assert set(shape_names()) == set(PUBLISHED) | others
    for name in shape_names():
        shape = find_shape(name)
        assert shape.name == name
        assert shape.source.startswith("https://")
        assert spec(name).source == shape.source


def test_gpt_3_is_gpt_2_grown() -> None:
    grown = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_positions": 2048,
        "n_embd": 12288,
        "n_layer": 96,
        "n_head": 96,
    }
    total = counted("gpt-3-175b").parameters.total
    assert total == count_on_meta(grown, name="gpt3").total
    assert round(total / 10**9) == 175


def test_the_original_transformer() -> None:
    d, f = 512, 2048
    encoder = 4 * d * d + 2 * d * f + f + d + 2 * 2 * d
    decoder = encoder + 4 * d * d + 2 * d
    count = counted("original-transformer")
    assert count.parameters.total == 37000 * d + 6 * (encoder + decoder)
    assert count.parameters.shares.head == 0
    assert count.flops.head == 2 * count.tokens * d * 37000
    assert count.cache.bytes == 6 * 2 * 2 * d * 2 * count.tokens  # own and cross, 2 bytes each


def test_the_towers_of_openvla() -> None:
    count = counted("openvla-7b")
    names = [stack.spec.name for stack in count.parameters.stacks]
    assert names == ["vision: DINOv2 ViT-L/14", "vision: SigLIP SO400M/14", "decoder"]
    assert [stack.total for stack in count.parameters.stacks] == [
        303_230_976,
        427_680_704,
        6_738_939_904,
    ]
    assert sum(term.number for term in count.parameters.terms) == 71_385_600  # the projector
    assert [stack.depth for stack in count.spec.stacks] == [24, 27, 32]
    assert count.cache.bytes_per_token == 524_288  # the towers that see keep nothing


def test_the_textbook_s_model_is_its_two_parts() -> None:
    total = counted("textbook-vla").parameters.total
    pooler = 1024 * 1024 + 1024
    seeing = counted("vit-large").parameters.total - pooler
    assert total == seeing + PUBLISHED["llama-2-7b"]
    assert [stack.depth for stack in spec("textbook-vla").stacks] == [24, 32]


def test_active_parameters_of_mixtures() -> None:
    assert counted("mixtral-8x7b").parameters.active == 12_879_925_248
    deepseek = counted("deepseek-v3").parameters
    assert deepseek.active + deepseek.buffer_total == 37_552_297_472


def test_layers_that_differ_are_told_apart() -> None:
    large = spec("llama-2-70b").stacks[0].groups[0].layer.attentions[0]
    assert (large.heads, large.kv_heads) == (64, 8)
    small = counted("llama-2-7b").parameters
    assert round(1000 * small.shares.feed_forward / small.total) == 642
    gemma = spec("gemma-2-2b").stacks[0].groups
    assert [(group.repeat, group.layer.attentions[0].window) for group in gemma] == [
        (13, 4096),
        (13, None),
    ]
    assert [group.repeat for group in spec("deepseek-v3").stacks[0].groups] == [3, 58]
    assert [group.repeat for group in spec("t5-base").stacks[1].groups] == [1, 11]


def test_names_and_the_hub() -> None:
    assert find_spec("gpt2", shapes_first=True).spec == spec("gpt2")
    assert find_spec("configs/gpt2").config["n_embd"] == 768
    assert find_spec("llama-2-7b").name == "llama-2-7b"
    with pytest.raises(LoadError, match="no shape 'nothing' among the named ones"):
        find_spec("configs/nothing")


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(LoadError) as caught:
        spec_from_shape(read_shape_file(written(tmp_path, text)))
    assert caught.value.exit_code == 3
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_an_own_shape(tmp_path: Path) -> None:
    path = written(tmp_path, "[shape]\nd-model = 12\nheads = 4\nkv_heads = 2\nbias = true\n")
    found = find_spec(str(path)).spec
    assert found is not None
    assert count_cost(found).parameters.total == 2 * 144 + 2 * 72 + 12 + 6 + 6 + 12


def test_an_own_config(tmp_path: Path) -> None:
    text = '[config]\nmodel_type = "gpt2"\narchitectures = ["GPT2Model"]\nn_layer = 2\nn_head = 3\n'
    found = find_spec(str(written(tmp_path, text))).spec
    assert found is not None
    assert found.stacks[0].depth == 2
    assert found.stacks[0].head is None


SHAPE = "[shape]\nd-model = 12\nheads = 4\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sourse = 'x'\n" + SHAPE, "unknown key 'sourse'; did you mean 'source'?"),
        (SHAPE + "kv-haeds = 2", "unknown key 'kv-haeds'; did you mean 'kv-heads'?"),
        (SHAPE + "kv_haeds = 2", "unknown key 'kv_haeds'; did you mean 'kv_heads'?"),
        (SHAPE + "heads_kv_x_y_z = 2", "unknown key 'heads_kv_x_y_z'"),
        (SHAPE + "layers = 0", "--layers must be 1 or more, not 0"),
        (SHAPE + "kv-heads = 3", "--kv-heads 3 does not divide --heads 4: 1, 2, 4 do"),
        (SHAPE + "causal = 1", "has causal = 1: expected true or false"),
        (SHAPE + "tokens = 0", "has tokens = 0: expected a whole number of 1 or more"),
        (SHAPE + "reads = 'both'", "reads = 'both': target or source"),
        (SHAPE + "tables = [3]", "has 3 where a table was expected"),
        (SHAPE + "tables = [{ label = 'x', rows = 2 }]", "a part without 'width'"),
        (SHAPE + "matrices = [{ lable = 'x' }]", "unknown key 'lable'; did you mean 'label'?"),
        (SHAPE + "head = { outputs = 'x' }", "outputs = 'x': expected a whole number"),
        ("[shape]\nd-model = 12\n", "--heads is missing"),
        ("[config]\nmodel_type = 'gpt2'\n" + SHAPE, "has both [config] and [shape]"),
        ("shape = 3", "shape must be a table"),
        ("[config]\nmodel_type = 'gpt2'", "names no architectures"),
        ("notes = 'x'\n" + SHAPE, "notes must be a list of sentences"),
        ("name = 'a'", "no [config] table with a model_type, and no [shape]"),
        (
            "[config]\nmodel_type = 'gpt2'\narchitectures = ['GPT2Model']\nn_hed = 3\n",
            "unknown field 'n_hed'; did you mean 'n_head'?",
        ),
        (
            "[config]\nmodel_type = 'llama'\narchitectures = ['LlamaForCausalLM']\n"
            "num_attention_heads = 0\n",
            "num_attention_heads = 0: expected a whole number of 1 or more",
        ),
        ("= 1", "cannot be read as a shape"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, text: str, says: str) -> None:
    assert says in refused(tmp_path, text)
