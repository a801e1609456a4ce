"""Reads the rotary positions of a config, as transformers 4 or 5 writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from attnviz.attention.family import Family, NotUnderstoodError
from attnviz.attention.rotary import Linear, Llama3, LongRope, Rotary, Stretch, Yarn

_CONTEXT = "original_max_position_embeddings"

_FIELDS: Mapping[str, tuple[set[str], set[str]]] = {
    "default": (set(), set()),
    "linear": ({"factor"}, set()),
    "dynamic": ({"factor"}, set()),
    "llama3": ({"factor", "low_freq_factor", "high_freq_factor"}, {_CONTEXT}),
    "yarn": (
        {"factor"},
        {_CONTEXT, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}
        | {"truncate"},
    ),
    "longrope": ({"short_factor", "long_factor"}, {_CONTEXT, "factor", "attention_factor"}),
}
"""What each way of stretching says beside the base and the share: always, and where it likes."""


def rotary_of(
    family: Family, fields: Mapping[str, Any], sizes: Mapping[str, int], used: set[str]
) -> Rotary | None:
    """The rotary positions of a config; the names of the fields that say them go to ``used``.

    Raises NotUnderstoodError for what is not described.
    """
    if family.rotary is None:
        return None
    (base, usual_base), (share, usual_share) = (
        said.split("=") for said in (family.theta, family.share)
    )
    used.update((base, share, "rope_parameters", "rope_scaling"))
    said = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if not isinstance(said, Mapping):
        raise NotUnderstoodError(f"rope_parameters is {said!r}")
    rope = dict(said)
    kind = str(rope.pop("rope_type", rope.get("type", "default")))
    rope.pop("type", None)
    always, at_will = _FIELDS.get(kind, (set[str](), set[str]()))
    rope = {name: said for name, said in rope.items() if said is not None or name not in at_will}
    theta = _number(rope.pop("rope_theta", fields.get(base, float(usual_base))))
    part = _number(rope.pop("partial_rotary_factor", fields.get(share, float(usual_share))))
    if part > 1 or (part < 1 and family.rotary == "whole"):
        raise NotUnderstoodError(f"rotary positions of a part of each head, of {part}")
    dims = int(sizes["head_dim"] * part)
    if dims < 2 or dims % 2 or (kind == "dynamic" and dims == 2):
        raise NotUnderstoodError(f"rotary positions of {dims} dimensions")
    described = kind in _FIELDS and (family.stretches is None or kind in family.stretches)
    if not described or not always <= rope.keys() <= always | at_will:
        raise NotUnderstoodError(f"rotary positions of type {kind!r} with {sorted(rope)}")
    if "original_context" in sizes:  # which is said beside them then, and has the last word
        rope[_CONTEXT] = sizes["original_context"]
    return Rotary(theta, dims, _stretch(kind, rope, theta, sizes["context"], dims))


def _stretch(
    kind: str, rope: Mapping[str, Any], theta: float, longest: int, dims: int
) -> Stretch | None:
    """How wavelengths are stretched; longest: tokens of the longest text."""
    # "dynamic" stretches for texts alone that are longer than the longest
    if kind in ("default", "dynamic"):
        return None
    context = rope.get(_CONTEXT, longest)
    if not isinstance(context, int) or context < 2 or theta <= 1:
        raise NotUnderstoodError(f"rotary positions of a context of {context!r}")
    factor = _number(rope.get("factor", longest / context))
    if kind == "linear":
        return Linear(factor)
    if kind == "llama3":
        low, high = (_number(rope[f"{end}_freq_factor"]) for end in ("low", "high"))
        if low >= high:
            raise NotUnderstoodError(f"rotary positions stretched from {high} to {low}")
        return Llama3(factor, low, high, context)
    if kind == "yarn":
        fast, slow = _number(rope.get("beta_fast", 32.0)), _number(rope.get("beta_slow", 1.0))
        whole = bool(rope.get("truncate", True))
        return Yarn(factor, context, _yarn_scale(factor, rope), fast, slow, whole)
    short, long = (_factors(rope[f"{length}_factor"], dims) for length in ("short", "long"))
    usual = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(context))
    return LongRope(short, long, context, _number(rope.get("attention_factor", usual)))


def _yarn_scale(factor: float, rope: Mapping[str, Any]) -> float:
    """What cosines and sines are multiplied by (Peng et al. 2023, section 3.4)."""

    def usual(share: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * share * math.log(factor) + 1

    if "attention_factor" in rope:
        return _number(rope["attention_factor"])
    if "mscale" in rope and "mscale_all_dim" in rope:
        return usual(_number(rope["mscale"])) / usual(_number(rope["mscale_all_dim"]))
    return usual(1.0)


def _factors(said: object, dims: int) -> tuple[float, ...]:
    if not isinstance(said, list) or len(said) != dims // 2:
        raise NotUnderstoodError(f"no list of {dims // 2} factors of rotary positions")
    return tuple(map(_number, said))


def _number(said: object) -> float:
    """A number above zero."""
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 < said < math.inf:
        raise NotUnderstoodError(f"rotary positions of {said!r}")
    return float(said)
