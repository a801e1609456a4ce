"""Makes texts from anywhere safe to print, so that no token or name can act on the terminal."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:
    from attnviz.records import Tokens

_ROOT = re.compile(r"√(\w[\w,]*\w|\w)")
_VECTORS = re.compile(r"(?<=[a-z])·(?=[a-z])")
_SPELLED = {
    "√": "sqrt", "−∞": "-inf", "±": "+-", "→": "->", "←": "<-", "↑": "^", "↓": "v", "≤": "<=",
    "≥": ">=", "ε": " eps", "Σ": "sum", "ᵀ": "^T", "‖": "||", "²": "^2", "…": "...", "Δ": "delta",
    "∝": "~", "✓": "ok", "✗": "FAIL",
}  # fmt: skip
_LETTERS = str.maketrans("×÷·–−“”", 'x/*--""')


def spelled(text: str) -> str:
    """Return ``text`` in ASCII characters that every console can show; it may grow longer.

    Use it only for texts of attnviz itself: texts of users and models are escaped instead.
    """
    if text.isascii():
        return text
    text = _VECTORS.sub(".", _ROOT.sub(r"sqrt(\1)", text))
    for sign, words in _SPELLED.items():
        text = text.replace(sign, words)
    return text.translate(_LETTERS)


_LONGEST_SPECIAL, _LONGEST_NAME = 8, 30
_ENDS_OF_TEXT = re.compile(r"(?P<side>begin|start|end)[\W_]*of[\W_]*(text|sentence|document)", re.I)
_BYTES = re.compile(r"(?:<0x[0-9A-Fa-f]{2}>)+")
_REST = re.compile(r"^##(?=\w)")
_PICTURES = {"\n": "⏎", "\r": "␍", "\t": "⇥", "\x7f": "␡"}
_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
_JOINERS = {"\u200c", "\u200d", "\ufe0e", "\ufe0f"}
_SKIN_TONES = "\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
_FLAG_LETTERS = "".join(map(chr, range(0x1F1E6, 0x1F200)))


def _shown(character: str, after: str) -> str:
    """Return one character in a form that can be printed. after: the string printed before it."""
    if character in _PICTURES:
        return _PICTURES[character]
    if character < " ":
        return chr(0x2400 + ord(character))
    if character in _JOINERS and after and not after[-1].isascii():
        return ""  # within an emoji or a joined script; terminals disagree about its width
    if character in _SKIN_TONES and after and not after[-1].isascii():
        return ""  # terminals disagree here too, and about flags
    if character in _FLAG_LETTERS:
        return chr(ord(character) - ord(_FLAG_LETTERS[0]) + ord("Ａ"))
    category = unicodedata.category(character)
    if category in _HIDDEN or character in _JOINERS or character in _SKIN_TONES:
        return f"<U+{ord(character):04X}>"
    if category in {"Mn", "Me"} and not after:
        return f"◌{character}"
    return character


def visible(text: str, encoding: str = "utf-8") -> str:
    """Escape control, format and unassigned characters of a text, and those an encoding lacks."""
    if text.isascii() and text.isprintable():
        return text
    shown = ""
    for character in text:
        shown += _shown(character, shown)
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def token_label(text: str, encoding: str = "utf-8") -> str:
    """Return a token as an axis shows it: without spaces around it, bytes as ``<ED 95>``.

    Letters that the tokenizer took apart, as BERT's does with Korean syllables, are composed (NFC).
    WordPiece's ``##`` before the rest of a word is left out.
    """
    bare = unicodedata.normalize("NFC", _REST.sub("", text.strip(" ")))
    if not bare:
        return visible("␣" * max(len(text), 1) if text else "∅", encoding)
    return visible(_BYTES.sub(lambda match: _grouped(match.group()), bare), encoding)


def _grouped(names: str) -> str:
    """Return the bytes ``<0xED><0x95>`` in a token's string as ``<ED 95>``."""
    return "<" + names.replace("<0x", "").replace(">", " ").strip().upper() + ">"


def word_label(texts: Iterable[str], encoding: str = "utf-8") -> str:
    """Join neighbouring tokens to one word, and their bytes to the characters that they form."""

    def characters(match: re.Match[str]) -> str:
        try:
            return _unwritten(match.group()).decode("utf-8")
        except UnicodeDecodeError:
            return _grouped(match.group())

    first, *rest = texts
    joined = "".join([first, *(_REST.sub("", text) for text in rest)])
    return token_label(_BYTES.sub(characters, joined), encoding)


