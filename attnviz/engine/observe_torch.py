"""Observe the attention of any transformers model that reads text, without knowing its name.

A model that looks its attention function up is observed there. One that computes attention by
itself runs eager and reports its weights. Weights of a long text are recomputed block by block as
the plain softmax of scaled scores, next to the fused function. That is right only for plain
attention, so each model is first tried on a short text both ways. One that differs is observed
eagerly, as far as memory allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from attnviz.engine.attention_calls import (
    Attended,
    AttentionCall,
    IncompleteError,
    MaskWatch,
    borrowed,
    configs_of,
    without_recording_hooks,
)
from attnviz.engine.forward_pass import ForwardPass, plan_pass, wanted_kinds
from attnviz.engine.hook_points import HeadOutputs
from attnviz.engine.observer import (
    BlockFacts,
    Held,
    Observer,
    Reduce,
    SumsReader,
    hand_over,
    on_host,
    rows_of_a_block,
    to_numpy,
)
from attnviz.engine.passes import PlainCheck, WatchedCall, watched
from attnviz.engine.projections import ValueNorms
from attnviz.engine.reduced_torch import SINKS, SOFTCAP, TorchLayer, layer_of
from attnviz.engine.sums import JoinedLayer, OwnSums, exact_products, layer_maker, sums_on_gpu
from attnviz.errors import UnsupportedError, UsageError
from attnviz.measures.reduced import ReducedLayer
from attnviz.models.attention_interface import PreTrainedModel, uses_interface
from attnviz.models.memory import free_memory
from attnviz.models.split import device_of, require_one_process
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Input, Kind

LONG = 2048
"""The number of tokens from which weights are recomputed in blocks."""

_EXACT_CELLS = 512 * 512
"""The number of cells per head up to which layers run eager. Eager attention then costs at most a
twentieth of a forward pass more than the fused one. Layers that are not wanted run eager too, so
that a layer's numbers do not depend on which others were requested; in longer texts they differ by
the rounding of the fused function."""

_ROW_TOLERANCE = 0.02
"""How far the sum of a row may exceed one by rounding in half precision; a sink lowers the sum."""

_TRIAL = 48
"""The number of tokens of the text on which both ways are compared."""

_TRIAL_CELLS = 1_000
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}
_HALF_TOLERANCE = 0.05
"""Each way runs the model, whose layers add up their rounding: two random layers in the shape of an
8B Llama differ by .024 in bfloat16."""

_PLAIN_OPTIONS = {
    "scaling", "dropout", "is_causal", "sliding_window", "position_ids", "use_cache",
    "cache_position", "output_attentions", "return_dict", "output_hidden_states",
    "deterministic", "output_router_logits",
}  # fmt: skip
"""The options of an attention function that keep it plain; sliding windows come as masks."""

_EAGER_COPIES = 4
"""The number of matrices that eager attention holds at once in one layer: scores, masked scores,
softmax and its copy."""


@torch.inference_mode()
def observe_torch(
    model: TransformersModel,
    observer: Observer,
    inputs: Sequence[Input],
    cells: int | None,
    held: Held = "auto",
) -> None:
    """Run a transformers model over inputs of one length; hand attention weights to ``observer``.

    The observer says which layers it wants. cells: the most attention weights in a block; None
    hands over whole matrices. held: see ``Backend.observe``.
    """
    whole, (ids, target_ids) = model.model, _tensors(inputs)
    norms = ValueNorms(model) if cells is not None and observer.norms else None
    tokens = max(ids.shape[1], 0 if target_ids is None else target_ids.shape[1])
    long = cells is not None and (held == "blocks" or tokens >= LONG)
    in_blocks, kinds = long and held != "full", wanted_kinds(observer, whole)
    if in_blocks:
        trial = partial(_observe_blocks, cells=_TRIAL_CELLS, norms=None)
        in_blocks = _agrees(_plain, whole, kinds, (ids, target_ids), trial)
    if held == "blocks" and not in_blocks:
        raise _only_whole(model, "blocks")
    if cells is not None and not in_blocks:
        _require_room(model, len(inputs), tokens, asked=held == "full")
    forward = plan_pass(whole, kinds, ids, decoder_input_ids=target_ids)
    if cells is not None and in_blocks:
        _observe_blocks(forward, observer, cells, norms)
    else:
        observe_pass(forward, observer, cells=cells, norms=norms)


@torch.inference_mode()
def read_sums(model: TransformersModel, reader: SumsReader, inputs: Sequence[Input]) -> None:
    """Run a transformers model over inputs of one length; see ``Backend.read_sums``."""
    kinds, (ids, target_ids) = wanted_kinds(reader, model.model), _tensors(inputs)
    read_sums_of(model, plan_pass(model.model, kinds, ids, target_ids), reader)


@torch.inference_mode()
def read_sums_of(model: TransformersModel, forward: ForwardPass, reader: SumsReader) -> Any:
    """Run a planned pass as ``read_sums`` does; return the model's logits, or None."""
    texts = forward.inputs["input_ids"], forward.inputs.get("decoder_input_ids")
    read = _observe_sums if uses_interface(model.model) else _observe_own_sums
    device = device_of(model.model)
    with exact_products(device):
        if not _agrees(_reducible, model.model, forward.wanted, texts, read):
            raise _only_whole(model, "fused")
        with sums_on_gpu(model, forward.batch, max(forward.lengths)):
            # A cache would keep the keys and values of all layers until the pass ends.
            cached = forward.cached and device.type == "cpu"
            return read(replace(forward, compare=False, cached=cached), reader)


