"""The prompts of ``attnviz why``: one that was typed, or many of a file, each with its question."""

from __future__ import annotations

from typing import NamedTuple

from attnviz.cli.inputs import Texts, read_text, read_texts_file
from attnviz.draw.labels import visible
from attnviz.errors import UsageError
from attnviz.why.options import Prompts, Question

_QUESTION = ("answer", "foil", "position")
_ROWS = (".csv", ".jsonl", ".ndjson")
"""Endings of files whose prompts may have a question of their own."""


class Prompt(NamedTuple):
    """A prompt and what is asked of it, as it was written. place: how a message names it."""

    text: str
    answer: str | None
    foil: str | None
    position: str | None
    place: str = "the prompt"


def read_prompts(prompts: Prompts, question: Question) -> tuple[list[Prompt], str]:
    """The prompts, and where they come from in words; empty where the person typed it.

    What a row of a file leaves out is taken from the options. Raises UsageError and LoadError as
    ``read_text``, ``read_texts_file`` and ``read_rows`` do.
    """
    asked, path = (question.answer, question.foil, question.position), prompts.texts
    if path is None:
        text = read_text(prompts.text, prompts.file, "why")
        source = visible(str(prompts.file)) if prompts.file is not None else ""
        return [Prompt(text, *asked)], source or "standard input" * (prompts.text == "-")
    if prompts.text is not None or prompts.file is not None:
        raise UsageError("expected one source of prompts: give PROMPT, --file or --texts, not two")
    if not isinstance(path, Texts) and path.suffix.lower() in _ROWS:
        from attnviz.cli.rows import read_rows

        read = read_rows(path, "--texts", ("prompt",), _QUESTION)
        found = []
        for row, line in zip(read.rows, read.lines, strict=True):
            answer, foil, position = (
                row.get(name) or usual for name, usual in zip(_QUESTION, asked, strict=True)
            )
            place = f"{read.source} line {line}"
            found.append(Prompt(row["prompt"], answer, foil, position, place))
        return found, read.source
    texts = path if isinstance(path, Texts) else read_texts_file(path, "--texts")
    return [
        Prompt(text, *asked, texts.place(index)) for index, text in enumerate(texts.texts)
    ], texts.source