def token_labels(tokens: Tokens, encoding: str = "utf-8") -> tuple[str, ...]:
    """Return the axis labels of a text, one for each token.

    Tokens that are bytes of one character, or letters of one Korean syllable, are shown as the
    character and their number, such as ``한 1/3``. Special tokens with long names are shown as
    ``<bos>`` and ``<eos>``, or cut.
    """
    ellipsis = "…" if encoding.lower().startswith("utf") else "~"
    labels = []
    for index, parts in enumerate(_parts(tokens.texts)):
        label = token_label("".join(map(str, parts)), encoding)
        if tokens.special[index] and cell_len(label) > _LONGEST_SPECIAL:
            ends = _ENDS_OF_TEXT.search(label)
            label = fit(label, _LONGEST_SPECIAL, ellipsis)
            if ends:
                label = "<eos>" if index and ends["side"].lower() == "end" else "<bos>"
        labels.append(label)
    return tuple(labels)


class _Part(NamedTuple):
    """A piece of a token's label: a character, or the ``number``-th of the ``of`` bytes of one."""

    character: str
    number: int = 1
    of: int = 1

    def __str__(self) -> str:
        return self.character + (f" {self.number}/{self.of}" if self.of > 1 else "")


def _parts(texts: Sequence[str]) -> list[list[_Part]]:
    """Return the pieces of each token: its text, or the characters that it is a part of."""
    parts: list[list[_Part]] = []
    for split, run in groupby(texts, lambda text: _BYTES.search(text) is not None):
        if not split:
            parts += [[part] for part in _composed(run)]
            continue
        pieces = [_raw(text) for text in run]
        whole = b"".join(pieces)
        owner = [number for number, piece in enumerate(pieces, len(parts)) for _ in piece]
        parts += [[] for _ in pieces]
        start = 0
        for character in whole.decode("utf-8", "surrogateescape"):
            end = start + len(character.encode("utf-8", "surrogateescape"))
            if "\udc80" <= character <= "\udcff":
                character = f"<0x{whole[start]:02X}>"
            tokens = list(dict.fromkeys(owner[start:end]))
            for number, token in enumerate(tokens, start=1):
                parts[token].append(_Part(character, number, len(tokens)))
            start = end
    return parts


def _composed(texts: Iterable[str]) -> list[_Part]:
    """Return a piece for each token; those that NFC composes to one letter are parts of it."""
    groups = list[list[str]]()
    for text in texts:
        rest = _REST.sub("", text)
        ends = unicodedata.normalize("NFC", "".join(groups[-1])) if groups else ""
        alone = unicodedata.normalize("NFC", rest)
        if rest != text and len(unicodedata.normalize("NFC", ends + rest)) < len(ends + alone):
            groups[-1].append(rest)
        else:
            groups.append([text])
    return [
        _Part("".join(group), number, len(group))
        for group in groups
        for number in range(1, len(group) + 1)
    ]


