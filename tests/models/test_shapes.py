"""Named shapes: their files, the models built from them, and what a name stands for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.models import memory
from attnviz.models.huggingface import load_shape
from attnviz.models.resolve import LoadOptions, load, resolve
from attnviz.models.shapes import Shape, find_shape, hint

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


def test_what_cannot_be_built_is_said() -> None:
    with pytest.raises(LoadError, match=r"can be counted .* but not built: transformers has no"):
        load_shape(find_shape("openvla-7b"))
    unknown = replace(SMALL, config={"model_type": "gpt77", "architectures": ["GPT77"]})
    with pytest.raises(LoadError, match="is no model that transformers") as caught:
        load_shape(unknown)
    assert "\n" not in str(caught.value)


def test_random_weights_are_seeded_and_said_to_be_random() -> None:
    state = torch.random.get_rng_state()
    first, same, other = (load_shape(SMALL, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(state, torch.random.get_rng_state())
    weights = [model.model.encoder.block[0].layer[0].SelfAttention.q.weight for model in (first,)]
    weights += [model.model.encoder.block[0].layer[0].SelfAttention.q.weight for model in (same,)]
    assert torch.equal(*weights)
    assert not torch.equal(weights[0], other.model.encoder.block[0].layer[0].SelfAttention.q.weight)
    assert (first.info.weights, first.info.seed, first.info.revision) == ("random", 3, None)
    assert "random weights in the shape of small" in first.info.notes[0]
    assert "split into words" in first.info.notes[1]


def test_a_shape_in_half_precision() -> None:
    assert load_shape(SMALL, dtype="float16").info.dtype == "float16"
    assert torch.get_default_dtype() == torch.float32


def test_words_are_numbered_as_they_come() -> None:
    model = load_shape(SMALL)
    tokens = model.encode("나는 학교에 나는 갔다 .  또 왔다")
    assert tokens.texts == ("나는", "학교에", "나는", "갔다", ".", "또", "왔다")
    # Ids 1 to 4 are free: 0 is the padding, and the fifth word begins anew.
    assert tokens.ids == (1, 2, 1, 3, 4, 1, 2)
    assert not any(tokens.special)
    assert model.encode("a b c", limit=2).texts == ("a", "b")
    with pytest.raises(UsageError, match="at least one word"):
        model.encode(" \n")


def test_a_shape_writes_and_takes_decoder_text() -> None:
    model = load_shape(SMALL)
    assert model.encode_target("a b a").ids == (0, 1, 2, 1)
    target = model.greedy_target(model.encode("a b"), limit=4)
    assert 1 <= len(target) <= 4
    assert target.texts[0] == "<0>"


@pytest.mark.parametrize("name", ["vit-base", "whisper-tiny"])
def test_a_shape_that_takes_no_text_is_not_built(name: str) -> None:
    with pytest.raises(UnsupportedError, match="which takes no text"):
        load_shape(find_shape(name))


def test_weights_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
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
    ],
)
def test_what_a_name_stands_for(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve(name).kind == kind


def test_a_directory_comes_before_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    assert resolve("gpt2").kind == "directory"


@pytest.mark.parametrize(
    "name", ["./none", "../none", "/none/here", "~/none", "~who/none", "configs/none"]
)
def test_a_path_to_nothing(name: str) -> None:
    with pytest.raises(LoadError) as caught:
        resolve(name)
    assert repr(name.removeprefix("configs/")) in str(caught.value)


def test_hints() -> None:
    assert hint("gpt2").endswith("`--model configs/gpt2` builds its shape with random weights")
    assert hint("tinny") == "; did you mean 'tiny'?"
    assert hint("GPT2-mediun") == "; did you mean 'gpt2-medium'?"
    assert hint("nothing/like-it") == ""
    assert hint("openvla-7b") == "; `attnviz params openvla-7b` counts its shape"


@pytest.mark.parametrize("name", ["", "x" * 5000, "a\0b"])
def test_odd_names_are_no_directory(name: str) -> None:
    assert resolve(name).kind == "hub"


def test_a_shape_file_is_built(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        '[config]\nmodel_type = "gpt2"\narchitectures = ["GPT2LMHeadModel"]\n'
        "vocab_size = 7\nn_positions = 11\nn_embd = 6\nn_layer = 1\nn_head = 3\n"
    )
    info = load(str(path), LoadOptions(seed=2, dtype="float64")).info
    assert (info.name, info.heads, info.seed, info.dtype) == (str(path), 3, 2, "float64")


def test_built_in_models_load() -> None:
    assert load("tiny").info.name == "tiny"
    info = load("mha", LoadOptions(d_model=12, heads=6, kv_heads=2, causal=True, seed=7)).info
    assert (info.heads, info.kv_heads, info.head_dim, info.seed) == (6, 2, 2, 7)
