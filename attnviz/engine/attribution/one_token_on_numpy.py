"""What heads write over texts of one token, in NumPy; see ``one_token``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from attnviz.attention.functional import Floats, project
from attnviz.attention.numpy_stack import NumpyStack, held_norm
from attnviz.engine.attribution.parts import ONE_TOKEN_BATCH, HeadKey


def numpy_one_token_logits(
    stack: NumpyStack, tokens: Sequence[int], heads: Collection[HeadKey]
) -> Iterator[tuple[HeadKey, Sequence[int], Floats]]:
    """Yield the logits over texts of one token; see ``Backend.one_token_logits``."""
    for start in range(0, len(tokens), ONE_TOKEN_BATCH):
        batch = tokens[start : start + ONE_TOKEN_BATCH]
        residual = stack.embed(stack.checked(np.array(batch)[:, None]))  # (token, 1, width)
        written: dict[HeadKey, Floats] = {}
        for layer in range(stack.shape.layers):
            attention = stack.attention(layer)
            attended, _, values = attention.parts(stack.read(layer, residual))
            for key in heads:
                if key[1] == layer:
                    output = attention.output_by_head[:, key[2]]
                    written[key] = project(values[:, key[2], 0], output)
            residual = stack.after_layer(layer, residual, attended)
        for key, part in written.items():
            moved = held_norm(stack, "final_norm", residual[:, 0], part)
            yield key, batch, project(moved, stack.unembedding[0])
