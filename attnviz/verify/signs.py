"""Mathematical signs where a console carries ASCII only; columns stay aligned."""

from __future__ import annotations

from attnviz.draw.theme import Theme

__all__ = ["in_signs"]

_SPELLED = {"√": "sqrt ", "−∞": "-inf", "ε": " eps", "Σ": "sum", "ᵀ": "^T", "…": "...", "≤": "<="}
_LETTERS = str.maketrans("×·–−", "x*--")


def in_signs(text: str, theme: Theme) -> str:
    """The text as it is, or with signs that ASCII can write; it may grow longer."""
    if not theme.ascii:
        return text
    for sign, spelled in _SPELLED.items():
        text = text.replace(sign, spelled)
    return text.translate(_LETTERS)
