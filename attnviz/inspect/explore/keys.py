"""Every key of explore and what it does: the only place where that is said."""

from __future__ import annotations

from typing import NamedTuple


class KeyBinding(NamedTuple):
    """One key of explore: its names, its action, and its description in the help.

    keys: the names that textual has for it, with commas between. shown: the name that is drawn.
    action: the method that it calls. said: a description of the action.
    group: its heading on the sheet of keys. hint: a word for the line of keys.
    listed: its line on the sheet of keys, which several keys may share; ``said`` by default.
    """

    keys: str
    shown: str
    action: str
    said: str
    group: str
    hint: str = ""
    listed: str = ""


_MOVES = "cursor, also h j k l"
_LAYER, _HEAD, _SAME = "layer before, after", "head before, after", "same label: last, next"
_RANK, _SIZE, _WARM = "importance: up, down", "smaller, larger, fitting", "temperature down, up"

KEYS = (
    KeyBinding("left,h", "←", "move(-1, 0)", "cursor left", "Move", listed=_MOVES),
    KeyBinding("down,j", "↓", "move(0, 1)", "cursor down", "Move", listed=_MOVES),
    KeyBinding("up,k", "↑", "move(0, -1)", "cursor up", "Move", listed=_MOVES),
    KeyBinding("right,l", "→", "move(1, 0)", "cursor right", "Move", listed=_MOVES),
    KeyBinding("tab", "Tab", "pane", "grid or map", "Move", "pane"),
    KeyBinding("slash", "/", "find", "find a token", "Move", "find"),
    KeyBinding("minus", "-", "zoom(-1)", "smaller cells", "Move", listed=_SIZE),
    KeyBinding("plus,equals_sign", "+", "zoom(1)", "larger cells", "Move", listed=_SIZE),
    KeyBinding("0", "0", "fit", "the whole map", "Move", listed=_SIZE),
    KeyBinding("enter", "Enter", "open", "open a long text's cell", "Move"),
    KeyBinding("left_square_bracket", "[", "layer(-1)", "layer before", "Heads", listed=_LAYER),
    KeyBinding("right_square_bracket", "]", "layer(1)", "layer after", "Heads", listed=_LAYER),
    KeyBinding("less_than_sign", "<", "head(-1)", "head before", "Heads", listed=_HEAD),
    KeyBinding("greater_than_sign", ">", "head(1)", "head after", "Heads", listed=_HEAD),
    KeyBinding("N", "N", "same(-1)", "last head with the same label", "Heads", listed=_SAME),
    KeyBinding("n", "n", "same(1)", "next head with the same label", "Heads", listed=_SAME),
    KeyBinding("I", "I", "important(-1)", "head before by importance", "Heads", listed=_RANK),
    KeyBinding("i", "i", "important(1)", "next head by importance", "Heads", "rank", listed=_RANK),
    KeyBinding("v", "v", "by_effect", "grid: labels or effects", "Heads"),
    KeyBinding("1", "1", "mode('raw')", "weights as they are", "View"),
    KeyBinding("2", "2", "mode('no-sink')", "without the sink", "View"),
    KeyBinding("3", "3", "mode('value-weighted')", "weighted by value norms", "View"),
    KeyBinding("c", "c", "text", "coloured text, - + pages", "View"),
    KeyBinding("d", "d", "side", "first, second, difference", "View"),
    KeyBinding("p", "p", "palette", "next palette", "View"),
    KeyBinding("x", "x", "ablate", "ablate the head, or not", "Change", "ablate"),
    KeyBinding("X", "X", "restore", "put every head back", "Change"),
    KeyBinding("e", "e", "edit", "edit the text", "Change", "edit"),
    KeyBinding("g", "g", "generate", "let the model write on", "Change", "generate"),
    KeyBinding("space", "Space", "pause", "pause; ← → step", "Change"),
    KeyBinding("T", "T", "temperature(-0.1)", "temperature down", "Change", listed=_WARM),
    KeyBinding("t", "t", "temperature(0.1)", "temperature up", "Change", listed=_WARM),
    KeyBinding("r", "r", "reseed", "another seed", "Change"),
    KeyBinding("s", "s", "save", "save what is seen", "Keep", "save"),
    KeyBinding("w", "w", "why", "why the head looks there", "Keep"),
    KeyBinding("y", "y", "yank", "copy this command", "Keep"),
    KeyBinding("question_mark", "?", "keys", "all keys", "Keep", "keys"),
    KeyBinding("colon", ":", "commands", "all commands", "Keep"),
    KeyBinding("escape", "Esc", "stop", "stop, leave", "Keep"),
    KeyBinding("q", "q", "leave", "quit", "Keep", "quit"),
)

HINTS = tuple((key.shown, key.hint) for key in KEYS if key.hint)
WRITING = (
    *(("Space", "pause"), ("← →", "step"), ("T t", "temperature"), ("r", "seed")),
    *(("e", "edit"), ("Esc", "leave"), ("?", "keys"), ("q", "quit")),
)
"""What the line of keys shows while a text is written."""

_ALIKE = (("/", "find"), ("e", "edit"), ("y", "copy"), ("?", "keys"), ("q", "quit"))
POOLED = (("Enter", "open the cell"), ("Tab", "pane"), *_ALIKE)
WINDOW = (("Esc", "whole text"), ("Tab", "pane"), ("c", "coloured text"), *_ALIKE)
"""What it shows over a long text; ``HINTS`` is what it shows else."""