def _tensors(inputs: Sequence[Input]) -> tuple[Tensor, Tensor | None]:
    """Return the token ids (text, token) of the texts and of the decoder's texts, or None."""
    targets = [given.target_ids for given in inputs if given.target_ids is not None]
    ids = torch.tensor([given.ids for given in inputs])
    return ids, torch.tensor(targets) if targets else None


def _only_whole(model: TransformersModel, way: Reduce) -> UnsupportedError:
    return UnsupportedError(
        f"the attention of {model.info.name!r} is no plain softmax over a range of keys: it can "
        f"only be read whole, leave out --reduce {way}"
    )


@torch.inference_mode()
def observe_pass(
    forward: ForwardPass,
    observer: Observer,
    *,
    cells: int | None = None,
    norms: ValueNorms | None = None,
    outputs: HeadOutputs | None = None,
) -> Any:
    """Run a planned pass under the observer; return the model's logits, or None.

    cells: the most attention weights in a block; None hands over whole matrices.
    norms: measures the norms of the values too; None for no norms.
    outputs: records the heads' outputs of the same pass, and may remove heads.
    """
    seen: set[tuple[Kind, int]] = set()

    def answer(watch: WatchedCall) -> Attended:
        wanted = observer.wants(watch.kind, watch.layer)
        if not wanted and norms is None and outputs is None and watch.call.functions.is_fused:
            query, key, _ = watch.call.inputs
            if query.shape[-2] * key.shape[-2] > _EXACT_CELLS:
                return watch.call.here.own()
        norm = _norms_of(watch, norms) if wanted else None
        output, weights = watch.eager()
        if wanted:
            forward.check(watch.kind, weights)
            assert weights is not None
            masks = watch.call.visible()
            hand_over(observer, watch.kind, watch.layer, weights, norm, masks=masks, cells=cells)
            seen.add((watch.kind, watch.layer))
        if outputs is not None:
            if output.ndim != 4:  # merged already: met at the output projection
                raise IncompleteError
            outputs.take(watch.kind, watch.layer, output)
        return output, weights

    if uses_interface(forward.model):
        with suppress(IncompleteError):
            return getattr(watched(forward, answer), "logits", None)
    try:
        # Nothing is handed over twice when the pass is run again by what the model reports.
        return _observe_reported(forward, observer, cells, seen, outputs, norms)
    except UnsupportedError:
        # Falcon with ALiBi reports the weights of an eager function that adds it twice.
        if outputs is None and norms is None and not seen:
            with suppress(UnsupportedError):
                return _observe_own_sums(forward, _WholeRows(observer))
        raise


