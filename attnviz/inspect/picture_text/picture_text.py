"""Measures where the heads of a vision-language model look from a word: pictures, sinks, text.

Only the rows of words are read, so that a picture of thousands of tokens takes no whole map.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import nn

from attnviz.engine.backend import backend_of
from attnviz.engine.generation import Sampling, generate, written
from attnviz.engine.hook_points import hooked
from attnviz.engine.observer import BlockFacts, to_numpy
from attnviz.engine.selection import choose_heads
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.picture_text.report import HeadOnWords, PictureTextReport
from attnviz.inspect.picture_text.request import PictureTextRequest
from attnviz.measures.pictures import (
    BOTTOM,
    FIRST_LAYER,
    Activations,
    activations,
    elbow,
    shuffled_entropies,
    spatial_entropy,
)
from attnviz.measures.reduced import ReducedLayer
from attnviz.measures.words import place_of
from attnviz.models.picture_texts import PictureTextModel
from attnviz.models.pictures import PicturePrompt
from attnviz.progress import UNWATCHED, Advance, share_read
from attnviz.records import Floats, Input, Kind, Tokens
from attnviz.token_layout import TokenKind, TokenLayout

GENERAL = "Write a general description of the image."
"""The control of relative attention, as in Zhang et al. 2025 (arXiv 2502.17422)."""

_LOCATING = 3  # the most localisation heads: three suffice to find what an expression refers to
_SHUFFLES = 19  # fewer parts than all of so many random orders: by chance once in twenty
_WORDS = 64  # the most tokens of the text whose share on the pictures is told: the last ones


def picture_text(
    model: PictureTextModel,
    prompt: PicturePrompt,
    request: PictureTextRequest,
    advance: Advance = UNWATCHED,
) -> PictureTextReport:
    """Return where each head looks from a word of a prompt with pictures, or of the answer.

    advance: is called with the share of layers read, once for the prompt and once for its control.
    Raises UsageError for a word or heads that do not exist, UnsupportedError if the attention
    cannot be observed.
    """
    info = model.info
    chosen = choose_heads(request.layer, request.head, info.layers, info.heads, request.index_base)
    tokens = model.encode(prompt, model.context)
    answer = ""
    if request.generate:
        steps = list(generate(model, tokens, Sampling(request.generate)))
        tokens = replace(written(tokens, steps), layout=_followed(tokens.layout, len(steps)))
        answer = "".join(step.text for step in steps if not step.ended)
    layout = tokens.layout
    assert layout is not None
    query = len(tokens) - 1 if request.token is None else place_of(tokens, request.token)
    images = layout.of_kind("patch", "cls", "newline")
    if not len(images) or query < images[0]:
        raise UsageError("this word comes before the image and does not see it: choose a later one")
    shown = [at for at in range(len(tokens)) if layout.kinds[at] == "text" and at > images[0]]
    rows = _read(model, tokens, query, shown[-_WORDS:], advance, images)
    control = model.encode(PicturePrompt(GENERAL, prompt.pictures), model.context)
    general = _read(model, control, len(control) - 1, (), advance, images)
    assert control.layout is not None
    places = control.layout.of_kind("patch", "cls", "newline")
    sinks = _sinks(rows.states)
    grid = _shown_grid(layout, np.mean([weights.mean(0) for weights in rows.rows.values()], axis=0))
    heads = []
    for layer in sorted(rows.rows):
        on_pictures = set(images.tolist()) & set(sinks.get(layer, ()))
        for head, row in enumerate(rows.rows[layer]):
            beside = np.zeros(len(tokens))
            beside[images] = general.rows[layer][head][places]
            picture, on_sinks = (float(row[own].sum()) for own in (images, sorted(on_pictures)))
            heads.append(HeadOnWords(layer, head, row, beside, picture, on_sinks))
    heads = _located(heads, layout, grid)
    return PictureTextReport(
        model=info,
        text=str(prompt),
        names=tuple(picture.name for picture in prompt.pictures),
        written=answer,
        tokens=tokens,
        query=query,
        grid=grid,
        heads=tuple(
            head for head in heads if chosen is None or head.head in chosen.get(head.layer, ())
        ),
        sinks=sinks,
        words={at: float(np.mean(shares)) for at, shares in sorted(rows.words.items())},
        control=GENERAL,
        notes=tuple(note for picture in prompt.pictures for note in picture.notes),
        index_base=request.index_base,
        selected=chosen is not None,
    )


def _followed(layout: TokenLayout | None, more: int) -> TokenLayout:
    """Return the layout of a prompt that ``more`` tokens of text follow."""
    assert layout is not None
    grid, row, column = np.pad(
        [layout.grid, layout.row, layout.column], ((0, 0), (0, more)), constant_values=-1
    )
    kinds: list[TokenKind] = [*layout.kinds, *["text"] * more]
    return replace(layout, kinds=tuple(kinds), grid=grid, row=row, column=column)


def _shown_grid(layout: TokenLayout, row: Floats) -> int:
    """Return the finest grid of the picture to which ``row`` (token,) gives most."""
    shares: dict[int, float] = {}
    for at, grid in enumerate(layout.grids):
        share = float(row[layout.patches(at)].sum())
        shares[grid.picture] = shares.get(grid.picture, 0.0) + share
    picture = max(shares, key=lambda at: shares[at])
    own = [at for at, grid in enumerate(layout.grids) if grid.picture == picture]
    return max(own, key=lambda at: len(layout.patches(at)))


def _located(heads: Sequence[HeadOnWords], layout: TokenLayout, grid: int) -> list[HeadOnWords]:
    """Return the heads with their spatial entropies, and the localisation heads marked."""
    least = elbow(np.array([head.picture for head in heads]))
    bottom = layout.row == layout.grids[grid].rows - 1
    bottoms = [float(head.row[(layout.grid == grid) & bottom].sum()) for head in heads]
    maps = np.stack([layout.mapped(head.row, grid) for head in heads])
    entropies = spatial_entropy(maps)
    some = [
        at
        for at, head in enumerate(heads)
        if head.layer >= FIRST_LAYER and head.picture >= least and bottoms[at] <= BOTTOM
    ]
    chances = dict(zip(some, shuffled_entropies(maps[some], _SHUFFLES), strict=True))
    ranked = sorted(some, key=lambda at: entropies[at])
    located = [at for at in ranked if entropies[at] < chances[at]][:_LOCATING]
    return [
        replace(
            head,
            entropy=float(entropies[at]),
            chance=float(chances.get(at, np.nan)),
            bottom=bottoms[at],
            locates=at in located,
        )
        for at, head in enumerate(heads)
    ]


@dataclass
class _Rows:
    """A reader that keeps each layer's rows of one token, and the shares of others on pictures.

    rows: (head, token) by layer. words: by token a share for each head that was read. states: what
    is large in the states that enter a layer.
    """

    query: int
    others: Sequence[int]
    images: Any
    tokens: int
    done: Any
    rows: dict[int, Floats] = field(default_factory=dict)
    words: dict[int, list[float]] = field(default_factory=dict)
    states: dict[int, Activations] = field(default_factory=dict)

    norms = False

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == "self"

    def sums(self, text: int, kind: Kind, layer: int, reduced: ReducedLayer) -> None:
        for at in {self.query, *self.others}:
            self._take(layer, at, to_numpy(reduced.rows(at, at + 1))[:, 0])
        self.done(layer)

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Floats, beside: BlockFacts
    ) -> None:
        stop = start + weights.shape[1]
        for at in {self.query, *self.others}:
            if start <= at < stop:
                self._take(layer, at, weights[:, at - start])
        if stop == self.tokens:
            self.done(layer)

    def _take(self, layer: int, at: int, seen: Floats) -> None:
        row = np.zeros((len(seen), self.tokens))
        row[:, : seen.shape[1]] = seen
        if at == self.query:
            self.rows[layer] = row
        if at in self.others:
            self.words.setdefault(at, []).extend(row[:, self.images].sum(1).tolist())


def _read(
    model: PictureTextModel,
    tokens: Tokens,
    query: int,
    others: Sequence[int],
    advance: Advance,
    images: Any,
) -> _Rows:
    """Return the rows of a token in every layer, and the shares of other tokens on the pictures."""
    every = range(model.info.layers)
    reader = _Rows(
        query, others, images, len(tokens), lambda layer: advance(share_read(layer, every))
    )
    with _watched_states(model, len(tokens), reader.states):
        try:
            backend_of(model).read_sums(reader, [Input(tokens)])
        except UnsupportedError:  # no softmax over a range of keys: whole maps, block by block
            reader.rows.clear()
            reader.words.clear()
            backend_of(model).observe(reader, [Input(tokens)])
    return reader


@contextmanager
def _watched_states(
    model: PictureTextModel, tokens: int, large: dict[int, Activations]
) -> Iterator[None]:
    """Note what is large in the states that enter each layer of the decoder, in this context."""

    def note(layer: int, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        states = args[0] if args else named["hidden_states"]
        if states.shape[:2] == (1, tokens):
            large[layer] = activations(to_numpy(states[0].float()))

    decoder = model.model.get_decoder()
    lists = (part for part in decoder.modules() if isinstance(part, nn.ModuleList))
    blocks = next((part for part in lists if len(part) == model.info.layers), None)
    if blocks is None:
        raise UnsupportedError(f"the layers of {type(decoder).__name__} are not in one list")
    with ExitStack() as held:
        for layer, block in enumerate(blocks):
            hook = lambda _, args, named, layer=layer: note(layer, args, named)  # noqa: E731
            held.enter_context(hooked(block.register_forward_pre_hook(hook, with_kwargs=True)))
        yield


def _sinks(states: Mapping[int, Activations]) -> dict[int, tuple[int, ...]]:
    """Return the tokens of each layer that are large in a dimension of massive activations."""
    dimensions = frozenset[int]().union(*(entering.massive for entering in states.values()))
    sinks = {
        layer: sorted({at for at, dimension in entering.large if dimension in dimensions})
        for layer, entering in sorted(states.items())
        if layer >= FIRST_LAYER
    }
    return {layer: tuple(tokens) for layer, tokens in sinks.items() if tokens}
