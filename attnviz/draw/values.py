"""Values for programs: the shortest decimals, facts about the model, and the short answer.

Weights are the shortest decimals that read back as the same float32: at most nine digits. Trying 9,
8, 7 and 6 digits on whole arrays is several times as fast as converting number by number.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from attnviz.reading import fits
from attnviz.records import Floats, HeadLabel, Input, ModelInfo, Tokens

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.document import Document


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
    """Yield a table from JSON objects: these names as the header, then one row for each object."""
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


_MOST = 2**17  # the most heads of a model that is read; the largest known one has 16,128
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
    """Return facts about the model as JSON values; None for what an array without a model lacks."""
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


_EXACT_POWER = 22  # 10**22 is the largest power of ten that a float64 holds exactly


def shortest(values: Floats) -> NDArray[np.float64]:
    """Return float64 numbers, same shape, with the shortest ``repr`` that gives ``values`` again.

    float64 input is returned as it is, since its ``repr`` is shortest already. Numbers of a million
    and more may have a digit too many.
    """
    exact = values.astype(np.float64)
    if values.dtype != np.float32:
        return exact
    shortened = exact.copy()
    tiny = np.isfinite(exact) & (exact != 0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        exponent = np.floor(np.log10(np.abs(exact)))
        for digits in (9, 8, 7, 6):
            power = 10.0 ** np.clip(digits - 1 - exponent, 0, _EXACT_POWER)
            rounded = np.rint(exact * power) / power
            same = rounded.astype(np.float32) == values
            shortened = np.where(same, rounded, shortened)
            tiny &= ~same
    # Below 1e-13 the powers of ten are not exact; such weights are few.
    shortened[tiny] = [float(str(value)) for value in values[tiny]]
    return shortened


# The short answer: the finding, and the first rows of the table that supports it ---------------

MOST_ROWS, MOST_BYTES = 10, 1990
_BRIEF_COLUMNS, _BRIEF_LINES = 120, 60
"""The screen whose first table is meant: wide enough for all columns of a table."""

_LONGEST = 600  # the most bytes of a finding, and of the line that says what was measured
_WHOLE = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?")


def brief(command: str, document: Document) -> dict[str, Any]:
    """Return the short answer as a JSON object of at most 2,000 bytes.

    It has one table of those that a terminal shows first: the one whose rows are ranked, or else
    the longest. Cells that are numbers are JSON numbers, rounded as drawn; further rows are
    counted. command: the name of the question.
    """
    from attnviz.draw.document import Table, Ways, leaves  # programs get numbers without these

    screens = [document.groups]
    if document.first is not None:
        first = document.first(_BRIEF_COLUMNS, _BRIEF_LINES)
        screens.insert(0, first.ways[0] if isinstance(first, Ways) else first)
    for groups in screens:
        parts = [part for group in groups for part in leaves(group)]
        if tables := [part for part in parts if isinstance(part, Table)]:
            break
    ranked = [table for table in tables if table.ranked]
    table = max(ranked[:1] or tables, key=lambda table: len(table.rows), default=Table([], []))
    titles = [column.title for column in table.columns]
    rows = _brief_rows(titles, [row.cells for row in table.rows])
    steps = [word for hint in document.hints for word, _ in hint.words]
    answer: dict[str, Any] = {
        "schema": "attnviz.brief/1",
        "command": command,
        "measured": _cut(" · ".join(word for word, _ in document.heading) or document.title),
        "finding": _cut(document.finding),
        "columns": titles,
        "rows": rows[:MOST_ROWS],
        "rows_left_out": 0,
        "next": [step for step in steps if not step.startswith("--explain")],
    }
    while len(json.dumps(answer)) > MOST_BYTES and (longest := answer["rows"] or answer["next"]):
        longest.pop()
    answer["rows_left_out"] = len(rows) + table.hidden - len(answer["rows"])
    return answer


def _brief_rows(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[list[Any]]:
    """Return the rows of a table, with the headings within it in the first cells below them.

    The rows of several headings take turns, so that the first of each are among the first. The
    title of the first column is the heading of the rows above all others.
    """
    above = titles[0] if titles else ""
    parts: dict[str, list[Sequence[str]]] = {above: []}
    for cells in rows:
        if len(cells) == 1 < len(titles):
            above = cells[0].strip()
        else:
            parts.setdefault(above, []).append(cells)
    if len(parts) > 1:
        parts = {
            name: [(f"{name}: {cells[0].strip()}", *cells[1:]) for cells in rows]
            for name, rows in parts.items()
        }
    turns = zip_longest(*parts.values(), fillvalue=())
    return [[_value(cell) for cell in cells] for turn in turns for cells in turn if cells]


def _cut(text: str) -> str:
    """Return a text that takes at most ``_LONGEST`` bytes in JSON."""
    while len(json.dumps(text)) > _LONGEST:
        text = f"{text[: len(text) * 3 // 4]}…"
    return text


def _value(cell: str) -> str | float | None:
    """Return a cell as JSON has it: a number, a text, or None if it is empty."""
    text = cell.strip()
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text or None
