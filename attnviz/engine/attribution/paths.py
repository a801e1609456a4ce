"""Direct path patching: what later heads' queries, keys and values receive directly from one head.

Between two texts, clean and corrupt, a head's output differs, and so do the queries of later heads.
Along the residual stream alone, with the norms scaled as in the corrupt run, a query is linear in
everything written before it. The sender's part in its difference is Δq_s, and

    share = Σ_t ⟨Δq_s(t), Δq(t)⟩ / Σ_t ‖Δq(t)‖²

adds up to 1 over everything that writes, except for the change of the norms. Wang et al. 2022,
"Interpretability in the Wild", section 3.1 and Goldowsky-Dill et al. 2023, "Localizing Model
Behavior with Path Patching". Shares are those patches to first order, without a pass for each pair.

In NumPy two plain passes record each norm's input, each head's output and what each feed-forward
block added. Then the difference of the two runs is followed along the residual stream of the
corrupt run, together with what single heads wrote: each norm is a linear map there, and so is each
projection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Floats, merge_heads, project
from attnviz.attention.numpy_stack import NumpyStack
from attnviz.engine.attribution.scores_on_numpy import RecordedRun
from attnviz.engine.backend import backend_of
from attnviz.engine.patching import ATTENDED, PathEffects, PathRead, What
from attnviz.errors import UsageError
from attnviz.models.model import Model
from attnviz.records import HeadKey, Input, Kind, Tokens


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
            "expected the same number in both"
        )
    kind: Kind = "decoder" if "decoder" in model.kinds else model.kinds[0]
    with np.errstate(over="ignore", invalid="ignore"):
        backend = backend_of(model)
        reads: Sequence[PathRead]
        if (stack := backend.stack) is not None:
            reads = numpy_path_reads(stack, clean.text, corrupt.text, senders)
        else:
            from attnviz.engine.attribution.followed_run import torch_path_reads

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


# In NumPy ---------------------------------------------------------------------------------------


def numpy_path_reads(
    stack: NumpyStack, clean: Tokens, corrupt: Tokens, senders: Sequence[HeadKey]
) -> list[PathRead]:
    """Return how queries, keys and values differ in two texts, by layer, in all and by sender."""
    for kind, layer, head in senders:
        known = 0 <= layer < stack.shape.layers and 0 <= head < stack.shape.heads
        if kind != "self" or not known:
            raise UsageError(f"no {kind} head {head} in layer {layer} that writes to a logit")
    runs = RecordedRun(stack, clean.ids), RecordedRun(stack, corrupt.ids)
    stack.finite = stack.finite and all(run.finite for run in runs)
    return list(_reads(*runs, senders))


def _reads(
    clean: RecordedRun, corrupt: RecordedRun, senders: Sequence[HeadKey]
) -> Iterator[PathRead]:
    """Yield for each layer the queries, keys and values of both runs, and their differences."""
    after = corrupt.shape.order == "after"
    embedded = corrupt.embedded_since(clean)
    change = np.zeros((1 + len(senders), *embedded.shape), embedded.dtype)
    change[0] = embedded
    for layer in range(corrupt.shape.layers):
        name, attention = f"layers.{layer}", corrupt.attention(layer)
        entering = change if after else corrupt.moved(f"{name}.attention_norm", change)
        before = {key: row for row, key in enumerate(senders, 1) if key[1] < layer}
        for what, own, other, moved in zip(
            ATTENDED,
            attention.inputs(clean.reads[layer]),
            attention.inputs(corrupt.reads[layer]),
            attention.moved_inputs(corrupt.reads[layer], entering),
            strict=True,
        ):
            found, parts = _by_token(own), _by_token(moved)
            yield PathRead(
                kind="self",
                layer=layer,
                what=what,
                clean=found,
                difference=found - _by_token(other),
                whole=parts[0],
                alone={key: parts[row] for key, row in before.items()},
            )
        written = clean.outputs[layer] - corrupt.outputs[layer]
        put_out = np.zeros((len(change), *written.shape), written.dtype)
        put_out[0] = written
        for row, (_, at, head) in enumerate(senders, 1):
            if at == layer:
                put_out[row, head] = written[head]
        change = change + project(merge_heads(put_out), attention.output_weight)
        if after:
            change = corrupt.moved(f"{name}.attention_norm", change)
        change[0] += clean.fed[layer] - corrupt.fed[layer]
        if after:
            change = corrupt.moved(f"{name}.feed_norm", change)


def _by_token(heads: Floats) -> NDArray[np.float64]:
    return np.moveaxis(heads, -3, -2).astype(np.float64)