def _observe_reported(
    forward: ForwardPass,
    observer: Observer,
    cells: int | None,
    seen: set[tuple[Kind, int]],
    outputs: HeadOutputs | None,
    norms: ValueNorms | None,
) -> Any:
    """Run eager attention, hand over the attention weights that the model reports.

    Return its logits. cells: the most attention weights in a block; None hands over whole matrices.
    The model stores the attention weights of all layers until the run ends; they are checked before
    the first is handed over. Raises UnsupportedError if the model reports no weights, or something
    other than attention weights.
    """
    name = type(forward.model).__name__
    require_one_process(forward.model)
    if not forward.takes("output_attentions"):
        raise UnsupportedError(f"{name} computes no attention weights that could be shown.")
    configs = configs_of(forward.model).values()
    exact = {config._attn_implementation for config in configs} <= {"eager", None}
    with borrowed(forward.model):
        check = PlainCheck(forward, "reported", exact=exact).begin()
    masks = MaskWatch(forward.batch, forward.lengths)
    values = None if norms is None else norms.mixed(forward)
    with (
        nullcontext() if outputs is None else outputs.met(),
        nullcontext() if values is None else values.watching(),
        masks,
    ):
        returned, reported = run_reporting(forward)
    check.end(returned)
    logits = getattr(returned, "logits", None)
    del returned
    for kind, layers in reported.items():
        if not layers:
            raise UnsupportedError(f"{name} computes no attention weights that could be shown.")
        for weights in layers:
            forward.check(kind, weights)
            _check_rows(name, weights)
    expected = getattr(forward.model.config, "num_hidden_layers", None)
    if "self" in reported and expected not in (None, len(reported["self"])):
        raise UnsupportedError(
            f"{name} reports attention weights of {len(reported['self'])} layers, "
            f"expected {expected}: which layers they belong to cannot be told."
        )
    for kind, layers in reported.items():
        for layer in range(len(layers)):
            weights = layers.pop(0)  # so that what the observer leaves is freed at once
            if (kind, layer) not in seen and observer.wants(kind, layer):
                mask, norm = masks.mask_of(weights), None
                if norms is not None and values is not None:
                    value = values.of(layer, weights)
                    if value is None:
                        raise _values_unseen(forward)
                    norm = norms.of(kind, layer, weights.shape[1], value)
                hand_over(observer, kind, layer, weights, norm, masks=mask, cells=cells)
    return logits


def run_reporting(forward: ForwardPass) -> tuple[Any, dict[Kind, list[Tensor]]]:
    """Run the pass once, eager; return its output, and its weights by kind and layer."""
    with borrowed(forward.model, "eager"), without_recording_hooks(forward.model):
        outputs = forward.run(output_attentions=True)
    field = "attentions" if len(forward.kinds) == 1 else "{}_attentions"
    return outputs, {
        kind: list(getattr(outputs, field.format(kind), None) or ())
        for kind in forward.kinds
        if kind in forward.wanted
    }


def _check_rows(name: str, weights: Tensor) -> None:
    rows = weights.sum(-1, dtype=torch.float32)
    # This comparison also fails for NaN.
    if not bool((weights.min() >= 0) & (rows.max() <= 1 + _ROW_TOLERANCE) & (rows.max() > 0)):
        raise UnsupportedError(
            f"{name} reports attention weights that are not shares of one: "
            f"smallest {float(weights.min()):g}, largest row sum {float(rows.max()):g}."
        )


def _observe_blocks(
    forward: ForwardPass, observer: Observer, cells: int, norms: ValueNorms | None
) -> None:
    """Run a pass, recompute weights in blocks; UnsupportedError unless a plain softmax."""

    def answer(watch: WatchedCall) -> Attended:
        call, last = watch.call, None
        if observer.wants(watch.kind, watch.layer):
            norm = _norms_of(watch, norms)
            of_texts = [None] * len(call.query) if norm is None else to_numpy(norm)
            for last in _plain_blocks(call, cells):
                start, weights = last
                seen = call.visible(start, *weights.shape[-2:])
                for text, block in enumerate(weights):
                    mask = None if seen is None else on_host(seen[text])
                    beside = BlockFacts(of_texts[text], mask)
                    observer.observe(text, watch.kind, watch.layer, start, to_numpy(block), beside)
        output, _ = call.own()
        if last is not None:
            watch.check.weights(call, *last, output)
        return output, None

    try:
        watched(forward, answer, in_blocks=True)
    except IncompleteError as error:
        raise _values_unseen(forward) from error


def _norms_of(watch: WatchedCall, norms: ValueNorms | None) -> Tensor | None:
    call = watch.call
    if norms is None:
        return None
    return norms.of(watch.kind, watch.layer, call.query.shape[1], call.value)


