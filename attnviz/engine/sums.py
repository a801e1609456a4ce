"""Read sums over the attention rows of a model on any device, also of heads in several processes.

A model whose attention is looked up hands its calls over. One that computes attention by itself,
such as BLOOM, multiplies tensors without memory, on torch's meta device, that note what becomes of
the product of queries and keys: a scale, a bias of each key (ALiBi, Press et al. 2022), a mask, the
softmax. Where the weights would be multiplied with the values, ``TorchLayer`` computes the outputs
in blocks, so that no matrix of the text is made. Anything else that is done with the product ends
the pass with ``IncompleteError``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, reduce
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from attnviz.engine.attention_calls import FUSED_INPUTS, HIDING, HeadSplit, IncompleteError
from attnviz.engine.attribution.own_scores import factors_of
from attnviz.engine.attribution.residual_pass import MIXING, PRODUCTS, QUOTIENTS, SUMS
from attnviz.engine.device_sizes import sizes
from attnviz.engine.hook_points import Function, FunctionWatch, name_of, named
from attnviz.engine.observer import note_of_runs
from attnviz.engine.reduced_torch import Masked, TorchLayer, every_key, read_mask
from attnviz.measures.reduced import Equals, Reduced, ReducedLayer
from attnviz.measures.rows import Columns, Weights
from attnviz.models.memory import require_room
from attnviz.models.split import device_of
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Bools, Ints

_SHAPING = {
    *("view", "reshape", "unflatten", "flatten", "contiguous", "clone"),
    *("to", "type", "type_as", "float", "double", "half", "bfloat16"),
}
"""The functions that leave each score as it is, and the order of its axes."""

_MARK = "attnviz_scores"


@dataclass(frozen=True)
class _Scores:
    """What a model has made of the product of its queries and keys, up to its attention weights.

    query: (..., head, query, dim). key: (..., key/value head, key, dim). scale: of the product.
    added: what was added to the scores. hidden: boolean, True for a hidden key. weighed: whether
    the softmax has been taken.
    """

    query: Tensor
    key: Tensor
    scale: float = 1.0
    added: tuple[Tensor, ...] = ()
    hidden: tuple[Tensor, ...] = ()
    weighed: bool = False

    def times(self, factor: float) -> _Scores:
        added = tuple(term * factor for term in self.added)
        return replace(self, scale=self.scale * factor, added=added)


class OwnSums(FunctionWatch):
    """While active, calls ``take`` after each layer with the attention of texts of one length.

    texts, tokens: how many texts the pass has, of how many tokens. take: called with the index of
        the layer, the attention of each text, and their outputs (text, query, head, dim).
    make: makes the ``TorchLayer`` of a text from the arguments of that class.
    """

    def __init__(
        self,
        texts: int,
        tokens: int,
        take: Callable[[int, list[TorchLayer], Tensor], None],
        make: Callable[..., TorchLayer],
    ) -> None:
        super().__init__()
        self._texts, self._tokens, self._take, self._make = texts, tokens, take, make
        self._known, self._visible = WeakTensorKeyDictionary(), WeakTensorKeyDictionary()
        self.layers = 0

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is functional.scaled_dot_product_attention:
            return self._fused(args, kwargs)
        given = tree_leaves((args, kwargs))
        marked = [x for x in given if isinstance(x, Tensor) and hasattr(x, _MARK)]
        if not marked:
            scores = self._product(func, args, kwargs)
            if scores is None:
                return func(*args, **kwargs)
            product = func(*_bare(args), **_bare(kwargs))
            setattr(product, _MARK, scores)
            return product
        noted: _Scores = getattr(marked[0], _MARK)
        name = name_of(func)
        if len(marked) == 1 and noted.weighed and name in MIXING and args[0] is marked[0]:
            return self._mixed(noted, func, args, kwargs)
        result = func(*_bare(args), **_bare(kwargs))
        if isinstance(result, Tensor):  # else it is the shape or the type
            setattr(result, _MARK, _noting(noted, name, args, kwargs))
        return result

    def _product(self, func: Function, args: Any, kwargs: Any) -> _Scores | None:
        """Return the scores that a product of queries and keys begins; None for another call."""
        factors = factors_of(func, args, kwargs)
        if factors is None or {self._tokens} != {factor.shape[-2] for factor in factors}:
            return None
        if factors[0].shape[-1] == 1:  # an outer product, such as of positions and frequencies
            return None
        if name_of(func) != "baddbmm":
            return _Scores(*factors)
        added = (args[0] * kwargs.get("beta", 1),)
        return _Scores(*factors, scale=float(kwargs.get("alpha", 1)), added=added)

    def _fused(self, args: Any, kwargs: Any) -> Tensor:
        given = named(FUSED_INPUTS, args, kwargs)
        mask, scale = given.get("attn_mask"), given.get("scale")
        scale = given["query"].shape[-1] ** -0.5 if scale is None else scale
        scores = _Scores(given["query"], given["key"], scale, () if mask is None else (mask,))
        layers = self._layers(scores, causal=bool(given.get("is_causal")))
        output: Tensor = functional.scaled_dot_product_attention(*args, **kwargs)
        self._hand_over(layers, output)
        return output

    def _mixed(self, scores: _Scores, func: Function, args: Any, kwargs: Any) -> Tensor:
        value: Tensor = args[1]
        layers = self._layers(scores, causal=False)
        by_text = value.reshape(self._texts, -1, *value.shape[-2:])
        pairs = zip(layers, by_text, strict=True)
        output = torch.stack([layer.mixed(own) for layer, own in pairs]).transpose(1, 2)
        shape = func(*_bare(args), **_bare(kwargs)).shape
        self._hand_over(layers, output)
        return output.reshape(shape)

    def _hand_over(self, layers: list[TorchLayer], output: Tensor) -> None:
        """Pass a layer and its outputs (..., query, dim) on to the reader of sums, and count it."""
        by_head = output.reshape(self._texts, -1, *output.shape[-2:])
        self._take(self.layers, layers, by_head.transpose(1, 2))
        self.layers += 1

    def _layers(self, scores: _Scores, *, causal: bool) -> list[TorchLayer]:
        """Return the attention of each text. causal: no query sees a later key."""
        factors = scores.query, scores.key
        query, key = (own.reshape(self._texts, -1, *own.shape[-2:]) for own in factors)
        heads, tokens = query.shape[1], self._tokens
        if heads % key.shape[1]:
            raise IncompleteError
        seen = (self._visible.setdefault(hidden, ~hidden) for hidden in scores.hidden)
        terms = [self._masked(term, heads) for term in (*scores.added, *seen)]
        terms.append((every_key(tokens, tokens, causal=causal), None))
        ranges = (
            reduce(np.maximum, (first for (first, _), _ in terms)),
            reduce(np.minimum, (past for (_, past), _ in terms)),
        )
        biases = [bias for _, bias in terms if bias is not None]
        bias = None if not biases else reduce(torch.add, biases)
        pairs = zip(query, key, strict=True)
        return [self._make(*pair, scores.scale, ranges=ranges, bias=bias) for pair in pairs]

    def _masked(self, term: Tensor, heads: int) -> Masked:
        """Return what a term of the scores lets queries see, and what it adds for each key."""
        mask = term if term.ndim == 4 else term.reshape(-1, heads, *term.shape[-2:])
        if mask.shape[0] not in (1, self._texts):
            raise IncompleteError
        if mask.shape[2] == 1 and mask.dtype != torch.bool:
            if not torch.equal(mask, mask[:1].expand_as(mask)):
                raise IncompleteError
            return every_key(self._tokens, self._tokens, causal=False), mask[0, :, 0]
        return read_mask(mask, self._tokens, self._tokens, self._known)


def _noting(scores: _Scores, name: str, args: Any, kwargs: Any) -> _Scores:
    """Return the scores after one more function; IncompleteError if it is not known."""
    if name in _SHAPING or (name == "dropout" and not (*args, False, False)[2]):
        return scores
    other = next(iter((*args[1:], *kwargs.values())), None)
    if scores.weighed:
        raise IncompleteError
    if name == "softmax" and kwargs.get("dim", other) in (-1, args[0].ndim - 1):
        return replace(scores, weighed=True)
    if name in {*SUMS, "iadd"} - {"sub", "rsub"} and len(args) == 2 and not kwargs:
        term = other if hasattr(args[0], _MARK) else args[0]
        return replace(scores, added=(*scores.added, term)) if isinstance(term, Tensor) else scores
    if name in {*PRODUCTS, "imul"} and isinstance(other, float | int):
        return scores.times(other)
    if name in {*QUOTIENTS, "itruediv"} and isinstance(other, float | int):
        return scores.times(1 / other)
    if name == "masked_fill" and float(args[2]) <= HIDING:
        return replace(scores, hidden=(*scores.hidden, args[1]))
    raise IncompleteError


def _bare(given: Any) -> Any:
    """Return arguments with tensors that have shapes and no memory."""
    return tree_map(lambda x: x.to("meta") if isinstance(x, Tensor) else x, given)


# On a GPU -----------------------------------------------------------------------------------------

_NUMBERS = 160
"""About how many numbers the row of a head has: columns, equal tokens in nine orders, and for a
kernel's own use up to 64 columns and 64 buckets."""

