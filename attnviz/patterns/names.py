"""Finds the label that a person means."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from attnviz.errors import UsageError
from attnviz.measures.registry import LABELS

__all__ = ["find_label"]


def find_label(name: str, known: Iterable[str] = tuple(LABELS)) -> str:
    """The label of this name or letter, or the only one that begins so.

    Raises UsageError, with the nearest name, where there is none.
    """
    names = list(known)
    wanted = name.strip().lower()
    if wanted in names:
        return wanted
    letters = {LABELS[label].letter: label for label in names if label in LABELS}
    if name.strip() in letters:
        return letters[name.strip()]
    begins = [label for label in names if wanted and label.startswith(wanted)]
    if len(begins) == 1:
        return begins[0]
    near = get_close_matches(wanted, names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UsageError(f"no label {name!r}: {hint}labels are {', '.join(names)}")
