"""A reading of the screen in plain words, for someone new to attention."""

from __future__ import annotations

import math

from attnviz.render.scaling.numbers import plain
from attnviz.scaling import ScalingReport

__all__ = ["explanation"]


def explanation(report: ScalingReport) -> list[str]:
    """Paragraphs, each of which begins with a word and a colon."""
    last = report.cases[-1]
    norms = [side.measures["jacobian_norm"].value for side in (last.plain, last.scaled)]
    passed = norms[1] * last.scaled.scale
    paragraphs = [
        "How to read this: attention compares a query with every key by the sum of the products "
        "of their d_k entries (the score), and the softmax turns the scores of a query into "
        "weights that sum to one. Here the same scores are softened twice: bare, and times the "
        "scale.",
        "Variance: a sum of d_k independent products of variance 1 has variance d_k, so bare "
        "scores grow with the width of a head. Times 1/√d_k they have variance 1 at any width.",
        "Weights: the softmax is exponential. Scores that lie 20 apart give weights that differ "
        "by e to the 20th, half a billion: one key gets nearly everything, the others nothing.",
        "Gradient: the Jacobian says how the weights answer to a small change of the scores that "
        "the softmax is given. Where one weight is nearly one it is nearly zero: the choice of "
        "the key can no longer be learnt from.",
        "Beware: on the way to the bare products the gradient is multiplied with the scale once "
        f"more: at {report.name(last)} the mean norm {plain(norms[1])} becomes {plain(passed)}, "
        f"beside {plain(norms[0])} without the scale. What the scale is against is not a "
        "small mean, but queries that pass next to nothing: the share below 0.01.",
    ]
    if report.model is None:
        keys = report.keys
        paragraphs.append(
            f"Even attention: over {keys:,} keys every weight is {plain(1 / keys)}, the entropy 1 "
            f"and the norm {plain(math.sqrt(keys - 1) / keys)}."
        )
    else:
        paragraphs.append(
            "Model: its queries and keys were made with the scale in place, so without it this is "
            "not how it would have come out of training: it shows what the scale does to them now."
        )
    return paragraphs
