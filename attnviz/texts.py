"""Reads the texts of a command: one, many from a file, the built-in ones, rows of a file."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnviz.draw.labels import visible
from attnviz.draw.numbers import counted
from attnviz.errors import LoadError, UsageError
from attnviz.ranks import is_together
from attnviz.reading import (
    PACKAGED,
    TEXTS_BYTES,
    parse_json,
    read_bytes,
    read_stream,
    text_lines,
    utf8,
)
from attnviz.tables import JSON_LINES, PLAIN, layout_of, table_rows

if TYPE_CHECKING:
    from attnviz.models.model import Model
    from attnviz.records import Tokens

BUILT_IN_TEXT = (
    "Old Captain Alder had two sisters, Mary and Margaret. When Captain Alder came home, Mary sat "
    "by the window and Margaret sat by the fire. Then Captain Alder gave a letter to Mary and a "
    "book to Margaret."
)
"""A passage in which names are repeated, so that heads that copy earlier tokens matter."""

_PASSAGES = PACKAGED / "probes" / "natural.txt"
_SENTENCE_END = re.compile(r"(?<=[.?!])(?=\s)|(?<=[.?!]\")(?=\s)")
_LEAST_WORDS = 26  # the fewest words of a passage's opening: ten such openings are some 430 tokens

TEXT_COLUMN = "text"
"""The column of a table that has the texts, unless a person chooses another one."""

_LABELS = 8  # the most labels that a message lists
_MOST_QUOTED = 40
_MOST_PIECES = 8


class Chat(str):
    """A chat in place of a text, which a model's template finishes; as a string its contents."""

    messages: Sequence[Mapping[str, Any]]


class Texts(NamedTuple):
    """The texts that a command measures on, and where they come from.

    source: the origin of the texts, such as ``10 built-in texts``; empty if a person typed a text.
    lines: the line number of each text in its file, from 1; empty unless the texts are lines of a
        file. first: the index of the first text, if they are a part of the file.
    notes: sentences that a reader must know, such as how many rows had no text.
    """

    texts: tuple[str, ...]
    source: str
    lines: tuple[int, ...] = ()
    first: int = 0
    notes: tuple[str, ...] = ()

    def name(self, index: int) -> str:
        """Return a text's name for messages: ``the text``, or ``text 3 (line 4)``."""
        if not self.lines:
            return "the text"
        return f"text {self.first + index + 1} (line {self.lines[index]})"


def texts_of(
    texts: str | Iterable[str] | Path | Texts | None, option: str = "--texts"
) -> Texts | None:
    """Return the texts that a person gave as a ``Texts``; None if nothing was given.

    texts: one, several, or the path of the file that was given to ``option``.
    Raises UsageError for anything else, LoadError for a file that cannot be read.
    """
    if texts is None or isinstance(texts, Texts):
        return texts
    if isinstance(texts, Path):
        return read_texts_file(texts, option)
    if not isinstance(texts, Iterable) or isinstance(texts, bytes):
        raise UsageError(f"expected a text or several, got {texts!r:.40}")
    several = (texts,) if isinstance(texts, str) else tuple(texts)
    for text in several:
        if not isinstance(text, str) or not text.strip():
            raise UsageError(f"expected texts of at least one word, got {text!r}")
    if not several:
        raise UsageError("expected at least one text, got none")
    lines = tuple(range(1, len(several) + 1)) if len(several) > 1 else ()
    return Texts(several, "", lines)


def read_text(argument: str | None, file: Path | None, command: str = "heads") -> str:
    """Return the text of TEXT, ``--file`` or ``-`` as it is, with the line feeds at its end.

    command: the command to name in an example in a message.
    Raises UsageError if there is no text or two, LoadError if a file is unreadable or not UTF-8.
    """
    if argument is not None and file is not None:
        raise UsageError("expected one text: give TEXT or --file, not both")
    if file is not None:
        name = visible(str(file))
        text = utf8(read_bytes(file, name=name), name)
    elif argument == "-":
        text = utf8(_standard_input(), "standard input")
    elif argument is not None:
        text = argument if isinstance(argument, Chat) else as_utf8(argument, "the text")
    else:
        raise UsageError(
            f'expected a text: attnviz {command} "The cat sat on the mat.", --file PATH, or - to '
            "read standard input"
        )
    if not text.strip():
        raise UsageError("the text is empty: expected at least one word")
    return text


