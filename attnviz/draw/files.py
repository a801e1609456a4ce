"""Writes files and directories whole or not at all, and reports in the format of a name's ending.

An old file is replaced only by a finished new one. A new directory gets its name only when it is
complete. One process writes at a time.

A text in CSV stays as it is, so that a reader gets it back, even if a spreadsheet would take it for
a formula: nothing is put before ``=cmd``. Only characters that act on a terminal through ``cat``,
or that break a row, are written as in JSON: ``\\u001b`` for escape, ``\\u000d`` for a carriage
return, and ``\\u005c`` for a backslash that begins such a text by itself. ``\\u`` and four
hexadecimal digits always mean that, so that replacing them gives every text back. Line feeds and
tabs stay.
"""

from __future__ import annotations

import codecs
import csv
import importlib.util
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from attnviz.draw.labels import visible
from attnviz.errors import LoadError, UsageError
from attnviz.ranks import follows

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.document import Document
    from attnviz.draw.drawing import Drawing

Writer = Callable[[BinaryIO], object]
"""Writes one kind of file."""

TextWriter = Callable[["SupportsWrite[str]"], object]
"""Writes one kind of text."""

_PLOTTED = (".png", ".pdf")
_SLIDE = 1920  # the columns of pixels of a slide


_ACTING = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
    r"|\\(?=u[0-9a-f]{4})"
)


def csv_text(text: str) -> str:
    """Return a text with control and direction characters escaped, such as ``\\u202e``."""
    return _ACTING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class CsvTable:
    """Writes rows of CSV to a stream; strings in them are escaped by ``csv_text``."""

    def __init__(self, stream: SupportsWrite[str]) -> None:
        self._writer = csv.writer(stream, lineterminator="\n")

    def writerow(self, cells: Iterable[object]) -> None:
        self._writer.writerow(csv_text(cell) if isinstance(cell, str) else cell for cell in cells)

    def writerows(self, rows: Iterable[Iterable[object]]) -> None:
        for row in rows:
            self.writerow(row)


def text_file(write: TextWriter) -> Writer:
    """Return a function that writes text to a binary stream in UTF-8, half surrogates escaped."""
    return lambda stream: write(codecs.getwriter("utf-8")(stream, "backslashreplace"))


def document_files(
    document: Callable[[], Document], palette: str, slide: bool = False
) -> dict[str, Writer]:
    """Return by file ending the functions that write a document to a stream.

    document: returns the document, when it is needed. slide: whether a picture is a slide of 16 to
        9, not the whole document. palette: the name of the colours of cells.
    """

    def drawing() -> Drawing:
        from attnviz.draw.figure import document_drawing, slide_drawing

        return slide_drawing(document(), palette) if slide else document_drawing(document())

    def html(stream: SupportsWrite[str]) -> None:
        from attnviz.draw.html import document_html

        for piece in document_html(document(), palette):
            stream.write(f"{piece}\n")

    def markdown(stream: SupportsWrite[str]) -> None:
        from attnviz.draw.markdown import document_markdown

        for piece in document_markdown(document()):
            stream.write(f"{piece}\n")

    def svg(stream: SupportsWrite[str]) -> None:
        from attnviz.draw.svg import svg_document

        stream.write(svg_document(drawing(), palette))

    def plot(stream: BinaryIO, form: str) -> None:
        from attnviz.draw.drawing_plot import write_drawing

        write_drawing(drawing(), palette, stream, form, wide=_SLIDE if slide else 0)

    return {
        ".html": text_file(html),
        ".md": text_file(markdown),
        ".svg": text_file(svg),
        **{ending: partial(plot, form=ending.removeprefix(".")) for ending in _PLOTTED},
    }


def check_path(path: Path, endings: Collection[str]) -> None:
    """Raise an error if ``path`` could not be written; this is cheap, so that it can come first.

    endings: the allowed endings of file names, such as ``.json``.
    Raises UsageError for another ending or a path that is not a file, LoadError for a directory
    that is missing or not writable, a file that is not writable, or a picture without matplotlib.
    """
    ending = path.suffix.lower()
    if ending not in endings:
        raise UsageError(
            f"cannot tell from the name {visible(str(path))} what to save: end it in one of "
            f"{', '.join(endings)}"
        )
    if ending in _PLOTTED and importlib.util.find_spec("matplotlib") is None:
        raise LoadError(
            "PNG and PDF are drawn by matplotlib, which is not installed: "
            "pip install 'attnviz[plot]', or save as .svg or .html"
        )
    check_writable(path, named=True)


def save(path: Path, writers: Mapping[str, Writer]) -> None:
    """Write a file in the format of its name's ending, whole or not at all.

    writers: by ending, the functions that write to a stream.
    Raises what ``check_path`` raises, and LoadError if writing fails.
    """
    check_path(path, writers)
    with whole_file(path, named=True) as stream:
        writers[path.suffix.lower()](stream)


# Whole files and directories --------------------------------------------------------------------


