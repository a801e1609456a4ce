"""Values in the files for programs: the shortest decimals, and the model's own facts.

Weights are the shortest decimals that read back as the same float32: at most nine digits; trying
9, 8, 7 and 6 on whole arrays is several times as fast as asking every number for its own text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from attnviz.reading import typed
from attnviz.records import HeadLabel, ModelInfo

_PLAIN = (
    *("name", "revision", "architecture", "dtype", "layers", "heads", "kv_heads", "head_dim"),
    *("weights", "seed", "device", "backend"),
)


def model_facts(info: ModelInfo) -> dict[str, Any]:
    """Where the numbers come from, as JSON values; None for what an array does not tell."""
    known = not info.is_array
    return {
        "name": info.name,
        "revision": info.revision,
        "dtype": info.dtype,
        "layers": info.layers if known else None,
        "heads": info.heads,
        "kv_heads": info.kv_heads if known else None,
        "head_dim": info.head_dim if known else None,
        "architecture": info.architecture if known else None,
        "weights": info.weights,
        "seed": info.seed,
        "device": info.device if known else None,
        "backend": info.backend if known else None,
        "notes": list(info.notes),
    }


def model_of(facts: Mapping[str, Any]) -> ModelInfo:
    """The model that ``model_facts`` told of, read from a file that anyone may have written.

    Raises KeyError, TypeError or ValueError for what is none.
    """
    given = {name: facts[name] for name in _PLAIN}
    if facts["weights"] == "given":
        given |= dict.fromkeys(("layers", "kv_heads", "head_dim"), 1)
        given |= dict.fromkeys(("architecture", "device"), "") | {"backend": "numpy"}
    kinds = get_type_hints(ModelInfo)
    known = {name: typed(value, kinds[name]) for name, value in given.items()}
    return ModelInfo(**known, notes=tuple(typed(note, str) for note in facts["notes"]))


def label_facts(label: HeadLabel) -> dict[str, Any]:
    """A head's label and what supports it, as JSON values; None for what this text does not show.

    ``source`` is ``card``, ``patterns``, ``text``, or ``none`` for what only describes the head on
    this text; ``measured`` the score that the card or ``patterns`` has.
    """
    return {
        "name": label.name,
        "score": json_number(label.score),
        "base_rate": json_number(label.base_rate),
        "source": label.source,
        "events": label.events,
        "measured": json_number(label.measured),
    }


_EXACT_POWER = 22
"""10**22 is the largest power of ten that a float64 holds exactly."""


def json_number(value: float | None) -> float | None:
    """A number that JSON has; None for what was not measured or is not finite."""
    return None if value is None or not math.isfinite(value) else float(value)


def shortest(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """float64 numbers, same shape, whose ``repr`` is the shortest that gives ``values`` back.

    float64 input is returned as it is: its ``repr`` is that already. Numbers of a million and more
    read back as well, but may keep a digit too many.
    """
    exact = values.astype(np.float64)
    if values.dtype != np.float32:
        return exact
    found = exact.copy()
    tiny = np.isfinite(exact) & (exact != 0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        exponent = np.floor(np.log10(np.abs(exact)))
        for digits in (9, 8, 7, 6):
            power = 10.0 ** np.clip(digits - 1 - exponent, 0, _EXACT_POWER)
            rounded = np.rint(exact * power) / power
            same = rounded.astype(np.float32) == values
            found = np.where(same, rounded, found)
            tiny &= ~same
    # Below 1e-13 the powers of ten are not exact; such weights are few.
    found[tiny] = [float(str(value)) for value in values[tiny]]
    return found
