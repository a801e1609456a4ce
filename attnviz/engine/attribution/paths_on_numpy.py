"""Direct path patching in NumPy: follow changes of the residual stream through norms that are held.

Two plain passes record each norm's input, each head's output and what each feed-forward block
added. Then the difference of the two runs is followed along the residual stream of the corrupt run,
together with what single heads wrote: each norm is a linear map there, and so is each projection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Floats, merge_heads, project
from attnviz.attention.numpy_stack import NumpyStack
from attnviz.engine.attribution.parts import HeadKey
from attnviz.engine.attribution.recorded_run import RecordedRun
from attnviz.engine.patching import PathRead, What
from attnviz.errors import UsageError
from attnviz.records import Tokens

_INPUTS: tuple[What, What, What] = ("query", "key", "value")


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
            _INPUTS,
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
    found: NDArray[np.float64] = np.moveaxis(heads, -3, -2).astype(np.float64)
    return found
