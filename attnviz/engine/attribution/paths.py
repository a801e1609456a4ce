"""Direct path patching: what later heads' queries, keys and values take straight from one head.

Between two texts, clean and corrupt, a head's output differs, and so do the queries of the heads
behind it. Along the residual stream alone, with the norms scaled as in the corrupt run, a query is
linear in all that was written before it; so the sender's part in its difference is Δq_s, and

    share = Σ_t ⟨Δq_s(t), Δq(t)⟩ / Σ_t ‖Δq(t)‖²

adds up over all that writes: to 1, but for what the norms' own change does. Wang et al. 2022,
"Interpretability in the Wild", section 3.1 and Goldowsky-Dill et al. 2023, "Localizing Model
Behavior with Path Patching", whose patches these are to first order, without a pass for each pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.engine.attribution.on_torch import calls_of, lost
from attnviz.engine.attribution.parts import HeadKey
from attnviz.engine.attribution.residual_pass import Jacobian, Leaf, ResidualPass
from attnviz.engine.backend import backend_of
from attnviz.engine.hook_points import LostTrackError
from attnviz.engine.patchable import PatchableModel, Untouched, run_pass
from attnviz.engine.patching import PathEffects, What
from attnviz.errors import UsageError
from attnviz.models.model import Model
from attnviz.records import Input, Kind


def path_effects(
    model: Model, clean: Input, corrupt: Input, senders: Sequence[HeadKey]
) -> tuple[PathEffects, ...]:
    """Of each of the heads, from one pass over each of two texts of one length.

    Raises UsageError for texts of different length or a head that does not exist, UnsupportedError
    where the model does not show its queries, or what it writes cannot be followed to them.
    """
    if any(len(one) != len(other) for one, other in _texts(clean, corrupt)):
        raise UsageError(
            f"the two texts have {len(clean.predicted)} and {len(corrupt.predicted)} tokens: "
            "expected as many in both"
        )
    kind: Kind = "decoder" if "decoder" in model.kinds else model.kinds[0]
    opened = backend_of(model).open_patchable(kind, clean)
    calls = calls_of(opened, senders)
    with opened.hook_points.borrowed():
        pair = _Pair(opened, _follow(opened, clean), _follow(opened, corrupt))
    return tuple(pair.effects(sender, calls[sender]) for sender in senders)


def _texts(clean: Input, corrupt: Input) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    yield clean.ids, corrupt.ids
    yield clean.target_ids or (), corrupt.target_ids or ()


def _follow(model: PatchableModel, given: Input) -> ResidualPass:
    flow = ResidualPass(model, Untouched(), reading=True)
    try:
        with flow.following():
            run_pass(model, given, None)
    except LostTrackError as error:
        raise lost(model) from error
    return flow


class _Pair:
    """Both passes. What was read in the corrupt one is q = J z of all that was written, z."""

    def __init__(self, model: PatchableModel, clean: ResidualPass, corrupt: ResidualPass) -> None:
        self._model = model
        self._leaves = corrupt.leaves
        if list(map(_kind_of, clean.leaves)) != list(map(_kind_of, corrupt.leaves)):
            raise lost(model)  # not the same parts write to both
        self._change = [
            (one.value - other.value).detach()
            for one, other in zip(clean.leaves, corrupt.leaves, strict=True)
        ]
        read = {place: q for place, q in corrupt.read.items() if q.requires_grad}
        self._places = list(read)
        self._clean = [clean.read[place].detach().double() for place in read]
        self._difference = [
            one - q.detach().double() for one, q in zip(self._clean, read.values(), strict=True)
        ]
        self._jacobian = Jacobian(list(read.values()), [leaf.value for leaf in self._leaves])
        self._explained = self._along(self._jacobian.moved(dict(enumerate(self._change))))

    def _along(self, moved: Sequence[Tensor | None]) -> list[NDArray[np.floating] | None]:
        """⟨moved(t), Δq(t)⟩ / Σ ‖Δq‖² at each place: (token, head); NaN where nothing differs."""
        found: list[NDArray[np.floating] | None] = []
        for one, difference in zip(moved, self._difference, strict=True):
            if one is None:
                found.append(None)
                continue
            inner = (one.double() * difference).sum(-1)[0]
            found.append((inner / difference.square().sum((0, 1, 3))).cpu().numpy())
        return found

    def effects(self, sender: HeadKey, call: int) -> PathEffects:
        """Of one head, whose outputs are those of this attention call."""
        at = next(at for at, leaf in enumerate(self._leaves) if leaf.point == call)
        alone = torch.zeros_like(self._change[at])
        alone[:, :, sender[2]] = self._change[at][:, :, sender[2]]
        shares: dict[What, dict[HeadKey, NDArray[np.floating]]] = {}
        explained: dict[What, dict[HeadKey, float]] = {}
        moved: dict[What, dict[HeadKey, float]] = {}
        along = self._along(self._jacobian.moved({at: alone}))
        for place, share, whole, clean, difference in zip(
            self._places, along, self._explained, self._clean, self._difference, strict=True
        ):
            if share is None or whole is None:
                continue
            point, what = self._model.hook_points.found[place[0]], place[1]
            norms = [one.square().sum((0, 1, 3)).sqrt() for one in (difference, clean)]
            for head in range(share.shape[1]):
                if not float(norms[0][head]):
                    continue
                key = point.kind, point.layer, head
                shares.setdefault(what, {})[key] = share[:, head]
                explained.setdefault(what, {})[key] = float(whole[:, head].sum())
                moved.setdefault(what, {})[key] = float(norms[0][head] / norms[1][head])
        return PathEffects(sender, shares, explained, moved)


def _kind_of(leaf: Leaf) -> tuple[object, ...]:
    return leaf.kind, leaf.layer, leaf.point, leaf.value.shape
