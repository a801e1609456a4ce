"""Attention with its three usual scores and its masks, for NumPy and torch alike.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2:

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V

Luong et al. 2015, "Effective Approaches to Attention-based Neural Machine Translation", leave out
the scale; Bahdanau et al. 2014, "Neural Machine Translation by Jointly Learning to Align and
Translate", add instead of multiplying: vᵀ tanh(q + k) of the projected query and key.

Axes: query (..., head, query, head_dim), key (..., head, key, head_dim), value
(..., head, key, value_dim), weights (..., head, query, key). The leading axes, usually one batch
axis, are arbitrary and may be absent.

A mask broadcasts over (batch, head, query, key). It is boolean (True: the query may see the key) or
an additive float (-inf: it may not).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Array: TypeAlias = Any  # an array of any library that follows the array API standard

Score: TypeAlias = Literal["scaled-dot", "dot", "additive"]
"""How a query and a key are matched: q·k/√d_k, q·k, or Σ v·tanh(q + k)."""


def namespace(*arrays: Array) -> Any:
    """Return the array API functions of arrays' library, None ignored; TypeError if they differ."""
    present = [array for array in arrays if array is not None]
    if present and all(type(array) is np.ndarray for array in present):  # the usual case
        return np
    if present and all(hasattr(array, "__array_namespace__") for array in present):
        native = {array.__array_namespace__() for array in present}
        if len(native) == 1:
            return native.pop()
    # Imported late, since NumPy follows the standard itself and its users need not wait.
    from array_api_compat import array_namespace

    return array_namespace(*present)


def softmax(scores: Array, axis: int = -1) -> Array:
    """Return the softmax exp(s) / Σ exp(s) along ``axis``: entries in [0, 1] that sum to one.

    A row of nothing but -inf gives zeros. The row's maximum is subtracted first, so that no finite
    score overflows.
    """
    if scores.shape[axis] == 0:
        return scores
    xp = namespace(scores)
    peak = xp.max(scores, axis=axis, keepdims=True)
    # -inf minus -inf would be NaN, and so would zero by zero below.
    peak = xp.where(peak == -math.inf, xp.zeros_like(peak), peak)
    powers = xp.exp(scores - peak)
    total = xp.sum(powers, axis=axis, keepdims=True)
    return powers / xp.where(total == 0, xp.ones_like(total), total)


def attention_scores(query: Array, key: Array, scale: float | None = None) -> Array:
    """Return the attention scores Q Kᵀ · scale (..., head, query, key); scale: 1/√head_dim."""
    xp = namespace(query, key)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    return xp.matmul(query, xp.matrix_transpose(key)) * factor


def additive_scores(query: Array, key: Array, weight: Array | None = None) -> Array:
    """Return additive attention scores Σ_d v_d · tanh(q_d + k_d): (..., head, query, key).

    They lie within ±Σ|v|. weight: v, of shape (head_dim,) or (head, head_dim), by default all ones,
    as in Keras's ``AdditiveAttention`` with and without ``use_scale``.
    """
    xp = namespace(query, key, weight)
    scores = xp.zeros((), dtype=query.dtype, device=query.device)
    # One dimension at a time: all at once would take head_dim times the memory of the scores.
    for dim in range(query.shape[-1]):
        sums = query[..., :, None, dim] + key[..., None, :, dim]
        felt = xp.tanh(sums)
        scores = scores + (felt if weight is None else felt * weight[..., dim, None, None])
    return scores


def scores_by(score: Score, query: Array, key: Array, weight: Array | None = None) -> Array:
    """Return scores (..., head, query, key) as ``score`` names; weight: see ``additive_scores``."""
    if score == "additive":
        return additive_scores(query, key, weight)
    return attention_scores(query, key, 1.0 if score == "dot" else None)


