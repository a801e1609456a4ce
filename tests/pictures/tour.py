"""The README's moving picture: ``explore`` as it is used, and its last view as a page.

Renewed by

    python -m tests.pictures.tour

in a light and a dark version, which needs what the picture of the page needs.
"""

import base64
import io
from collections import defaultdict
from html import escape
from itertools import accumulate

from .page import opened, saved
from .terminal import CELL, FOLDER, FONTS, LINE, MARGIN, drawn_line, recorded

TEXT = "When Nancy met John, nobody knew why Nancy met"
COMMAND = f'explore "{TEXT}"'
PAGE = f'heads "{TEXT}" --save page.html --open'
VIEW = "#L1H2&q=10&k=4&lock&mode=sinkless&pins=L3H1"
COLUMNS, ROWS = 100, 33
_UP = "\x1b[A"

SCENES = (
    ((), ("Induction:",), "Every head, and the map of L1H2: “met” attends to “John”"),
    ((_UP,), ("from Nancy (9)",), "↑  the word before: “Nancy” attends to “met”"),
    (
        ("x",),
        ("Without L1H2", "“John” .97 → “John” .19"),
        "x  without this head, “John” falls from .97 to .19",
    ),
    (("x", "[", "<", "<"), ("L0H0  prev",), "< >  another head: L0H0 attends to the token before"),
    (("i",), ("loss without it", "of 24"), "i  the loss without each head"),
    (("g",), ("token 40 of 40",), "g  the model writes on, and each head's map grows"),
)
"""What is pressed, what the screen then says, and what stands below it."""

LAST = "The same as a page: one file, for any browser"
SECONDS = (5, 3.5, 5, 4, 4.5, 5, 7)
"""How long each view is shown."""

SCHEMES = {"dark": ("#d4d4d4", "#16181d", "#ffb454"), "light": ("#24292f", "#ffffff", "#a8480f")}
"""The colours of ink, paper and captions."""

WIDTH = COLUMNS * CELL + 2 * MARGIN
HEIGHT = (ROWS + 3) * LINE + 2 * MARGIN
SCREEN = (1300, round(1300 * (ROWS + 0.3) * LINE / (COLUMNS * CELL)))
"""Pixels of the page, which has the place of the terminal's screen."""


def animation(parts):
    """The styles and the drawing of parts, each with the tuple of the views that show it."""
    begins = [f"{begin / sum(SECONDS):.3%}" for begin in accumulate((0, *SECONDS[:-1]))]
    views = defaultdict(list)
    for part, shown in parts.items():
        views[tuple(shown)].append(part)
    for number, (shown, group) in enumerate(views.items()):
        seen = ["visible" if view in shown else "hidden" for view in range(len(SECONDS))]
        steps = (f"{at}{{visibility:{how}}}" for at, how in zip(begins, seen, strict=True))
        yield f"<style>@keyframes k{number}{{{''.join(steps)}}}.v{number}{{visibility:{seen[0]};"
        yield f"animation:k{number} {sum(SECONDS)}s step-end infinite}}</style>"
        yield f'<g class="v{number}">{"".join(group)}</g>'


def drawing(screens, page, scheme):
    """The moving picture. screens: lines of the terminal; page: a PNG; scheme: of SCHEMES."""
    ink, paper, accent = SCHEMES[scheme]
    coded = base64.b64encode(page).decode()
    image = (
        f'<image x="{MARGIN}" y="{MARGIN + 1.5 * LINE}" width="{COLUMNS * CELL:.0f}" '
        f'href="data:image/png;base64,{coded}"/>'
    )
    parts = defaultdict(list)
    for view in range(len(SECONDS)):
        live = view < len(SCENES)
        drawn = [image]
        if live:
            rows = enumerate(screens[view])
            drawn = ["\n".join(drawn_line(row, MARGIN + (at + 1.5) * LINE)) for at, row in rows]
        drawn.append(_text(f"$ attnviz {COMMAND if live else PAGE}", 0, ink))
        drawn.append(_text(SCENES[view][2] if live else LAST, ROWS + 2, accent))
        for part in filter(None, drawn):
            parts[part].append(view)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:.0f}" height="{HEIGHT:.0f}" '
        f'viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" font-family="{FONTS}" fill="{ink}" '
        'font-size="14">',
        "<style>@media(prefers-reduced-motion:reduce){g{animation:none!important}}</style>",
        f'<rect x=".5" y=".5" width="{WIDTH - 1:.0f}" height="{HEIGHT - 1:.0f}" rx="8" '
        f'fill="{paper}" stroke="#8886"/>',
    ]
    return "\n".join([*lines, *animation(parts), "</svg>", ""])


def _text(words, row, fill):
    y = MARGIN + row * LINE + 13
    return f'<text x="{MARGIN}" y="{y:.1f}" fill="{fill}" font-weight="bold">{escape(words)}</text>'


def screens():
    """The terminal's lines in each scene, as it draws them today."""
    return list(recorded(COMMAND, COLUMNS, ROWS, [scene[:2] for scene in SCENES]))


if __name__ == "__main__":
    shown = screens()
    for scheme in SCHEMES:
        with opened(TEXT, VIEW, SCREEN, scheme) as tab:
            saved(tab, taken := io.BytesIO())
        drawn = drawing(shown, taken.getvalue(), scheme)
        (FOLDER / f"tour-{scheme}.svg").write_text(drawn, encoding="utf-8")
