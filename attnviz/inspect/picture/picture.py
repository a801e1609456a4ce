"""Measures where each head of a vision model looks, over one picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from attnviz.draw.numbers import layer_names
from attnviz.engine.backend import backend_of
from attnviz.engine.capture import Choice, asked, capture
from attnviz.engine.forward_pass import nearly_equal
from attnviz.engine.observer import BlockFacts, to_numpy
from attnviz.engine.passes import Edges, joined_calls, observe_joined
from attnviz.engine.selection import choose_heads
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.heads.heads import heads_report
from attnviz.inspect.heads.report import HeadsReport, compare_heads
from attnviz.inspect.picture.report import (
    HeadOnPicture,
    HeadOverPictures,
    PictureReport,
    PicturesReport,
    Query,
)
from attnviz.inspect.picture.request import PictureRequest, two_numbers
from attnviz.measures.bootstrap import intervals
from attnviz.measures.pictures import LOCAL, SINK_SHARE, PictureSums, outlying, uniform_distance
from attnviz.models.vision import PictureModel, ReadPicture
from attnviz.progress import UNWATCHED, Advance, share_read
from attnviz.records import Floats, Input, Kind
from attnviz.token_layout import TokenLayout

_MOST_CELLS = 50_000_000  # weights that a page keeps: 12 x 12 heads over 589 tokens


def picture(
    model: PictureModel,
    read: ReadPicture,
    request: PictureRequest,
    advance: Advance = UNWATCHED,
    *,
    maps: bool = False,
) -> PictureReport:
    """Return where each head looks on a picture, from a query and in the mean of all patches.

    read: the picture, as ``model`` reads it. advance: is called with the share of layers read.
    maps: True also keeps whole maps for a page, if they are not too large for one.

    Raises UsageError for a choice that does not fit the model or the picture, UnsupportedError if
    its attention cannot be observed.
    """
    info, layout = model.info, read.tokens.layout
    assert layout is not None
    if not len(layout.of_kind("patch")):
        raise UsageError(f"{read.file.name!r} is smaller than one patch of {info.name!r}")
    chosen = choose_heads(request.layer, request.head, info.layers, info.heads, request.index_base)
    query = find_query(layout, request, read.file.size, pooled=model.pooling is not None)
    given, calls = Input(read.tokens), dict[int, Edges]()
    if model.joins_calls:
        calls |= joined_calls(model, read.tokens)
    every = range(info.layers) if chosen is None else sorted(chosen)
    watch = _Watch(
        layout, query.token, chosen, lambda layer: advance(share_read(layer, every)), calls
    )
    if calls:
        observe_joined(model, read.tokens, watch)
    else:
        backend_of(model).observe(watch, [given])
    last, normalised = _last_states(model, given)
    norms = np.linalg.norm(to_numpy(last).astype(np.float64), axis=-1)
    heads = [head for layer in sorted(watch.layers) for head in watch.heads(layer)]
    if query.name == "pool":
        assert model.pooling is not None
        weights = pooling_weights(model.pooling, normalised, read)
        heads += [HeadOnPicture(info.layers, number, row=row) for number, row in enumerate(weights)]
    return PictureReport(
        model=info,
        name=read.file.name,
        layout=layout,
        query=query,
        heads=tuple(heads),
        uniform=uniform_distance(layout),
        norms=norms,
        artefacts=tuple(outlying(norms, layout).tolist()),
        notes=(*read.file.notes, *_windows_note(calls, request.index_base)),
        index_base=request.index_base,
        selected=chosen is not None,
        maps=_whole_maps(model, read, request) if maps and not calls else None,
    )


def _whole_maps(
    model: PictureModel, read: ReadPicture, request: PictureRequest
) -> HeadsReport | None:
    """Return the whole maps of the heads that are asked for; None if they are too large."""
    choice = Choice(request.layer, request.head, request.index_base, no_known_labels=True)
    wanted = asked(model, read.file.name, choice)
    info, tokens = model.info, len(read.tokens)
    heads = info.layers * info.heads
    if wanted.heads is not None:
        heads = sum(head in own for own in wanted.heads.values() for head in range(info.heads))
    if heads * tokens**2 > _MOST_CELLS:
        return None
    record = capture(model, read.tokens, kind="self", heads=wanted.heads)
    base = request.index_base
    return compare_heads(
        [heads_report(record, wanted.heads is not None, base, text=read.file.name)]
    )


@dataclass
class _Watch:
    """An observer that adds up the rows of each layer's attention, and keeps those of a query."""

    layout: TokenLayout
    query: int | None
    chosen: Mapping[int, Container[int]] | None
    advance: Callable[[int], None]
    calls: Mapping[int, Edges]
    layers: dict[int, PictureSums] = field(default_factory=dict)
    rows: dict[int, Floats] = field(default_factory=dict)

    norms = False

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == "self" and (self.chosen is None or layer in self.chosen)

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Floats, beside: BlockFacts
    ) -> None:
        if layer not in self.layers:
            windows = self.calls.get(layer, ())
            self.layers[layer] = PictureSums(self.layout, len(weights), windows=windows)
        self.layers[layer].add(start, weights)
        stop = start + weights.shape[1]
        if self.query is not None and start <= self.query < stop:
            row = self.rows[layer] = np.zeros((len(weights), len(self.layout)))
            row[:, : weights.shape[-1]] = weights[:, self.query - start]
        if stop == len(self.layout):
            self.advance(layer)

    def heads(self, layer: int) -> list[HeadOnPicture]:
        """Return what was measured of the chosen heads of a layer."""
        sums, layout = self.layers[layer], self.layout
        means, uniform = sums.means, uniform_distance(layout, self.calls.get(layer, ()))
        rows = means if self.query is None else self.rows[layer]
        special = [layout.of_kind(kind) for kind in ("cls", "register")]
        patches = layout.of_kind("patch")
        measured = []
        for head, mean in enumerate(means):
            if self.chosen is not None and head not in self.chosen[layer]:
                continue
            shares = [float(mean[own].sum()) for own in special]
            peak = int(patches[np.argmax(mean[patches])])
            named = dict(zip(("CLS", "registers", "one patch"), (*shares, mean[peak]), strict=True))
            largest, label = max(named, key=lambda name: named[name]), ""
            if named[largest] >= SINK_SHARE:
                label = f"sink: {largest}"
            elif (sums.near[head] < sums.shuffled[:, head]).all():  # nearer than all shuffles
                label = "local" * bool(sums.distance[head] / uniform <= LOCAL)
            measured.append(
                HeadOnPicture(
                    layer,
                    head,
                    row=rows[head],
                    means=mean,
                    distance=float(sums.distance[head]),
                    cls=shares[0] if len(special[0]) else None,
                    register=shares[1] if len(special[1]) else None,
                    peak=peak,
                    label=label,
                )
            )
        return measured


