"""Values in the files for programs: the shortest decimals, and facts about the model.

Weights are the shortest decimals that read back as the same float32: at most nine digits. Trying 9,
8, 7 and 6 digits on whole arrays is several times as fast as converting number by number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from attnviz.reading import fits
from attnviz.records import HeadLabel, Input, ModelInfo, Tokens

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


def write_object(
    data: dict[str, Any], stream: SupportsWrite[str], lists: Sequence[str] | None = ()
) -> None:
    """Write a JSON object in ASCII, so that no name can send control characters to a terminal.

    data: the object. lists: the keys of lists that are written last, with a line for each entry. If
        it is empty, everything is indented; None writes one line.
    """
    data = json_values(data)
    if not lists:
        indent = None if lists is None else 1
        stream.write(json.dumps(data, indent=indent, allow_nan=False) + "\n")
        return
    last = {name: data.pop(name) for name in lists if name in data}
    stream.write(json.dumps(data, allow_nan=False).removesuffix("}"))
    for name, entries in last.items():
        lines = ",\n".join(json.dumps(entry, allow_nan=False) for entry in entries)
        stream.write(f',\n"{name}": [\n{lines}\n]' if lines else f',\n"{name}": []')
    stream.write("}\n")


def json_values(value: Any) -> Any:
    """Return a value as JSON has it: an array as a list, None for a number that is not finite."""
    if isinstance(value, Mapping):
        return {name: json_values(member) for name, member in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        whole = value.dtype.kind != "f" or bool(np.isfinite(value).all())
        return value.tolist() if whole else json_values(value.tolist())
    if isinstance(value, list | tuple):
        return [json_values(member) for member in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def npz_file(**arrays: Any) -> Callable[[BinaryIO], None]:
    """Return a function that writes a NumPy archive of these arrays to a stream."""
    named = {name.replace(" ", "_"): np.asarray(array) for name, array in arrays.items()}
    return lambda stream: np.savez(stream, allow_pickle=False, **named)


def table_of(
    names: Sequence[str], entries: Iterable[Mapping[str, Any]]
) -> Iterator[tuple[object, ...]]:
    """Yield a table from JSON objects: the header, then one row for each object.

    names: the keys of the values, which are the header. entries: the objects; a number that is not
        finite is a missing one.
    """
    yield tuple(names)
    for entry in entries:
        yield tuple(json_values(entry.get(name)) for name in names)


def token_facts(tokens: Tokens) -> dict[str, Any]:
    """Return the tokens of a text and their ids as JSON values."""
    return {"tokens": tokens.texts, "token_ids": tokens.ids}


def input_facts(given: Input) -> dict[str, Any]:
    """Return the tokens that a model is run on, with those of a decoder, as JSON values."""
    facts, target = token_facts(given.text), given.target
    if target is not None:
        facts |= {"target_tokens": target.texts, "target_ids": target.ids}
    return facts


_MOST = 2**17
"""The most heads of a model that is read; the largest known one has 16,128."""

_SIZE = Annotated[int, range(_MOST + 1)]
_PLAIN: Mapping[str, Any] = {
    "name": str,
    "revision": str | None,
    "dtype": str,
    **dict.fromkeys(("layers", "heads", "kv_heads", "head_dim"), _SIZE),
    "architecture": str,
    "weights": Literal["trained", "checkpoint", "random", "loaded", "captured", "given"],
    "seed": Annotated[int, range(2**64)] | None,
    "device": str,
    "backend": Literal["numpy", "torch"],
}
"""The kinds of the facts that every model has."""

_OF_LAYERS = ("layer_types", "layer_names")
"""The facts with an entry for each layer, which most models do not have."""


def model_facts(info: ModelInfo) -> dict[str, Any]:
    """Return the facts about a model, such as its name and sizes, as JSON values.

    A fact that an attention array without a model lacks is None.
    """
    facts = {name: getattr(info, name) for name in _PLAIN}
    if info.is_array:
        facts |= dict.fromkeys(("kv_heads", "head_dim", "architecture", "device", "backend"))
    return {
        **facts,
        "layers": None if info.is_one_layer else info.layers,
        **{name: getattr(info, name) for name in _OF_LAYERS if getattr(info, name)},
        "notes": info.notes,
    }


def model_of(facts: Mapping[str, Any]) -> ModelInfo:
    """Return the model from the facts that ``model_facts`` wrote.

    facts: from a file that anyone may have written. Raises KeyError, TypeError or ValueError for
        anything else.
    """
    given = {name: facts[name] for name in _PLAIN}
    if facts["weights"] == "given":
        given |= {"layers": facts["layers"] or 1, "kv_heads": facts["heads"], "head_dim": 1}
        given |= {"architecture": "array", "device": "", "backend": "numpy"}
    for name, kind in _PLAIN.items():
        if not fits(given[name], kind):
            raise ValueError(f"its model's {name} is {given[name]!r:.40}")
    if (layers := given["layers"]) * given["heads"] > _MOST:
        raise ValueError(f"a model of {layers} × {given['heads']} heads")
    for name in (*_OF_LAYERS, "notes"):
        listed = facts[name] if name == "notes" else facts.get(name, ())
        if not fits([*listed] if isinstance(listed, tuple) else listed, list[str]):
            raise ValueError(f"its model's {name} are {listed!r:.40}")
        if name in _OF_LAYERS and len(listed) not in (0, layers):
            raise ValueError(f"{len(listed)} {name} of {layers} layers")
        given[name] = tuple(listed)
    return ModelInfo(**given)


def label_facts(label: HeadLabel) -> dict[str, Any]:
    """Return a head's label and its scores as JSON values; NaN for scores that were not measured.

    ``source`` is ``card``, ``patterns``, ``text``, or ``none`` for a description of the head on
    this text; ``date`` is when ``patterns`` stored the label. ``score`` is that of the source;
    ``measured`` the score measured before, for a known label; ``on_text`` and ``base_rate`` are of
    this text.
    """
    return {
        "name": label.name,
        "score": label.score,
        "on_text": label.on_text,
        "base_rate": label.base_rate,
        "source": label.source,
        "date": label.date or None,
        "events": label.events,
        "measured": label.score if label.is_known else None,
    }


def known_label_facts(label: HeadLabel) -> dict[str, Any]:
    """Return a head's label from before this run, without scores on this text, as JSON values."""
    facts = label_facts(label)
    return {name: facts[name] for name in ("name", "score", "source", "date")}


_EXACT_POWER = 22
"""10**22 is the largest power of ten that a float64 holds exactly."""


def shortest(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return float64 numbers, same shape, with the shortest ``repr`` that gives ``values`` again.

    float64 input is returned as it is, since its ``repr`` is shortest already. Numbers of a million
    and more may have a digit too many.
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