def as_utf8(argument: str, name: str) -> str:
    """Return an argument as UTF-8 in any locale; UsageError, naming ``name``, if it is no UTF-8."""
    return utf8(argument.encode("utf-8", "surrogateescape"), name, UsageError)


def natural_texts() -> tuple[str, ...]:
    """Return the passages of running text that the package contains."""
    return tuple(_PASSAGES.read_text(encoding="utf-8").strip().split("\n\n"))


def built_in_texts() -> Texts:
    """Return the beginning of each built-in passage: quick to measure, enough for intervals."""
    texts = []
    for passage in natural_texts():
        kept = ""
        for sentence in _SENTENCE_END.split(passage):
            kept += sentence
            if len(kept.split()) >= _LEAST_WORDS:
                break
        texts.append(kept)
    return Texts(tuple(texts), f"{len(texts)} built-in texts")


def read_texts(
    argument: str | None, file: Path | None, many: Path | Texts | None, column: str | None = None
) -> Texts:
    """Return the texts of TEXT, ``-``, ``--file`` or ``--texts``; by default the built-in ones.

    file, many: the paths after ``--file`` and ``--texts``. None means not given. column: see
        ``texts_in``.
    Raises UsageError if two are given or one is empty, LoadError if a file cannot be read.
    """
    if many is not None:
        if argument is not None or file is not None:
            raise UsageError("expected one source of texts: give TEXT, --file or --texts, not two")
        if isinstance(many, Texts):  # given by Python code
            return many
        return read_texts_file(many, "--texts", column)
    if argument is None and file is None:
        return built_in_texts()
    source = visible(str(file)) if file is not None else "standard input" * (argument == "-")
    return Texts((read_text(argument, file),), source)


def with_pictures(text: str | None, images: Any) -> Texts:
    """Return pictures, see ``picture_prompt``, in place of texts, or one text with all of them."""
    from attnviz.models.pictures import named_pictures, picture_prompt

    if text is None:
        return Texts(named_pictures(images), "")
    return Texts((picture_prompt(text, images),), "")


def read_texts_file(path: Path, option: str, column: str | None = None) -> Texts:
    """Return the texts in a file: one per line, or a column of a table; see ``texts_in``.

    Raises LoadError for a file that cannot be read or a damaged line, which is named by its number,
    UsageError if there is no text, or it is not clear which column has the texts.
    """
    name, lines = lines_of(path)
    every = list(texts_in(path, name, lines, column))
    if not (entries := [entry for entry in every if entry[1]]):
        raise UsageError(f"{option} {name} has no text: expected one text per line")
    numbers, texts = zip(*entries, strict=True)
    notes = empty_note(len(every) - len(entries))
    return Texts(texts, source_of(path, name, column), numbers, notes=notes)


def empty_note(rows: int) -> tuple[str, ...]:
    """Return a note on so many rows of a table without a text; none for 0."""
    return (f"{counted(rows, 'row')} of the table left out: no text there",) if rows else ()


def source_of(path: Path, name: str, column: str | None) -> str:
    """Return the description of a file of texts: its name, and the column if it is a table."""
    table = column is not None or path.suffix.lower() in (".csv", ".tsv")
    if not table or str(path) == "-":
        return name
    return f"{name}, column {visible(TEXT_COLUMN if column is None else column)}"


def texts_in(
    path: Path, name: str, lines: Iterable[str], column: str | None = None
) -> Iterator[tuple[int, str]]:
    """Yield (number, text) for each text of a file: its lines, or a column of its rows.

    A table is CSV, TSV, JSON lines or a JSON array, as its ending or first line tells. Empty lines
    are skipped; an empty cell, of white space or null, gives an empty text.

    column: the one that a person chose; None for ``text``.
    """
    layout, every = layout_of(path, lines)
    if layout == PLAIN and column is not None:
        raise UsageError(f"{name} has one text per line and no columns: leave out --column")
    if layout in (PLAIN, JSON_LINES):
        for at, line in enumerate(every, start=1):
            if line.strip():
                plain = layout == PLAIN
                yield at, line if plain else text_field(line, at, name, column or TEXT_COLUMN)
        return
    for at, row in table_rows(layout, every, name):
        yield at, cell_text(row, column, f"{name} row {at}")


