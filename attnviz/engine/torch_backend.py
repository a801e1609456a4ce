"""The backend of transformers models, with torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnviz.attention.functional import Array
from attnviz.engine.attention_calls import Attended, AttentionCall, IncompleteError
from attnviz.engine.forward_pass import length_class, plan_pass
from attnviz.engine.head_run import (
    Head,
    HeadRun,
    Heads,
    KeepLayers,
    KeepNorms,
    Rows,
    Run,
    by_layer,
    unseen_outputs,
)
from attnviz.engine.hook_points import HeadOutputs
from attnviz.engine.observe_torch import observe_pass, observe_torch, read_sums, read_sums_of
from attnviz.engine.observer import (
    BLOCK_CELLS,
    Held,
    KeepWeights,
    ObserveHeads,
    Observer,
    QueriesKeys,
    SumsReader,
    nothing_to_compare,
    products,
    softmaxed,
    to_numpy,
)
from attnviz.engine.passes import WatchedCall, watched
from attnviz.engine.patchable import (
    PatchableModel,
    gives_a_number,
    mask_id_of,
    patchable_transformers,
    weighs_choices,
    whole_pass,
    with_labels,
)
from attnviz.engine.projections import ValueNorms
from attnviz.engine.selection import check_heads
from attnviz.errors import UnsupportedError
from attnviz.measures.reduced import ReducedLayer
from attnviz.models.attention_interface import uses_interface
from attnviz.models.model import Reader
from attnviz.models.threads import suit
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Floats, Input, Kind, ModelInfo, Tokens

if TYPE_CHECKING:  # what only some questions need is imported where they ask
    from attnviz.engine.attribution.on_torch import TorchAttributor
    from attnviz.engine.attribution.scores_on_torch import TorchScoreSplitter
    from attnviz.engine.effects import ScanOptions
    from attnviz.engine.patching import Pair, PatchOptions
    from attnviz.engine.scan.patching import Patching
    from attnviz.engine.scan.scan import Scan


class TorchBackend:
    """Runs a transformers model; its methods are those of ``Backend``."""

    in_order = False
    stack = None

    def __init__(self, model: TransformersModel) -> None:
        self._model = model

    def observe(
        self,
        observer: Observer,
        inputs: Sequence[Input],
        *,
        cells: int | None = BLOCK_CELLS,
        held: Held = "auto",
    ) -> None:
        observe_torch(self._model, observer, inputs, cells, held)

    def read_sums(self, reader: SumsReader, inputs: Sequence[Input]) -> None:
        read_sums(self._model, reader, inputs)

    @torch.inference_mode()
    def observe_queries_keys(
        self, tokens: Tokens, wants: Callable[[int], bool], observe: ObserveHeads
    ) -> None:
        info, kind, whole = self._model.info, self._model.kinds[0], self._model.model

        def answer(watch: WatchedCall) -> Attended:
            call = watch.call
            output, weights = watch.eager()
            if watch.kind == kind and wants(watch.layer):
                if call.query.ndim != 4 or call.query.shape[1] % call.key.shape[1]:
                    raise IncompleteError
                queries_keys = _queries_keys(watch.layer, call)
                _check(info, queries_keys, weights)
                observe(queries_keys)
            return output, weights

        forward = plan_pass(whole, {kind}, torch.tensor([tokens.ids]))
        if not uses_interface(whole):
            raise _not_shown(info.name)
        try:
            watched(forward, answer)
        except IncompleteError:
            raise _not_shown(info.name) from None

    def open_heads(self, kind: Kind, given: Input, causal: bool) -> tuple[Run, tuple[str, ...]]:
        try:
            return self._heads(kind, given, causal), ()
        except UnsupportedError as error:
            return unseen_outputs(self.observe, self._model.info, kind, error)

    def _heads(self, kind: Kind, given: Input, causal: bool) -> Run:
        opened, whole = self._model, self._model.model
        patchable = self.open_patchable(kind, given)
        predicts = causal and patchable.head is not None
        compared: set[int] = set()

        def run(
            given: Input, removed: Heads = (), norms: bool = False, rows: Rows = None
        ) -> HeadRun:
            check_heads(patchable.heads, removed)
            forward = replace(whole_pass(whole, kind, given), wanted=frozenset({kind}))
            if rows is not None:
                few = KeepLayers(kind, partial(_weights_and_outputs, rows))
                forward = replace(forward, logits=tuple(rows) if predicts else False)
                logits = read_sums_of(opened, forward, few)
                seen = {layer: both[0] for layer, both in few.layers.items()}
                outputs = {layer: both[1] for layer, both in few.layers.items()}
                return HeadRun(seen, outputs, _predicted(logits[0]) if predicts else None)
            size = length_class(len(given.text))
            if removed and size not in compared:
                run(given)  # compares with a plain pass, from which runs without heads differ
            forward = replace(forward, compare=not removed, cached=True, logits=predicts)
            weights = KeepWeights(kind)
            keep = KeepNorms(kind, weights)
            heads = HeadOutputs(kind, patchable.hook_points, removed)
            with torch.inference_mode():
                values = ValueNorms(opened) if norms else None
                logits = observe_pass(forward, keep, norms=values, outputs=heads)
            compared.add(size)
            seen, masks = by_layer(weights.layers)
            predicted = _predicted(logits[0]) if predicts else None
            return HeadRun(seen, heads.by_layer, predicted, keep.norms_of, masks)

        return run

    def open_reader(
        self, tokens: Tokens, begun: Tokens, kind: Kind, removed: Collection[Head]
    ) -> Reader:
        from attnviz.engine.generation_torch import open_reader

        return open_reader(
            self._model, self.open_heads, tokens=tokens, begun=begun, kind=kind, removed=removed
        )

    def open_attributor(self, given: Input) -> TorchAttributor:
        from attnviz.engine.attribution.on_torch import TorchAttributor

        kinds, info = self._model.kinds, self._model.info
        if weighs_choices(self._model.model):
            raise UnsupportedError(
                f"{info.name!r} weighs several texts against each other: over one text it has no "
                "logit to take apart, choose a model with a language-model head or a classifier"
            )
        kind: Kind = "decoder" if "decoder" in kinds else kinds[0]
        opened = self.open_patchable(kind, given, labels=True, several=True)
        if opened.head is None and gives_a_number(self._model.model):
            raise UnsupportedError(
                f"{info.name!r} gives a number and chooses no label (regression): there is no "
                "logit to take apart, choose a model with a language-model head or a classifier"
            )
        return TorchAttributor.of(info, opened, given)

    def open_splitter(self, kind: Kind, given: Input) -> TorchScoreSplitter:
        from attnviz.engine.attribution.scores_on_torch import TorchScoreSplitter

        opened = self.open_patchable(kind, given)
        return TorchScoreSplitter(self._model.info.name, self._model.model, opened)

    def open_patchable(
        self, kind: Kind, given: Input, *, labels: bool = False, several: bool = False
    ) -> PatchableModel:
        suit(self._model)  # torch may have been imported only now
        model = self._model.model
        opened = patchable_transformers(model, kind, given, mask_id_of(self._model))
        if opened.head is not None or not labels:
            return opened
        return with_labels(model, opened, given, several=several)

    def open_scan(
        self, kind: Kind, inputs: Sequence[Input], options: ScanOptions, references: Sequence[Input]
    ) -> Scan:
        from attnviz.engine.scan.on_torch import torch_scan

        opened = self.open_patchable(kind, inputs[0], labels=options.labels)
        return torch_scan(opened, inputs, options, references)

    def open_patching(self, kind: Kind, pairs: Sequence[Pair], options: PatchOptions) -> Patching:
        from attnviz.engine.scan.on_torch import torch_patching

        opened = self.open_patchable(kind, pairs[0].corrupt, labels=True)
        return torch_patching(opened, pairs, options)


def _weights_and_outputs(rows: Sequence[int], layer: ReducedLayer) -> tuple[Floats, Floats]:
    """Return the weights (head, row, key) and the outputs (head, row, dim) of some queries."""
    return np.concatenate([layer.rows(at, at + 1) for at in rows], 1), layer.outputs(rows)


def _predicted(logits: torch.Tensor) -> Array:
    """Return logits (token, vocab) in NumPy; on a GPU, from which they take long, as they are."""
    return to_numpy(logits) if logits.device.type == "cpu" else logits


# Queries and keys -------------------------------------------------------------------------------

_ROUNDING = {4: 1e-3, 8: 1e-3}
"""How far weights of this many bytes may be from ours, which are computed in float64."""

_ROUGH = 0.1
"""The same for narrower weights: large 16-bit scores are rounded by up to a sixteenth."""


def _check(info: ModelInfo, inputs: QueriesKeys, weights: Tensor | None) -> None:
    """Raise UnsupportedError unless the softmax of queries and keys gives the model's weights."""
    if weights is None or weights.shape[:2] != (1, len(inputs.query)):
        raise _not_shown(info.name)
    allowed = _ROUNDING.get(weights.element_size(), _ROUGH)
    for head, theirs in enumerate(to_numpy(weights[0])):
        if np.isnan(theirs).any():
            raise nothing_to_compare(info, inputs.layer)
        query, key, bias = inputs.head(head)
        ours = softmaxed(products(query, key), inputs.scale, bias)
        if ours.shape != theirs.shape or not abs(ours - theirs).max() <= allowed:
            raise UnsupportedError(
                f"the weights of {info.name!r} are not the softmax of scaled queries and keys "
                "alone (a soft cap, a sink or a bias of its own): choose another --model"
            )


def _queries_keys(layer: int, call: AttentionCall) -> QueriesKeys:
    query, key = call.query[0], call.key[0]  # (heads, token, head_dim) of the one text
    groups = len(query) // len(key)
    given = call.options.get("scaling")
    scale = 1 / math.sqrt(query.shape[-1]) if given is None else float(given)
    shared = key.repeat_interleave(groups, 0)
    return QueriesKeys(layer, _wide(query), _wide(shared), scale, _bias(call))


def _bias(call: AttentionCall) -> Any:
    """Return the mask of a call as a number to add, (1 or heads, query, key): −inf hides a key."""
    mask = call.additive_mask()
    if mask is None:
        return None
    mask = mask[0, ..., : call.key.shape[-2]]
    lowest = torch.finfo(mask.dtype).min
    return _wide(mask.float().masked_fill(mask <= lowest / 2, -math.inf))


def _wide(tensor: Tensor) -> Any:
    return to_numpy(tensor).astype("float64")


def _not_shown(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"the attention of {name!r} does not show its queries and keys: choose a model whose "
        "attention transformers can exchange, or leave --from-model out"
    )
