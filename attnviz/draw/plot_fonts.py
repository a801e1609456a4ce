"""Fonts for matplotlib that hold the characters of the tokens, or escapes where none does."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnviz.draw.labels import visible

if TYPE_CHECKING:
    from matplotlib.font_manager import FontEntry

__all__ = ["Pen"]

_BASE = "DejaVu Sans"  # comes with matplotlib

_PREFERRED = (
    "Noto Sans CJK KR",
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Apple SD Gothic Neo",
    "Malgun Gothic",
    "Hiragino Sans",
    "Yu Gothic",
    "PingFang SC",
    "Microsoft YaHei",
    "WenQuanYi Zen Hei",
    "NanumGothic",
    "Arial Unicode MS",
    "Noto Emoji",
    "Noto Sans Symbols 2",
    "Segoe UI Symbol",
    "Symbola",
)
_CONTROL_PICTURES = 0x2400  # ``labels.visible`` shows a control character by its picture
_UNDRAWABLE = ("color emoji", "colour emoji", "lastresort", "last resort")


@functools.cache
def _characters(path: str) -> frozenset[int]:
    """The code points a font file can draw."""
    from matplotlib.font_manager import get_font

    return frozenset(get_font(path).get_charmap())


def _upright_fonts() -> Iterator[FontEntry]:
    """A regular font of each installed family, preferred families first."""
    from matplotlib.font_manager import fontManager

    found: dict[str, FontEntry] = {}
    for font in fontManager.ttflist:
        plain = font.style == "normal" and font.variant == "normal"
        if plain and not any(word in font.name.lower() for word in _UNDRAWABLE):
            known = found.get(font.name)
            if known is None or abs(_weight(font) - 400) < abs(_weight(known) - 400):
                found[font.name] = font
    ranks = {name: rank for rank, name in enumerate(_PREFERRED)}
    yield from sorted(found.values(), key=lambda font: (ranks.get(font.name, 99), font.name))


def _weight(font: FontEntry) -> int:
    return font.weight if isinstance(font.weight, int) else 400


def _covering(texts: Iterable[str]) -> tuple[list[str], frozenset[int]]:
    """Installed families that together draw ``texts``, and the code points that none can draw."""
    from matplotlib.font_manager import FontProperties, findfont

    base = _characters(findfont(FontProperties(family=_BASE)))
    missing = {ord(character) for text in texts for character in text} - base
    families = [_BASE]
    for font in _upright_fonts() if missing else ():
        found = missing & _characters(font.fname)
        if found:
            families.append(font.name)
            missing -= found
        if not missing:
            break
    return families, frozenset(missing)


@dataclass(frozen=True)
class Pen:
    """How to write any text: in fonts that hold it, never as a formula.

    families: in the order in which a character is looked up.
    missing: code points that no installed font draws; they are written out.
    """

    families: list[str]
    missing: frozenset[int]

    @classmethod
    def for_texts(cls, texts: Iterable[str]) -> Pen:
        """A pen for texts of strangers."""
        return cls(*_covering(visible(text) for text in texts))

    def text(self, content: str) -> str:
        """``content`` as it can be drawn."""
        return "".join(map(self._drawable, visible(content)))

    def _drawable(self, character: str) -> str:
        code = ord(character)
        if code not in self.missing:
            return character
        control = code - _CONTROL_PICTURES
        return f"<U+{control if 0 <= control < 0x20 else code:04X}>"

    def style(self, size: float, **more: Any) -> dict[str, Any]:
        """The keyword arguments of a text of ``size`` points."""
        fixed = {"fontfamily": self.families, "parse_math": False, "usetex": False}
        return {"fontsize": size, **fixed, **more}
