"""Signs that ASCII lacks, spelled out: the last thing that happens to words of this program."""

from __future__ import annotations

import re

__all__ = ["spelled"]

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
