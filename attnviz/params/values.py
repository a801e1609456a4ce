"""What the words of ``--memory 24GB`` and ``--compare heads=1,2,4`` mean."""

from __future__ import annotations

import re
from fractions import Fraction

from attnviz.errors import UsageError

__all__ = ["MOST", "parse_choices", "parse_memory"]

MOST = 10**15
"""The largest number that an option takes: beyond it a slip of the keyboard is likelier."""

_SIZE = re.compile(
    r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(?:([kmgtp])(i?)b?|bytes?|b)?", re.IGNORECASE
)
_POWERS = " kmgtp"


def parse_memory(text: str) -> int:
    """The bytes of ``24GB`` (10⁹ each), ``24GiB`` (2³⁰ each) or a bare number of bytes.

    Raises UsageError for what is no size, and for none.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"cannot read --memory {text!r}: expected a size such as 24GB, 80GiB or 512MB"
        )
    number, letter, binary = match.groups()
    unit = (1024 if binary else 1000) ** _POWERS.index((letter or " ").lower())
    size = int(Fraction(number) * unit)
    if not size:
        raise UsageError(f"--memory {text} is nothing: expected a size such as 24GB")
    return size


def parse_choices(text: str) -> tuple[str, tuple[str, ...]]:
    """``kv-heads=32,8,1`` as the option's name and its values, each still a word.

    Raises UsageError where there is no name or not at least two different values.
    """
    name, equals, listed = text.partition("=")
    values = tuple(dict.fromkeys(value.strip() for value in listed.split(",") if value.strip()))
    if not equals or not name.strip() or not values:
        raise UsageError(
            f"cannot read --compare {text!r}: expected OPTION=VALUE,VALUE,… such as heads=1,2,4,8"
        )
    if len(values) < 2:
        raise UsageError(
            f"--compare {text} has one value: expected at least two, such as "
            f"{name.strip()}={values[0]},…"
        )
    return name.strip().removeprefix("--").replace("_", "-"), values
