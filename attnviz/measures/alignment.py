"""The published way from cross attention to the times of words: standardise, smooth, align.

Radford et al. 2023 ("Robust Speech Recognition via Large-Scale Weak Supervision"), in the code of
Whisper and of transformers (``_extract_token_timestamps``). Many sets of heads are aligned at once:
a cell of all matrices is one step of NumPy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnviz.records import Floats

SMOOTH = 7
"""The width of the median filter in frames."""


def standardised(weights: Floats, width: int = SMOOTH) -> NDArray[np.float32]:
    """Return weights (head, token, frame) standardised over tokens, median-filtered."""
    wide = np.asarray(weights, np.float64)
    spread = wide.std(axis=-2, keepdims=True)
    centred = wide - wide.mean(axis=-2, keepdims=True)
    even = np.divide(centred, spread, out=np.zeros_like(wide), where=spread > 0)
    half = width // 2
    if wide.shape[-1] > half:
        padded = np.pad(even, [(0, 0)] * (wide.ndim - 1) + [(half, half)], mode="reflect")
        windows = np.lib.stride_tricks.sliding_window_view(padded, width, axis=-1)
        even = np.median(windows, axis=-1)
    narrow: NDArray[np.float32] = even.astype(np.float32)
    return narrow


def aligned(scores: Floats) -> NDArray[np.intp]:
    """Return the frame (set, token) at which each token begins on the path of the largest scores.

    scores: (set, token, frame), such as the mean of the standardised weights of a set of heads.
    Dynamic time warping from the first token and frame to the last ones; a step goes to the next
    token, the next frame or both (Sakoe & Chiba 1978). Of equal costs the next frame is taken, as
    in transformers, and costs are kept in float32 as there.
    """
    sets, tokens, frames = scores.shape
    cost = np.full((tokens + 1, frames + 1, sets), np.inf, np.float32)
    trace = np.full((tokens + 1, frames + 1, sets), 2, np.int8)
    trace[1:, 0] = 1
    cost[0, 0] = 0
    own = -np.moveaxis(np.asarray(scores, np.float64), 0, -1)
    for diagonal in range(2, tokens + frames + 1):
        token = np.arange(max(1, diagonal - frames), min(tokens, diagonal - 1) + 1)
        frame = diagonal - token
        both, down = cost[token - 1, frame - 1], cost[token - 1, frame]
        right = cost[token, frame - 1]
        step = np.where((down < both) & (down < right), 1, 2)
        step[(both < down) & (both < right)] = 0
        least = np.choose(step, [both, down, right])
        cost[token, frame] = own[token - 1, frame - 1] + least
        trace[token, frame] = step
    begins = np.zeros((sets, tokens), np.intp)
    token, frame, all_sets = np.full(sets, tokens), np.full(sets, frames), np.arange(sets)
    for _ in range(tokens + frames):
        inside = (token > 0) & (frame > 0)
        begins[all_sets[inside], token[inside] - 1] = frame[inside] - 1
        step = trace[token, frame, all_sets]
        going = (token > 0) | (frame > 0)
        token = token - ((step < 2) & going)
        frame = frame - ((step != 1) & going)
    return begins
