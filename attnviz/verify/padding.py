"""What is left of a run over a padded text once the padding is cut off."""

from __future__ import annotations

from attnviz.records import Kind
from attnviz.verify.maps import Difference, Maps, furthest

__all__ = ["cut_to_real", "on_padding"]

_PADDED_QUERIES: tuple[Kind, ...] = ("self", "encoder")
"""The kinds whose queries are of the padded text; a decoder's own text is not padded."""


def cut_to_real(maps: Maps, real: slice) -> Maps:
    """The weights of real tokens on real tokens."""
    return {
        (kind, layer): weights
        if kind == "decoder"
        else weights[:, real if kind in _PADDED_QUERIES else slice(None), real]
        for (kind, layer), weights in maps.items()
    }


def on_padding(maps: Maps, real: slice) -> Difference:
    """The largest weight of a real token on padding, and its head."""
    return furthest(
        ((kind, layer), weights[:, real if kind in _PADDED_QUERIES else slice(None), side])
        for (kind, layer), weights in maps.items()
        if kind != "decoder"
        for side in (slice(None, real.start), slice(real.stop, None))
    )
