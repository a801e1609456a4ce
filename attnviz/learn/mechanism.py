"""``attnviz.scaled_dot_product_attention``: attention on arrays, with a result that draws itself.

Vaswani et al. 2017, section 3.2; the arithmetic is that of ``attention.functional``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attnviz.attention import functional
from attnviz.attention.functional import Array
from attnviz.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from attnviz.inspect.heads.head_maps import HeadMaps, TokenLabels


class AttentionResult(NamedTuple):
    """The result of attention on arrays: the output, and the attention weights.

    ``output, weights = result`` unpacks it. ``rich.print`` and notebooks draw the weights.

    output: (..., query, value_dim), the values mixed by the weights.
    weights: (..., query, key), in [0, 1]; rows sum to one, or to zero if a query sees no key.
    """

    output: Array
    weights: Array

    def heatmap(
        self, tokens: TokenLabels | None = None, key_tokens: TokenLabels | None = None
    ) -> HeadMaps:
        """Return the maps of the attention weights, as ``attnviz.heatmap`` draws them.

        tokens, key_tokens: the tokens of the queries and of the keys. The weights must be of a
            single text.
        """
        from attnviz.inspect.heads.head_maps import heatmap

        if self.weights.ndim > 3 and math.prod(self.weights.shape[:-3]) > 1:
            raise UsageError("the weights are of several texts: draw one, such as .weights[0]")
        return heatmap(self.weights, tokens, key_tokens, title=_TITLE)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        maps = self._first()
        if maps is None:
            yield repr(self)
        else:
            yield from maps.__rich_console__(console, options)

    def _repr_html_(self) -> str | None:
        maps = self._first()
        return None if maps is None else maps._repr_html_()

    def _first(self) -> HeadMaps | None:
        """Return the maps of the batch's first text; None if they cannot be drawn."""
        from attnviz.inspect.heads.head_maps import heatmap

        *leading, _, _ = self.weights.shape
        texts = leading[:-1]
        title = _TITLE
        if any(size > 1 for size in texts):
            title += f", text {', '.join('0' for _ in texts)} of {' x '.join(map(str, texts))}"
        try:
            return heatmap(self.weights[(0,) * len(texts)], title=title)
        except UsageError:
            return None


_TITLE = "scaled dot-product attention"


def scaled_dot_product_attention(
    query: Array, key: Array, value: Array, mask: Array | None = None, scale: float | None = None
) -> AttentionResult:
    """Return softmax(Q Kᵀ · scale) V, for arrays of NumPy, torch or another array API library.

    query: (..., query, head_dim). key: (..., key, head_dim). value: (..., key, value_dim). The
        leading axes, such as (batch, head), are arbitrary, may be absent, and broadcast.
    mask: boolean, True if the query may see the key, or a float added to the scaled attention
        scores (-inf hides); it broadcasts over the weights. scale: 1/√head_dim by default.

    Returns (output, weights), of the arrays' own library; a query that sees no key gets zeros.
    Raises UsageError (also a ValueError) for shapes that do not fit together and for a mask of
    another type, TypeError for arrays of different libraries.
    """
    _require_fitting(query, key, value, mask)
    return AttentionResult(*functional.scaled_dot_product_attention(query, key, value, mask, scale))


def _require_fitting(query: Array, key: Array, value: Array, mask: Array | None) -> None:
    """Raise UsageError unless the arrays' shapes fit together, and the mask is boolean or float."""
    functional.namespace(query, key, value, mask)
    shapes = {"query": query.shape, "key": key.shape, "value": value.shape}
    given = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
    if min(map(len, shapes.values())) < 2:
        raise UsageError(f"expected arrays of at least two axes (token, width), got {given}")
    if query.shape[-1] != key.shape[-1]:
        raise UsageError(f"a query and a key are of one width, the last axis; got {given}")
    if key.shape[-2] != value.shape[-2]:
        raise UsageError(f"each key has its value, the last axis but one; got {given}")
    try:
        leading = np.broadcast_shapes(*(tuple(shape[:-2]) for shape in shapes.values()))
    except ValueError as error:
        raise UsageError(f"the leading axes do not broadcast together: {given}") from error
    if mask is None:
        return
    weights = (*leading, query.shape[-2], key.shape[-2])
    try:
        np.broadcast_shapes(tuple(mask.shape), weights)
    except ValueError as error:
        shape = tuple(mask.shape)
        raise UsageError(f"a mask of {shape} does not broadcast over weights {weights}") from error
    try:
        functional.check_mask(mask)
    except ValueError as error:
        raise UsageError(str(error)) from error