def _windows_note(calls: Mapping[int, Edges], base: int) -> tuple[str, ...]:
    """Return the note on layers whose attention runs in windows."""
    windows = {layer + base: len(edges) - 1 for layer, edges in calls.items() if edges[2:]}
    if not windows:
        return ()
    return (
        f"attention runs in {max(windows.values())} windows in {layer_names(sorted(windows))}, "
        "which see nothing beyond: their distances are compared with those in a window",
    )


def find_query(
    layout: TokenLayout, request: PictureRequest, size: tuple[int, int], *, pooled: bool
) -> Query:
    """Return the query that is asked for. size: of the picture, (width, height) in pixels.

    pooled: whether the model pools its patches by an attention of its own.
    Raises UsageError for one that this model or this picture does not have.
    """
    names = layout.names()
    grid = layout.grids[0]
    if request.at is not None:
        if request.token is not None:
            raise UsageError("--at and --token both name the query: give one of them")
        row, column = _patch_at(layout, request.at, size)
        return Query(f"{row},{column}", layout.at(0, row, column))
    if request.token is None:
        if "CLS" in names:
            return Query("CLS", names.index("CLS"))
        return Query("pool" if pooled else "mean", None)
    typed = request.token.strip()
    special = [name for name in names if name and not name[0].isdigit()]
    own = {name.lower(): name for name in special} | {"mean": "mean"}
    own |= {"pool": "pool"} if pooled else {}
    name = own.get(typed.lower())
    if name is not None:
        return Query(name, names.index(name) if name in names else None)
    has = ", ".join(dict.fromkeys(own.values()))
    if not typed[:1].isdigit():
        raise UsageError(
            f"no token {typed!r} on this image: expected {has}, or ROW,COLUMN of a patch"
        )
    row, column = two_numbers(typed, "--token")
    token = layout.at(0, row, column)
    if token is None:
        raise UsageError(
            f"no patch {row},{column} here: rows go from 0 to {grid.rows - 1}, columns to "
            f"{grid.columns - 1}"
        )
    return Query(f"{row},{column}", token)


