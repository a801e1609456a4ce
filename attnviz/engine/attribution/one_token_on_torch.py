"""What heads write over texts of one token, in torch; see ``one_token``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.attention.functional import Array
from attnviz.engine.attribution.on_torch import lost
from attnviz.engine.attribution.parts import HeadKey
from attnviz.engine.attribution.residual_pass import Jacobian, ResidualPass
from attnviz.engine.device_sizes import sizes
from attnviz.engine.hook_points import hooked
from attnviz.engine.linear_map import matrix_of
from attnviz.engine.patchable import PatchableModel, Untouched, probe_of
from attnviz.engine.scan.half_products import Halves, sums_halves
from attnviz.engine.scan.plan import is_causal
from attnviz.errors import UsageError
from attnviz.models.model import Model
from attnviz.records import Input


def torch_one_token_logits(
    model: PatchableModel, named: Model, tokens: Sequence[int], heads: Collection[HeadKey]
) -> Iterator[tuple[HeadKey, Sequence[int], Array]]:
    """Yield for each head, and some tokens at a time, what it adds to the logits over each token.

    Each item is (head, token ids, (token, vocab)); see ``one_token``. named: the model, for its
    name in errors. Raises UsageError if the model does not predict the next token.
    """
    with torch.no_grad(), model.hook_points.borrowed():
        causal = is_causal(model, probe_of(Input.of_ids(tokens[:1])))
    if model.head is None or not causal:
        raise UsageError(
            f"{named.info.name!r} does not predict the next token: whether its heads copy cannot "
            "be told"
        )
    matrix: Tensor | None = None
    with model.hook_points.borrowed():
        size = sizes(model.device.type).one_token_texts
        for start in range(0, len(tokens), size):
            batch = tokens[start : start + size]
            for key, written in _written_alone(model, batch, heads):
                if matrix is None:
                    matrix = matrix_of(model.head, written).detach()
                    in_halves = sums_halves(matrix.device.type, matrix.dtype)
                    matrix = matrix if in_halves else matrix.float()
                if matrix.dtype.itemsize == 2:
                    found = Halves(written.float(), matrix.dtype).times(matrix.T)
                else:
                    found = written.float() @ matrix
                yield key, batch, found if found.is_cuda else found.cpu().numpy()


def _written_alone(
    model: PatchableModel, tokens: Sequence[int], wanted: Collection[HeadKey]
) -> Iterator[tuple[HeadKey, Tensor]]:
    """Yield each head with its own addition to the vocabulary projection's input: (token, width).

    tokens: the ids, each of which is a text of its own.
    The pass is linear in the heads' outputs z, so this addition is J z, with J its Jacobian.
    """
    projected: list[Tensor] = []

    def catch(head: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        projected.append(args[0])
        return (args[0][:1, :0], *args[1:])

    flow = ResidualPass(model, Untouched())
    assert model.head is not None
    with hooked(model.head.register_forward_pre_hook(catch)), flow.following():
        model.run(*(Input.of_ids([token]) for token in tokens))
    heads = [(leaf.value, leaf.point) for leaf in flow.leaves if leaf.point is not None]
    if not projected or not projected[0].requires_grad:
        raise lost(model)
    jacobian = Jacobian(projected, [z for z, _ in heads])
    for at, (z, number) in enumerate(heads):
        if not jacobian.leads(at):
            raise lost(model)
        point = model.hook_points.found[number]
        for head in range(point.heads):
            key: HeadKey = (point.kind, point.layer, head)
            if key not in wanted:
                continue
            alone = torch.zeros_like(z)
            alone[:, :, head] = z.detach()[:, :, head]
            (seen,) = jacobian.moved({at: alone})
            assert seen is not None
            yield key, seen.flatten(1)