def _values_unseen(forward: ForwardPass) -> UnsupportedError:
    name = type(forward.model).__name__
    return UnsupportedError(f"{name} computes attention by itself: its values cannot be seen.")


def _plain_blocks(call: AttentionCall, cells: int) -> Iterator[tuple[int, Tensor]]:
    """Yield a call's softmax as (first query, (text, head, rows, keys)); or IncompleteError."""
    extra = {name for name, value in call.options.items() if value is not None} - _PLAIN_OPTIONS
    texts, heads, queries, width = call.query.shape
    shared, keys = call.key.shape[1:3]
    if extra or heads % shared:
        raise IncompleteError
    scale = call.options.get("scaling")
    query = (call.query * (width**-0.5 if scale is None else scale)).unflatten(1, (shared, -1))
    key = call.key[:, :, None].transpose(-1, -2)
    causal = call.is_causal
    rows = min(queries, rows_of_a_block(texts, heads, keys, cells))
    for start in range(0, queries, rows):
        stop = min(start + rows, queries)
        seen = min(stop, keys) if causal else keys
        scores = (query[..., start:stop, :] @ key[..., :seen]).float().flatten(1, 2)
        if causal and stop <= keys:
            # Keys in the future of a block's query can only be at the block's own positions.
            square = torch.ones(rows, rows, dtype=torch.bool, device=scores.device).triu(1)
            future = square[: stop - start, : stop - start]
            scores[..., start:].masked_fill_(future, -torch.inf)
        elif call.mask is not None:
            mask = call.mask[..., start:stop, :seen]
            boolean = mask.dtype == torch.bool
            scores = scores.masked_fill_(~mask, -torch.inf) if boolean else scores.add_(mask)
        yield start, scores.softmax(-1)


def _observe_sums(forward: ForwardPass, reader: SumsReader) -> Any:
    """Run one pass, and hand each wanted layer to ``reader``, which reads sums over its rows.

    Return the model's logits, or None. The pass is not compared with a plain one: its outputs are
    those of the model's own function. Raises UnsupportedError if attention is not looked up, or not
    a plain softmax.
    """
    known, make = WeakTensorKeyDictionary(), layer_maker()

    def answer(watch: WatchedCall) -> Attended:
        call, split = watch.call.here, watch.call.split
        wanted, sinks = reader.wants(watch.kind, watch.layer), SINKS in call.options
        capped = call.options.get(SOFTCAP) is not None
        texts = range(len(call.query) if wanted or sinks or capped else 0)
        layers = [layer_of(call, text, _PLAIN_OPTIONS, known, make) for text in texts]
        if capped:  # the fused function knows of no cap
            pairs = zip(layers, call.value, strict=True)
            output = torch.stack([layer.mixed(value) for layer, value in pairs])
        else:
            output, _ = call.own()
        for text, layer in enumerate(layers):
            if wanted:
                layer.output = output[text]
                whole: ReducedLayer = layer
                if split is not None:
                    whole = JoinedLayer(layer, split, output.device)
                reader.sums(text, watch.kind, watch.layer, whole)
                layer.output = None  # a reader that keeps the layer does not keep this
            if sinks:  # the fused function knows of none
                output[text] *= layer.kept().to(output.dtype)
        return output, None

    try:
        output = watched(replace(forward, compare=False), answer, in_blocks=True)
        return getattr(output, "logits", None)
    except IncompleteError as error:
        raise _values_unseen(forward) from error


def _observe_own_sums(forward: ForwardPass, reader: SumsReader) -> Any:
    """Do what ``_observe_sums`` does with a model that computes attention by itself."""
    require_one_process(forward.model)
    kind, *others = forward.kinds
    layers = getattr(forward.model.config, "num_hidden_layers", None)

    def take(layer: int, texts: list[TorchLayer], outputs: Tensor) -> None:
        if reader.wants(kind, layer):
            for text, attention in enumerate(texts):
                attention.output = outputs[text]
                reader.sums(text, kind, layer, attention)
                attention.output = None

    with borrowed(forward.model):
        check = PlainCheck(forward, "sums", exact=False).begin()
        watch = OwnSums(forward.batch, max(forward.lengths), take, layer_maker())
        try:
            with watch:
                output = forward.run()
        except IncompleteError as error:
            raise _values_unseen(forward) from error
    if others or watch.layers != layers:
        raise _values_unseen(forward)
    check.end(output)
    return getattr(output, "logits", None)


