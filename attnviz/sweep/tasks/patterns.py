"""The keys that the patterns of the literature look at, for any sequences of letters.

Olsson et al. 2022 (previous token, induction), Wang et al. 2022 (duplicate), Xiao et al. 2023
(first); the means over these keys are those of ``analysis.measures``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnviz.sweep.tasks.task import Pattern, Samples

__all__ = ["DUPLICATE", "FIRST", "INDUCTION", "back"]

Keys = NDArray[np.bool_]


def back(tokens: int) -> Pattern:
    """The key that stands so many tokens before the query; one is the previous token."""
    name = "previous" if tokens == 1 else f"back_{tokens}"
    words = "previous token" if tokens == 1 else f"{tokens} tokens back"

    def keys(samples: Samples) -> Keys:
        return _everywhere(samples, np.eye(samples.counted.shape[1], k=-tokens, dtype=np.bool_))

    return Pattern(name, words, keys)


def _everywhere(samples: Samples, keys: Keys) -> Keys:
    """The same keys (query, key) in every sequence."""
    return np.broadcast_to(keys, (len(samples.ids), *keys.shape))


def _first(samples: Samples) -> Keys:
    keys = np.zeros((samples.counted.shape[1],) * 2, np.bool_)
    keys[1:, 0] = True
    return _everywhere(samples, keys)


def _earlier(samples: Samples) -> Keys:
    return np.tri(samples.counted.shape[1], k=-1, dtype=np.bool_)


def _duplicates(samples: Samples) -> Keys:
    tokens = samples.ids[:, :-1]
    return np.asarray((tokens[:, :, None] == tokens[:, None, :]) & _earlier(samples))


def _followed(samples: Samples) -> Keys:
    tokens = samples.ids[:, :-1]
    equal = tokens[:, :, None] == np.roll(tokens, 1, axis=1)[:, None, :]
    equal[:, :, 0] = False  # key 0 follows nothing
    return np.asarray(equal & _earlier(samples))


FIRST = Pattern("first", "first token", _first)
DUPLICATE = Pattern("duplicate", "same letter before", _duplicates)
INDUCTION = Pattern("induction", "what followed it before", _followed)
