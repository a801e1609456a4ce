"""Pieces of a scan as JSON values and back, to the bit; and what tells one run from another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from attnviz.engine.effects import Scores
from attnviz.errors import LoadError
from attnviz.records import Tokens

__all__ = ["digest", "restore_scores", "store_scores", "texts_digest"]

_DIGITS = 12


def store_scores(scores: Scores) -> dict[str, Any]:
    """A piece as JSON values; numbers that are none become None."""
    return {
        "variants": list(scores.variants),
        "metrics": {name: _listed(values) for name, values in scores.metrics.items()},
        "errors": {name: _listed(values) for name, values in scores.errors.items()},
        "baseline": dict(scores.baseline),
        "token_losses": None
        if scores.token_losses is None
        else [_listed(row) for row in scores.token_losses],
    }


def restore_scores(text: int, stored: Any, name: str) -> Scores:
    """The piece of text ``text`` that ``store_scores`` wrote.

    Raises LoadError, which names the file ``name``, where it is none.
    """
    try:
        losses = stored["token_losses"]
        if not all(isinstance(note, str) for note in stored.setdefault("notes", [])):
            raise ValueError("a note is no text")
        return Scores(
            text,
            tuple(stored["variants"]),
            {metric: _array(values) for metric, values in stored["metrics"].items()},
            {key: float(value) for key, value in stored["baseline"].items()},
            {metric: _array(values) for metric, values in stored["errors"].items()},
            None if losses is None else np.array([_array(row) for row in losses]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LoadError(
            f"{name}: the result of text {text + 1} is damaged; remove its line, and the text is "
            "measured again"
        ) from error


def digest(value: object) -> str:
    """A short name of any JSON value."""
    content = json.dumps(value, sort_keys=True).encode("ascii")
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


def texts_digest(texts: Sequence[Tokens]) -> str:
    """How many texts, and a name of their tokens."""
    return f"{len(texts)} ({digest([tokens.ids for tokens in texts])})"


def _listed(values: Iterable[Any]) -> list[float | None]:
    numbers: list[float] = np.asarray(values, dtype=np.float64).tolist()
    return [number if np.isfinite(number) else None for number in numbers]


def _array(values: Sequence[float | None]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
