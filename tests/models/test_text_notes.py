"""What a reader must know of a text: that it is long, or full of tokens that the model lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attnviz.models.model import text_notes
from attnviz.records import Tokens


def tokens(*texts: str) -> Tokens:
    return Tokens(tuple(range(len(texts))), texts, (False,) * len(texts))


@pytest.mark.parametrize(("unknown", "told"), [(1, False), (2, True), (10, True)])
def test_unknown_tokens_above_a_tenth_are_told(unknown: int, told: bool) -> None:
    read = tokens(*["[UNK]"] * unknown, *["word"] * (10 - unknown))
    assert text_notes(None, read) == (
        (f"{unknown} of 10 tokens are unknown to the tokenizer: the model cannot tell them apart",)
        if told
        else ()
    )


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("command", ["heads", "patterns"])
def test_a_screen_says_so(run: Any, checkpoint: Any, backend: str, command: str) -> None:
    path: Path = checkpoint("bert")
    result = run(command, "漢 字 the 猫 cat", "--model", str(path), "--backend", backend)
    assert result.code == 0, result.err
    assert "tokens are unknown to the tokenizer" in " ".join(result.out.split())
