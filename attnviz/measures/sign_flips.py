"""Whether the largest of several mean changes over the tokens of one text is more than chance.

A head without a function changes the loss of a token upwards as often as downwards. In each of
``DRAWS`` draws the changes of each token get a random sign, the same for all heads; the chance of
the largest mean is the share of draws in which some head has one as large, so it counts how many
heads were tried. Westfall and Young 1993, "Resampling-Based Multiple Testing"; of sign flips,
Winkler et al. 2014, "Permutation inference for the general linear model".
"""

from __future__ import annotations

import math
from random import Random

import numpy as np
from numpy.typing import NDArray

CHANCE = 0.02
"""The chance below which a mean change is said to beat chance."""

DRAWS = 1000
"""How many draws of signs the largest mean change is compared with."""

_ROUNDING = 1e-9


def chance_of_largest(changes: NDArray[np.floating]) -> float:
    """Return how likely chance alone gives a mean change as large as the largest, in (0, 1].

    changes: (head, token), in any unit. Tokens without a finite change in every head are left out.
    The result is NaN if no token is left.
    """
    known = changes[:, np.isfinite(changes).all(axis=0)].astype(float)
    tokens = known.shape[1]
    if not known.size:
        return math.nan
    bits = np.frombuffer(Random(0).randbytes(DRAWS * tokens), np.uint8) & 1
    signs = 2.0 * bits.reshape(DRAWS, tokens) - 1.0
    largest = np.abs(known.sum(axis=1)).max()
    drawn = np.abs(signs @ known.T).max(axis=1)
    return float((1 + (drawn >= largest * (1 - _ROUNDING)).sum()) / (1 + DRAWS))
