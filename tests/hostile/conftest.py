"""Checkpoints as a stranger might send them: a tiny random Llama whose files say what they like."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def llama(checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """``llama(hidden_size=7, …)``: a fresh copy whose config.json has these fields."""

    def make(**fields: Any) -> Path:
        directory = tmp_path / "m"
        if not directory.exists():
            shutil.copytree(checkpoint("llama"), directory)
        config = directory / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | fields))
        return directory

    return make
