"""The activation functions of feed-forward blocks as curves: ReLU, GELU, SiLU, and a SiLU gate.

GELU: Hendrycks & Gimpel 2016. SiLU: Elfwing et al. 2017. SwiGLU, SiLU(g)·u: Shazeer 2020.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from attnviz.attention.activations import ACTIVATE, NEARLY_ZERO, Activation
from attnviz.learn.scaling.report import ActivationCurve

_DRAWN: dict[Activation, tuple[str, str]] = {
    "relu": ("ReLU", "max(x, 0)"),
    "gelu": ("GELU", "x·Φ(x)"),
    "silu": ("SiLU", "x·σ(x)"),
}
_UPS = (2.0, 1.0, -1.0)
"""The values of the input that the gate multiplies."""

_END, _STEPS = 4.0, 160
_FINE = 1 << 14
"""The number of cells in which shares of a normal distribution are summed, from −8 to 8."""


def activation_curves() -> tuple[ActivationCurve, ...]:
    """Return the curves of all activation functions, then those of the gate."""
    x = np.linspace(-_END, _END, _STEPS + 1)
    edges = np.linspace(-8, 8, _FINE + 1)
    middle = (edges[1:] + edges[:-1]) / 2
    chance = np.diff([NormalDist().cdf(edge) for edge in edges])
    curves = []
    for activation, (name, formula) in _DRAWN.items():
        y, fine = (ACTIVATE[activation](points) for points in (x, middle))
        least = int(fine.argmin())
        curves.append(
            ActivationCurve(
                name=name,
                formula=formula,
                points=tuple(zip(x.tolist(), y.tolist(), strict=True)),
                lowest=(float(middle[least]), float(fine[least])) if fine[least] else None,
                zero=float(chance[fine == 0].sum()),
                nearly=float(chance[np.abs(fine) < NEARLY_ZERO].sum()),
            )
        )
    gate = ACTIVATE["silu"](x)
    for up in _UPS:
        points = tuple(zip(x.tolist(), (gate * up).tolist(), strict=True))
        curves.append(ActivationCurve(f"up = {up:g}", "SiLU(gate)·up", points, up=up))
    return tuple(curves)
