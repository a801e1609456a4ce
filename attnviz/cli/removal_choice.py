"""Which removals a person asked for: ``--head``, ``--layer``, ``--unit`` and ``--together``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from attnviz.ablation import Unit, Variant
from attnviz.capture.selection import choose_heads
from attnviz.errors import UsageError
from attnviz.records import ModelInfo

__all__ = ["RemovalChoice", "choose_removals"]

_BARE = re.compile(r"[-\d,\s*]+")


@dataclass(frozen=True)
class RemovalChoice:
    """The options of the same names; layers and heads as typed, numbered from ``index_base``."""

    layers: str | None = None
    heads: tuple[str, ...] = ()
    index_base: int = 0
    unit: Unit = "head"
    together: bool = False


def choose_removals(choice: RemovalChoice, info: ModelInfo) -> tuple[Variant, ...]:
    """The removals: one a head, key/value head or layer, or all that were chosen at once.

    A bare ``--head 3`` names a head of every layer: these are also removed together.
    Raises UsageError for a head that the model does not have.
    """
    chosen = choose_heads(choice.layers, choice.heads, info.layers, info.heads, choice.index_base)
    if chosen is None:
        if choice.together:
            raise UsageError("--together removes the chosen heads at once: add --head or --layer")
        chosen = {layer: frozenset(range(info.heads)) for layer in range(info.layers)}
    units = _units(chosen, choice.unit, info)
    if choice.together:
        return (Variant(tuple(sorted({head for unit in units for head in unit}))),)
    singles = tuple(Variant(unit) for unit in units)
    return (*singles, *_across_layers(choice, info))


def _units(
    chosen: Mapping[int, frozenset[int]], unit: Unit, info: ModelInfo
) -> list[tuple[tuple[int, int], ...]]:
    """The (layer, head) pairs of each removal, whole units only."""
    group = {"head": 1, "kv-head": max(info.heads // info.kv_heads, 1), "layer": info.heads}[unit]
    if unit == "kv-head" and info.heads % info.kv_heads:
        raise UsageError(
            f"--unit kv-head: {info.heads} heads do not share {info.kv_heads} "
            "key/value heads evenly"
        )
    found = {
        (layer, head // group): tuple(
            (layer, member) for member in range(head // group * group, (head // group + 1) * group)
        )
        for layer in sorted(chosen)
        for head in sorted(chosen[layer])
    }
    return list(found.values())


def _across_layers(choice: RemovalChoice, info: ModelInfo) -> list[Variant]:
    """For each head that was named without a layer, that head of all layers at once."""
    if choice.unit != "head":
        return []
    bare = [typed for typed in choice.heads if _BARE.fullmatch(typed) and "*" not in typed]
    if not bare:
        return []
    chosen = choose_heads(choice.layers, bare, info.layers, info.heads, choice.index_base) or {}
    if len(chosen) < 2:
        return []
    where = "every layer" if len(chosen) == info.layers else f"layers {choice.layers}"
    heads = sorted(frozenset[int]().union(*chosen.values()))
    return [
        Variant(
            tuple((layer, head) for layer in sorted(chosen)),
            f"head {head + choice.index_base} of {where}",
        )
        for head in heads
    ]
