"""Which ablations a person asked for: ``--head``, ``--layer``, ``--unit`` and ``--together``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from attnviz.ablate.options import Request
from attnviz.engine.effects import Unit, Variant
from attnviz.engine.selection import choose_heads
from attnviz.errors import UsageError
from attnviz.records import ModelInfo

__all__ = ["choose_ablations"]

_BARE = re.compile(r"[-\d,\s*]+")


def choose_ablations(
    request: Request, info: ModelInfo, found: Mapping[int, int] | None = None
) -> tuple[Variant, ...]:
    """The ablations: one a head, key/value head or layer, or all that were chosen at once.

    found: the number of heads of each layer that has any; None where all have.
    A bare ``--head 3`` names a head of every layer: these are also ablated together.
    Raises UsageError for a head that the model does not have.
    """
    heads = dict.fromkeys(range(info.layers), info.heads) if found is None else found
    together = request.ablation.together
    chosen = _chosen(request, request.heads.head, info, heads)
    if chosen is None:
        if together:
            raise UsageError("--together removes the chosen heads at once: add --head or --layer")
        chosen = {layer: frozenset(range(count)) for layer, count in heads.items()}
    units = _units(chosen, request.ablation.unit, info)
    if together:
        return (Variant(tuple(sorted({head for unit in units for head in unit}))),)
    singles = tuple(Variant(unit) for unit in units)
    return (*singles, *_across_layers(request, info, heads))


def _chosen(
    request: Request, typed: Sequence[str], info: ModelInfo, heads: Mapping[int, int]
) -> Mapping[int, frozenset[int]] | None:
    """The heads of each layer that ``typed`` names, or None where nothing is chosen.

    What is said of every layer holds for those that have heads.
    """
    layers, base = request.heads.layer, request.counted.index_base
    chosen = choose_heads(layers, typed, info.layers, info.heads, base)
    if chosen is None or layers is not None or not all(map(_BARE.fullmatch, typed)):
        return chosen
    return {layer: some for layer, some in chosen.items() if layer in heads}


def _units(
    chosen: Mapping[int, frozenset[int]], unit: Unit, info: ModelInfo
) -> list[tuple[tuple[int, int], ...]]:
    """The (layer, head) pairs of each ablation, whole units only."""
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


def _across_layers(request: Request, info: ModelInfo, heads: Mapping[int, int]) -> list[Variant]:
    """For each head that was named without a layer, that head of all layers at once."""
    if request.ablation.unit != "head":
        return []
    bare = [typed for typed in request.heads.head if _BARE.fullmatch(typed) and "*" not in typed]
    if not bare:
        return []
    chosen = _chosen(request, bare, info, heads) or {}
    if len(chosen) < 2:
        return []
    where = "every layer" if len(chosen) == len(heads) else f"layers {request.heads.layer}"
    named = sorted(frozenset[int]().union(*chosen.values()))
    return [
        Variant(
            tuple((layer, head) for layer in sorted(chosen)),
            f"head {head + request.counted.index_base} of {where}",
        )
        for head in named
    ]
