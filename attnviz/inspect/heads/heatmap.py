"""``attnviz.heatmap``: draws the attention weights of any model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.observer import to_numpy
from attnviz.errors import UsageError
from attnviz.inspect.heads.head_maps import HeadMaps
from attnviz.inspect.heads.report import heads_report
from attnviz.models.pieces import looks_special, undone
from attnviz.records import AttentionRecord, HeadsRecord, LayerWeights, ModelInfo, Tokens

ArrayLike: TypeAlias = Any
"""A NumPy array, a torch tensor, a JAX array, an object with ``__array__`` or DLPack, or lists."""

_NUMBER = (int, float, np.number)


def as_numpy(array: ArrayLike) -> NDArray[np.floating]:
    """Return an array of any library as NumPy's float32 or float64; integers become float64.

    Raises UsageError if it is not an array of real numbers.
    """
    try:
        found = _converted(array)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise UsageError(
            f"cannot read a {type(array).__name__} as an array of numbers: {error}"
        ) from error
    if found.dtype.kind in "biu":
        return found.astype(np.float64)
    if found.dtype.kind == "V":  # bfloat16 and similar types: NumPy knows only their width
        try:
            return found.astype(np.float32)
        except (TypeError, ValueError) as error:
            raise UsageError(f"expected an array of real numbers, got {found.dtype}") from error
    if found.dtype.kind != "f":
        raise UsageError(f"expected an array of real numbers, got {found.dtype}")
    return to_numpy(found)


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
        place = tuple(int(axis) for axis in np.argwhere(wrong)[0])
        value = float(weights[place])
        where = ", ".join(map(str, place[3 - min(len(shape), 3) :]))
        raise UsageError(
            f"expected finite weights of 0 or more, got {value:.4g} at [{where}]"
            + ("" if np.isnan(value) else ": are these scores? their softmax is the attention")
        )
    return weights


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


def _joined(tokens: Tokens) -> str:
    """Return the tokens as one string, with a blank between them if none begins with one."""
    texts = tokens.spaced
    spaced = any(text[:1].isspace() for text in texts)
    return ("" if spaced else " ").join(texts).strip()


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
    """Return the maps of attention weights: of one head, or of the heads of one layer.

    weights: (query, key) or (head, query, key), after leading axes of length one: a NumPy array, a
        torch tensor, a JAX array, any object with ``__array__`` or DLPack, or nested lists; finite
        and not negative.
    tokens: one for each query, as a list or a string to split at white space; by default indices.
    key_tokens: one for each key; by default ``tokens``, in self-attention.
    title: the name of the maps. causal: whether a query sees no later key, whose cells then stay
        blank; by default whether all weights above the diagonal are zero. scale: the weight with
        the last colour; by default 1 if rows sum to one, else the largest weight, with a note.

    Each head's label and entropy are as in ``attnviz heads``; if rows do not sum to one, they
    are computed after each row is divided by its sum.

    Raises UsageError (also a ValueError) if the arguments do not fit together.
    """
    matrices = weight_matrices(weights)
    _, rows, columns = matrices.shape
    if rows != columns and tokens is not None and key_tokens is None:
        raise UsageError(
            f"the weights have {rows} queries and {columns} keys: give key_tokens as well"
        )
    queries = axis_tokens(tokens, "tokens", "query", rows)
    alike = key_tokens is None and rows == columns
    keys = queries if alike else axis_tokens(key_tokens, "key_tokens", "key", columns)
    limit, notes = _scaled(matrices, scale)
    record = AttentionRecord(
        model=_origin(matrices, title, notes),
        kind="self" if alike else "cross",
        causal=_causal(matrices, causal),
        queries=queries,
        keys=keys,
        layers=(LayerWeights(0, tuple(range(len(matrices))), matrices),),
    )
    text = _joined(queries) if alike and tokens is not None else ""
    return HeadMaps(_report(record, text), limit=limit)


def _report(record: AttentionRecord, text: str) -> HeadsRecord:
    """Return the report of a record of weights; scores use rows rescaled to sum to one."""
    (layer,) = record.layers
    sums = layer.weights.sum(-1, keepdims=True)
    shares = np.divide(layer.weights, sums, out=np.zeros_like(layer.weights), where=sums > 0)
    of_shares = replace(record, layers=(replace(layer, weights=shares),))
    few = len(layer.heads) <= _FEW_HEADS
    return replace(heads_report(of_shares, selected=few, text=text), record=record)


def _scaled(weights: NDArray[np.floating], scale: float | None) -> tuple[float, tuple[str, ...]]:
    """Return the weight that has the last colour, and notes on the rows for the reader.

    weights: (head, query, key). scale: the weight with the last colour as the caller gave it, or
        None to choose one.
    """
    if scale is not None and not (scale > 0 and math.isfinite(scale)):
        raise UsageError(f"expected a scale above 0, got {scale}")
    sums = weights.sum(-1)
    seen = sums[sums > 0]
    notes = []
    if seen.size < sums.size:
        notes.append(f"{sums.size - seen.size} of {sums.size} rows are nothing but zeros")
    one = bool((np.abs(seen - 1) <= _ROUNDING).all())
    limit = scale if scale is not None else 1.0 if one else float(weights.max())
    if not one:
        least, most = (f"{end:.3g}" for end in (seen.min(), seen.max()))
        notes.append(
            f"rows sum to {least if least == most else f'{least} to {most}'}, not to one: labels "
            "and entropy are of rows divided by their sums"
        )
    if limit != 1:
        largest = "the largest weight, " if scale is None else ""
        notes.append(f"drawn are shares of {largest}{limit:.4g}: the legend's 1 is {limit:.4g}")
    return limit, tuple(notes)


def _causal(weights: NDArray[np.floating], claimed: bool | None) -> bool:
    """Return whether no query sees a later key; raise UsageError if ``claimed`` is wrongly True.

    weights: (head, query, key). claimed: the caller's claim that it is causal; None for no claim.
    """
    _, rows, columns = weights.shape
    found = rows == columns > 1 and not np.triu(weights, 1).any()
    if claimed and not found:
        reason = (
            f"there are {rows} queries and {columns} keys"
            if rows != columns
            else "there are weights above the diagonal"
        )
        raise UsageError(f"causal attention sees no later key, but {reason}: leave causal out")
    return found if claimed is None else claimed


def _origin(weights: NDArray[np.floating], title: str, notes: tuple[str, ...]) -> ModelInfo:
    """Return the facts for an array of weights in place of those of a model.

    weights: (head, query, key). title: stands for the model's name. notes: for the reader.
    """
    return ModelInfo(
        name=title,
        revision=None,
        architecture="array",
        dtype=str(weights.dtype),
        layers=1,
        heads=len(weights),
        kv_heads=len(weights),
        head_dim=1,
        weights="given",
        notes=notes,
    )