_LEFT_BYTES = 2**30
"""More memory than this is returned after a pass, of what torch holds and does not use."""


def layer_maker() -> Callable[..., TorchLayer]:
    """Return a function that makes each layer of one pass, with the arguments of ``TorchLayer``.

    It returns a ``TritonLayer`` if the queries are on a GPU of NVIDIA or AMD (torch calls both
    ``cuda``) and Triton is installed; otherwise a ``TorchLayer``.
    """
    run: Any = None

    def make(query: Tensor, *given: Any, **options: Any) -> TorchLayer:
        nonlocal run
        kernels = _kernels() if query.device.type == "cuda" else None
        if kernels is None:
            return TorchLayer(query, *given, **options)
        run = run or kernels.KernelRun()
        return kernels.TritonLayer(query, *given, **options, run=run)

    return make


@cache
def _kernels() -> Any:
    """Return the module with the kernels; None without Triton, with a note if it is broken."""
    if find_spec("triton") is None:
        return None
    try:
        return import_module("attnviz.engine.reduced_triton")
    except Exception as error:  # noqa: BLE001 - such as of a release that is too old
        why = f"triton cannot be imported ({type(error).__name__})"
        note_of_runs(f"attention is summed in blocks, which is slower: {why}")
        return None


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Make ``cuda`` multiply in full float32 inside this context: TF32 keeps 10 bits of a score."""
    chosen = torch.get_float32_matmul_precision()
    try:
        if device.type == "cuda":
            torch.set_float32_matmul_precision("highest")
        yield
    finally:
        if device.type == "cuda":
            torch.set_float32_matmul_precision(chosen)


@contextmanager
def sums_on_gpu(model: TransformersModel, texts: int, tokens: int) -> Iterator[None]:
    """Check a GPU's memory for a pass with sums in this context; free unused memory on leaving.

    texts, tokens: how many texts, of how many tokens each. Raises UsageError if they do not fit.
    """
    device = device_of(model.model)
    if device.type == "cpu":
        yield
        return
    require_room(
        f"a pass over {tokens:,} tokens with sums over its attention takes beside the model",
        pass_bytes(model, texts, tokens),
        "shorten the text",
        device,
    )
    every = (weight.device for weight in model.model.parameters())
    own = {device, *(other for other in every if other.type == device.type)}
    card: Any = getattr(torch, device.type)
    try:
        yield
    finally:
        if device.type == "mps":
            held = card.driver_allocated_memory() - card.current_allocated_memory()
        else:
            held = sum(card.memory_reserved(on) - card.memory_allocated(on) for on in own)
        if held > _LEFT_BYTES:
            card.empty_cache()


def pass_bytes(model: TransformersModel, texts: int, tokens: int) -> int:
    """Return roughly the most bytes that a pass takes, with the sums of one text at a time.

    Sums are those of as many heads as fit a fixed memory, or of one. A layer holds the states
    before and after it, and beside them its queries, keys and values with the sums over its rows,
    or later what its feed-forward network makes of the states.
    """
    info, width = model.info, model.sizes.width
    inner = getattr(model.model.config, "intermediate_size", None) or 4 * width
    wide = next(model.model.parameters()).element_size()
    attention = wide * texts * 2 * info.head_dim * (info.heads + info.kv_heads)
    of_head, at_once = 4 * tokens * _NUMBERS, sizes(device_of(model.model).type).sum_bytes
    sums = min(info.heads * of_head, max(2 * at_once, of_head))
    states, forward = wide * texts * 2 * width, wide * texts * 2 * inner
    return int(tokens * states + max(tokens * attention + sums, tokens * forward))


# Of heads that are split over processes -----------------------------------------------------------


class JoinedLayer:
    """A ``ReducedLayer`` of all processes' heads, of which each sums its own and sends the sums."""

    def __init__(self, layer: ReducedLayer, split: HeadSplit, device: torch.device) -> None:
        self._layer, self._split, self._device = layer, split, device
        self.heads = layer.heads * split.size
        self.first, self.past = layer.first, layer.past

    def parts(self, numbers: int) -> Iterator[tuple[Sequence[int], JoinedLayer]]:
        own = self._layer.heads
        for heads, part in self._layer.parts(numbers):
            of_all = [rank * own + head for rank in range(self._split.size) for head in heads]
            yield of_all, JoinedLayer(part, self._split, self._device)

    def reduced(
        self,
        columns: Columns,
        buckets: int | None = None,
        equals: Equals | None = None,
        *,
        far: bool = False,
    ) -> Reduced:
        sums = self._layer.reduced(columns, buckets, equals, far=far)
        parts: Any = (None if part is None else self._joined(part) for part in sums)
        return Reduced(*parts)

    def rows(self, start: int, stop: int) -> Weights:
        return self._joined(self._layer.rows(start, stop))

    def outputs(self, queries: Sequence[int]) -> Weights:
        return self._joined(self._layer.outputs(queries))

    def strongest(self, number: int, hidden: Bools) -> list[list[tuple[float, int, int]]]:
        parts: list[Any] = [None] * self._split.size
        mine = self._layer.strongest(number, hidden)
        dist.all_gather_object(parts, mine, group=self._split.group)
        return [head for part in parts for head in part]

    def single(self, keys: Ints) -> Weights:
        return self._joined(self._layer.single(keys))

    def sources(self, shares: Weights) -> Weights:
        return self._joined(self._layer.sources(shares)[None]).mean(0)

    def _joined(self, part: Weights) -> Weights:
        sent = torch.as_tensor(part).to(self._device)
        return self._split.whole(sent, 0).cpu().numpy()