def _patch_at(layout: TokenLayout, at: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
    """Return the row and the column of the patch under a pixel of the picture."""
    grid, (x, y), (width, height) = layout.grids[0], at, size
    if x >= width or y >= height:
        raise UsageError(f"no pixel {x},{y} here: the image has {width} x {height}")
    left, top, right, bottom = grid.box
    across = ((x + 0.5) / width - left) / (right - left)
    down = ((y + 0.5) / height - top) / (bottom - top)
    row, column = int(down * grid.rows // 1), int(across * grid.columns // 1)
    if not (0 <= across < 1 and 0 <= down < 1) or layout.at(0, row, column) is None:
        raise UsageError(
            f"the model does not see the pixel {x},{y}: its processor keeps {left * width:.0f} to "
            f"{right * width:.0f} across and {top * height:.0f} to {bottom * height:.0f} down"
        )
    return row, column


# Beside the layers ---------------------------------------------------------------------------


@torch.inference_mode()
def _last_states(model: PictureModel, given: Input) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the states (token, width) after the last layer, and those that the model puts out.

    A last normalisation may stand between them, which hides how large the states are.
    """
    ids = torch.tensor([given.text.ids], device=model.model.device)
    output = model.model(input_ids=ids, output_hidden_states=True, return_dict=True)
    states = getattr(output, "hidden_states", None) or [output[0]]
    if model.joins_calls:
        states = [state[None] for state in states]
    if states[-1].ndim != 3 or states[-1].shape[1] != len(given.text):
        raise UnsupportedError(
            f"{type(model.model).__name__} returns no states of its tokens: nothing can be said of "
            "their norms"
        )
    return states[-1][0], output[0] if model.joins_calls else output[0][0]


@torch.inference_mode()
def pooling_weights(head: nn.Module, states: torch.Tensor, read: ReadPicture) -> Floats:
    """Return the weights (head, token) of SigLIP's pooling head, recomputed from its parameters.

    head: with a ``probe`` that is its only query, and an ``nn.MultiheadAttention``, whose own
    output they must give. states: of the tokens, as the head reads them.

    Raises UnsupportedError if the head is another one, or its output differs.
    """
    attention, probe = getattr(head, "attention", None), getattr(head, "probe", None)
    if not isinstance(attention, nn.MultiheadAttention) or probe is None:
        raise UnsupportedError(f"the pooling of a {type(head).__name__} cannot be read")
    count, width = attention.num_heads, attention.embed_dim // attention.num_heads
    weight, bias = attention.in_proj_weight, attention.in_proj_bias
    sides = zip((probe[0], states, states), weight.chunk(3), bias.chunk(3), strict=True)
    query, key, value = (
        nn.functional.linear(side, w, b).unflatten(-1, (count, width)).transpose(0, 1)
        for side, w, b in sides
    )
    mask = read.inputs.get("pixel_attention_mask")
    scores = (query @ key.transpose(1, 2)).double() / width**0.5
    if mask is not None:
        scores = scores.masked_fill(mask[0].flatten() == 0, -torch.inf)
    weights = scores.softmax(-1)
    output = attention.out_proj((weights.to(value.dtype) @ value).transpose(0, 1).flatten(1))
    padding = None if mask is None else mask.flatten(1) == 0
    own = attention(probe, states[None], states[None], key_padding_mask=padding)[0][0]
    if not nearly_equal(output, own):
        raise UnsupportedError(
            f"the weights of {type(head).__name__} give another output than it puts out, so that "
            "they are not shown"
        )
    return to_numpy(weights[:, 0]).astype(np.float64)


# Over many pictures ---------------------------------------------------------------------------


_AGREE = 2 / 3  # the share of the pictures in which a head has its label, at least


def pictures(
    model: PictureModel,
    paths: Sequence[str],
    index_base: int = 0,
    seed: int = 0,
    advance: Advance = UNWATCHED,
) -> PicturesReport:
    """Return what each head does over pictures.

    index_base: of layers and heads in names. seed: of the bootstrap. advance: is called with the
    share of the pictures that is read.

    Raises LoadError for a file that is no picture, UsageError or UnsupportedError as ``picture``
    does.
    """
    reports = list(on_each(model, paths, index_base, advance))
    measured = [report.measured for report in reports]
    ends = intervals(np.array([[head.distance for head in heads] for heads in measured]), seed)
    heads = [
        _over(of_head, end) for of_head, end in zip(zip(*measured, strict=True), ends, strict=True)
    ]
    return PicturesReport(
        model=reports[0].model,
        paths=tuple(paths),
        heads=tuple(heads),
        uniform=float(np.mean([report.uniform for report in reports])),
        token=float(np.mean([1 / len(report.layout) for report in reports])),
        outlying=sum(bool(report.artefacts) for report in reports),
        notes=tuple(dict.fromkeys(note for report in reports for note in report.notes)),
        index_base=index_base,
        seed=seed,
    )


def on_each(
    model: PictureModel, paths: Sequence[str], index_base: int = 0, advance: Advance = UNWATCHED
) -> Iterator[PictureReport]:
    """Yield what each head does on each picture in turn, of which the model keeps no new one."""
    request = PictureRequest(index_base=index_base, token="mean")
    for at, path in enumerate(paths):
        known = path in model.pictures
        read = model.read(path)
        yield picture(model, read, request)
        if not known:
            model.forget(read)
        advance((at + 1) / len(paths))


def label_over(seen: Sequence[HeadOnPicture]) -> tuple[str, int]:
    """Return the commonest label of a head, or an empty one, and on how many pictures it has that.

    seen: the head on each picture. The label is empty below two thirds of them.
    """
    label, times = Counter(head.label for head in seen).most_common(1)[0]
    return label if times >= _AGREE * len(seen) else "", times


def _over(seen: Sequence[HeadOnPicture], end: tuple[float, float] | None) -> HeadOverPictures:
    """Return what a head does over all pictures. seen: on each. end: of the mean distance."""
    label, times = label_over(seen)
    return HeadOverPictures(
        layer=seen[0].layer,
        head=seen[0].head,
        label=label,
        times=times,
        distance=float(np.mean([head.distance for head in seen])),
        interval=end,
        cls=_mean([head.cls for head in seen]),
        register=_mean([head.register for head in seen]),
        peak=float(np.mean([head.peak_share for head in seen])),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
