"""Whether an observed pass is the model's own: it must end in what a plain pass ends in.

Each model is tried on the first text of every length class (up to 2, 4, 8 … tokens), by a second
pass over the same text that nobody watches. Rounding errors are taken as independent, so that they
grow with the root of their number (Higham & Mary 2019, "A New Approach to Probabilistic Rounding
Error Analysis").
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from attnviz.errors import UnsupportedError

STORED = 4
"""Results of one attention that are rounded one after another: scores, exponents, weights, sums."""


def length_class(tokens: int) -> int:
    """Return which of the classes up to 1, 2, 4, 8 … tokens a length falls into."""
    return (tokens - 1).bit_length()


def not_its_own(model: nn.Module, why: str) -> UnsupportedError:
    """Return the refusal of a model that does not run plainly while it is observed."""
    return UnsupportedError(
        f"{type(model).__name__} computes something else while it is observed than when it runs "
        f"plainly ({why}): nothing of it can be shown, choose another model"
    )


def ends_alike(module: nn.Module, found: Tensor, plain: Tensor, *, exact: bool) -> bool:
    """Return whether two passes of ``module`` over one text end in the same hidden states.

    exact: bit for bit, at least on a CPU: elsewhere sums change their order from run to run.
    Otherwise the middle one of the tokens may differ by rounding; for a router may send single
    tokens to other experts for the last bit of a number.
    Tokens of which ``found`` has no numbers are left out: functions overflow at different places,
    and what is no number is never shown as one.
    """
    if found.shape != plain.shape:
        return False
    known = found.isfinite().all(-1)
    found, plain = found[known], plain[known]
    same = found == plain
    if bool(same.all()) or (exact and plain.device.type == "cpu"):
        return bool(same.all())
    # Half precision sums in float32: there only what is stored counts.
    wide = plain.dtype in (torch.float32, torch.float64)
    roundings = sum(
        STORED + (weight.shape[-1] if wide and weight.ndim else 0)
        for part in module.modules()
        for weight in part.parameters(recurse=False)
    )
    apart = (found - plain).masked_fill(same, 0).double().norm(dim=-1)
    allowed = epsilon(plain) * math.sqrt(roundings) * plain.nan_to_num().double().norm(dim=-1)
    return bool((apart <= allowed).double().mean() >= 0.5)


_ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-3}
_HALF_ROUNDING = 5e-2


def nearly_equal(found: Tensor, expected: Tensor) -> bool:
    """Return whether two tensors differ by no more than rounding does, at their largest number."""
    rounding = _ROUNDING.get(expected.dtype, _HALF_ROUNDING)
    if found.shape != expected.shape:
        return False
    return bool((found - expected).abs().max() <= rounding * expected.abs().max())


def epsilon(tensor: Tensor) -> float:
    """Return the rounding of numbers of this type in a softmax, relatively."""
    # transformers takes the softmax in float32, whatever the model.
    return max(torch.finfo(tensor.dtype).eps, torch.finfo(torch.float32).eps)
