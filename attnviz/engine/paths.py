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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnviz.engine.attribution import HeadKey
from attnviz.engine.patching import What

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class PathEffects:
    """The direct effect of one head on what goes into later heads.

    sender: the head.
    shares: for ``query``, ``key`` and ``value`` of each later head, by token: (token,), which add
        up to its share. Keys and values are those of key/value heads, where heads share them.
    explained: for the same the sum of the shares of all that writes before it; how far it is from 1
        is what holding the norms leaves out.
    moved: for the same ‖Δq‖ / ‖q‖ over all tokens, of the clean run: how much there is to explain.
    A head whose queries do not differ at all has no entry.
    """

    sender: HeadKey
    shares: Mapping[What, Mapping[HeadKey, NDArray[np.floating]]]
    explained: Mapping[What, Mapping[HeadKey, float]]
    moved: Mapping[What, Mapping[HeadKey, float]]

    def share(self, what: What, head: HeadKey) -> float:
        """The sender's share in the difference of one head's queries, keys or values."""
        return float(self.shares[what][head].sum())
