"""The command line that gives a view of explore again, quoted for a shell."""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from attnviz.inspect.explore.long import LongPart
from attnviz.inspect.explore.scene import PALETTE_NAMES, Scene


def command_line(
    scene: Scene,
    text: str,
    options: Sequence[str] = (),
    part: LongPart | None = None,
    file: Path | None = None,
) -> str:
    """Return the ``attnviz heads`` command that shows the same head, to be pasted into a shell.

    scene: the head, cursor and mode on the screen. text: the text of the run. options: those that
        chose the model and its attention, each an argument. part: of a long text. file: that has
        the text, to be named in its place.
        Control characters are escaped (``$'…'``: bash, zsh, ksh).
    """
    words = ["attnviz", "heads", *options, "--head", scene.name(scene.head)]
    if part is not None and not part.pooled:
        for name, each in (("--queries", part.queries), ("--keys", part.keys)):
            words += [name, f"{each[0]}-{each[-1]}"]
    if scene.removed:
        words += ["--ablate", ",".join(map(scene.name, sorted(scene.removed)))]
    if scene.mode != "raw":
        words.append("--no-sink" if scene.mode == "no-sink" else "--norm-weighted")
    if scene.palette != PALETTE_NAMES[0]:
        words += ["--palette", scene.palette]
    if scene.index_base:
        words += ["--index-base", str(scene.index_base)]
    line = " ".join(map(shell_word, words))
    if "--chat" in options:  # which gives the text
        return line
    if file is not None:
        return f"{line} --file {shell_word(str(file))}"
    if text == "-":  # alone it means standard input
        return f"printf %s - | {line} -"
    return f"{line} {'-- ' if text.startswith('-') else ''}{shell_word(text)}"


def shell_word(word: str) -> str:
    """Return one word quoted for a shell, its control characters escaped."""
    if all(
        unicodedata.category(character)[0] not in "CZ" or character == " " for character in word
    ):
        return shlex.quote(word)
    return "$'" + "".join(map(_spelled, word)) + "'"


def _spelled(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character == " " or unicodedata.category(character)[0] not in "CZ":
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))
