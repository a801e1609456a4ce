"""How a terminal can show a weight: in colour, or by a ramp of glyphs, in Unicode or ASCII."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from typing import Any, Literal

from rich.color import Color
from rich.console import Console
from rich.segment import Segment
from rich.style import Style

from attnviz.draw import palette as palettes
from attnviz.draw.blocks import BOLD, DIM
from attnviz.draw.labels import spelled, visible
from attnviz.draw.palette import DEFAULT, DIVERGING, RGB, STEPS, Tint, colour_table, contrasting

Tone = Literal["plain", "strong", "faint", "good", "bad", "skipped"]
"""The emphasis of a text; the last three are verdicts."""

Words = Sequence[tuple[str, bool | Tone]]
"""Parts of a line, joined by dots; True is ``strong``. In a title: the heading, then remarks."""

_BLOCKS = "·░▒▓█"
_LETTERS = ".:-=+*#%@"
_DRAWN = _BLOCKS + "▀▄▁▂▃▅▆▇…×√±→“”Δ✓✗╭╮╰╯"  # every character beyond ASCII that a view writes
_LEVELS = (0.125, 0.4, 0.7)
"""The roots from which a value is weak, middling or strong without colour."""
_HELPS, _HARMS = "░▒█", "-=≡"
_ASCII_HELPS, _ASCII_HARMS = ":*#", "-=%"  # no digits and no plus, since a number may follow
_LIT = 0.25  # how far the cells beside a cursor are on the way to white
_SMOOTH = {"256", "truecolor"}
VERDICTS = {"good": "#1fa37a", "bad": "#e8562a", "skipped": "#8a94a3"}
"""Green and vermilion that stay apart for common colour blindness (Okabe & Ito 2008)."""

_TONES: dict[Tone, Style | None] = {
    "plain": None,
    "strong": BOLD,
    "faint": DIM,
    "good": Style(color=Color.parse(VERDICTS["good"]), bold=True),
    "bad": Style(color=Color.parse(VERDICTS["bad"]), bold=True),
    "skipped": Style(color=Color.parse(VERDICTS["skipped"])),
}


def strength(value: float, limit: float) -> int:
    """Return how strongly a value is drawn without colour, by its root: 0 (almost none) to 3."""
    root = min(abs(value) / (limit or 1.0), 1.0) ** 0.5
    return sum(root >= level for level in _LEVELS)


def sign_glyph(value: float, limit: float, ascii_only: bool) -> str:
    """Return one glyph for a value's sign and strength; a dot for almost none.

    limit: the absolute value with the full strength. ascii_only: True for a glyph of ASCII.
    """
    level = strength(value, limit)
    if not level:
        return "." if ascii_only else "·"
    if ascii_only:
        return (_ASCII_HELPS if value > 0 else _ASCII_HARMS)[level - 1]
    return (_HELPS if value > 0 else _HARMS)[level - 1]


@lru_cache(maxsize=2**16)
def _style(palette: str, fore: int, back: int) -> Style:
    """Return the style of two colour levels, text and ground; −1 is the terminal's own."""
    table = colour_table(palette)
    inks = (Color.from_rgb(*table[step]) if step >= 0 else None for step in (fore, back))
    return Style.from_color(*inks)


def _written_on(shade: RGB, bold: bool | None = None) -> Style:
    ink = Color.from_rgb(*contrasting(shade))
    return Style(color=ink, bgcolor=Color.from_rgb(*shade), bold=bold)


