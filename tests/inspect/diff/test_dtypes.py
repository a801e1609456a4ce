"""A model in other numbers has not changed: the side that rounds more decides."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DTYPES = ("float16", "bfloat16", "float32")


@pytest.mark.parametrize(("a", "b"), list(itertools.permutations(DTYPES, 2)))
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_rounding_alone_changes_no_head(
    kind: str, a: str, b: str, run: Any, checkpoint: Callable[[str], Path]
) -> None:
    path = str(checkpoint(kind))
    options = ("--dtype", a, "--dtype-b", b, "--backend", "torch", "--truncate", "--json")
    found = run("diff", path, *options).document
    assert [head for head in found["heads"] if head["changed"]] == []
