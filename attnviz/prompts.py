"""Reads prompts that each come with a question: one that was typed, or many from a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from attnviz.draw.labels import visible
from attnviz.errors import UsageError
from attnviz.texts import Texts, read_rows, read_text, read_texts_file

_ROWS = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")
"""The endings of files whose prompts may each have their own question."""


class TypedPrompt(NamedTuple):
    """One prompt with the question about it, as typed.

    question: what is asked, by option in the order of ``typed_prompts``; None for a default.
    place: the prompt's name in messages; empty if a person typed it.
    """

    text: str
    question: tuple[str | None, ...]
    place: str = ""


def typed_prompts(
    command: str,
    usual: Mapping[str, str | None],
    *,
    text: str | None = None,
    file: Path | None = None,
    texts: Path | Texts | None = None,
    column: str | None = None,
) -> tuple[list[TypedPrompt], str]:
    """Return the prompts, and a description of their source, which is empty if a person typed them.

    command: for messages. usual: the question's options by name; a row of a file may have its own
        value of each. text, file, texts: the one that was given. column: that of the prompts in a
        table; None for ``prompt``.
    Raises UsageError and LoadError as ``read_text``, ``read_texts_file`` and ``read_rows``.
    """
    asked = tuple(usual.values())
    if texts is None:
        read = read_text(text, file, command)
        source = "standard input" if text == "-" else ""
        return [TypedPrompt(read, asked)], source if file is None else visible(str(file))
    if text is not None or file is not None:
        raise UsageError("expected one source of prompts: give PROMPT, --file or --texts, not two")
    if isinstance(texts, Path) and texts.suffix.lower() in _ROWS:
        rows = read_rows(texts, "--texts", ("prompt",), tuple(usual), column)
        return [
            TypedPrompt(
                row["prompt"],
                tuple(row.get(name) or value for name, value in usual.items()),
                f"{rows.source} line {line}",
            )
            for row, line in zip(rows.rows, rows.lines, strict=True)
        ], rows.source
    many = texts if isinstance(texts, Texts) else read_texts_file(texts, "--texts", column)
    return [
        TypedPrompt(each, asked, many.place(at) if many.lines else "")
        for at, each in enumerate(many.texts)
    ], many.source


def control_count(asked: int | None, prompts: int) -> int:
    """Return the number of controls of each prompt: as many as asked for, else 20, of several 5."""
    return (5 if prompts > 1 else 20) if asked is None else asked


def named_error(place: str, error: UsageError) -> UsageError:
    """Return an error whose message begins with the place of the prompt, if it has one."""
    return UsageError(f"{place}: {error}" if place else str(error))
