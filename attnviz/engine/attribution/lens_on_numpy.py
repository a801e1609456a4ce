"""The logit lens of models that NumPy runs, from one pass; see ``lens``."""

from __future__ import annotations

import numpy as np

from attnviz.attention.functional import project
from attnviz.attention.numpy_stack import NumpyStack, held_norm
from attnviz.engine.attribution.lens import LensReading, block_readings, head_readings
from attnviz.engine.attribution.on_numpy import ROUNDING
from attnviz.engine.attribution.parts import AskedLogit, HeadKey, place_of
from attnviz.records import Input


def numpy_lens(stack: NumpyStack, given: Input, asked: AskedLogit) -> LensReading:
    """Return what is read after each block, and from each head, at one token of a text.

    stack: a causal model whose final residual is a sum. given: the text. asked: position, answer.
    Raises UsageError for a position or token that does not exist.
    """
    ids = given.ids
    place = place_of(asked.position, len(ids), len(ids) - 1)
    with np.errstate(over="ignore", invalid="ignore"):
        trace = stack.traced(ids, lambda layer, weights: weights[:, place])
        stream = [trace.embedded[place]]
        heads: list[HeadKey] = []
        written = []
        rest = trace.embedded[place]  # all that no head has written
        for layer, traced in enumerate(trace.layers):
            mixed = np.einsum("hk,hkd->hd", traced.weights, traced.values)
            parts = np.einsum("hd,ohd->ho", mixed, traced.output)  # (head, width)
            written += list(parts)
            heads += [("self", layer, head) for head in range(len(parts))]
            other = traced.fed[place] if traced.bias is None else traced.fed[place] + traced.bias
            rest = rest + other
            stream.append(stream[-1] + parts.sum(0) + other)
        stream[-1] = trace.residual[place]
        logits = stack.unembed(np.stack(stream)).astype(np.float64)
        answer, _ = asked.words(int(logits[-1].argmax()), logits.shape[-1])
        moved = held_norm(stack, "final_norm", stream[-1], np.stack([*written, rest]))
        added = project(moved, stack.unembedding[0])  # (head and the rest, vocab)
        total = added.sum(0, dtype=np.float64)
        for name, bias in (("final_norm", True), ("unembedding", False)):
            shift = stack.tensors.optional(f"{name}.bias")
            if shift is not None:
                total = total + (project(shift, stack.unembedding[0]) if bias else shift)
        return LensReading(
            position=place,
            answer=answer,
            blocks=block_readings(logits, answer),
            heads=head_readings(heads, iter(added[:-1]), answer),
            apart=float(np.abs(total - logits[-1]).max()),
            tolerance=ROUNDING[stack.dtype.name] * float(np.abs(logits[-1]).max()),
        )
