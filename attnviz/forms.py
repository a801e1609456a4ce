"""What the record of each command may hold, checked before anything is computed from it.

Anyone may have written a record. Its form says of which kind each fact is, what the axes of each
array are, and which sum counts the terms of another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.values import model_of
from attnviz.measures.exact_sums import LOW, total
from attnviz.measures.registry import MEASURES
from attnviz.reading import fits

Arrays = Mapping[str, NDArray[Any]]

TWIN = "random."
"""What the names of the numbers of a random baseline begin with."""

_SHOWN = {"model": dict, "source": str, "index_base": Literal[0, 1]}
_MARKED = re.compile(r"([?~±+*]*)(?:(most|best)\.)?(.+)")
_LARGEST = 2.0**30  # of a term of an exact sum
_ROUNDING = 1e-5


class Form(NamedTuple):
    """What the record of one command may hold.

    facts: the kinds of its facts, see ``reading.fits``. axes: returns from the facts how long an
        axis is, or the names of its measures, which say how large their terms are.
    arrays: for axes, such as ``score head``, and after a bar the sum that counts the terms of each
        value, the names of arrays. Axes that the counts lack are repeated, those that they have
        beyond are added up; without counts each measured text is a term. Terms are from 0 to 1. In
        front of a name, ``~`` stands for exact sums, ``±`` for exact sums of terms of any size,
        ``+`` for whole numbers of any size, ``*`` for any numbers, and ``?`` for an array that may
        be missing. ``#`` stands for any number or length.
    check: raises ValueError for what is wrong beyond that, given the arrays, the texts that are
        kept, and the number of those that were measured.
    """

    facts: Mapping[str, Any]
    axes: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    arrays: Mapping[str, str]
    check: Callable[[Arrays, Mapping[int, Any], int], None] = lambda *record: None


class _Array(NamedTuple):
    """What is known of one array; exact sums have one more axis of two."""

    marks: str
    axes: tuple[str, ...]
    of: str

    @property
    def exact(self) -> bool:
        return "~" in self.marks or "±" in self.marks


def check_form(
    form: Form, facts: Mapping[str, Any], arrays: Arrays, texts: Mapping[int, Any], measured: int
) -> None:
    """Raise KeyError, TypeError or ValueError unless a record is of a form.

    facts: those of the run and those that are shown. arrays: by kind and name, such as
    ``sums.scores``. texts: those that it keeps, by index. measured: the number of its texts.
    """
    for name, kind in {**_SHOWN, **form.facts}.items():
        if not fits(facts[name], kind):
            raise ValueError(f"its {name.replace('_', ' ')} is {facts[name]!r:.40}")
    model, axes = model_of(facts["model"]), form.axes(facts)
    sizes = {name: each if isinstance(each, int) else len(each) for name, each in axes.items()}
    sizes |= {"2": 2, "4": 4, "7": 7, "layer": model.layers, "of_layer": model.heads}
    known = dict(_known(form, facts.get("control") is not None))
    for name, values in arrays.items():
        one = known.setdefault(name, known.get(re.sub("[0-9]{1,9}$", "#", name), _NONE))
        own = [*one.axes, *(["2"] if one.exact else [])]
        shape = [
            n if axis == "#" else sizes.setdefault(axis, n)
            for axis, n in zip(own, values.shape, strict=False)
        ]
        if one is _NONE or shape != [*values.shape] or len(shape) != len(own):
            raise ValueError(f"{name} of {values.shape} is none of its arrays")
    for name, one in known.items():
        terms = _terms(one, known, arrays, measured)
        if name in arrays:
            _check_range(name, arrays[name], one, terms, axes)
        elif terms.any() and "?" not in one.marks and "#" not in name:
            raise ValueError(f"{name} is missing")
        if name in arrays and one.axes == ("head", "2"):
            heads, order = arrays[name], arrays[name] @ [2**20, 1]
            if (heads >= [model.layers, model.heads]).any() or (np.diff(order) <= 0).any():
                raise ValueError(f"{name} are no heads of the model, each once and in order")
    best = [rows[..., 1].ravel() for name, rows in arrays.items() if name.startswith("best.")]
    if not texts.keys() <= {*np.concatenate([np.zeros(0), *best]).tolist()}:
        raise ValueError("it has a text that no array names")
    form.check(arrays, texts, measured)


_NONE = _Array("", (), "")


def _known(form: Form, twin: bool) -> Iterator[tuple[str, _Array]]:
    """Yield the name of each array that a record may have. twin: with those of the baseline."""
    for key, names in form.arrays.items():
        axes, _, of = key.partition("|")
        for marks, kind, name in (_MARKED.findall(each)[0] for each in names.split()):
            one = _Array(marks, (*axes.split(),), of.strip())
            yield f"{kind or 'sums'}.{name}", one
            if twin and "head" in one.axes:
                counted = one.of if one.of == "texts" else TWIN + one.of
                yield f"{kind or 'sums'}.{TWIN}{name}", one._replace(of=counted)


def _terms(
    one: _Array, known: Mapping[str, _Array], arrays: Arrays, measured: int
) -> NDArray[np.float64]:
    """Return how many terms the values of an array have, in a shape that goes with its axes."""
    if not one.of:
        return np.array(float(measured))
    axes = known[f"sums.{one.of}"].axes
    count = arrays.get(f"sums.{one.of}", np.zeros((1,) * len(axes))).astype(float)
    count = count.sum(tuple(at for at, axis in enumerate(axes) if axis not in one.axes))
    sizes = iter(count.shape)
    found: NDArray[np.float64] = count.reshape(
        [next(sizes) if axis in axes else 1 for axis in one.axes]
    )
    return found


def _check_range(
    name: str,
    values: NDArray[Any],
    one: _Array,
    terms: NDArray[np.float64],
    axes: Mapping[str, Any],
) -> None:
    """Raise ValueError if sums of so many terms cannot be what they are."""
    if "*" in one.marks:
        return
    number = total(values) if one.exact else values
    least: Any = 0.0
    most: Any = 2.0**40 if "+" in one.marks else 1.0
    measures = axes.get(one.axes[0], 0) if one.exact and one.axes else 0
    if not isinstance(measures, int):  # some shares are correlations, which may be below 0
        units = [MEASURES[each].unit if each in MEASURES else "share" for each in measures]
        most = np.array([1.0 if unit == "share" else _LARGEST for unit in units])[:, None]
        least = -most
    if "±" in one.marks:
        least, most = -_LARGEST, _LARGEST
    fine = (least * terms - _ROUNDING <= number) & (number <= most * terms * (1 + _ROUNDING))
    if one.exact:
        fine &= (values[..., 1] >= 0) & (values[..., 1] <= terms * 2.0**LOW)
    if not fine.all():
        raise ValueError(f"{name} has numbers out of range")