def cell_text(row: Any, column: str | None, name: str) -> str:
    """Return the text in a column of a table's row; empty if that is white space, null or NaN.

    row: the text, or the cells by column. column: None for ``text``. name: of the row in messages.
    Raises LoadError if there is no such column, or something else than a text in it.
    """
    wanted = TEXT_COLUMN if column is None else column
    if isinstance(row, Mapping):
        if wanted not in row:
            known = ", ".join(visible(str(known)) for known in row)
            raise LoadError(
                f"{name} has no text in {visible(wanted)!r}: it has {known}; name the column of "
                "the texts with --column"
            )
        name, row = f"{visible(wanted)!r} of {name}", row[wanted]
    if row is None or row != row:  # how libraries write a cell without a value
        return ""
    if not isinstance(row, str):
        raise LoadError(f"{name} is neither a text nor an object: {visible(str(row)):.40}")
    return row if row.strip() else ""


def lines_of(path: Path) -> tuple[str, Iterator[str]]:
    """Return the printable name and the decoded lines of a file, or of ``-``; else LoadError."""
    from_input = str(path) == "-"
    name = "standard input" if from_input else visible(str(path))
    most = TEXTS_BYTES
    content = _standard_input(most) if from_input else read_bytes(path, name=name, most=most)
    return name, text_lines(content, name)


def encode_texts(
    model: Model, texts: Texts, truncate: bool, least: int, before: str = ""
) -> tuple[Tokens, ...]:
    """Return the tokens of every text, checked for their number.

    truncate: whether to cut a text that is too long for the model.
    least: the fewest tokens of a text; 2 if a loss is measured.
    Raises UsageError for a text that is too short, or too long and not truncated.
    """
    encoded = []
    for index, text in enumerate(texts.texts):
        name, tokens = before + texts.name(index), model.encode(text)
        if model.context is not None and len(tokens) > model.context:
            if not truncate:
                raise UsageError(
                    f"{name} has {len(tokens):,} tokens, {model.info.name!r} takes at most "
                    f"{model.context:,}: shorten it, or add --truncate to cut it there"
                )
            tokens = model.encode(text, model.context)
        if len(tokens) < least:
            raise UsageError(
                f"{name} has {len(tokens)} token{'s' * (len(tokens) != 1)}: a loss needs at least "
                f"{least}, one to read and one to predict"
            )
        encoded.append(tokens)
    return tuple(encoded)


def _single_token(model: Model, typed: str, option: str) -> tuple[int, str]:
    if not (typed := as_utf8(typed, option)):
        raise UsageError(f"{option} is empty: expected a word that is one token")
    forms = []
    for spelled in dict.fromkeys((typed if typed.startswith(" ") else f" {typed}", typed)):
        tokens = model.encode(spelled)
        entries = zip(tokens.ids, tokens.texts, tokens.special, strict=True)
        forms.append([(number, text) for number, text, special in entries if not special])
        if len(forms[-1]) == 1:
            return forms[-1][0]
    shown = " ".join(repr(text) for _, text in forms[0][:_MOST_PIECES]) or "nothing"
    raise UsageError(
        f"{option} {typed!r} is {len(forms[0])} tokens here ({shown}): a logit is of one, choose "
        "another word"
    )


def asked_word(
    model: Model, typed: str, option: str, labels: Sequence[str] = ()
) -> tuple[int, str]:
    """Return id and string of the token, or one of the ``labels``, typed; UsageError for others."""
    if not labels:
        return _single_token(model, typed, option)
    plain = [label.casefold() for label in labels]
    if typed.casefold() not in plain:
        some = ", ".join(map(visible, labels[:_LABELS])) + ", …" * (len(labels) > _LABELS)
        raise UsageError(f"{option} {visible(typed)!r} is not a label of the model: it has {some}")
    number = plain.index(typed.casefold())
    return number, labels[number]


def words_of(model: Model, labels: Sequence[str], ids: Sequence[int]) -> dict[int, str]:
    """Return the text of each id: of a token, or of one of the ``labels`` if there are any."""
    texts = [labels[number] for number in ids] if labels else model.vocabulary().texts(ids)
    return dict(zip(ids, texts, strict=True))


