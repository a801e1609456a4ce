"""Which layers of a decoder slide a window over their keys, as its config says it."""

from __future__ import annotations

from attnviz.models.config_design.fields import Fields, UnclaimedError
from attnviz.models.config_design.row import Row

__all__ = ["windows"]

_FULL, _SLIDING = "full_attention", "sliding_attention"
_MOST_LAYERS = 100_000


def windows(fields: Fields, row: Row, layers: int) -> list[int | None] | None:
    """The window of each layer, None for all keys; None as a whole where no layer slides."""
    if row.windows == "none":
        return None
    window = fields.optional("sliding_window", least=0) or None
    if row.windows in ("late", "switched") and not fields.flag("use_sliding_window"):
        window = None
    if window is None:
        return None
    if layers > _MOST_LAYERS:
        raise UnclaimedError
    types = fields.listed("layer_types", layers)
    if types is not None:
        if set(types) - {_FULL, _SLIDING}:
            raise UnclaimedError
        return [window if kind == _SLIDING else None for kind in types]
    if callable(row.windows):
        pattern = fields.optional("sliding_window_pattern") or 1
        return [window if row.windows(layer, pattern) else None for layer in range(layers)]
    first = fields.whole("max_window_layers", least=0) if row.windows == "late" else 0
    return [window if layer >= first else None for layer in range(layers)]
