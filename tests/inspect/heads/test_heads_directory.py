"""``--model DIRECTORY``: Hugging Face checkpoints end to end, decoders and encoder–decoders."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

TEXT = "the cat sat on the mat"
Checkpoint = Callable[[str], Path]


@pytest.fixture
def damaged(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    """A copy of the gpt2 checkpoint that a test may spoil."""
    return Path(shutil.copytree(checkpoint("gpt2"), tmp_path / "gpt2"))


def attentions(model: Any, **inputs: Any) -> Any:
    """What transformers itself says, with its eager attention."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(**inputs, output_attentions=True)


def equal(document: Any, expected: Any) -> bool:
    """Whether a document's heads are the library's (layer, batch, head, query, key) weights."""
    return all(
        np.array_equal(
            np.array(head["weights"], dtype=np.float32),
            expected[head["layer"]][0, head["head"]].numpy(),
        )
        for head in document["heads"]
    )


@pytest.mark.parametrize(("kind", "shape"), [("gpt2", (2, 3, 3, 2)), ("llama", (2, 6, 2, 4))])
def test_a_decoder(document: Any, checkpoint: Checkpoint, kind: str, shape: tuple[int]) -> None:
    directory = str(checkpoint(kind))
    found = document(TEXT, "--backend", "torch", "--model", directory)
    info = found["model"]
    assert (info["layers"], info["heads"], info["kv_heads"], info["head_dim"]) == shape
    assert (info["name"], info["dtype"], info["weights"]) == (directory, "float32", "checkpoint")
    assert found["tokens"] == ["<s>", *TEXT.split(), "</s>"]
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    ids = torch.tensor([found["token_ids"]])
    assert equal(found, attentions(model, input_ids=ids).attentions)


def test_the_screen_of_a_directory(run: Any, checkpoint: Checkpoint) -> None:
    result = run("heads", TEXT, "--model", str(checkpoint("llama")), "--width", "100")
    assert result.code == 0
    assert "2 layers × 6 heads" in result.out
    assert all(f"L{layer}H{head}" in result.out for layer in range(2) for head in range(6))
    assert max(map(len, result.lines)) <= 100


def test_grouped_heads_name_their_group(run: Any, document: Any, checkpoint: Checkpoint) -> None:
    directory = str(checkpoint("llama"))
    heads = document(TEXT, "--model", directory, "--layer", "0")["heads"]
    assert [head["kv_head"] for head in heads] == [0, 0, 0, 1, 1, 1]
    drawn = run("heads", TEXT, "--model", directory, "--head", "L0H4")
    assert "L0H4 · key/value head 1" in drawn.out


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_an_encoder_decoder(document: Any, checkpoint: Checkpoint, kind: str) -> None:
    directory = str(checkpoint("t5"))
    options = ["--kind", kind] if kind != "encoder" else []
    target = ["--target", "cat on mat"] if kind != "encoder" else []
    found = document(TEXT, "--model", directory, *options, *target)
    assert found["kind"] == kind
    source = ["<s>", *TEXT.split(), "</s>"]
    written = ["<pad>", "<s>", "cat", "on", "mat"]
    assert found["tokens"] == (source if kind == "encoder" else written)
    assert found.get("target") == (None if kind == "encoder" else "cat on mat")
    assert found.get("key_tokens") == (source if kind == "cross" else None)
    assert found["causal"] == (kind == "decoder")
    model = transformers.T5ForConditionalGeneration.from_pretrained(directory)
    inputs = {
        "input_ids": torch.tensor([[1, 4, 5, 6, 7, 4, 8, 2]]),
        "decoder_input_ids": torch.tensor([[0, 1, 5, 7, 8]]),
    }
    assert equal(found, getattr(attentions(model, **inputs), f"{kind}_attentions"))


def test_the_default_target_is_the_models_own(document: Any, checkpoint: Checkpoint) -> None:
    found = document(TEXT, "--model", str(checkpoint("t5")), "--kind", "decoder")
    assert found["tokens"][0] == "<pad>"
    assert 1 <= len(found["tokens"]) <= 64


