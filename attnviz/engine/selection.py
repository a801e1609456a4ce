"""Parse ``--layer`` and ``--head``: ``L2H5``, ``3``, ``2.5``, ``2.*``, ``0-3.1,4``, ``-1``.

A bare number is a head of every layer. A dot or the letters separate layers from heads. A number
after a comma is a further head of the same layers, unless a new ``L…H…`` or dotted choice begins.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from attnviz.errors import UsageError

_SPAN = re.compile(r"(-?\d{1,18})(?:-(-?\d{1,18}))?")
_NAMED = re.compile(r"[Ll](.+?)[Hh](.+)")


def choose_heads(
    layers: str | None, heads: Sequence[str], layer_count: int, head_count: int, base: int
) -> dict[int, frozenset[int]] | None:
    """Return the chosen heads of each chosen layer, counted from 0; None if nothing was chosen.

    layers, heads: as typed. layer_count, head_count: those of the model.
    base: the number of the first layer and head as typed, 0 or 1.
    Raises UsageError for a string of another form and for an index that the model does not have.
    """
    if layers is None and not heads:
        return None
    axes = _Axis("layer", layer_count, base), _Axis("head", head_count, base)
    within = axes[0].span_list(layers) if layers is not None else range(layer_count)
    if not heads:
        return {layer: frozenset(range(head_count)) for layer in within}
    chosen: dict[int, set[int]] = {}
    for choice in heads:
        for layer, head in _pairs(choice, within, axes):
            chosen.setdefault(layer, set()).add(head)
    kept = {layer: frozenset(chosen[layer]) for layer in sorted(chosen) if layer in within}
    if not kept:
        raise UsageError(
            f"--head {' '.join(heads)} names no head of --layer {layers}: give one of the two, "
            "or heads of these layers"
        )
    return kept


def single_head(typed: str, layer_count: int, head_count: int, base: int) -> tuple[int, int]:
    """Return the only (layer, head) from 0 that ``typed`` names; UsageError if not exactly one."""
    chosen = choose_heads(None, [typed], layer_count, head_count, base) or {}
    pairs = [(layer, head) for layer, heads in chosen.items() for head in heads]
    if len(pairs) != 1:
        raise UsageError(f"expected one head, such as L0H0, got {typed!r}: {len(pairs)} heads")
    return pairs[0]


def check_heads(counts: Mapping[int, int], heads: Collection[tuple[int, int]]) -> None:
    """Raise UsageError if one of these (layer, head) is not in a model with so many by layer."""
    for layer, head in heads:
        if layer not in counts:
            raise UsageError(f"no layer {layer} with heads: expected {_range(list(counts))}")
        if not 0 <= head < counts[layer]:
            raise UsageError(f"no head {head} in layer {layer}: expected 0 to {counts[layer] - 1}")


def _range(layers: Sequence[int]) -> str:
    if len(layers) > 1 and list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]} to {layers[-1]}"
    return ", ".join(map(str, layers))


class _Axis:
    def __init__(self, name: str, count: int, base: int) -> None:
        self.name, self.count, self.base = name, count, base

    def index(self, text: str) -> int:
        number = int(text)
        index = number + self.count if number < 0 else number - self.base
        if not 0 <= index < self.count:
            last = self.count - 1 + self.base
            raise UsageError(
                f"no {self.name} {text}: this model has {self.name}s {self.base} to {last} "
                f"(or -{self.count} to -1 from the end)"
            )
        return index

    def span_list(self, text: str) -> list[int]:
        """Return the indices that a string such as ``0-3,5`` or ``*`` names."""
        indices: list[int] = []
        for part in text.split(","):
            if part.strip() == "*":
                indices.extend(range(self.count))
                continue
            match = _SPAN.fullmatch(part.strip())
            if match is None:
                layer = re.fullmatch(r"[Ll](\d+)", part.strip()) if self.name == "head" else None
                meant = f"; --layer {layer[1]} takes a whole layer" if layer else ""
                more = ", layer and head such as L1H2, or a label" if self.name == "head" else ""
                raise UsageError(
                    f"cannot read {part!r} as a {self.name}: expected a number, a range such as "
                    f"0-3, a list such as 0,2,5, or *{more}{meant}"
                )
            start = self.index(match[1])
            end = start if match[2] is None else self.index(match[2])
            if end < start:
                raise UsageError(f"the range {part.strip()} of {self.name}s runs backwards")
            indices.extend(range(start, end + 1))
        return indices


def _pairs(choice: str, within: Sequence[int], axes: tuple[_Axis, _Axis]) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for part in _split(choice):
        named = _NAMED.fullmatch(part)
        *left, right = named.groups() if named is not None else part.split(".", 1)
        layers = axes[0].span_list(left[0]) if left else within
        heads = axes[1].span_list(right)
        pairs.extend((layer, head) for layer in layers for head in heads)
    return pairs


def _split(choice: str) -> list[str]:
    """Split a list of choices of heads: ``0-3.1,4,L5H0`` becomes [``0-3.1,4``, ``L5H0``]."""
    parts: list[str] = []
    for piece in re.split(r"\s*[,\s]\s*", choice.strip()):
        starts_anew = "." in piece or piece[:1] in "Ll"
        if parts and not starts_anew:
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
    return parts
