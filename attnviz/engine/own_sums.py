"""Reads sums over the attention rows of a model that computes attention by itself, such as BLOOM.

While it runs, the product of its queries and keys is a tensor without memory, on torch's meta
device, that notes what becomes of it: a scale, a bias of each key (ALiBi, Press et al. 2022), a
mask, the softmax. Where the weights would be multiplied with the values, ``TorchLayer`` computes
the outputs in blocks, so that no matrix of the text is made. Anything else that is done with the
product ends the pass with ``IncompleteError``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from attnviz.engine.attention_calls import FUSED_INPUTS, HIDING, IncompleteError
from attnviz.engine.attribution.own_scores import factors_of
from attnviz.engine.attribution.residual_pass import MIXING, PRODUCTS, QUOTIENTS, SUMS
from attnviz.engine.hook_points import Function, FunctionWatch, name_of, named
from attnviz.engine.reduced_torch import Masked, TorchLayer, every_key, read_mask

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
        self._texts, self._tokens, self._take = texts, tokens, take
        self._known: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._visible: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._make = make
        self.layers = 0

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is functional.scaled_dot_product_attention:
            return self._fused(args, kwargs)
        given = tree_leaves((args, kwargs))
        marked = [one for one in given if isinstance(one, Tensor) and hasattr(one, _MARK)]
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
        if not isinstance(found := func(*_bare(args), **_bare(kwargs)), Tensor):
            return found  # its shape or its type
        setattr(found, _MARK, _noting(noted, name, args, kwargs))
        return found

    def _product(self, func: Function, args: Any, kwargs: Any) -> _Scores | None:
        """Return the scores that a product of queries and keys begins; None for another call."""
        factors = factors_of(func, args, kwargs)
        if factors is None or {self._tokens} != {factor.shape[-2] for factor in factors}:
            return None
        if factors[0].shape[-1] == 1:  # an outer product, such as of positions and frequencies
            return None
        if name_of(func) != "baddbmm":
            return _Scores(*factors)
        found = _Scores(*factors, scale=float(kwargs.get("alpha", 1)))
        return replace(found, added=(args[0] * kwargs.get("beta", 1),))

    def _fused(self, args: Any, kwargs: Any) -> Tensor:
        given = named(FUSED_INPUTS, args, kwargs)
        scores, mask = _Scores(given["query"], given["key"]), given.get("attn_mask")
        if mask is not None:
            scores = replace(scores, added=(mask,))
        scale = given.get("scale")
        scale = scores.query.shape[-1] ** -0.5 if scale is None else scale
        scores = replace(scores, scale=scale)
        layers = self._layers(scores, causal=bool(given.get("is_causal")))
        output: Tensor = functional.scaled_dot_product_attention(*args, **kwargs)
        self._hand_over(layers, output)
        return output

    def _mixed(self, scores: _Scores, func: Function, args: Any, kwargs: Any) -> Tensor:
        value: Tensor = args[1]
        layers = self._layers(scores, causal=False)
        by_text = value.reshape(self._texts, -1, *value.shape[-2:])
        pairs = zip(layers, by_text, strict=True)
        output = torch.stack([layer.mixed(one) for layer, one in pairs]).transpose(1, 2)
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
        query, key = (
            factor.reshape(self._texts, -1, *factor.shape[-2:])
            for factor in (scores.query, scores.key)
        )
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
    return tree_map(lambda one: one.to("meta") if isinstance(one, Tensor) else one, given)
