"""``attnviz.heatmap``: draws the attention weights of any model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.observer import to_numpy
from attnviz.errors import UsageError
from attnviz.inspect.heads.head_maps import HeadMaps
from attnviz.inspect.heads.heads import heads_report
from attnviz.models.pieces import looks_special, undone
from attnviz.records import AttentionRecord, LayerWeights, ModelInfo, Tokens

ArrayLike: TypeAlias = Any
"""A NumPy array, a torch tensor, a JAX array, an object with ``__array__`` or DLPack, or lists."""

_NUMBER = (int, float, np.number)


def as_numpy(array: ArrayLike) -> NDArray[np.floating]:
    """Return an array of any library as NumPy's float32 or float64; integers become float64.

    Raises UsageError if it is not an array of real numbers.
    """
    try:
        numbers = _converted(array)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise UsageError(
            f"cannot read a {type(array).__name__} as an array of numbers: {error}"
        ) from error
    if numbers.dtype.kind in "biu":
        return numbers.astype(np.float64)
    if numbers.dtype.kind == "V":  # bfloat16 and similar types: NumPy knows only their width
        with suppress(TypeError, ValueError):
            return numbers.astype(np.float32)
    if numbers.dtype.kind != "f":
        raise UsageError(f"expected an array of real numbers, got {numbers.dtype}")
    return to_numpy(numbers)


def _converted(array: ArrayLike) -> NDArray[Any]:
    if hasattr(array, "detach"):  # torch gives no array while gradients are recorded
        return to_numpy(array)
    if isinstance(array, list | tuple) and not all(isinstance(row, _NUMBER) for row in array):
        return np.stack([_converted(row) for row in array])
    if not hasattr(array, "__array__") and hasattr(array, "__dlpack__"):
        return np.from_dlpack(array)
    return np.asarray(array)


def weight_matrices(array: ArrayLike) -> NDArray[np.floating]:
    """Return attention weights as an array (head, query, key) of finite numbers, each at least 0.

    array: (query, key), (head, query, key), or either with leading axes of length one.

    Raises UsageError for another shape, an empty axis, or a number that is negative or not finite.
    """
    weights = as_numpy(array)
    shape = weights.shape
    while weights.ndim > 3 and weights.shape[0] == 1:
        weights = weights[0]
    if weights.ndim not in (2, 3):
        several = " (several texts or layers? choose one, such as weights[0])"
        raise UsageError(
            f"expected weights of shape (query, key) or (head, query, key), got {shape}"
            + (several if weights.ndim > 3 else "")
        )
    if 0 in weights.shape:
        raise UsageError(f"expected at least one head, query and key, got the shape {shape}")
    weights = weights[None] if weights.ndim == 2 else weights
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        value = float(weights[place])
        where = ", ".join(map(str, place[3 - min(len(shape), 3) :]))
        raise UsageError(
            f"expected finite weights of 0 or more, got {value:.4g} at [{where}]"
            + ("" if np.isnan(value) else ": are these scores? their softmax is the attention")
        )
    return weights


# Layers, and the steps of a text that was generated --------------------------------------------


def layers_of(weights: Any, *, cross: bool) -> tuple[dict[int, NDArray[np.floating]], bool]:
    """Return the weights (head, query, key) of each layer, and whether they were steps.

    weights: one layer as ``weight_matrices`` takes it, which is layer 0; several, of one text, in a
        list or as the first axis of an array; or the steps of ``generate``. A layer that is None
        does not attend, and is left out. cross: whether the keys are of another text.
    Raises UsageError for anything else, and for layers of unequal sizes.
    """
    weights = getattr(weights, "attentions", weights)  # of a whole output
    held = weights if isinstance(weights, list | tuple) else () if weights is None else None
    known = [each for each in held or () if each is not None]
    if held is not None and not known:
        raise UsageError(
            "expected attention weights, got none: transformers returns them with "
            'output_attentions=True from a model with attn_implementation="eager"'
        )
    steps = bool(known) and isinstance(known[0], list | tuple) and any(map(_is_layer, known[0]))
    if steps:
        by_layer = enumerate(zip(*known, strict=True))
        several = {at: _of_steps(some, cross) for at, some in by_layer if some[0] is not None}
    elif held and all(map(_is_layer, known)):
        several = {at: each for at, each in enumerate(held) if each is not None}
    else:
        array = as_numpy(weights)
        while array.ndim > 3 and len(array) == 1:
            array = array[0]
        several = dict(enumerate(array if array.ndim > 3 else array[None]))
    layers = {at: weight_matrices(array) for at, array in several.items()}
    if len({layer.shape for layer in layers.values()}) > 1:
        raise UsageError("expected layers of equally many heads, queries and keys: give one layer")
    return layers, steps


def _is_layer(one: Any) -> bool:
    """Return whether this is an array with an axis of heads."""
    return len(getattr(one, "shape", ())) > 2


def _of_steps(given: Sequence[ArrayLike], cross: bool) -> NDArray[np.floating]:
    """Return one map (head, query, key) of a layer's steps, a row for each token that was read.

    A cache may hold the last keys only, or room for keys to come; without one, each step reads all
    tokens again. cross: as in ``layers_of``; else keys beyond the first step's own tokens tell it.
    """
    steps = [weight_matrices(each) for each in given]
    heads, rows, width = steps[0].shape
    if len(steps) > 1 and steps[-1].shape[1] == rows + len(steps) - 1:
        return steps[-1]
    cross = cross or bool(steps[0][..., rows:].any())
    read = sum(each.shape[1] for each in steps)
    joined, end = np.zeros((heads, read, width if cross else read), steps[0].dtype), 0
    for each in steps:
        begin, end = end, end + each.shape[1]
        each = each if cross or each[..., end:].any() else each[..., :end]
        first = 0 if cross else end - each.shape[-1]
        if first < 0 or (cross and each.shape[-1] != width):
            raise UsageError(
                f"a step has {each.shape[-1]} keys after {end} tokens: is it one text?"
            )
        joined[:, begin:end, first : first + each.shape[-1]] = each
    return joined


# Labels --------------------------------------------------------------------------------------

TokenLabels = str | Iterable[str]
"""A list of tokens, or a text that is split into tokens at white space."""


def axis_tokens(labels: TokenLabels | None, name: str, axis: str, length: int) -> Tokens:
    """Return the tokens of one axis of the weights as texts; equal tokens have equal ids.

    Pieces such as ``Ġcat`` become text, and those such as ``[SEP]`` are special.
    labels: the tokens, or one string to split; by default the indices. name: of the argument.
    axis: ``query`` or ``key``. length: of that axis of the weights.

    Raises UsageError if the labels are not strings, or not as many as ``length``.
    """
    texts = _texts(labels, name) if labels is not None else tuple(map(str, range(length)))
    if len(texts) != length:
        raise UsageError(
            f"{name} has {len(texts)} token{'s' * (len(texts) != 1)}, the weights have {length} "
            f"along their {axis} axis: expected one for each {axis}"
        )
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    special = tuple(map(looks_special, texts))
    return Tokens(tuple(numbers[text] for text in texts), undone(texts), special)


def _texts(labels: TokenLabels, name: str) -> tuple[str, ...]:
    if isinstance(labels, str):
        return tuple(labels.split())
    texts = tuple(labels)
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise UsageError(
                f"expected {name} as texts, got {text!r} at [{place}]: token ids are turned into "
                "texts by their tokenizer's convert_ids_to_tokens"
            )
    return tuple(map(str, texts))


# Maps ----------------------------------------------------------------------------------------

_ROUNDING = 0.02
"""How far the sum of a row of 16-bit weights may be from one by rounding alone."""

_FEW_HEADS = 8
"""Up to this many heads are all drawn in full."""


def heatmap(
    weights: ArrayLike,
    tokens: TokenLabels | None = None,
    key_tokens: TokenLabels | None = None,
    *,
    title: str = "attention weights",
    causal: bool | None = None,
    scale: float | None = None,
) -> HeadMaps:
    """Return the maps of attention weights: of one head, of the heads of a layer or of all layers.

    weights: (query, key) or (head, query, key), after leading axes of length one: a NumPy array, a
        torch tensor, a JAX array, any object with ``__array__`` or DLPack, or nested lists; finite
        and not negative. Several layers in a tuple or as a first axis, (layer, head, query, key),
        have heads named ``L0H0``; ``attentions`` of transformers are taken as they are, also those
        of ``generate``, a row for each token that was read.
    tokens: one for each query, as a list or a string to split at white space; by default indices.
        Of ``generate`` there may be one more, the last, which was not read.
    key_tokens: one for each key; by default ``tokens``, in self-attention.
    title: the name of the maps. causal: whether a query sees no later key, whose cells then stay
        blank; by default whether all weights above the diagonal are zero. scale: the weight with
        the last colour; by default 1 if rows sum to one, else the largest weight, with a note.

    Each head's label and entropy are as in ``attnviz heads``; if rows do not sum to one, they
    are computed after each row is divided by its sum. Pieces of a tokenizer, such as ``Ġcat``,
    become text.

    Raises UsageError (also a ValueError) if the arguments do not fit together.
    """
    layers, steps = layers_of(weights, cross=key_tokens is not None)
    matrices = [*layers.values()]
    _, rows, columns = matrices[0].shape
    if rows != columns and tokens is not None and key_tokens is None:
        raise UsageError(
            f"the weights have {rows} queries and {columns} keys: give key_tokens as well"
        )
    unread: tuple[str, ...] = ()
    if steps and tokens is not None and len(texts := _texts(tokens, "tokens")) == rows + 1:
        tokens, unread = texts[:-1], ("the last token was written, not read: it has no row",)
    queries = axis_tokens(tokens, "tokens", "query", rows)
    alike = key_tokens is None and rows == columns
    keys = queries if alike else axis_tokens(key_tokens, "key_tokens", "key", columns)
    limit, notes = _scaled(matrices, scale)
    heads = tuple(range(len(matrices[0])))
    record = AttentionRecord(
        model=_origin(layers, title, (*notes, *unread)),
        kind="self" if alike else "cross",
        causal=_causal(matrices, causal),
        queries=queries,
        keys=keys,
        layers=tuple(LayerWeights(at, heads, each) for at, each in layers.items()),
    )
    text = ""
    if alike and tokens is not None:
        texts = queries.spaced
        spaced = any(each[:1].isspace() for each in texts)
        text = ("" if spaced else " ").join(texts).strip()
    of_shares = replace(record, layers=tuple(map(_shares, record.layers)))
    few = len(layers) * len(heads) <= _FEW_HEADS
    report = heads_report(of_shares, selected=few, text=text)
    return HeadMaps(replace(report, record=record), limit=limit)


def _shares(layer: LayerWeights) -> LayerWeights:
    """Return the weights with rows rescaled to sum to one; rows of zeros stay as they are."""
    sums, zeros = layer.weights.sum(-1, keepdims=True), np.zeros_like(layer.weights)
    return replace(layer, weights=np.divide(layer.weights, sums, zeros, where=sums > 0))


def _scaled(
    layers: Sequence[NDArray[np.floating]], scale: float | None
) -> tuple[float, tuple[str, ...]]:
    """Return the weight that has the last colour, and notes on the rows for the reader."""
    if scale is not None and not (scale > 0 and math.isfinite(scale)):
        raise UsageError(f"expected a scale above 0, got {scale}")
    sums = np.stack([layer.sum(-1) for layer in layers])
    seen = sums[sums > 0]
    notes = []
    if seen.size < sums.size:
        notes.append(f"{sums.size - seen.size} of {sums.size} rows are nothing but zeros")
    one = bool((np.abs(seen - 1) <= _ROUNDING).all())
    largest = max(float(layer.max()) for layer in layers)
    limit = scale if scale is not None else 1.0 if one else largest
    if not one:
        least, most = (f"{end:.3g}" for end in (seen.min(), seen.max()))
        notes.append(
            f"rows sum to {least if least == most else f'{least} to {most}'}, not to one: labels "
            "and entropy are of rows divided by their sums"
        )
    if limit != 1:
        which = "the largest weight, " if scale is None else ""
        notes.append(f"drawn are shares of {which}{limit:.4g}: the legend's 1 is {limit:.4g}")
    return limit, tuple(notes)


def _causal(layers: Sequence[NDArray[np.floating]], claimed: bool | None) -> bool:
    """Return whether no query sees a later key; raise UsageError if ``claimed`` is wrongly True."""
    _, rows, columns = layers[0].shape
    causal = rows == columns > 1 and not any(np.triu(layer, 1).any() for layer in layers)
    if claimed and not causal:
        reason = (
            f"there are {rows} queries and {columns} keys"
            if rows != columns
            else "there are weights above the diagonal"
        )
        raise UsageError(f"causal attention sees no later key, but {reason}: leave causal out")
    return causal if claimed is None else claimed


def _origin(
    layers: Mapping[int, NDArray[np.floating]], title: str, notes: tuple[str, ...]
) -> ModelInfo:
    """Return the facts for arrays of weights in place of those of a model, which title names."""
    weights = next(iter(layers.values()))
    return ModelInfo(
        name=title,
        revision=None,
        architecture="array",
        dtype=str(weights.dtype),
        layers=max(layers) + 1,
        heads=len(weights),
        kv_heads=len(weights),
        head_dim=1,
        weights="given",
        notes=notes,
    )
