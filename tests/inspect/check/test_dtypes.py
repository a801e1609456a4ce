"""Rules of ``check --init`` hold on either backend and in 16 bits; none passes by absence."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

FORMS = (("numpy", "auto"), ("torch", "float32"), ("torch", "bfloat16"), ("torch", "float16"))


@pytest.mark.parametrize(("backend", "dtype"), FORMS)
def test_what_one_form_wrote_the_others_pass(
    backend: str, dtype: str, run: Any, checkpoint: Callable[[str], Path]
) -> None:
    model = ("--model", str(checkpoint("llama")))
    written = run("check", "r.toml", "--init", *model, "--backend", backend, "--dtype", dtype)
    assert written.code == 0, written.err
    for other, numbers in FORMS:
        found = run("check", "r.toml", *model, "--backend", other, "--dtype", numbers)
        assert found.code == 0, (other, numbers, found.out)


@pytest.fixture
def broken(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """Return a copy of a checkpoint in which the queries of L0H0 are NaN."""
    copy = tmp_path / "broken"
    copy.mkdir()
    for file in checkpoint("llama").iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    tensors = load_file(copy / "model.safetensors")
    (name,) = (key for key in tensors if "layers.0" in key and "q_proj" in key)
    tensors[name] = tensors[name].clone()
    tensors[name][:2] = torch.tensor(math.nan)
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


@pytest.mark.parametrize(
    "rule",
    [
        'heads_labelled = "induction"\nat_most = 24',
        'score = "previous"\nhead = "L0H0"\nat_most = 1.0',
        'loss_on = "the cat sat on the mat"\nat_most = 1000.0',
    ],
)
def test_a_head_without_numbers_fails_its_rule(rule: str, run: Any, broken: Path) -> None:
    Path("r.toml").write_text(f"[[check]]\n{rule}\n", encoding="utf-8")
    found = run("check", "r.toml", "--model", str(broken))
    assert found.code in (3, 6), (found.out, found.err)
    assert found.out + found.err
