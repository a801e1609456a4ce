"""Direct path patching: what later heads' queries, keys and values receive directly from one head.

Between two texts, clean and corrupt, a head's output differs, and so do the queries of later heads.
Along the residual stream alone, with the norms scaled as in the corrupt run, a query is linear in
everything written before it. The sender's part in its difference is Δq_s, and

    share = Σ_t ⟨Δq_s(t), Δq(t)⟩ / Σ_t ‖Δq(t)‖²

adds up to 1 over everything that writes, except for the change of the norms. Wang et al. 2022,
"Interpretability in the Wild", section 3.1 and Goldowsky-Dill et al. 2023, "Localizing Model
Behavior with Path Patching". Shares are those patches to first order, without a pass for each pair.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.attribution.parts import HeadKey
from attnviz.engine.backend import backend_of
from attnviz.engine.patching import PathEffects, PathRead, What
from attnviz.errors import UsageError
from attnviz.models.model import Model
from attnviz.records import Input, Kind


def path_effects(
    model: Model, clean: Input, corrupt: Input, senders: Sequence[HeadKey]
) -> tuple[PathEffects, ...]:
    """Return the direct effects of some heads on later heads, from one pass over each of two texts.

    clean, corrupt: the texts, whose runs are compared. senders: the heads, one result for each.
    Raises UsageError for texts of different length or a head that does not exist, UnsupportedError
    if the model does not show its queries, or if the outputs of its heads cannot be traced to them.
    """
    lengths = [(len(given.ids), len(given.target_ids or ())) for given in (clean, corrupt)]
    if lengths[0] != lengths[1]:
        raise UsageError(
            f"the two texts have {len(clean.predicted)} and {len(corrupt.predicted)} tokens: "
            "expected as many in both"
        )
    kind: Kind = "decoder" if "decoder" in model.kinds else model.kinds[0]
    with np.errstate(over="ignore", invalid="ignore"):
        backend = backend_of(model)
        reads: Sequence[PathRead]
        if (stack := backend.stack) is not None:
            from attnviz.engine.attribution.paths_on_numpy import numpy_path_reads

            reads = numpy_path_reads(stack, clean.text, corrupt.text, senders)
        else:
            from attnviz.engine.attribution.paths_on_torch import torch_path_reads

            opened = backend.open_patchable(kind, clean)
            reads = torch_path_reads(opened, clean, corrupt, senders)
        return tuple(_effects(sender, reads) for sender in senders)


def _effects(sender: HeadKey, reads: Sequence[PathRead]) -> PathEffects:
    shares: dict[What, dict[HeadKey, NDArray[np.floating]]] = {}
    explained: dict[What, dict[HeadKey, float]] = {}
    moved: dict[What, dict[HeadKey, float]] = {}
    for read in reads:
        if sender not in read.alone:
            continue
        square = np.square(read.difference).sum((0, 2))
        differs = np.flatnonzero(square)
        along = (read.alone[sender] * read.difference).sum(-1)  # (token, head)
        whole = (read.whole * read.difference).sum((0, 2))
        clean = np.square(read.clean).sum((0, 2))
        for head in differs.tolist():
            key = read.kind, read.layer, head
            shares.setdefault(read.what, {})[key] = along[:, head] / square[head]
            explained.setdefault(read.what, {})[key] = float(whole[head] / square[head])
            moved.setdefault(read.what, {})[key] = float(np.sqrt(square[head] / clean[head]))
    return PathEffects(sender, shares, explained, moved)