def answer_and_foil(
    model: Model, answer: str | None, foil: str | None, labels: Sequence[str] = ()
) -> tuple[tuple[int, str] | None, tuple[int, str] | None]:
    """Return (id, string) of both, None if not given; UsageError for no token, or the same."""
    asked, other = (
        None if word is None else asked_word(model, word, option, labels)
        for word, option in ((answer, "--answer"), (foil, "--foil"))
    )
    if asked is not None and other is not None and asked[0] == other[0]:
        kind = "label" if labels else "token"
        raise UsageError(
            f"--answer and --foil are the same {kind}, {asked[1]!r}: name two that differ"
        )
    return asked, other


def _standard_input(most: int = 0) -> bytes:
    if is_together():
        raise UsageError("several processes cannot read standard input: give TEXT or --file")
    if sys.stdin is None:  # closed by the caller, as in ``<&-``
        raise UsageError("standard input is closed: give a text there, or use TEXT or --file")
    return read_stream(sys.stdin.buffer, "standard input", most)


def text_field(line: str, number: int, name: str, field: str) -> str:
    """Return a field of a JSON line, as ``cell_text``; LoadError if the line is damaged."""
    try:
        return cell_text(parse_json(line, name), field, "")
    except LoadError as error:
        quoted = line if len(line) <= _MOST_QUOTED else line[:_MOST_QUOTED] + "…"
        raise LoadError(
            f'{name} line {number} is damaged: expected {{"{visible(field)}": "..."}}, got '
            f"{visible(quoted)}; fix or remove the line, or name another field with --column"
        ) from error


# Rows of named texts: JSON lines, an object each, or CSV with a line of names -------------------


class Rows(NamedTuple):
    """The rows of a file, at least one: texts by column, line numbers from 1, and source."""

    rows: tuple[Mapping[str, str], ...]
    lines: tuple[int, ...]
    source: str


def read_rows(
    path: Path,
    option: str,
    needed: Sequence[str],
    allowed: Sequence[str] = (),
    column: str | None = None,
) -> Rows:
    """Return the rows of a file, or of standard input for ``-``; empty lines are skipped.

    The file is a table as ``layout_of`` tells; CSV where it would be plain lines.
    needed, allowed: the names that a row must and may have. column: the one that is read as the
        only needed one, next to which a row may have any others; by default ``text`` if the needed
        one is missing.
    Raises LoadError for a file that cannot be read or a damaged line, which is named by its number,
    UsageError if there is no row, or for an unknown name.
    """
    source, lines = lines_of(path)
    layout, every = layout_of(path, lines)
    known = {*needed, *allowed}
    rows, numbers = [], []
    for number, cells in table_rows("," if layout == PLAIN else layout, every, source):
        where = f"{source} line {number}"
        if isinstance(cells, str) and len(needed) == 1:
            cells = {needed[0]: cells}
        if not isinstance(cells, dict):
            raise LoadError(f"{where} is not a JSON object: fix or remove the line")
        usual = len(needed) == 1 and needed[0] not in cells and TEXT_COLUMN in cells
        if column is not None or usual:
            chosen = {needed[0]: cell_text(cells, column, where)}
            cells = {name: cell for name, cell in cells.items() if name in known} | chosen
        for name, cell in cells.items():
            if not isinstance(cell, str | int | None) or isinstance(cell, bool):
                raise UsageError(f"{where}: {visible(name)!r} is no text")
        row = {name: str(cell) for name, cell in cells.items() if cell is not None}
        for name in row:
            if name not in known:
                raise UsageError(
                    f"{where} has {visible(name)!r}: expected {', '.join(sorted(known))} and "
                    "nothing else" + "; with --column it may have more" * (len(needed) == 1)
                )
        for name in needed:
            if not row.get(name, "").strip():
                raise UsageError(f"{where} has no {name}: expected {' and '.join(needed)}")
        rows.append({name: text for name, text in row.items() if text})
        numbers.append(number)
    if not rows:
        raise UsageError(f"{option} {source} is empty: expected rows with {' and '.join(needed)}")
    return Rows(tuple(rows), tuple(numbers), source)
