"""Texts of strangers made safe to print: nothing in a token or a name acts on the terminal."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:
    from attnviz.records import Tokens

_ROOT = re.compile(r"√(\w[\w,]*\w|\w)")
_VECTORS = re.compile(r"(?<=[a-z])·(?=[a-z])")
_SPELLED = {
    "√": "sqrt",
    "−∞": "-inf",
    "±": "+-",
    "→": "->",
    "≤": "<=",
    "≥": ">=",
    "ε": " eps",
    "Σ": "sum",
    "ᵀ": "^T",
    "‖": "||",
    "²": "^2",
    "…": "...",
    "Δ": "delta",
    "∝": "~",
}
_LETTERS = str.maketrans("×÷·–−“”", 'x/*--""')


def spelled(text: str) -> str:
    """``text`` in signs that every console can write; it may grow longer.

    A text of a stranger is not for this: what it says is escaped, not spelled.
    """
    if text.isascii():
        return text
    text = _VECTORS.sub(".", _ROOT.sub(r"sqrt(\1)", text))
    for sign, words in _SPELLED.items():
        text = text.replace(sign, words)
    return text.translate(_LETTERS)


_LONGEST_SPECIAL = 8
_BYTES = re.compile(r"(?:<0x[0-9A-Fa-f]{2}>)+")
_PICTURES = {"\n": "⏎", "\r": "␍", "\t": "⇥", "\x7f": "␡"}
_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
_JOINERS = {"\u200c", "\u200d", "\ufe0e", "\ufe0f"}
_SKIN_TONES = "\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
_FLAG_LETTERS = "".join(map(chr, range(0x1F1E6, 0x1F200)))


def _shown(character: str, after: str) -> str:
    """One character as it may be printed after the text ``after``."""
    if character in _PICTURES:
        return _PICTURES[character]
    if character < " ":
        return chr(0x2400 + ord(character))
    if character in _JOINERS and after and not after[-1].isascii():
        return ""  # inside an emoji or a script that joins; terminals disagree about its width
    if character in _SKIN_TONES and after and not after[-1].isascii():
        return ""  # they disagree here too, and about flags
    if character in _FLAG_LETTERS:
        return chr(ord(character) - ord(_FLAG_LETTERS[0]) + ord("Ａ"))
    category = unicodedata.category(character)
    if category in _HIDDEN or character in _JOINERS or character in _SKIN_TONES:
        return f"<U+{ord(character):04X}>"
    if category in {"Mn", "Me"} and not after:
        return f"◌{character}"
    return character


def visible(text: str, encoding: str = "utf-8") -> str:
    """``text`` with every control, format and unassigned character written out.

    What ``encoding`` cannot carry becomes a backslash escape.
    """
    if text.isascii() and text.isprintable():
        return text
    shown = ""
    for character in text:
        shown += _shown(character, shown)
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def token_label(text: str, encoding: str = "utf-8") -> str:
    """A token as an axis shows it: no surrounding space, bytes as ``<ED 95>``."""
    bare = text.strip(" ")
    if not bare:
        return visible("␣" * max(len(text), 1) if text else "∅", encoding)

    return visible(_BYTES.sub(lambda match: _grouped(match.group()), bare), encoding)


def _grouped(names: str) -> str:
    """``<0xED><0x95>`` as ``<ED 95>``."""
    return "<" + names.replace("<0x", "").replace(">", " ").strip().upper() + ">"


def word_label(texts: Iterable[str], encoding: str = "utf-8") -> str:
    """Neighbouring tokens as one word; their bytes as the characters that they make together."""

    def characters(match: re.Match[str]) -> str:
        whole = bytes.fromhex(match.group().replace("<0x", "").replace(">", ""))
        try:
            return whole.decode("utf-8")
        except UnicodeDecodeError:
            return _grouped(match.group())

    return token_label(_BYTES.sub(characters, "".join(texts)), encoding)


def token_labels(tokens: Tokens, encoding: str = "utf-8") -> tuple[str, ...]:
    """The axis labels of a text; long names of special tokens are cut."""
    labels = (token_label(text, encoding) for text in tokens.texts)
    ellipsis = "…" if encoding.lower().startswith("utf") else "~"
    return tuple(
        fit(label, _LONGEST_SPECIAL, ellipsis)
        if special and cell_len(label) > _LONGEST_SPECIAL
        else label
        for label, special in zip(labels, tokens.special, strict=True)
    )


def width(text: str) -> int:
    """The terminal cells that a text takes."""
    return cell_len(text)


def fit(text: str, cells: int, ellipsis: str = "…") -> str:
    """``text`` padded or cut to exactly ``cells`` cells, an ellipsis where something was cut."""
    if cell_len(text) > cells > 0:
        return set_cell_size(text, cells - cell_len(ellipsis)) + ellipsis
    return set_cell_size(text, cells)


def cut(text: str, cells: int) -> str:
    """``text`` with an ellipsis where it is longer than ``cells`` terminal cells."""
    return text if width(text) <= cells else fit(text, cells)


def wrap(text: str, cells: int, lines: int, ellipsis: str = "…") -> list[str]:
    """``text`` broken into at most ``lines`` pieces of at most ``cells`` cells.

    The last piece ends in an ellipsis where the text goes on. A character wider than ``cells``
    is shown as an ellipsis.
    """
    pieces, taken = [""], 0
    for character in text:
        piece = character if cell_len(character) <= cells else ellipsis
        if taken + cell_len(piece) > cells:
            pieces.append("")
            taken = 0
        pieces[-1] += piece
        taken += cell_len(piece)
    if len(pieces) > lines:
        last = pieces[lines - 1]
        pieces = [*pieces[: lines - 1], set_cell_size(last, cells - cell_len(ellipsis)) + ellipsis]
    return pieces


def at_blanks(text: str, cells: int, indent: str = "", ellipsis: str = "…") -> list[str]:
    """``text`` broken at its blanks into lines of at most ``cells`` cells, later ones indented.

    A word that has no line long enough ends in an ellipsis.
    """
    lines = [""]
    start = ""
    for word in text.split():
        if lines[-1] != start and width(f"{lines[-1]} {word}") > cells:
            start = indent
            lines.append(start)
        gap = " " if lines[-1] != start else ""
        room = cells - width(lines[-1] + gap)
        lines[-1] += gap + (word if width(word) <= room else fit(word, room, ellipsis))
    return lines
