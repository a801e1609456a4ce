"""The maps of attention heads as a Python value, of a model or of any array of weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from attnviz.draw.document import Document
from attnviz.draw.labels import visible
from attnviz.draw.numbers import counted
from attnviz.draw.palette import DEFAULT, PALETTES, contrasted
from attnviz.draw.report import Report
from attnviz.engine.observer import to_numpy
from attnviz.errors import UsageError
from attnviz.inspect.heads.heads import heads_report
from attnviz.inspect.heads.look import heads_page
from attnviz.inspect.heads.report import (
    HeadChoice,
    HeadsReport,
    HeadsView,
    chosen_heads,
    compare_heads,
    one_head,
    only,
    plot_head,
)
from attnviz.models.pieces import looks_special, undone
from attnviz.options import keywords_checked
from attnviz.records import (
    AttentionRecord,
    HeadScores,
    HeadsRecord,
    LayerWeights,
    ModelInfo,
    Tokens,
)

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.drawing_plot import Axes
    from attnviz.draw.files import Writer

_NAMED = 4


@dataclass(frozen=True, eq=False, repr=False)
class HeadMaps(Report):
    """The attention weights of some heads over one text, as ``attnviz heads`` shows them.

    ``print`` draws them in plain characters, ``rich.print`` in colour, a notebook as the page that
    ``save("maps.html")`` writes. ``maps["L1H0"]`` is one head's attention weights,
    ``maps.heads("1.*")`` the maps of some heads; iterating gives each (layer, head).

    report: the weights and every head's scores; indices start at 0.
    look, palette, ascii: what is shown, and how; see ``view``. explained: whether a glossary for
    newcomers is added.
    limit: the weight with the last colour. If it is not 1, the drawings show each weight's share of
        it; the numbers stay as they are.
    opened: the head that the page shows first.
    """

    report: HeadsRecord
    look: HeadsView = field(default_factory=HeadsView)
    limit: float = 1.0
    palette: str = DEFAULT
    ascii: bool = False
    opened: str = ""
    explained: bool = False

    @property
    def text(self) -> str:
        """Return the text that the maps belong to; empty for an array without one."""
        return self.report.text

    @property
    def target(self) -> str | None:
        """Return the decoder's text, or None."""
        return self.report.target

    @property
    def tokens(self) -> tuple[str, ...]:
        """Return the tokens of the queries."""
        return self.report.record.queries.texts

    @property
    def key_tokens(self) -> tuple[str, ...]:
        """Return the tokens of the keys; in self-attention the same as ``tokens``."""
        return self.report.record.keys.texts

    @property
    def layers(self) -> Mapping[int, str]:
        """Return the name of the module of each layer of an ``nn.Module``; else empty."""
        return dict(enumerate(self.report.record.model.layer_names))

    @property
    def weights(self) -> Mapping[tuple[int, int], NDArray[np.floating]]:
        """Return the attention weights (query, key) of each head, by (layer, head)."""
        return MappingProxyType(
            {(layer, head): weights for layer, head, weights in self.report.record}
        )

    def __getitem__(self, head: HeadChoice) -> NDArray[np.floating]:
        """Return the attention weights (query, key) of one head.

        head: such as ``"L1H2"``, ``"1.2"`` or ``(1, 2)``. Raises UsageError unless it names one.
        """
        return self.report.weights(*one_head(self.report, head))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter([(layer, head) for layer, head, _ in self.report.record])

    def __len__(self) -> int:
        return len(self.report.heads)

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> NDArray[np.floating]:
        """Return all weights as one array (head, query, key); ValueError if ``copy`` is False."""
        if copy is False:
            raise ValueError("the weights of several layers are not one array without a copy")
        stacked = np.stack([weights for _, _, weights in self.report.record])
        return stacked if dtype is None else stacked.astype(dtype)

    def scores(self, head: HeadChoice) -> HeadScores:
        """Return the label and scores of one head, which is named as in ``maps[head]``."""
        return self.report.scores(*one_head(self.report, head))

    def heads(self, *head: HeadChoice, layer: str | int | None = None) -> HeadMaps:
        """Return the maps of the chosen heads alone, each drawn in full.

        head: one choice or several, which add up; without any, all heads. layer: such as ``2`` or
        ``"0-3"``.

        Raises UsageError if a choice is not valid, or names no head of these maps.
        """
        return replace(self, report=only(self.report, chosen_heads(self.report, head, layer)))

    def plot(self, head: HeadChoice | None = None, *, ax: Axes | None = None) -> Axes:
        """Draw the map of one head with Matplotlib, and return its axes; see ``plot_head``."""
        return plot_head(self.report, head, self.palette, self.limit, ax)

    def view(
        self,
        *,
        values: bool = False,
        top: int | None = None,
        explain: bool = False,
        palette: str = DEFAULT,
        contrast: float = 1.0,
        ascii: bool = False,
    ) -> HeadMaps:
        """Return the same maps drawn in another way.

        values: True writes the weights into the cells. top: instead of maps, list this many
            strongest token pairs of each head. explain: True adds a glossary for newcomers.
            palette: ``blues``, ``viridis``, ``magma`` or ``grey``. contrast: the weight from which
            cells have the full colour, in (0, 1]. ascii: True draws with ASCII only.

        Raises UsageError for another palette or contrast, and if ``top`` is below 1.
        """
        if palette not in PALETTES:
            raise UsageError(f"no palette {palette!r}: expected one of {', '.join(PALETTES)}")
        if top is not None and top < 1:
            raise UsageError(f"expected at least one pair of each head, got top={top}")
        look = HeadsView(values=values, top=top)
        colours = contrasted(palette, contrast)
        return replace(self, look=look, palette=colours, ascii=ascii, explained=explain)

    def show(self, head: HeadChoice) -> HeadMaps:
        """Return the same maps, whose page opens at ``head``; UsageError unless it names one."""
        return replace(self, opened=self.report.name(*one_head(self.report, head)))

    def __repr__(self) -> str:
        info, record = self.report.record.model, self.report.record
        names = [self.report.name(layer, head) for layer, head in self]
        heads = ", ".join(names) if len(names) <= _NAMED else f"{len(names)} heads"
        tokens = counted(len(record.queries), "token")
        if record.kind == "cross":
            tokens = f"{len(record.queries)} queries, {len(record.keys)} keys"
        return f"<HeadMaps of {visible(info.name)}: {heads}, {tokens}>"

    def data(self) -> dict[str, Any]:
        """Return the JSON object that ``attnviz heads --json`` prints."""
        return self._named.data()

    def write_json(self, stream: SupportsWrite[str]) -> None:
        """Write the JSON object of ``data`` to a stream, head by head."""
        self._named.write_json(stream)

    def rows(self) -> Iterator[Iterable[object]]:
        """Yield the rows of the CSV table: the header, then one for each head, query and key."""
        return self._named.rows()

    def arrays(self) -> Mapping[str, Writer]:
        """Return the functions that write the weights to a file, by ending: .csv and .npz."""
        return self._named.arrays()

    @property
    def _named(self) -> HeadsReport:
        named = self.text or self.report.record.model.name
        return compare_heads([replace(self.report, text=named)])

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        """Return the whole document; its attention weights are shares of ``limit``."""
        report, given = self.report, ""
        if self.limit != 1.0:
            record, given = report.record, f"share of {self.limit:.3g}"
            layers = [replace(kept, weights=kept.weights / self.limit) for kept in record.layers]
            report = replace(report, record=replace(record, layers=tuple(layers)))
        drawn = replace(compare_heads([report]), view=self.look)
        page = partial(heads_page, drawn, [[]], given, self.opened)
        shown = drawn.document(explain=self.explained)
        return shown._replace(page=page)