class _WholeRows:
    """A reader of sums that hands whole attention weights to an observer."""

    def __init__(self, observer: Observer) -> None:
        self._observer, self.wants = observer, observer.wants

    def sums(self, text: int, kind: Kind, layer: int, attention: ReducedLayer) -> None:
        first, past = attention.first, attention.past
        rows, keys = attention.rows(0, len(first)), np.arange(max(past))
        mask = (keys >= first[:, None]) & (keys < past[:, None])
        self._observer.observe(text, kind, layer, 0, rows, BlockFacts(None, mask))


_Tried: TypeAlias = WeakKeyDictionary[nn.Module, dict[frozenset[Kind], bool]]

_plain: _Tried = WeakKeyDictionary()
"""For each tried model and set of kinds: True if the attention is a plain softmax."""

_reducible: _Tried = WeakKeyDictionary()
"""For each tried model and set of kinds: True if sums over the attention rows can be computed."""


def _agrees(
    known: _Tried,
    model: PreTrainedModel,
    kinds: frozenset[Kind],
    texts: tuple[Tensor, Tensor | None],
    read: Callable[[ForwardPass, _Collected], Any],
) -> bool:
    """Return True if whole attention weights and those that ``read`` reads agree in every layer.

    This is tested on the beginning of the first text, and kept in ``known``.
    texts: the token ids (text, token) of the texts and of the decoder's texts, or None.
    """
    own = read is _observe_own_sums
    if not uses_interface(model) and not own:
        return False
    tried = known.setdefault(model, {})
    if kinds not in tried:
        ids, targets = (None if text is None else text[:1, :_TRIAL] for text in texts)
        assert ids is not None
        forward = plan_pass(model, kinds, ids, decoder_input_ids=targets)
        eager, other = _Collected(kinds), _Collected(kinds)
        if not own:  # that one is compared with a plain pass
            observe_pass(forward, eager, cells=_TRIAL_CELLS)
        try:
            read(forward, other)
            tolerance = _TOLERANCE.get(model.dtype, _HALF_TOLERANCE)
            tried[kinds] = own or eager.equal(other, tolerance)
        except UnsupportedError:
            tried[kinds] = False
    return tried[kinds]


class _Collected:
    """Stores every block of weights of one short text, to be compared with whole matrices."""

    norms = False

    def __init__(self, kinds: frozenset[Kind]) -> None:
        self._kinds = kinds
        self.rows: dict[tuple[str, int, int], Any] = {}

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind in self._kinds

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Any, beside: BlockFacts
    ) -> None:
        for row in range(weights.shape[-2]):
            self.rows[kind, layer, start + row] = weights[:, row]

    def sums(self, text: int, kind: Kind, layer: int, attention: ReducedLayer) -> None:
        rows = attention.rows(0, len(attention.first))
        self.observe(text, kind, layer, 0, rows, BlockFacts())

    def equal(self, other: _Collected, tolerance: float) -> bool:
        if self.rows.keys() != other.rows.keys() or not self.rows:
            return False
        return all(_near(row, other.rows[key], tolerance) for key, row in self.rows.items())


def _near(whole: Any, block: Any, tolerance: float) -> bool:
    """Return True if a block's row is near the whole row, whose further keys must be zero."""
    seen = block.shape[-1]
    differs = abs(whole[:, :seen] - block).max() > tolerance
    return not differs and not (abs(whole[:, seen:]) > tolerance).any()


def _require_room(model: TransformersModel, texts: int, tokens: int, *, asked: bool) -> None:
    """Raise UsageError if whole matrices of so many texts do not fit the free memory."""
    device = device_of(model.model)
    free = free_memory(device)
    layers = _EAGER_COPIES if uses_interface(model.model) else model.info.layers + _EAGER_COPIES
    needed = 4 * texts * model.info.heads * tokens * tokens * layers
    if free is not None and needed > free:
        why = "read whole takes" if asked else "can only be read whole, which takes"
        less = "leave out --reduce full or shorten" if asked else "shorten"
        raise UsageError(
            f"the attention of {model.info.name!r} {why} about {needed / 1e9:,.1f} GB for "
            f"{tokens:,} tokens, {free / 1e9:,.1f} GB are free on {device}: {less} the text"
        )