def check_mask(mask: Array) -> None:
    """Raise ValueError unless a mask is boolean, or numbers that are meant to be added to scores.

    Numbers of 0 and 1 alone are a boolean mask in another type: added, they would hide nothing.
    """
    xp = namespace(mask)
    if xp.isdtype(mask.dtype, "bool"):
        return
    flags = bool(xp.all((mask == 0) | (mask == 1))) and bool(xp.any(mask == 1))
    if flags or not xp.isdtype(mask.dtype, "real floating"):
        cast = "mask.bool()" if hasattr(mask, "requires_grad") else "mask.astype(bool)"
        raise ValueError(
            f"a mask is boolean (True = visible) or additive float, not {mask.dtype}"
            + " of 0 and 1, which would be added to the scores" * flags
            + f": write {cast} if 1 is what a query may see, mask == 0 if 1 hides it"
        )


def masked_softmax(scores: Array, mask: Array | None = None) -> Array:
    """Return the softmax over the keys of scores (..., head, query, key) that a mask may hide.

    mask: boolean (True: the query may see the key) or a float that is added to the scores (-inf
        hides the key). It broadcasts over (..., head, query, key).
    A query that sees no key has weights of zero. Raises ValueError for a mask of another type.
    """
    if mask is None:
        return softmax(scores)
    xp = namespace(scores, mask)
    check_mask(mask)
    if xp.isdtype(mask.dtype, "bool"):
        return softmax(xp.where(mask, scores, xp.full_like(scores, -math.inf)))
    # A mask of a wider type is converted after the softmax: its lowest number might overflow.
    return xp.astype(softmax(scores + mask), scores.dtype)


def attention_output(weights: Array, value: Array) -> Array:
    """Return the values mixed by the attention weights: A V, (..., head, query, value_dim)."""
    return namespace(weights, value).matmul(weights, value)


def scaled_dot_product_attention(
    query: Array, key: Array, value: Array, mask: Array | None = None, scale: float | None = None
) -> tuple[Array, Array]:
    """Return the output (..., head, query, value_dim) and the weights (..., head, query, key).

    mask: boolean (True: the query may see the key), or a float that is added to the scores. scale:
    multiplies the products of query and key; 1/√head_dim by default. Repeat grouped key/value heads
    beforehand with ``repeat_kv_heads``.
    """
    weights = masked_softmax(attention_scores(query, key, scale), mask)
    return attention_output(weights, value), weights


