"""Writing ends at the context that ``heads`` reads, on both backends; what was written stays."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import attnviz

from ...conftest import save_tokenizer
from ...small_models import gpt_fields, llama_fields

CONTEXT = 24
_LLAMA = llama_fields(12, 13, CONTEXT, (3, 1, 4))
_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
_EXPERTS |= {"hidden_size": 16, "intermediate_size": 16}  # aligned, as their kernel wants
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", gpt_fields(12, CONTEXT)),
    "opt": (
        "OPTForCausalLM",
        {
            "hidden_size": 12,
            "word_embed_proj_dim": 12,
            "ffn_dim": 13,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "max_position_embeddings": CONTEXT,
        },
    ),
    "gptj": (
        "GPTJForCausalLM",
        {"n_embd": 12, "n_layer": 2, "n_head": 3, "rotary_dim": 4, "n_positions": CONTEXT},
    ),
    "gpt_neox": (
        "GPTNeoXForCausalLM",
        {
            "hidden_size": 12,
            "intermediate_size": 13,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "max_position_embeddings": CONTEXT,
            "rotary_pct": 1.0,
        },
    ),
    "llama": ("LlamaForCausalLM", _LLAMA),
    "phi3": ("Phi3ForCausalLM", {**_LLAMA, "num_key_value_heads": 3}),
    "smollm3": ("SmolLM3ForCausalLM", {**_LLAMA, "num_key_value_heads": 3}),
    "mixtral": (
        "MixtralForCausalLM",
        {**_LLAMA, **_EXPERTS, "hidden_size": 16, "intermediate_size": 16},
    ),
    "granite": ("GraniteForCausalLM", _LLAMA),
}
PROMPT = "the cat sat on the mat"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Make a directory with a random model of a family, which never ends a text by itself."""
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            torch.manual_seed(3)
            name, fields = MODELS[family]
            kind = getattr(transformers, name)
            ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
            model = kind(kind.config_class(vocab_size=64, **{**fields, **ids}))
            made[family] = tmp_path_factory.mktemp("context") / family
            model.save_pretrained(made[family])
            save_tokenizer(made[family])
        return made[family]

    return get


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("family", MODELS)
def test_writing_ends_at_the_context(
    family: str, backend: str, run: Any, directory: Callable[[str], Path], tmp_path: Path
) -> None:
    path = str(directory(family))
    saved = tmp_path / "run.jsonl"
    options = ("--model", path, "--backend", backend)
    asked = (PROMPT, "--tokens", "60", *options, "--json", "--save", str(saved))
    result = run("generate", *asked)
    if backend == "numpy" and result.code == 5:
        pytest.skip("NumPy does not run this family")
    assert result.code == 0, result.err
    found = result.document
    assert found["ending"] == "context"
    assert len(found["tokens"]) + len(found["steps"]) == CONTEXT
    assert len(saved.read_text().splitlines()) == 2 + len(found["steps"])
    too_long = run("heads", "cat " * (CONTEXT + 9), *options)
    assert too_long.code == 2, too_long.err
    assert str(CONTEXT) in too_long.err


@pytest.mark.parametrize("options", [("--color", "always"), ()])
def test_a_pipe_gets_colours_and_no_cursor(run: Any, options: tuple[str, ...]) -> None:
    forced = {} if options else {"FORCE_COLOR": "1"}
    result = run("generate", "The cat", "--tokens", "4", *options, env=forced)
    assert result.code == 0
    sent = set(re.findall(r"\x1b\[[0-9;?]*([a-zA-Z])", result.out + result.err))
    assert sent == {"m"}


def test_from_python_too(directory: Callable[[str], Path]) -> None:
    model = attnviz.load(directory("llama"), backend="torch")
    steps = list(attnviz.generate(model, PROMPT, tokens=60))
    assert steps[-1].place == CONTEXT - 2  # the last token is written, and not read


def test_what_was_written_is_kept_when_a_step_fails(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnviz.engine import generation
    from attnviz.inspect.generate import generate as job

    whole = generation.generate

    def failing(*given: Any, **more: Any) -> Any:
        for number, step in enumerate(whole(*given, **more)):
            if number == 3:
                raise attnviz.errors.LoadError("the disk is gone")
            yield step

    monkeypatch.setattr(job, "generate", failing)
    saved = tmp_path / "run.jsonl"
    result = run("generate", "The cat", "--tokens", "9", "--json", "--save", str(saved))
    assert result.code == 3
    assert "the disk is gone" in result.err
    assert json.loads(saved.read_text().splitlines()[0])["ending"] == "failed"
    assert len(saved.read_text().splitlines()) == 2 + 3
