"""Checkpoints as a stranger might send them: a tiny random Llama whose files say what they like."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

ON_A_MODEL = ("heads", "rollout", "patterns", "ablate", "why", "patch", "path", "diff", "check")
"""Commands that read a text and run a checkpoint over it."""


def asked(command, text, model):
    """Its line over one text, or over the text and its words backwards."""
    if command == "diff":
        return ("diff", str(model), "--text", text)
    if command == "check":
        Path("rules.toml").write_text(f"[[check]]\nloss_on = {json.dumps(text)}\nat_most = 99\n")
        return ("check", "rules.toml", "--model", str(model))
    backwards = " ".join(reversed(text.split()))
    texts = {"patch": (text, backwards), "path": ("L0H0", text, backwards)}
    return (command, *texts.get(command, (text,)), "--model", str(model))


@pytest.fixture
def stranger(checkpoint, tmp_path):
    """``stranger("t5", "config.json", d_kv=7, …)``: a copy whose file has these fields too."""

    def make(kind, file, **fields):
        directory = tmp_path / "m"
        if not directory.exists():
            shutil.copytree(checkpoint(kind), directory)
        path = directory / file
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
        return directory

    return make


@pytest.fixture
def llama(stranger):
    """``llama(hidden_size=7, …)``: a fresh copy whose config.json has these fields."""
    return partial(stranger, "llama", "config.json")