def whole_characters(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield (first, one after the last) index of the tokens that form whole characters together."""
    start = 0
    for index, parts in enumerate(_parts(texts), start=1):
        if not parts or parts[-1].number == parts[-1].of:
            yield start, index
            start = index


def _raw(text: str) -> bytes:
    """Return the bytes of a string; a byte written as ``<0xED>`` becomes that byte."""
    parts = [part.encode("utf-8", "replace") for part in re.split(f"({_BYTES.pattern})", text)]
    parts[1::2] = (_unwritten(part.decode()) for part in parts[1::2])
    return b"".join(parts)


def _unwritten(names: str) -> bytes:
    return bytes.fromhex(names.replace("<0x", "").replace(">", ""))


def split_into_bytes(tokens: Tokens) -> str:
    """Return advice for the reader if tokens are parts of characters, else an empty string."""
    for first, last in whole_characters(tokens.texts):
        if last - first > 1:
            stop = next((at for at in range(last, len(tokens)) if tokens.special[at]), None)
            word = cut(word_label(tokens.texts[first:stop]).split()[0], _LONGEST_SPECIAL)
            parts = "bytes" if _BYTES.search(tokens.texts[first]) else "letters"
            return f"this tokenizer splits {word} into {parts}; a multilingual model shows words"
    return ""


def width(text: str) -> int:
    """Return the width of a string in terminal characters."""
    return cell_len(text)


def fit(text: str, cells: int, ellipsis: str = "…") -> str:
    """Pad or cut ``text`` to exactly ``cells`` characters' width; a cut ends in ``ellipsis``."""
    if cell_len(text) > cells > 0:
        return set_cell_size(text, cells - cell_len(ellipsis)) + ellipsis
    return set_cell_size(text, cells)


def cut(text: str, cells: int, ellipsis: str = "…") -> str:
    """Cut ``text`` with an ellipsis if it is wider than ``cells`` characters."""
    return text if width(text) <= cells else fit(text, cells, ellipsis)


def cut_at_word(text: str, cells: int) -> str:
    """Cut ``text`` to ``cells`` characters, behind a whole word if that leaves at least half."""
    if width(text) <= cells:
        return text
    whole = cut(text, cells).removesuffix("…")
    end = whole if text[len(whole)].isspace() else whole.rpartition(" ")[0]
    return (end.rstrip(" ,;:") if width(end) > cells / 2 else whole) + "…"


def numbered(label: str, index: int) -> str:
    """Return the label of a token with its number in the text, such as ``her (12)``."""
    return f"{label} ({index})"


def token_name(labels: Sequence[str], index: int) -> str:
    """Return the label of token ``index``, with its index if another token has the same label."""
    label = labels[index]
    return numbered(label, index) if labels.count(label) > 1 else label


def short_name(name: str) -> str:
    """Return a model's name for a crowded line; a long path is cut to its last one or two parts."""
    parts = name.rstrip("/").split("/")
    if len(name) <= _LONGEST_NAME or len(parts) < 2:
        return name
    two = "…/" + "/".join(parts[-2:])
    return two if len(two) <= _LONGEST_NAME else f"…/{parts[-1]}"


def wrap(text: str, cells: int, lines: int, ellipsis: str = "…") -> list[str]:
    """Break ``text`` into at most ``lines`` pieces, each at most ``cells`` characters wide.

    The last piece ends in an ellipsis if the text goes on. A character wider than ``cells`` is
    shown as an ellipsis.
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
    """Break ``text`` at blanks into lines at most ``cells`` characters wide.

    indent: the blanks before all lines but the first. A word longer than a line is cut with an
        ellipsis.
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


# Running text ----------------------------------------------------------------------------------
#
# Tokens are turned back into the text as the tokenizer says, never by a guess. Where it does not
# tell their positions, tokens are looked for in the text in their order; if one is missing there,
# every token stands as it is.

Spans = Sequence[tuple[int, int]]


def running_pieces(tokens: Tokens, text: str) -> list[str]:
    """Return the stretch of the text that each token covers, with the blanks before it.

    Of several tokens of one character, the first has it and the others are empty. A token that the
    tokenizer added to the ``text`` has its name, such as ``[CLS]``.
    """
    names, spans = token_labels(tokens), token_spans(tokens, text)
    if not spans:
        return [f" {name}" for name in names]
    pieces, end, regions = list[str](), spans[0][0] if tokens.kept else 0, tokens.regions
    for at, (name, special, (start, stop)) in enumerate(
        zip(names, tokens.special, spans, strict=True)
    ):
        if stop <= end:
            pieces.append(name if special else "")
            continue
        added = at > 1 and tokens.special[at - 1] and spans[at - 1][0] == spans[at - 1][1]
        # Two texts that are read together have a line feed between them on screens.
        joined = added or regions[at - 1 : at + 1] == ("first", "second")
        blank = text[end:start] if text[end:start].isspace() and not joined else ""
        pieces.append(blank + (name if special else text[max(start, end) : stop]))
        end = stop
    return pieces


def token_spans(tokens: Tokens, text: str) -> Spans:
    """Return the characters of the text that each token stands for; empty if that is unknown."""
    spans = tokens.spans or _located(tokens, text)
    return () if spans and max(stop for _, stop in spans) > len(text) else spans


def _located(tokens: Tokens, text: str) -> Spans:
    """Return where each token stands in the text, in order; empty if one is not found."""
    folded, spans, end = text.lower(), list[tuple[int, int]](), 0
    if len(folded) != len(text):
        return ()
    for name, special in zip(tokens.texts, tokens.special, strict=True):
        bare = name.removeprefix("##")
        wanted = (bare.strip() or bare).lower()
        start = folded.find(wanted, end) if wanted else end
        if start < 0 or text[end:start].strip():
            if not special:
                return ()
            start, wanted = end, ""  # the tokenizer added it
        end = start + len(wanted)
        spans.append((start, end))
    return spans