def project(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Return x Wᵀ + b, (..., in) to (..., out), for a weight W (out, in) and a bias b (out,)."""
    xp = namespace(x, weight)
    turned = xp.matrix_transpose(weight)
    if len(x.shape) > 2 and len(weight.shape) == 2:  # one product, where NumPy makes one a text
        flat = xp.matmul(xp.reshape(x, (-1, x.shape[-1])), turned)
        projected = xp.reshape(flat, (*x.shape[:-1], weight.shape[0]))
    else:
        projected = xp.matmul(x, turned)
    return projected if bias is None else projected + bias


def split_heads(x: Array, heads: int) -> Array:
    """Reshape (..., token, heads · dim) to (..., heads, token, dim); ValueError if it is uneven."""
    *leading, width = x.shape
    if heads < 1 or width % heads:
        raise ValueError(f"a width of {width} does not divide into {heads} heads")
    xp = namespace(x)
    return xp.moveaxis(xp.reshape(x, (*leading, heads, width // heads)), -2, -3)


def merge_heads(x: Array) -> Array:
    """Reshape (..., heads, token, dim) to (..., token, heads · dim), undoing ``split_heads``."""
    xp = namespace(x)
    *leading, heads, tokens, dim = x.shape
    return xp.reshape(xp.moveaxis(x, -3, -2), (*leading, tokens, heads * dim))


def repeat_kv_heads(x: Array, groups: int) -> Array:
    """Repeat key/value heads: (..., kv_heads, token, dim) to (..., kv_heads · groups, token, dim).

    Query heads k·groups to (k + 1)·groups − 1 then use key/value head k (Ainslie et al. 2023).
    """
    if groups == 1:
        return x
    xp = namespace(x)
    *leading, kv_heads, tokens, dim = x.shape
    # Not xp.repeat: array-api-compat lacked it for torch until 1.12.
    shared = xp.broadcast_to(x[..., None, :, :], (*leading, kv_heads, groups, tokens, dim))
    return xp.reshape(shared, (*leading, kv_heads * groups, tokens, dim))


def causal_mask(queries: int, keys: int, like: Array, window: int | None = None) -> Array:
    """Return a boolean mask (query, key): query i sees key j if j ≤ i + keys − queries.

    window: the number of latest such keys that it sees (Jiang et al. 2023, "Mistral 7B"). like: an
    array of the library and device to use. The last query sees every key: with more keys than
    queries the surplus keys are the past, with fewer the first queries see nothing.
    """
    xp = namespace(like)
    query = xp.arange(queries, device=like.device)[:, None]
    key = xp.arange(keys, device=like.device)[None, :]
    last = query + (keys - queries)
    return key <= last if window is None else (key <= last) & (key > last - window)


def padding_mask(visible_keys: Array) -> Array:
    """Return the mask (batch, 1, 1, key) of booleans (batch, key), True at real tokens."""
    boolean = namespace(visible_keys).isdtype(visible_keys.dtype, "bool")
    if not boolean or len(visible_keys.shape) != 2:
        raise ValueError(
            "expected the visible keys as booleans of shape (batch, key), "
            f"got {visible_keys.dtype} of shape {tuple(visible_keys.shape)}"
        )
    return visible_keys[:, None, None, :]


def combine_masks(*masks: Array | None) -> Array | None:
    """Return one mask that hides every key that any of the masks hides; None hides nothing.

    Boolean masks alone give a boolean mask; with an additive one the result is additive.
    """
    combined, *others = [mask for mask in masks if mask is not None] or [None]
    for mask in others:
        xp = namespace(combined, mask)
        is_boolean = xp.isdtype(combined.dtype, "bool")
        boolean, other = (combined, mask) if is_boolean else (mask, combined)
        if not xp.isdtype(boolean.dtype, "bool"):
            combined = combined + mask
        elif xp.isdtype(other.dtype, "bool"):
            combined = boolean & other
        else:
            combined = xp.where(boolean, other, xp.full_like(other, -math.inf))
    return combined


# Activations of feed-forward blocks ---------------------------------------------------------------

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
"""Activation function of a feed-forward block: x·σ(x), x·Φ(x) (Hendrycks & Gimpel 2016), the tanh
approximation of x·Φ(x), or max(x, 0)."""

NEARLY_ZERO = 0.05  # an activation or a gate closer to zero than this passes next to nothing on


def _silu(x: Floats) -> Floats:
    """Return the SiLU activation x / (1 + exp(−x)), which is 0 where the exponential overflows."""
    silu: Floats = np.negative(x)
    with np.errstate(over="ignore"):
        np.exp(silu, out=silu)
    silu += 1
    np.divide(x, silu, out=silu)
    return silu


def _gelu_tanh(x: Floats) -> Floats:
    """Return x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))); ``x**3`` takes seventy times as long."""
    gelu: Floats = np.multiply(x, x)
    gelu *= x.dtype.type(0.044715)
    gelu += 1
    gelu *= x
    gelu *= x.dtype.type(math.sqrt(2 / math.pi))
    np.tanh(gelu, out=gelu)
    gelu += 1
    gelu *= x
    gelu *= x.dtype.type(0.5)
    return gelu


# The coefficients of Abramowitz & Stegun (1964), 7.1.26, the highest power first.
_ERROR = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def _gelu(x: Floats) -> Floats:
    """Return the GELU activation x · Φ(x).

    It uses the error function of Abramowitz & Stegun (1964), 7.1.26, exact to 1.5e-7. NumPy has no
    error function, and importing SciPy takes longer than running a text. As max(x, 0) minus the
    small rest, which is the same for x and −x, nothing cancels in float32.
    """
    number = x.dtype.type
    size = np.abs(x)
    t = size * number(0.3275911 * math.sqrt(0.5))
    t += 1
    np.reciprocal(t, out=t)
    rest = t * number(_ERROR[0])
    for coefficient in _ERROR[1:]:
        rest += number(coefficient)
        rest *= t
    power = np.multiply(x, x, out=t)
    power *= number(-0.5)
    rest *= np.exp(power, out=power)
    rest *= size
    rest *= number(-0.5)
    rest += np.maximum(x, 0, out=size)
    return rest


ACTIVATE: Mapping[Activation, Callable[[Floats], Floats]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": lambda x: np.maximum(x, 0),
}