def test_cross_attention_on_screen(run: Any, checkpoint: Checkpoint) -> None:
    options = ("--model", str(checkpoint("t5")), "--kind", "cross", "--target", "cat on mat")
    result = run("heads", TEXT, *options, "--head", "L1H2")
    assert result.code == 0
    assert "target cat on mat" in result.out
    assert "because" not in result.out
    assert run("heads", TEXT, *options, "--token", "sat").code == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_number_types(document: Any, checkpoint: Checkpoint, dtype: str) -> None:
    found = document(TEXT, "--model", str(checkpoint("gpt2")), "--dtype", dtype)
    assert found["model"]["dtype"] == dtype
    assert found["model"]["device"] == "cpu"
    sums = np.array([head["weights"] for head in found["heads"]]).sum(-1)
    np.testing.assert_allclose(sums, 1, atol={"float64": 1e-6}.get(dtype, 0.02))


def test_a_text_too_long_is_refused_or_cut(
    document: Any, refused: Any, checkpoint: Checkpoint
) -> None:
    model = ("--model", str(checkpoint("gpt2")))
    text = "cat " * 30
    assert "the text has 32 tokens, " in refused(2, "heads", text, *model)
    assert "takes at most 17: shorten it" in refused(2, "heads", text, *model)
    assert len(document(text, *model, "--truncate")["tokens"]) == 17


def test_options_that_do_not_fit(refused: Any, checkpoint: Checkpoint) -> None:
    gpt2, t5 = ("--model", str(checkpoint("gpt2"))), ("--model", str(checkpoint("t5")))
    for line, arguments in {
        "no layer 2: this model has layers 0 to 1": (*gpt2, "--layer", "2"),
        "has no cross attention: expected --kind self": (*gpt2, "--kind", "cross"),
        "has no self attention: expected --kind encoder": (*t5, "--kind", "self"),
        "add --kind decoder or --kind cross": (*t5, "--target", "cat"),
        "--heads shapes the library's own attention": (*gpt2, "--heads", "4"),
        "is a directory and has no revision 'main'": (*gpt2, "--revision", "main"),
        "no device 'cuda:9' here": (*gpt2, "--device", "cuda:9"),
    }.items():
        assert line in refused(2, "heads", TEXT, *arguments)


def test_without_a_tokenizer(refused: Any, damaged: Path) -> None:
    for file in damaged.glob("*token*"):
        file.unlink()
    assert "has no tokenizer" in refused(3, "heads", TEXT, "--model", str(damaged))


def test_damaged_weights(refused: Any, damaged: Path) -> None:
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "model.safetensors" in refused(3, "heads", TEXT, "--model", str(damaged))


def test_missing_weights(refused: Any, damaged: Path) -> None:
    (damaged / "model.safetensors").unlink()
    assert "weights" in refused(3, "heads", TEXT, "--model", str(damaged))


def test_pickles_are_read_only_on_demand(run: Any, refused: Any, damaged: Path) -> None:
    model = transformers.GPT2LMHeadModel.from_pretrained(damaged)
    torch.save(model.state_dict(), damaged / "pytorch_model.bin")
    (damaged / "model.safetensors").unlink()
    assert "--allow-pickle" in refused(3, "heads", TEXT, "--model", str(damaged))
    result = run("heads", TEXT, "--model", str(damaged), "--allow-pickle")
    assert result.code == 0


def test_remote_code_is_run_only_on_demand(refused: Any, damaged: Path) -> None:
    (damaged / "config.json").write_text(
        '{"model_type": "odd", "auto_map": {"AutoConfig": "odd.OddConfig"}}'
    )
    assert "--trust-remote-code" in refused(3, "heads", TEXT, "--model", str(damaged))


def test_a_model_without_heads(refused: Any, damaged: Path) -> None:
    (damaged / "config.json").write_text(
        '{"model_type": "mamba", "architectures": ["MambaForCausalLM"], "num_hidden_layers": 2}'
    )
    refused(5, "heads", TEXT, "--model", str(damaged))


def test_a_named_shape(document: Any, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(
        '[config]\nmodel_type = "bert"\narchitectures = ["BertForMaskedLM"]\nhidden_size = 6\n'
        "num_hidden_layers = 2\nnum_attention_heads = 3\nintermediate_size = 5\nvocab_size = 17\n"
    )
    found = document(TEXT, "--model", "small.toml", "--seed", "3")
    assert (found["model"]["weights"], found["model"]["seed"]) == ("random", 3)
    assert found["tokens"] == TEXT.split()
    assert len(found["heads"]) == 6
