"""What a checkpoint's file says of its training, as a reader of its maps gets to know it."""

from __future__ import annotations

from pathlib import Path

import pytest

import attnviz
from attnviz.attention.checkpoint import open_checkpoint, save_checkpoint
from attnviz.engine.capture import capture
from attnviz.models.huggingface import load_transformers
from attnviz.models.model import stated_revision, trained_tokens
from attnviz.models.transformers_model import TransformersModel

TINY = Path(attnviz.__file__).parent / "data" / "tiny"


def opened(directory: Path, metadata: dict[str, str]) -> tuple[TransformersModel, str]:
    """The bundled model's tensors as ``attnviz train`` writes them, and their revision."""
    tiny = open_checkpoint(TINY)
    tensors = {name: tiny.tensors[name] for name in tiny.config.tensor_shapes()}
    tokenizer = (TINY / "tokenizer.json").read_text(encoding="utf-8")
    revision = save_checkpoint(directory, tiny.config, tensors, tokenizer, metadata=metadata)
    return load_transformers(str(directory)), revision


def test_a_text_longer_than_those_of_the_training_has_a_note(tmp_path: Path) -> None:
    model, revision = opened(tmp_path, {"trained_tokens": "9"})
    assert model.info.revision == revision
    short = model.encode("The cat sat.")
    assert len(short) <= 9
    assert capture(model, short, kind="self").model.notes == ()
    long = model.encode("The cat sat on the mat because it was tired.")
    note = f"trained on sequences of up to 9 tokens, not {len(long)}"
    assert capture(model, long, kind="self").model.notes == (note,)


@pytest.mark.parametrize(
    "metadata", [{}, {"trained_tokens": "many"}, {"trained_tokens": "9" * 999}]
)
def test_a_file_that_does_not_say_how_long(metadata: dict[str, str], tmp_path: Path) -> None:
    assert trained_tokens(metadata) is None
    model, _ = opened(tmp_path, metadata)
    assert model.notes_for(model.encode("cat " * 300)) == ()


@pytest.mark.parametrize("stated", ["", "main", "\x1b[31mabcdef0123456", "0123456789abcdef\n"])
def test_a_revision_that_is_no_digest_is_not_repeated(stated: str) -> None:
    assert stated_revision({"revision": stated}) is None
