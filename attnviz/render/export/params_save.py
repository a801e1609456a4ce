"""``attnviz params --save FILE``: the ending of the name says which file is written."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnviz.accounts.built import BuiltCount
from attnviz.errors import UsageError
from attnviz.render.export.params_csv import write_built_csv, write_params_csv
from attnviz.render.export.params_html import write_params_html
from attnviz.render.export.params_json import write_params_json
from attnviz.render.export.params_markdown import write_params_markdown
from attnviz.render.export.params_svg import write_params_svg
from attnviz.render.export.whole_file import check_writable, whole_file
from attnviz.render.labels import visible
from attnviz.render.params.metrics import Case
from attnviz.render.params.sheet import Sheet

__all__ = ["PARAMS_FORMATS", "Answer", "check_params_path", "save_params"]


@dataclass(frozen=True)
class Answer:
    """What there is to save.

    sheet: the words and tables. document: the JSON object.
    options, cases: the compared options, and every design; or ``built``, a model that was built.
    palette: the colours of bars. screen: the terminal's screen as plain text.
    """

    sheet: Sheet
    document: dict[str, Any]
    options: Sequence[str]
    cases: Sequence[Case]
    built: BuiltCount | None = None
    palette: str = "viridis"
    screen: str = ""


_Text = codecs.StreamWriter


def _csv(answer: Answer, stream: _Text) -> None:
    if answer.built is not None:
        write_built_csv(answer.built, stream)
    else:
        write_params_csv(answer.options, answer.cases, stream)


PARAMS_FORMATS: Mapping[str, Callable[[Answer, _Text], None]] = {
    ".json": lambda answer, stream: write_params_json(answer.document, stream),
    ".csv": _csv,
    ".md": lambda answer, stream: write_params_markdown(answer.sheet, stream),
    ".svg": lambda answer, stream: write_params_svg(answer.sheet, answer.palette, stream),
    ".html": lambda answer, stream: write_params_html(answer.sheet, answer.palette, stream),
    ".txt": lambda answer, stream: stream.write(answer.screen),
}
"""What writes a file, by the ending of its name in lower case."""


def check_params_path(path: Path) -> None:
    """Raise one line if ``save_params`` could not write ``path``; cheap, so that it can come first.

    UsageError for an unknown ending or what is no file; LoadError where rights are missing.
    """
    if path.suffix.lower() not in PARAMS_FORMATS:
        known = ", ".join(PARAMS_FORMATS)
        raise UsageError(
            f"cannot tell from the name {visible(str(path))} what to save: end it in one of {known}"
        )
    check_writable(path)


def save_params(answer: Answer, path: Path) -> None:
    """Write a file whose ending says how, whole or not at all."""
    check_params_path(path)
    with whole_file(path) as stream:
        text = codecs.getwriter("utf-8")(stream, "backslashreplace")
        PARAMS_FORMATS[path.suffix.lower()](answer, text)
