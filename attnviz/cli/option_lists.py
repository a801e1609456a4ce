"""A command whose option may be followed by several values, as a shell's ``*.txt`` gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

__all__ = ["ListOptions", "spread_lists"]

_LISTS = ("--valid",)


class ListOptions(TyperCommand):
    """Reads ``--valid a b c`` as ``--valid a --valid b --valid c``.

    Without it, all but the first file of a pattern would silently become texts to train on.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread_lists(args))


def spread_lists(arguments: Sequence[str], lists: Sequence[str] = _LISTS) -> list[str]:
    """The arguments, every value that follows one of ``lists`` with the option before it.

    An option's values end at the next argument that begins with ``-``.
    """
    spread: list[str] = []
    option = ""
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*spread, argument, *rest]
        if argument.startswith("-"):
            name, equals, value = argument.partition("=")
            option = name if name in lists else ""
            spread += [name, value] if option and equals else [argument]
            if option and not equals and rest and not rest[0].startswith("-"):
                spread.append(rest.pop(0))
        else:
            spread += [option, argument] if option else [argument]
    return spread