# Arrays of any library ----------------------------------------------------------------------

ArrayLike: TypeAlias = Any
"""A NumPy array, a torch tensor, a JAX array, an object with ``__array__`` or DLPack, or lists."""

_NUMBER = (int, float, np.number)


def as_numpy(array: ArrayLike) -> NDArray[np.floating]:
    """Return an array of any library as float32 or float64; UsageError for what is none."""
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
    wrong = np.argwhere(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        cell = tuple(wrong[0].tolist())
        value = float(weights[cell])
        where = ", ".join(map(str, cell[3 - min(len(shape), 3) :]))
        raise UsageError(
            f"expected finite weights of 0 or more, got {value:.4g} at [{where}]"
            + ("" if np.isnan(value) else ": are these scores? their softmax is the attention")
        )
    return weights


# Layers, and the steps of a text that was generated --------------------------------------------


def layers_of(
    weights: Any, *, cross: bool, text: int | None = None, labelled: bool = False
) -> tuple[dict[int, NDArray[np.floating]], Literal["layers", "stack", "heads", "steps"]]:
    """Return the weights (head, query, key) of each layer, and what their first axis was.

    weights: one layer as ``weight_matrices`` takes it, which is layer 0; several, of one text, in a
        list; or the steps of ``generate``. A layer that is None does not attend, and is left out.
    cross: whether the keys are of another text. text: the one to take of a first axis of texts.
    labelled: whether the tokens of one text are given, so that the first of four axes is that of
        the layers.
    Raises UsageError for anything else, and for layers of unequal sizes.
    """
    weights = getattr(weights, "attentions", weights)  # of a whole output
    held = weights if isinstance(weights, list | tuple) else () if weights is None else None
    known = [array for array in held or () if array is not None]
    if held is not None and not known:
        raise UsageError(
            "expected attention weights, got none: transformers returns them with "
            'output_attentions=True from a model with attn_implementation="eager"'
        )

    def is_layer(array: Any) -> bool:
        return len(getattr(array, "shape", ())) > 2

    axis: Literal["layers", "stack", "heads", "steps"] = "layers"
    if known and isinstance(known[0], list | tuple) and any(map(is_layer, known[0])):
        axis = "steps"
        by_layer = enumerate(zip(*known, strict=True))
        several = {at: _of_steps(some, cross) for at, some in by_layer if some[0] is not None}
    elif held and all(map(is_layer, known)):
        several = {at: array for at, array in enumerate(held) if array is not None}
    else:
        array = as_numpy(weights)
        while array.ndim > 3 + (text is not None) and len(array) == 1:
            array = array[0]
        if array.ndim == 4 and text is None and not labelled:
            raise UsageError(
                f"is the first axis of {array.shape} texts or layers? batch=0 shows the first "
                "text; a tuple, such as tuple(weights), has a layer in each entry"
            )
        if text is None and len(array) > 1 and array.ndim in (3, 4):
            axis = "heads" if array.ndim == 3 else "stack"
        several = dict(enumerate(array if array.ndim > 3 + (text is not None) else array[None]))
    if text is not None:
        several = {at: _of_text(array, text) for at, array in several.items()}
    layers = {at: weight_matrices(array) for at, array in several.items()}
    if len({layer.shape for layer in layers.values()}) > 1:
        raise UsageError("expected layers of equally many heads, queries and keys: give one layer")
    return layers, axis


def _of_text(array: ArrayLike, text: int) -> ArrayLike:
    """Return the weights of one text of (text, query, key) or (text, head, query, key)."""
    weights = as_numpy(array)
    if weights.ndim not in (3, 4) or not -len(weights) <= text < len(weights):
        raise UsageError(
            f"batch={text} is the index of a text in weights (text, query, key), (text, head, "
            "query, key) or, of layers, (layer, text, head, query, key): of a layer got the shape "
            f"{weights.shape}"
        )
    return weights[text]


def _of_steps(given: Sequence[ArrayLike], cross: bool) -> NDArray[np.floating]:
    """Return one map (head, query, key) of a layer's steps, a row for each token that was read.

    A cache may hold the last keys only, or room for keys to come; without one, each step reads all
    tokens again. cross: as in ``layers_of``; else keys beyond the first step's own tokens tell it.
    """
    steps = [weight_matrices(array) for array in given]
    heads, rows, width = steps[0].shape
    if len(steps) > 1 and steps[-1].shape[1] == rows + len(steps) - 1:
        return steps[-1]
    cross = cross or bool(steps[0][..., rows:].any())
    read = sum(step.shape[1] for step in steps)
    joined, end = np.zeros((heads, read, width if cross else read), steps[0].dtype), 0
    for step in steps:
        begin, end = end, end + step.shape[1]
        kept = step if cross or step[..., end:].any() else step[..., :end]
        keys = kept.shape[-1]
        first = 0 if cross else end - keys
        if first < 0 or (cross and keys != width):
            raise UsageError(f"a step has {keys} keys after {end} tokens: is it one text?")
        joined[:, begin:end, first : first + keys] = kept
    return joined


TokenLabels = str | Iterable[str]
"""A list of tokens, or a text that is split into tokens at white space."""


def axis_tokens(labels: TokenLabels | None, name: str, axis: str, length: int) -> Tokens:
    """Return the tokens of one axis of the weights as texts; equal tokens have equal ids.

    Pieces such as ``Ġcat`` become text, and those such as ``[SEP]`` are special.
    labels: the tokens, or one string to split; by default the indices. name: of the argument, in
    messages.
    axis: ``query`` or ``key``.

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
    for at, text in enumerate(texts):
        if not isinstance(text, str):
            raise UsageError(
                f"expected {name} as texts, got {text!r} at [{at}]: token ids are turned into "
                "texts by their tokenizer's convert_ids_to_tokens"
            )
    return tuple(map(str, texts))


# Maps ----------------------------------------------------------------------------------------

_ROUNDING = 0.02  # how far the sum of a row of 16-bit weights may be from one by rounding alone
FEW_HEADS = 8
"""Up to this many heads are all drawn in full."""


@keywords_checked
def heatmap(
    weights: ArrayLike,
    tokens: TokenLabels | None = None,
    key_tokens: TokenLabels | None = None,
    *,
    title: str = "attention weights",
    causal: bool | None = None,
    scale: float | None = None,
    batch: int | None = None,
) -> HeadMaps:
    """Return the maps of attention weights: of one head, of the heads of a layer or of all layers.

    weights: (query, key) or (head, query, key), after leading axes of length one: a NumPy array, a
        torch tensor, a JAX array, any object with ``__array__`` or DLPack, or nested lists; finite
        and not negative. Several layers in a tuple have heads named ``L0H0``; ``attentions`` of
        transformers are taken as they are, also those of ``generate``, a row for each token that
        was read.
    tokens: one for each query, as a list or a string to split at white space; by default indices.
        Of ``generate`` there may be one more, the last, which was not read.
    key_tokens: one for each key; by default ``tokens``, in self-attention.
    title: the name of the maps. causal: whether a query sees no later key, whose cells then stay
        blank; by default whether all weights above the diagonal are zero. scale: the weight with
        the last colour; by default 1 if rows sum to one, else the largest weight, with a note.
    batch: the index of the text to draw, where the first axis is texts: (text, query, key) or
        (text, head, query, key), also of each layer: a tuple of them, or (layer, text, head, query,
        key). Without it (3, query, key) is three heads, which a note says.

    Each head's label and entropy are as in ``attnviz heads``; if rows do not sum to one, they
    are computed after each row is divided by its sum. Pieces of a tokenizer, such as ``Ġcat``,
    become text.

    Raises UsageError (also a ValueError) if the arguments do not fit together.
    """
    cross, labelled = key_tokens is not None, tokens is not None
    layers, axis = layers_of(weights, cross=cross, text=batch, labelled=labelled)
    matrices = [*layers.values()]
    count, rows, columns = matrices[0].shape
    if rows != columns and tokens is not None and key_tokens is None:
        raise UsageError(
            f"the weights have {rows} queries and {columns} keys: give key_tokens as well"
        )
    unread: tuple[str, ...] = ()
    if axis == "steps" and tokens is not None and len(read := _texts(tokens, "tokens")) == rows + 1:
        tokens, unread = read[:-1], ("the last token was written, not read: it has no row",)
    queries = axis_tokens(tokens, "tokens", "query", rows)
    alike = key_tokens is None and rows == columns
    keys = queries if alike else axis_tokens(key_tokens, "key_tokens", "key", columns)
    hides = rows == columns > 1 and not any(np.triu(layer, 1).any() for layer in matrices)
    if causal and not hides:
        sizes = f"there are {rows} queries and {columns} keys"
        reason = sizes if rows != columns else "there are weights above the diagonal"
        raise UsageError(f"causal attention sees no later key, but {reason}: leave causal out")
    limit, notes = _scaled(matrices, scale)
    if axis == "heads":
        notes += (f"the first axis of {(count, rows, columns)} is read as heads; texts: batch=0",)
    elif axis == "stack":
        notes += (f"the first axis, of {len(layers)}, is read as layers; texts: batch=0",)
    info = ModelInfo(
        name=title,
        revision=None,
        architecture="array",
        dtype=str(matrices[0].dtype),
        layers=max(layers) + 1,
        heads=count,
        kv_heads=count,
        head_dim=1,
        weights="given",
        notes=(*notes, *unread),
    )
    kept, shares = list[LayerWeights](), list[LayerWeights]()
    for at, layer in layers.items():
        kept.append(LayerWeights(at, tuple(range(count)), layer))
        sums, zeros = layer.sum(-1, keepdims=True), np.zeros_like(layer)
        even = np.divide(layer, sums, zeros, where=sums > 0)  # rows of zeros stay as they are
        shares.append(replace(kept[-1], weights=even))
    causal = hides if causal is None else causal
    record = AttentionRecord(info, "self" if alike else "cross", causal, queries, keys, tuple(kept))
    text = ""
    if alike and tokens is not None:
        spaced = any(token[:1].isspace() for token in queries.spaced)
        text = ("" if spaced else " ").join(queries.spaced).strip()
    few = len(layers) * count <= FEW_HEADS
    report = heads_report(replace(record, layers=tuple(shares)), selected=few, text=text)
    return HeadMaps(replace(report, record=record), limit=limit)


def _scaled(
    layers: Sequence[NDArray[np.floating]], scale: float | None
) -> tuple[float, tuple[str, ...]]:
    """Return the weight that has the last colour, and notes on the rows for the reader."""
    if scale is not None and not (scale > 0 and math.isfinite(scale)):
        raise UsageError(f"expected a scale above 0, got {scale}")
    sums, notes = np.stack([layer.sum(-1) for layer in layers]), []
    seen = sums[sums > 0]
    if seen.size < sums.size:
        notes.append(f"{sums.size - seen.size} of {sums.size} rows are nothing but zeros")
    shares = bool((np.abs(seen - 1) <= _ROUNDING).all())
    largest = max(float(layer.max()) for layer in layers)
    limit = scale if scale is not None else 1.0 if shares else largest
    if not shares:
        least, most = (f"{end:.3g}" for end in (seen.min(), seen.max()))
        notes.append(
            f"rows sum to {least if least == most else f'{least} to {most}'}, not to one: labels "
            "and entropy are of rows divided by their sums"
        )
    if limit != 1:
        which = "the largest weight, " if scale is None else ""
        notes.append(f"drawn are shares of {which}{limit:.4g}: the legend's 1 is {limit:.4g}")
    return limit, tuple(notes)
