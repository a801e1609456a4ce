"""Which layers of a decoder slide a window over their keys, as its config says it."""

from __future__ import annotations

from attnviz.models.config_design.fields import Fields, UnclaimedError
from attnviz.models.config_design.row import Row

__all__ = ["windows"]

_FULL, _SLIDING = "full_attention", "sliding_attention"
_MOST_LAYERS = 100_000


def windows(fields: Fields, row: Row, layers: int) -> list[int | None] | None:
    """The window of each layer, None for all keys; None as a whole where no layer slides."""
    if row.windows is None or (row.windows_switched and not fields.flag("use_sliding_window")):
        return None
    window = fields.optional("sliding_window", least=0)
    if not window:
        return None
    if layers > _MOST_LAYERS:
        raise UnclaimedError
    types = fields.listed("layer_types", layers)
    if types is None:
        return [window if row.windows(layer, fields) else None for layer in range(layers)]
    if set(types) - {_FULL, _SLIDING}:
        raise UnclaimedError
    return [window if kind == _SLIDING else None for kind in types]
