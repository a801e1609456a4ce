"""Configs of directories: read as they are, and refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnviz.errors import LoadError, UsageError
from attnviz.params.config_file import find_config_file


def test_a_directory_needs_no_more_than_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    found = find_config_file(str(tmp_path), offline=True)
    assert found.fields == {"model_type": "gpt2"}
    assert (found.name, found.revision) == (str(tmp_path), None)
    assert found.path == tmp_path / "config.json"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "is no checkpoint: the directory has no config.json"),
        ("{", "cannot be read as JSON"),
        ("[]", "should hold a JSON object, not list"),
    ],
)
def test_a_directory_without_a_config(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(LoadError, match=says):
        find_config_file(str(tmp_path))


def test_a_directory_has_no_revisions(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory and has no revision 'main'"):
        find_config_file(str(tmp_path), revision="main")
