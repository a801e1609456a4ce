"""One line of a count: the number and the arithmetic that a person can check it by."""

from __future__ import annotations

import math
from collections.abc import Iterable

from attnviz.params.accounts.terms import Term
from attnviz.params.specs import Dense, Norm, Part, Table

__all__ = ["of_part", "product", "total"]


def product(label: str, factors: Iterable[int], *, role: str = "other", symbols: str = "") -> Term:
    """The product of ``factors``, written out."""
    numbers = tuple(factors)
    count = math.prod(numbers)
    written = " × ".join(str(number) for number in numbers)
    return Term(label, count, f"{written} = {count:,}" if len(numbers) > 1 else f"{count:,}",
                symbols, role)  # fmt: skip


def total(terms: Iterable[Term], *roles: str) -> int:
    """The sum of the terms, or of those with one of the ``roles``."""
    return sum(term.count for term in terms if not roles or term.role in roles)


def of_part(part: Part, role: str = "other") -> tuple[Term, ...]:
    """The terms of a matrix, a table or a norm; norms keep their own role.

    A tied matrix counts where it belongs, its bias here.
    """
    match part:
        case Dense():
            terms = []
            if not part.tied:
                terms.append(product(part.label, (part.inputs, part.outputs), role=role))
            if part.bias:
                terms.append(product(f"{part.label} bias", (part.outputs,), role=role))
            return tuple(terms)
        case Table():
            factors = (part.rows, part.width) if part.rows != 1 else (part.width,)
            return (product(part.label, factors, role=role),)
        case Norm():
            vectors = part.scale + part.shift
            if not vectors:
                return ()
            factors = (vectors, part.width) if vectors > 1 else (part.width,)
            return (product(part.label, factors, role="norm"),)
