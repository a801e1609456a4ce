"""Named shapes: their files and published numbers, what is built, and what a name stands for."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from attnviz.count.params.cost import count_cost
from attnviz.count.params.find_spec import find_spec, spec_from_shape
from attnviz.count.params.meta_count import count_on_meta
from attnviz.count.params.specs import shares_of
from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.models import memory
from attnviz.models.huggingface import load_shape
from attnviz.models.resolve import load, resolve
from attnviz.models.shapes import Shape, find_shape, hint, read_shape_file, shape_names
from attnviz.models.work import LoadOptions

from ..quick import one_in

SMALL = Shape(
    name="small",
    source="",
    hub="",
    config={
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": 5,
        "d_model": 6,
        "d_kv": 5,
        "d_ff": 7,
        "num_layers": 2,
        "num_heads": 3,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
    },
)
_TABLE = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))
PUBLISHED, CACHE_PER_TOKEN = _TABLE["parameters"], _TABLE["cache_per_token"]
SHAPE = "[shape]\nd-model = 12\nheads = 4\n"
STACK = "[[stack]]\nname = 'x'\ngroups = []\n"
_MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text("utf-8"))


def test_what_cannot_be_built_is_said():
    with pytest.raises(LoadError, match=r"can be counted .* but not built: transformers has no"):
        load_shape(find_shape("openvla-7b"))
    unknown = replace(SMALL, config={"model_type": "gpt77", "architectures": ["GPT77"]})
    with pytest.raises(LoadError, match="is not a model that transformers") as caught:
        load_shape(unknown)
    assert "\n" not in str(caught.value)


def test_random_weights_are_seeded_and_said_to_be_random():
    state = torch.random.get_rng_state()
    first, same, other = (load_shape(SMALL, LoadOptions(seed=seed)) for seed in (3, 3, 4))
    assert torch.equal(state, torch.random.get_rng_state())
    weights = [model.model.encoder.block[0].layer[0].SelfAttention.q.weight for model in (first,)]
    weights += [model.model.encoder.block[0].layer[0].SelfAttention.q.weight for model in (same,)]
    assert torch.equal(*weights)
    assert not torch.equal(weights[0], other.model.encoder.block[0].layer[0].SelfAttention.q.weight)
    assert (first.info.weights, first.info.seed, first.info.revision) == ("random", 3, None)
    assert "random weights in the shape of small" in first.info.notes[0]
    assert "split into words" in first.info.notes[1]


def test_a_shape_in_half_precision():
    assert load_shape(SMALL, LoadOptions(dtype="float16")).info.dtype == "float16"
    assert torch.get_default_dtype() == torch.float32


def test_words_are_numbered_as_they_come():
    model = load_shape(SMALL)
    tokens = model.encode("나는 학교에 나는 갔다 .  또 왔다")
    assert tokens.texts == ("나는", "학교에", "나는", "갔다", ".", "또", "왔다")
    # Ids 1 to 4 are free: 0 is the padding, and the fifth word begins anew.
    assert tokens.ids == (1, 2, 1, 3, 4, 1, 2)
    assert not any(tokens.special)
    assert model.encode("a b c", limit=2).texts == ("a", "b")
    with pytest.raises(UsageError, match="at least one word"):
        model.encode(" \n")


def test_a_shape_writes_and_takes_decoder_text():
    model = load_shape(SMALL)
    assert model.encode_target("a b a").ids == (0, 1, 2, 1)
    target = model.greedy_target(model.encode("a b"), limit=4)
    assert 1 <= len(target) <= 4
    assert target.texts[0] == "<0>"


@pytest.mark.parametrize("name", ["vit-base", "whisper-tiny"])
def test_a_shape_that_takes_no_text_is_not_built(name):
    with pytest.raises(UnsupportedError, match="which takes no text"):
        load_shape(find_shape(name))


def test_weights_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 2_000_000_000)
    with pytest.raises(LoadError, match=r"need 4\.94 GB, and 2\.00 GB are free on cpu"):
        load_shape(find_shape("llama-3.2-1b"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("tiny", "bundled"),
        ("mha", "own"),
        ("configs/gpt2", "shape"),
        ("configs/gpt2.toml", "shape"),
        ("bert-base", "shape"),
        ("qwen3-0.6b", "shape"),
        ("gpt2", "hub"),
        ("t5-small", "hub"),
        ("some/model", "hub"),
        (".", "directory"),
        ("distilgpt2", "directory"),
    ],
)
def test_what_a_name_stands_for(name, kind, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "distilgpt2").mkdir()
    assert resolve(name).kind == kind


@pytest.mark.parametrize(
    "name", ["./none", "../none", "/none/here", "~/none", "~who/none", "configs/none"]
)
def test_a_path_to_nothing(name):
    with pytest.raises(LoadError) as caught:
        resolve(name)
    assert repr(name.removeprefix("configs/")) in str(caught.value)


def test_hints():
    assert hint("gpt2").endswith("`--model configs/gpt2` builds its shape with random weights")
    assert hint("tinny") == "; did you mean 'tiny'?"
    random = " (a preset: as a model it has random weights)"
    assert hint("GPT2-mediun") == f"; did you mean 'gpt2-medium'?{random}"
    assert hint("nothing/like-it") == ""
    assert hint("openvla-7b") == "; `attnviz params openvla-7b` counts its shape"


@pytest.mark.parametrize("name", ["", "x" * 5000, "a\0b"])
def test_odd_names_are_no_directory(name):
    assert resolve(name).kind == "hub"


def test_a_shape_file_is_built(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(
        '[config]\nmodel_type = "gpt2"\narchitectures = ["GPT2LMHeadModel"]\n'
        "vocab_size = 7\nn_positions = 11\nn_embd = 6\nn_layer = 1\nn_head = 3\n"
    )
    info = load(str(path), LoadOptions(seed=2, dtype="float64")).info
    assert (info.name, info.heads, info.seed, info.dtype) == (str(path), 3, 2, "float64")


def test_built_in_models_load():
    assert load("tiny").info.name == "tiny"
    info = load("mha", LoadOptions(d_model=12, heads=6, kv_heads=2, causal=True, seed=7)).info
    assert (info.heads, info.kv_heads, info.head_dim, info.seed) == (6, 2, 2, 7)


def spec(name):
    return find_spec(name, shapes_first=True).spec


def counted(name):
    return count_cost(spec(name))


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_parameters(name):
    assert counted(name).spec.total == PUBLISHED[name]


@pytest.mark.parametrize("name", CACHE_PER_TOKEN)
def test_the_published_cache(name):
    assert counted(name).cache.bytes_per_token == CACHE_PER_TOKEN[name]


@pytest.mark.parametrize(
    "name", one_in(3, [name for name in shape_names() if find_shape(name).config])
)
def test_the_library_builds_as_many(name):
    shape = find_shape(name)
    built = count_on_meta(shape.config, name=name, architecture=shape.counts or None)
    count = counted(name)
    assert (count.total, count.buffer_total) == (built.total, built.buffers)


def test_every_shape_that_is_promised_is_there():
    others = {"gpt-3-175b", "vit-large", "original-transformer", "textbook-vla"}
    assert set(shape_names()) == set(PUBLISHED) | others
    for name in shape_names():
        shape = find_shape(name)
        assert shape.name == name
        assert shape.source.startswith("https://")
        assert spec(name).source == shape.source


def test_the_original_transformer():
    d, f = 512, 2048
    encoder = 4 * d * d + 2 * d * f + f + d + 2 * 2 * d
    decoder = encoder + 4 * d * d + 2 * d
    count = counted("original-transformer")
    assert count.spec.total == 37000 * d + 6 * (encoder + decoder)
    assert shares_of(count.spec.placed)["head"] == 0
    assert count.flops.head == 2 * count.tokens * d * 37000
    assert count.cache.bytes == 6 * 2 * 2 * d * 2 * count.tokens  # own and cross, 2 bytes each


def test_the_towers_of_openvla():
    count = counted("openvla-7b")
    names = [stack.name for stack in count.spec.stacks]
    assert names == ["vision: DINOv2 ViT-L/14", "vision: SigLIP SO400M/14", "decoder"]
    assert [sum(part.number for part in stack.placed) for stack in count.spec.stacks] == [
        303_230_976,
        427_680_704,
        6_738_939_904,
    ]
    outside = [part.number for part in count.spec.placed if part.stack is None]
    assert sum(outside) == 71_385_600  # the projector
    assert [stack.depth for stack in count.spec.stacks] == [24, 27, 32]
    assert count.cache.bytes_per_token == 524_288  # the towers that see keep nothing


def test_active_parameters_of_mixtures():
    assert spec("mixtral-8x7b").active == 12_879_925_248
    deepseek = counted("deepseek-v3")
    assert deepseek.spec.active + deepseek.buffer_total == 37_552_297_472


def test_layers_that_differ_are_told_apart():
    large = spec("llama-2-70b").stacks[0].groups[0].layer.attentions[0]
    assert (large.heads, large.kv_heads) == (64, 8)
    small = shares_of(spec("llama-2-7b").placed)
    assert round(1000 * small["feed_forward"] / sum(small.values())) == 642
    gemma = spec("gemma-2-2b").stacks[0].groups
    assert [(group.repeat, group.layer.attentions[0].window) for group in gemma] == [
        (13, 4096),
        (13, None),
    ]
    assert [group.repeat for group in spec("deepseek-v3").stacks[0].groups] == [3, 58]
    assert [group.repeat for group in spec("t5-base").stacks[1].groups] == [1, 11]


def test_names_and_the_hub():
    assert find_spec("gpt2", shapes_first=True).spec == spec("gpt2")
    assert find_spec("configs/gpt2").config["n_embd"] == 768
    assert find_spec("llama-2-7b").name == "llama-2-7b"
    with pytest.raises(LoadError, match="no shape 'nothing' among the named ones"):
        find_spec("configs/nothing")


def written(tmp_path, text):
    path = tmp_path / "own.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_own_shape(tmp_path):
    path = written(tmp_path, "[shape]\nd-model = 12\nheads = 4\nkv_heads = 2\nbias = true\n")
    found = find_spec(str(path)).spec
    assert found.total == 2 * 144 + 2 * 72 + 12 + 6 + 6 + 12


def test_an_own_config(tmp_path):
    text = '[config]\nmodel_type = "gpt2"\narchitectures = ["GPT2Model"]\nn_layer = 2\nn_head = 3\n'
    found = find_spec(str(written(tmp_path, text))).spec
    assert found.stacks[0].depth == 2
    assert found.stacks[0].head is None


@pytest.mark.parametrize(("text", "says"), _MISTAKES)
def test_a_file_that_is_wrong(tmp_path, text, says):
    with pytest.raises(LoadError) as caught:
        spec_from_shape(read_shape_file(written(tmp_path, text)))
    assert caught.value.exit_code == 3
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