def lock(descriptor: int, name: str) -> None:
    """Lock an open file until this process closes it; UsageError if another run has locked it."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(f"another run is writing {name}: wait for it, or name another") from error


@contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """Lock a directory during the block, where systems can; UsageError if another run uses it."""
    if os.name == "nt":  # Windows opens no directories
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        lock(descriptor, visible(repr(str(directory))))
        yield
    finally:
        os.close(descriptor)


def _failure(path: Path, error: OSError | RuntimeError) -> LoadError:
    reason = getattr(error, "strerror", None) or str(error)
    return LoadError(f"cannot write {visible(str(path))}: {visible(reason)}")


def _replaced(path: Path, named: bool) -> Path:
    """Return the path of the file that is replaced when ``path`` is written; nothing is created.

    named: True if a person named ``path``; only then a link is followed.
    Raises UsageError if something other than a regular file is there, LoadError if the path cannot
    be checked.
    """
    mode = None
    try:
        final = path.resolve() if named else path.parent.resolve() / path.name
        with suppress(FileNotFoundError, NotADirectoryError):
            mode = path.stat(follow_symlinks=named).st_mode
    except (OSError, RuntimeError) as error:  # a name too long, a loop of links, no directory here
        raise _failure(path, error) from error
    if mode is None:
        return final
    if not stat.S_ISREG(mode):
        special = "a link" if stat.S_ISLNK(mode) else "no regular file"
        kind = "a directory" if stat.S_ISDIR(mode) else special
        advice = "name a file" if named else "remove it"
        raise UsageError(f"cannot save to {visible(str(path))}: it is {kind}; {advice}")
    return final


def check_writable(path: Path, *, named: bool = False) -> None:
    """Raise an error if ``whole_file`` could not write ``path``; no file is created.

    named: True if a person named ``path``; only then a link is followed.
    Raises UsageError for something other than a file, LoadError for missing rights or directories.
    """
    shown, parent = visible(str(path)), path.parent
    _replaced(path, named)
    try:
        if not parent.is_dir():
            where = visible(str(parent))
            raise LoadError(f"cannot save to {shown}: there is no directory {where}; make it first")
    except OSError as error:  # a name too long for the system
        raise _failure(path, error) from error
    if not os.access(parent, os.W_OK | os.X_OK):
        where = visible(str(parent))
        raise LoadError(f"cannot save to {shown}: the directory {where} is not writable")
    if path.exists() and not os.access(path, os.W_OK):
        raise LoadError(f"cannot save to {shown}: the file exists and is not writable")


@contextmanager
def whole_file(path: Path, *, named: bool = False) -> Iterator[BinaryIO]:
    """Yield a binary stream whose content becomes ``path`` if the block ends without an exception.

    It is written next to ``path`` under another name and moved into place. An existing file's
    permissions are kept. Of several processes that run one command together the first alone writes.
    named: whether a person named ``path``; only then a link is followed.
    Raises UsageError, before or after the block, if something other than a regular file is there,
    LoadError if the system refuses.
    """
    if follows():
        with open(os.devnull, "wb") as stream:
            yield stream
        return
    beside = _replaced(path, named).with_name(f".attnviz-{secrets.token_hex(8)}.part")
    # Not tempfile, whose files are private: these get the permissions of any new file.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:  # a signal may come as soon as it exists
        with open(os.open(beside, flags, 0o666), "wb") as stream:
            yield stream
        final = _replaced(path, named)
        with suppress(FileNotFoundError):  # a new file
            os.chmod(beside, stat.S_IMODE(final.lstat().st_mode))
        os.replace(beside, final)
    except OSError as error:
        raise _failure(path, error) from error
    finally:
        with suppress(OSError):  # moved into place, or never made, which was reported already
            beside.unlink()


def check_new_directory(path: Path) -> None:
    """Raise an error if ``path`` cannot become a new directory; nothing is created.

    Raises UsageError if something other than an empty directory is there, LoadError if the parent
    directory or the right to write there is missing.
    """
    shown = repr(str(path))
    try:
        if path.is_dir():
            if any(path.iterdir()):
                raise UsageError(f"{shown} is not empty: name a new directory, or empty it first")
        elif path.exists() or path.is_symlink():
            raise UsageError(f"{shown} exists and is not a directory: name a new one")
        parent = path if _stays(path) else path.resolve().parent
        if not parent.is_dir():
            raise LoadError(f"cannot write {shown}: there is no directory {str(parent)!r}")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise LoadError(f"cannot write {shown}: the directory {str(parent)!r} is not writable")
    except (OSError, RuntimeError) as error:  # a name too long, a loop of links, no access
        raise _failure(path, error) from error


def _stays(path: Path) -> bool:
    """Return True if ``path`` must be filled, not replaced: somebody stands or mounted in it."""
    return path.is_dir() and (path.samefile(".") or os.path.ismount(path))


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Yield a draft directory that becomes ``path`` when the block ends without an exception.

    Raises what ``check_new_directory`` raises, and LoadError if writing fails.
    """
    check_new_directory(path)
    final, stays = path.resolve(), _stays(path)
    draft = (final / "x" if stays else final).with_name(f".attnviz-{secrets.token_hex(8)}.part")
    try:
        draft.mkdir()  # not tempfile: its directories are private, this gets any new one's rights
        yield draft
        if stays:
            for entry in draft.iterdir():
                os.replace(entry, final / entry.name)
            return
        if final.is_dir():
            final.rmdir()
        os.replace(draft, final)
    except OSError as error:
        raise _failure(path, error) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
