"""Check that an observed pass is the model's own: it must end in the result of a plain pass.

Each model is tried on the first text of every length class (up to 2, 4, 8 … tokens), by a second,
unobserved pass over the same text. Rounding errors count as independent: they grow with the root of
their number (Higham & Mary 2019, "A New Approach to Probabilistic Rounding Error Analysis").
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from attnviz.engine.device_sizes import widest
from attnviz.errors import UnsupportedError

STORED = 4
"""The results of one attention that are rounded in turn: scores, exponents, weights, sums."""


def length_class(tokens: int) -> int:
    """Return the class of a text's length: 0 for 1 token, 1 for 2, 2 for up to 4, and so on."""
    return (tokens - 1).bit_length()


def not_its_own(model: nn.Module, why: str) -> UnsupportedError:
    """Return the error for a model whose results change because it is observed.

    why: the difference that proves it.
    """
    return UnsupportedError(
        f"{type(model).__name__} computes something else while it is observed than when it runs "
        f"plainly ({why}): nothing of it can be shown, choose another model"
    )


def ends_alike(module: nn.Module, found: Tensor, plain: Tensor, *, exact: bool) -> bool:
    """Return True if two passes of ``module`` over one text end in the same hidden states.

    found, plain: the hidden states of the observed and of the plain pass. exact: True compares bit
    for bit, at least on a CPU; elsewhere sums change their order from run to run. Otherwise at
    least half of the tokens must agree up to rounding; a router may send single tokens to other
    experts for the last bit of a number. Tokens that are not finite in ``found`` are left out:
    functions overflow at different places, and such numbers are never shown.
    """
    if found.shape != plain.shape:
        return False
    known = found.isfinite().all(-1)
    found, plain = found[known], plain[known]
    same = found == plain
    if bool(same.all()) or (exact and plain.device.type == "cpu"):
        return bool(same.all())
    # Half precision sums in float32, so that only stored results are rounded.
    wide = plain.dtype in (torch.float32, torch.float64)
    roundings = sum(
        STORED + (weight.shape[-1] if wide and weight.ndim else 0)
        for part in module.modules()
        for weight in part.parameters(recurse=False)
    )
    apart = widest((found - plain).masked_fill(same, 0)).norm(dim=-1)
    allowed = epsilon(plain) * math.sqrt(roundings) * widest(plain.nan_to_num()).norm(dim=-1)
    return bool((apart <= allowed).float().mean() >= 0.5)


_ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-3}
_HALF_ROUNDING = 5e-2


def nearly_equal(found: Tensor, expected: Tensor) -> bool:
    """Return True if two tensors differ at most by rounding, relative to their largest number."""
    rounding = _ROUNDING.get(expected.dtype, _HALF_ROUNDING)
    if found.shape != expected.shape:
        return False
    return bool((found - expected).abs().max() <= rounding * expected.abs().max())


def epsilon(tensor: Tensor) -> float:
    """Return the relative rounding error of a softmax over numbers of the tensor's type."""
    # transformers computes the softmax in float32 in all models.
    return max(torch.finfo(tensor.dtype).eps, torch.finfo(torch.float32).eps)
