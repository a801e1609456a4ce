"""The short help of a command, ``-h``, on one small screen; ``--help`` is that of Typer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any

_COMMON = ("--model", "--save", "--json", "--explain")
"""Options that the short help of every command names, if the command has them."""

_EXAMPLES = 2
_WIDEST = 100
_BREAKS = ("; ", " (", ", ", " ")
"""Where a help that is longer than its line is cut, the best place first."""

WHOLE = "attnviz.whole"
"""The key of what is kept for a command line: whether it asks for the whole help."""


def short_help(command: Any, often: Sequence[str]) -> str:
    """Return the short help of a Typer command, for ``-h``.

    often: the most used options of this command, as they are typed.
    """
    room = shell_columns()
    path = f"attnviz {command.name}"
    options = [one for one in command.params if one.param_type_name == "option"]
    places = [one for one in command.params if one.param_type_name == "argument"]
    named = {name: one for one in options for name in one.opts}
    chosen = [named[name] for name in (*often, *_COMMON) if name in named]
    usage = " ".join([path, *(_place(one) for one in places), "[OPTIONS]"])
    rows = [(str(one.metavar).strip("[]"), one) for one in places]
    rows += [(typed_option(one), one) for one in chosen]
    examples = [line for line in command.epilog.splitlines() if line.startswith("attnviz ")]
    return "\n".join(
        [
            usage,
            *wrap(command.help, room),
            "",
            *(f"  {line}" for line in examples[:_EXAMPLES]),
            "",
            *option_lines(rows, room),
            "",
            *wrap(f"{path} --help: {_all(options)}; {_manual(command.name)}", room),
        ]
    )


def option_lines(rows: Sequence[tuple[str, Any]], room: int) -> Iterator[str]:
    """Yield a line for each option: its spelling, and its help cut to the width.

    rows: (spelling, the option). room: the available width in characters.
    """
    lead = max(len(typed) for typed, _ in rows)
    for typed, one in rows:
        yield f"  {typed.ljust(lead)}  {cut_help(one.help or '', room - lead - 4)}"


def shell_columns() -> int:
    """Return the width in characters of the help."""
    return min(shutil.get_terminal_size().columns, _WIDEST)


def _manual(name: str) -> str:
    return f"attnviz docs{'' if name == 'docs' else f' {name}'}: the manual"


def _all(options: Sequence[Any]) -> str:
    return f"all {len(options)} options" if len(options) > 1 else "everything"


def _place(one: Any) -> str:
    shown = str(one.metavar).strip("[]")
    shown = shown if one.required else f"[{shown}]"
    return f"{shown}..." if one.nargs == -1 or one.multiple else shown


def typed_option(one: Any) -> str:
    """Return the spelling of a Typer option with its value, such as ``-m, --model NAME``."""
    short = [name for name in one.opts if not name.startswith("--")]
    long = [name for name in one.opts if name.startswith("--")]
    return f"{', '.join([*short, *long[:1]])} {one.metavar or ''}".rstrip()


def cut_help(text: str, room: int) -> str:
    """Return a sentence in one line, ended early by three dots if it is too long.

    room: the available width in characters.
    """
    if len(text) <= room:
        return text
    kept = text[: max(room, 12) - 4]
    ends = [place for mark in _BREAKS[:-1] if (place := kept.rfind(mark)) > room // 2]
    end = max(ends, default=kept.rfind(_BREAKS[-1]))
    return f"{kept[:end].rstrip(' ,;:(')} ..."
