"""What the layers of a stack add to the residual over one text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


class LayerTrace(NamedTuple):
    """What one layer adds to the residual over one text.

    weights: what was kept of them. values: (head, key, value_dim), one a query head.
    output: the output projection by head (width, head, value_dim). bias: of it (width,), or None.
    fed: what the feed-forward adds, (token, width).
    """

    weights: Floats
    values: Floats
    output: Floats
    bias: Floats | None
    fed: Floats


class Trace(NamedTuple):
    """One text on its way: the residual before the first layer and behind the last one."""

    embedded: Floats
    layers: Sequence[LayerTrace]
    residual: Floats
