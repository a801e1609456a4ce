"""Reads what other programs captured, ``attnviz.capture/1``: queries and keys, or weights.

The layout is on the manual page ``heads``. Queries and keys stand as they enter the product: after
the rotation of their positions and after any norm. The weights follow in blocks of rows:

    softmax(cap · tanh(scale · q kᵀ / cap) + mask), with a learned sink as one more key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import causal_mask, repeat_kv_heads, softmax
from attnviz.draw.labels import visible
from attnviz.errors import LoadError
from attnviz.inspect.heads.heads import heads_report
from attnviz.inspect.heads.report import HeadsReport, compare_heads
from attnviz.measures.words import joined
from attnviz.models.pieces import looks_special, undone
from attnviz.reading import ARRAY_BYTES, finite, fits, typed
from attnviz.records import AttentionRecord, Floats, HeadVectors, LayerWeights, ModelInfo, Tokens

Arrays = Mapping[str, NDArray[Any]]

CAPTURE = "attnviz.capture/1"
_PARTS = ("query", "key", "sinks", "weights")
TENSOR = rf"layer\.(?:0|[1-9][0-9]{{0,5}})\.(?:{'|'.join(_PARTS)})"
"""The name of an array of a capture."""

_FACTS = {
    *("schema", "model", "text", "tokens", "token_ids", "key_tokens", "key_token_ids", "special"),
    *("causal", "scale", "window", "softcap"),
}
_BLOCK = 2**22
"""The most scores that are computed at once."""

_VECTORS = 2_000_000
"""The most numbers of queries and keys that are kept for a page."""

ROUNDING = 0.02
"""How far the sum of a row of 16-bit weights may exceed one."""


def read_tokens(texts: Any, ids: Any, special: Collection[int]) -> Tokens:
    """Return tokens from a file; ones at the indices ``special`` or like ``<bos>`` are special.

    texts, ids: of each token, from a file.
    """
    if not texts or not fits(texts, list[str]) or not fits(ids, list[int]):
        raise ValueError("expected tokens as a list of texts, and their ids as whole numbers")
    known = tuple(texts)
    marks = (at in special or looks_special(text) for at, text in enumerate(known))
    return Tokens(tuple(ids), known, tuple(marks))


@dataclass(frozen=True)
class _Layer:
    """The settings of one layer. shape: (heads, queries, keys) of its weights."""

    name: str
    shape: tuple[int, int, int]
    causal: bool
    scale: float
    window: int | None
    cap: float

    def fail(self, said: str) -> NoReturn:
        raise LoadError(f"{self.name}: {said}")

    def checked(self, array: NDArray[Any], name: str, shape: tuple[int, ...]) -> Floats:
        """Return an array of finite float32 numbers of a shape, in which 0 is any number."""
        filled = tuple(want or came for want, came in zip(shape, array.shape, strict=False))
        if array.shape != filled or array.ndim != len(shape) or 0 in array.shape:
            wanted = " × ".join(str(each) if each else "any" for each in shape)
            came = " × ".join(map(str, array.shape)) or "one number"
            self.fail(f"{name} is {came}, expected {wanted}")
        if array.dtype.kind != "f":
            self.fail(f"{name} has numbers of {array.dtype}, expected float16, bfloat16 or float32")
        with np.errstate(over="ignore"):
            numbers: Floats = array.astype(np.float32)
        if not np.isfinite(numbers).all():
            self.fail(f"{name} has numbers that are not finite: capture it again")
        return numbers

    def weights(self, query: Floats, key: Floats, sinks: Floats | None) -> Floats:
        """Return the weights (head, query, key) of queries and keys (head, token, d).

        sinks: of each head, the logit of a key that moves nothing; None without them.
        """
        weights, (heads, queries, keys) = np.empty(self.shape, np.float32), self.shape
        mask = causal_mask(queries, keys, query, self.window) if self.causal else None
        rows = max(1, _BLOCK // keys)
        for head in range(heads):
            for start in range(0, queries, rows):
                some = slice(start, start + rows)
                with np.errstate(over="ignore", invalid="ignore"):
                    scores = (query[head, some] @ key[head].T) * self.scale
                    scores = self.cap * np.tanh(scores / self.cap) if self.cap else scores
                if not np.isfinite(scores).all():
                    self.fail("the products of queries and keys are too large: is scale right?")
                if mask is not None:
                    scores = np.where(mask[some], scores, -np.inf)
                if sinks is not None:
                    scores = np.pad(scores, ((0, 0), (0, 1)), constant_values=sinks[head])
                weights[head, some] = softmax(scores)[:, :keys]
        return weights


def captured_heads(facts: Mapping[str, Any], arrays: Arrays, name: str) -> HeadsReport:
    """Return the heads of a capture. name: of the file, for messages.

    facts: the JSON object ``capture``. arrays: by name, see ``TENSOR``. Raises LoadError, or what
    ``reading.damaged`` knows, if they do not fit together.
    """
    unknown = [visible(key) for key in facts if key not in _FACTS]
    if unknown:
        raise LoadError(f"{name}: {unknown[0]!r} is no fact of {CAPTURE}: see attnviz docs heads")
    if "tokens" not in facts:
        raise LoadError(f"{name}: its capture has no tokens: give one text for each query")
    cross, marks = "key_tokens" in facts, facts.get("special", ())
    queries = _tokens(facts, "token", () if cross else marks)
    keys = _tokens(facts, "key_token", marks) if cross else queries
    if not fits([*marks], list[Annotated[int, range(len(keys))]]):
        raise LoadError(f"{name}: special are no indices of its {len(keys):,} keys")
    model = typed(facts.get("model", "a capture"), str)
    if not model.isprintable():
        raise LoadError(f"{name}: the model's name {model[:60]!r} cannot be printed: rename it")
    causal = typed(facts.get("causal", not cross), bool) and not cross
    layers, vectors = _layers(facts, arrays, name, (len(queries), len(keys)), causal)
    kept = arrays.get("layer.0.key", layers[0].weights)
    whole = min(each.weights.sum(-1).min() for each in layers) > 1 - ROUNDING
    info = ModelInfo(
        name=model,
        revision=None,
        architecture="capture",
        dtype=str(arrays.get("layer.0.query", kept).dtype),
        layers=len(layers),
        heads=len(layers[0].heads),
        kv_heads=len(kept),
        head_dim=kept.shape[-1] if "layer.0.key" in arrays else 1,
        weights="captured",
        notes=() if whole else ("rows sum to less than one: the rest is on a learned sink",),
        backend="numpy",
    )
    record = AttentionRecord(info, "cross" if cross else "self", causal, queries, keys, layers)
    text, target = typed(facts.get("text", joined(keys)), str), joined(queries) if cross else None
    return compare_heads([heads_report(record, False, text=text, target=target, vectors=vectors)])


def _tokens(facts: Mapping[str, Any], name: str, special: Collection[int]) -> Tokens:
    """Return the tokens of one axis as texts; without ids, equal tokens have equal ones."""
    texts = facts[f"{name}s"]
    if fits(texts, list[str]):
        texts = [*undone(texts)]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return read_tokens(texts, facts.get(f"{name}_ids", [numbers[each] for each in texts]), special)


def _layers(
    facts: Mapping[str, Any], arrays: Arrays, name: str, tokens: tuple[int, int], causal: bool
) -> tuple[tuple[LayerWeights, ...], HeadVectors]:
    """Return the weights of each layer, and its queries and keys as far as a page shows them."""
    strange = [visible(each) for each in arrays if not re.fullmatch(TENSOR, each)]
    if strange:
        wanted = ", ".join(f"layer.N.{part}" for part in _PARTS)
        raise LoadError(f"{name} has an array {strange[0][:60]!r}, expected {wanted}")
    numbers = {int(each.split(".")[1]) for each in arrays}
    missing = [at for at in range(max(numbers, default=0) + 1) if at not in numbers]
    if missing:
        raise LoadError(f"{name} has no layer {missing[0]}: expected all layers from 0")
    for fact in ("scale", "window", "softcap"):
        if isinstance(each := facts.get(fact), list) and len(each) != len(numbers):
            raise LoadError(f"{name}: {fact} has {len(each)} numbers, expected one a layer")
    first = arrays.get("layer.0.query", arrays.get("layer.0.weights"))
    heads = len(first) if first is not None and first.ndim == 3 else 0
    needed = 4 * len(numbers) * heads * tokens[0] * tokens[1]
    if needed > ARRAY_BYTES:
        sizes = f"{len(numbers)} layers × {heads} heads × {tokens[0]:,} × {tokens[1]:,} tokens"
        most = f"{needed / 1e9:.1f} GB, expected at most {ARRAY_BYTES / 1e9:.1f}"
        raise LoadError(f"{name}: weights of {sizes} take {most}: capture fewer heads or tokens")
    layers, pairs, scales = list[LayerWeights](), list[tuple[Floats, Floats]](), set[float]()
    for at in sorted(numbers):
        query, key, sinks, weights = (arrays.get(f"layer.{at}.{part}") for part in _PARTS)
        where = f"{name}, layer {at}"
        parts = {part for part in _PARTS if f"layer.{at}.{part}" in arrays}
        if parts not in ({"weights"}, {"query", "key"}, {"query", "key", "sinks"}):
            raise LoadError(
                f"{where}: expected query and key, or weights; sinks go with query and key"
            )
        width = 0 if query is None or query.ndim != 3 else query.shape[-1]
        layer = _Layer(
            where,
            (heads, *tokens),
            causal,
            scale=_fact(facts, "scale", at, where) or 1 / math.sqrt(width or 1),
            window=int(_fact(facts, "window", at, where)) or None,
            cap=_fact(facts, "softcap", at, where),
        )
        if layer.window and not causal:
            layer.fail("a window is of causal attention: leave it out, or write weights")
        if weights is not None:
            shares = layer.checked(weights, "weights", layer.shape)
            if shares.min() < 0 or shares.sum(-1).max() > 1 + ROUNDING:
                layer.fail("weights are no shares of one: are these scores before the softmax?")
        elif query is not None and key is not None:
            query = layer.checked(query, "query", (heads, tokens[0], 0))
            key = layer.checked(key, "key", (0, tokens[1], width))
            if heads % len(key):
                layer.fail(f"{heads} heads cannot share {len(key)} key heads evenly")
            key = repeat_kv_heads(key, heads // len(key))
            sinks = None if sinks is None else layer.checked(sinks, "sinks", (heads,))
            shares = layer.weights(query, key, sinks)
            pairs.append((query, key))
            scales.add(0.0 if layer.cap else layer.scale)
        seen = causal_mask(*tokens, shares, layer.window) if causal else None
        if seen is not None and shares[:, ~seen].any():
            layer.fail("a query has weight on a later key, or behind its window: is causal right?")
        mask = seen if layer.window else None
        layers.append(LayerWeights(at, tuple(range(heads)), shares, mask))
    return tuple(layers), _vectors(pairs, scales, len(layers))


def _fact(facts: Mapping[str, Any], key: str, layer: int, where: str) -> float:
    """Return a layer's number, given for all layers at once or one a layer; 0 if not given."""
    value = facts.get(key)
    if isinstance(value, list):
        value = value[layer]
    number = 0.0 if value is None else finite(value)
    if value is not None and (number <= 0 or (key == "window" and number % 1)):
        raise LoadError(f"{where}: {key} is {number:g}, expected a number above 0, or null")
    return number


def _vectors(pairs: list[tuple[Floats, Floats]], scales: set[float], layers: int) -> HeadVectors:
    """Return the queries and keys for a page, or a note that says why they are missing."""
    size, widths = sum(q.size + k.size for q, k in pairs), {q.shape[-1] for q, _ in pairs}
    if not pairs:
        notes = "The capture has weights, no queries and keys."
    elif len(pairs) < layers or max(len(scales), len(widths)) > 1 or 0.0 in scales:
        notes = "Without query × key: layers differ in their scale or size, or cap their scores."
    elif size > _VECTORS:
        notes = f"Without query × key: they are more than {_VECTORS:,} numbers."
    else:
        queries, keys = ({at: each[side] for at, each in enumerate(pairs)} for side in (0, 1))
        return HeadVectors({}, queries, keys, scales.pop(), ("The capture has no value norms.",))
    return HeadVectors(notes=(notes,))
