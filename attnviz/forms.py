"""What the record of each command may hold, checked before anything is computed from it.

Anyone may have written a record. Its form says of which kind each fact is, what the axes of each
array are, and between which bounds its numbers must be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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

SHARE, MANY, SIGNED = (0.0, 1.0), (0.0, 2.0**40), (-(2.0**30), 2.0**30)
"""Bounds of a term: of a share or a yes, of a whole number, of a number of either sign."""

_SHOWN = {"model": dict, "source": str, "index_base": Literal[0, 1]}
_ROUNDING = 1e-5


class Numbers(NamedTuple):
    """A description of some arrays of a record that are alike, by which they are checked.

    names: of the arrays, in ``sums`` unless they say otherwise; one that ends with a dot stands for
        all that have a number there. axes: their names; ``any`` is an axis of any length.
    terms: the sum that counts how many terms each value adds up; by default the measured texts.
        Axes that it lacks are repeated, those that it has beyond are added up.
    term: the bounds of a term; None for any numbers. Exact sums whose first axis is of measures
        have those of their units: some shares are correlations, which may be below 0.
    exact: whether they are exact sums, which have one more axis. needed: False if they may lack.
    roots: the exact sums of the terms whose squares these add up.
    """

    names: str
    axes: str = ""
    terms: str = ""
    term: tuple[float, float] | None = SHARE
    exact: bool = False
    needed: bool = True
    roots: str = ""


class Form(NamedTuple):
    """The form of a valid record of one command.

    facts: the kinds of its facts, see ``reading.fits``. axes: returns from the facts how long an
        axis is, or the names of its measures. numbers: its arrays; what counts the terms of others
        comes first. check: raises ValueError for what is wrong beyond that, given the facts, the
        arrays, the texts that are kept, and the number of those that were measured.
    """

    facts: Mapping[str, Any]
    axes: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    numbers: Sequence[Numbers]
    check: Callable[[Mapping[str, Any], Arrays, Mapping[int, Any], int], None] = lambda *record: (
        None
    )


def check_form(
    form: Form, facts: Mapping[str, Any], arrays: Arrays, texts: Mapping[int, Any], measured: int
) -> None:
    """Raise KeyError, TypeError or ValueError unless a record has the form ``form``.

    facts: those of the run and those that are shown. arrays: by kind and name, such as
    ``sums.scores``. texts: those that the record keeps, by index. measured: how many it is of.
    """
    for name, kind in {**_SHOWN, **form.facts}.items():
        if not fits(facts[name], kind):
            raise ValueError(f"its {name.replace('_', ' ')} is {facts[name]!r:.40}")
    model, axes = model_of(facts["model"]), form.axes(facts)
    sizes = {name: size if isinstance(size, int) else len(size) for name, size in axes.items()}
    sizes |= {"2": 2, "4": 4, "7": 7, "layer": model.layers, "of_layer": model.heads}
    known = dict(_known(form, arrays, facts.get("control") is not None))
    for name, values in arrays.items():
        own = known[name].axes.split() + ["2"] * known[name].exact if name in known else []
        lengths = zip(own, values.shape, strict=False)
        expected = [n if axis == "any" else sizes.setdefault(axis, n) for axis, n in lengths]
        if name not in known or expected != [*values.shape] or len(own) != values.ndim:
            raise ValueError(f"{name} of {values.shape} is none of its arrays")
    for name, kind in known.items():
        terms = _terms(kind, known, arrays, measured)
        if name not in arrays and kind.needed and terms.any():
            raise ValueError(f"{name} is missing")
        if name in arrays and not _in_bounds(arrays[name], kind, terms, axes):
            raise ValueError(f"{name} has numbers out of range")
        if name in arrays and kind.roots:
            least = total(arrays[f"sums.{kind.roots}"]) ** 2  # Cauchy and Schwarz
            if (total(arrays[name]) * terms < least * (1 - _ROUNDING) - _ROUNDING).any():
                raise ValueError(f"{name} are no squares of {kind.roots}")
        if name in arrays and kind.axes == "head 2":
            heads, order = arrays[name], arrays[name] @ [2**20, 1]
            if (heads >= [model.layers, model.heads]).any() or (np.diff(order) <= 0).any():
                raise ValueError(f"{name} are no heads of the model, each once and in order")
    best = [rows[..., 1].ravel() for name, rows in arrays.items() if name.startswith("best.")]
    if not texts.keys() <= {*np.concatenate([np.zeros(0), *best]).tolist()}:
        raise ValueError("it has a text that no array names")
    form.check(facts, arrays, texts, measured)


def _known(form: Form, arrays: Arrays, twin: bool) -> Iterator[tuple[str, Numbers]]:
    """Yield the name of each array that a record may have. twin: with those of the baseline."""
    for kind in form.numbers:
        terms = kind.terms if kind.terms == "texts" else TWIN + kind.terms
        for name in kind.names.split():
            of, own = name.split(".", 1) if name[:5] in ("most.", "best.") else ("sums", name)
            alike = [(f"{of}.{own}", kind)]
            if twin and "head" in kind.axes.split():
                roots = kind.roots and TWIN + kind.roots
                alike.append((f"{of}.{TWIN}{own}", kind._replace(terms=terms, roots=roots)))
            for whole, its in alike:
                numbered = re.compile(re.escape(whole) + "[0-9]{1,9}")
                there = filter(numbered.fullmatch, arrays) if whole.endswith(".") else [whole]
                yield from ((array, its) for array in there)


def _terms(
    kind: Numbers, known: Mapping[str, Numbers], arrays: Arrays, measured: int
) -> NDArray[np.float64]:
    """Return how many terms the values of an array have, in a shape that goes with its axes."""
    if not kind.terms:
        return np.array(float(measured))
    axes, own = known[f"sums.{kind.terms}"].axes.split(), kind.axes.split()
    count = arrays.get(f"sums.{kind.terms}", np.zeros((1,) * len(axes))).astype(float)
    count = count.sum(tuple(at for at, axis in enumerate(axes) if axis not in own))
    sizes = iter(count.shape)
    terms: NDArray[np.float64] = count.reshape([next(sizes) if a in axes else 1 for a in own])
    return terms


def _in_bounds(
    values: NDArray[Any], kind: Numbers, terms: NDArray[np.float64], axes: Mapping[str, Any]
) -> bool:
    """Return True if sums of so many terms can be what they are."""
    if kind.term is None:
        return True
    least, most = map(np.array, kind.term)
    measures = axes.get(kind.axes.split()[0], 0) if kind.exact and kind.axes else 0
    if not isinstance(measures, int):
        units = [MEASURES[name].unit if name in MEASURES else "share" for name in measures]
        most = np.array([1.0 if unit == "share" else SIGNED[1] for unit in units])[:, None]
        least = -most
    number = total(values) if kind.exact else values
    inside = (least * terms - _ROUNDING <= number) & (number <= most * terms * (1 + _ROUNDING))
    if kind.exact:
        inside &= (values[..., 1] >= 0) & (values[..., 1] <= terms * 2.0**LOW)
    return bool(inside.all())