@dataclass(frozen=True)
class Theme:
    """What one console can show: the colours and characters with which everything is drawn.

    palette: a name of ``PALETTES``. colour: whether cells are coloured, which needs 256 colours;
        with 16, a ramp of glyphs says more. ascii: whether only ASCII is drawn.
    encoding: of the stream; characters of tokens that it lacks are escaped.
    lines: of the screen, for parts that adapt to its height.
    coarse: whether the console has exactly 256 colours.
    framed: whether parts have frames with their titles in them.
    pictures: where each picture that is drawn is noted, for a terminal that shows more than half
        blocks: what returns its pixels (high, wide, 3) by their number, its lines and its columns.
    """

    palette: str = DEFAULT
    colour: bool = True
    ascii: bool = False
    encoding: str = "utf-8"
    lines: int = 24
    coarse: bool = False
    framed: bool = False
    pictures: list[tuple[Callable[[int, int], Any], int, int]] | None = field(
        default=None, compare=False
    )

    @classmethod
    def of(cls, console: Console, palette: str, ascii_only: bool) -> Theme:
        """Return the best theme that a console supports in a palette, or in ASCII if asked for."""
        encoding = console.encoding
        carries_blocks = not ascii_only
        try:
            _DRAWN.encode(encoding)
        except (UnicodeEncodeError, LookupError):
            carries_blocks = False
        colour = console.color_system in _SMOOTH and not console.no_color
        encoding = encoding if carries_blocks else "ascii"
        coarse = console.color_system == "256"
        if coarse:
            own, at, full = palette.partition("@")
            palette = palettes.FEW.get(own, own) + at + full
        return cls(palette, colour, not carries_blocks, encoding, console.height, coarse)

    @property
    def ramp(self) -> str:
        """Return the glyphs from weight 0 to weight 1 for drawing without colour."""
        return _LETTERS if self.ascii else _BLOCKS

    @property
    def ellipsis(self) -> str:
        return "~" if self.ascii else "…"

    @property
    def trace(self) -> str:
        """Return the glyph for a weight that is not zero but rounds to zero."""
        return "." if self.ascii else "·"

    @property
    def dot(self) -> str:
        """Return the dot that separates the parts of a line."""
        return " - " if self.ascii else " · "

    @property
    def signed(self) -> Theme:
        """Return this theme with the palette for values of either sign, see ``diverging_steps``."""
        return replace(self, palette=DIVERGING)

    @property
    def half_blocks(self) -> bool:
        """Return whether one character can show two rows of cells, one above the other."""
        return self.colour and not self.ascii

    def spell(self, text: str) -> str:
        """Return one of attnviz's own texts in characters that the console can show."""
        return visible(spelled(text) if self.ascii else text, self.encoding)

    def tone(self, tone: bool | Tone) -> Style | None:
        """Return the style of a tone, which names how important a text is; True is ``strong``."""
        if not self.colour and tone in VERDICTS:
            return DIM if tone == "skipped" else BOLD
        return _TONES["strong" if tone is True else tone or "plain"]

    def ink(self, tint: Tint) -> Style | None:
        """Return the style of a text in this colour; None if the console has no colour."""
        if not self.colour:
            return None
        return Style(color=Color.from_rgb(*colour_table(tint.palette or self.palette)[tint.step]))

    def ground(self, tint: Tint) -> Style | None:
        """Return the style of black or white text on a coloured ground; None without colour."""
        if not self.colour:
            return None
        return _written_on(colour_table(tint.palette or self.palette)[tint.step])

    def accent(self, ground: bool = False) -> Style:
        """Return the style of a cursor's text, or ground; reversed where there is no colour."""
        if not self.colour:
            return Style(reverse=True, bold=True)
        shade = Color.from_rgb(*palettes.accent_colour(self.palette))
        if not ground:
            return Style(color=shade, bold=True)
        return Style(color=Color.from_rgb(0, 0, 0), bgcolor=shade, bold=True)

    def lit(self, step: int) -> Style:
        """Return the style of a cell in the cursor's row or column: lighter than its level."""
        shade = colour_table(self.palette)[step]
        red, green, blue = (round(part + (255 - part) * _LIT) for part in shade)
        return _written_on((red, green, blue), bold=True)

    def glyph(self, step: int) -> str:
        """Return the glyph of a colour level without colour, with its sign if levels have one."""
        if self.palette == DIVERGING:
            root = 2 * step / (STEPS - 1) - 1
            return sign_glyph(root * abs(root), 1.0, self.ascii)
        return self.ramp[palettes.raised(step, self.palette) * len(self.ramp) // STEPS]

    def cells(self, step: int, cells: int, text: str = "") -> Segment:
        """Return one cell of a map: a weight's colour or glyph, with ``text`` written in it.

        step: the colour level, −1 for a blank. cells: the width in characters.
        """
        if step < 0:
            return Segment(" " * cells)
        if not self.colour:
            return Segment(text.center(cells) if text else self.glyph(step) * cells)
        if not text:
            return Segment(" " * cells, _style(self.palette, -1, step))
        ink = Color.from_rgb(*contrasting(colour_table(self.palette)[step]))
        return Segment(text.center(cells), _style(self.palette, -1, step) + Style(color=ink))

    def halves(self, upper: Style | None, lower: Style | None, cells: int) -> Segment:
        """Draw two colours above each other in one line, with half blocks; None is blank."""
        if upper is None:
            return Segment("▄" * cells, lower) if lower else Segment(" " * cells)
        return Segment("▀" * cells, upper + Style(bgcolor=lower.color) if lower else upper)

    def stacked(
        self, upper: Sequence[int], lower: Sequence[int], short: bool = False
    ) -> list[Segment]:
        """Draw two rows of cells in one line of half blocks.

        upper, lower: the colour level (0 to 255) of each cell; −1 is blank.
        short: True draws two equal levels as a blank on a coloured background, which takes a
            terminal fewer bytes than a half block.
        """
        line: list[Segment] = []
        for (above, below), alike in groupby(zip(upper, lower, strict=True)):
            if above < 0 and below < 0:
                glyph, style = " ", None
            elif above == below and short:
                glyph, style = " ", _style(self.palette, -1, above)
            elif above >= 0:
                glyph, style = "▀", _style(self.palette, above, below)
            else:
                glyph, style = "▄", _style(self.palette, below, -1)
            text = glyph * sum(1 for _ in alike)
            if line and line[-1].style == style and line[-1].text[0] == glyph:
                text = line.pop().text + text
            line.append(Segment(text, style))
        return line
