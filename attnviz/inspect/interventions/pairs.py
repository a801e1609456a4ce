"""Pairs of prompts as tokens that correspond to each other, and their unrelated baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from attnviz.draw.labels import token_labels
from attnviz.engine.patching import Direction, Pair
from attnviz.errors import UnsupportedError, UsageError
from attnviz.measures.bootstrap import copies_note
from attnviz.models.model import Model, TwoStackModel
from attnviz.models.stack_model import StackModel
from attnviz.options import RegionOptions
from attnviz.progress import Advance
from attnviz.prompts.request import Prompts
from attnviz.prompts.study import PromptStudy, Studied, fitting, no_decoder
from attnviz.records import Input, Tokens
from attnviz.regions import RegionReader, both_texts, finished, region_reader

Align = Literal["start", "end"]
"""The end from which the part in which two prompts differ is aligned."""

_MOST_SHOWN = 4  # the most tokens that a message shows of the part in which two prompts differ


@dataclass(frozen=True)
class TokenPair:
    """A prompt pair as tokens: a clean and a corrupt prompt, and which tokens correspond.

    places: for each token of ``corrupt`` the index in ``clean`` of the corresponding token, −1 for
        none; None if all correspond one by one.
    target: the decoder's tokens so far; None for a model with one stack.
    """

    clean: Tokens
    corrupt: Tokens
    places: tuple[int, ...] | None = None
    target: Tokens | None = None

    @property
    def engine(self) -> Pair:
        """Return the prompt pair in the form that the functions of ``attnviz.engine`` take."""
        inputs = Input(self.clean, self.target), Input(self.corrupt, self.target)
        return Pair(*inputs, self.places)

    @property
    def matches(self) -> tuple[tuple[int, int], ...]:
        """Return the positions (in clean, in corrupt) of tokens that correspond to each other."""
        positions = range(len(self.corrupt)) if self.places is None else self.places
        return tuple((clean, at) for at, clean in enumerate(positions) if clean >= 0)

    @property
    def changed(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the positions of the tokens that differ: in the clean, in the corrupt prompt."""
        clean, corrupt = self.clean.ids, self.corrupt.ids
        same = [(own, other) for own, other in self.matches if clean[own] == corrupt[other]]
        kept, others = {own for own, _ in same}, {other for _, other in same}
        return (
            tuple(at for at in range(len(clean)) if at not in kept),
            tuple(at for at in range(len(corrupt)) if at not in others),
        )


def encode_pair(
    model: Model, prompts: Prompts, align: Align | None, target: Tokens | None
) -> TokenPair:
    """Tokenize a prompt pair, and determine which tokens correspond.

    align: whether prompts of unequal length are aligned at the start or end of the tokens that
        differ; None if they must be equally long. target: the decoder's tokens so far. Raises
        UsageError for prompts that are equal or too long, and for unequal lengths without
        ``align``, UnsupportedError if the model cannot join two texts.
    """
    encode = model.encode
    if prompts.second is not None:
        encode = joining(model, prompts.clean, prompts.second).encode
    clean, corrupt = encode(prompts.clean), encode(prompts.corrupt)
    for tokens in (clean, corrupt):
        if model.context is not None and len(tokens) > model.context:
            raise UsageError(
                f"a prompt has {len(tokens):,} tokens, {model.info.name!r} takes at most "
                f"{model.context:,}: shorten it"
            )
    if clean.layout is not None and corrupt.layout is not None:
        grids = [tokens.grids for tokens in (clean.layout, corrupt.layout)]
        if len({tuple(grid[1:3] for grid in own) for own in grids}) > 1:
            sizes = [f"{grid.rows} x {grid.columns}" for grid, *_ in grids]
            raise UsageError(
                f"the images have {sizes[0]} and {sizes[1]} patches: give two of one shape"
            )
    if clean.ids == corrupt.ids:
        raise UsageError("the two prompts have the same tokens: there is no difference to carry")
    if len(clean) == len(corrupt):
        return TokenPair(clean, corrupt, target=target)
    begin, end = _shared(clean, corrupt)
    if align is None:
        raise UsageError(
            f"the prompts have {len(clean)} and {len(corrupt)} tokens, expected the same number; "
            f"they differ in {_against(clean, corrupt, begin, end)}: choose words with the same "
            "number of tokens, or add --align start"
        )
    if not end:
        raise UsageError(
            "--align needs a last token that both prompts share, these end in "
            + _against(clean, corrupt, begin, end)
        )
    if target is not None:
        raise UsageError("--align is for models of one stack: choose prompts of equal length")
    return TokenPair(clean, corrupt, _places(len(clean), len(corrupt), begin, end, align))


def joining(model: Model, text: str, second: str) -> RegionReader:
    """Return a reader that tokenizes ``text``, or another text, joined with ``second``.

    Raises UnsupportedError for a model in NumPy that tells two texts apart, since words that are
    masked or replaced there are no longer these two texts, and for one that cannot join texts.
    """
    if isinstance(model, StackModel) and model.stack.has_segments:
        raise UnsupportedError(
            f"{model.info.name!r} has embeddings for two texts, which torch reads: add --backend "
            "torch"
        )
    reader = region_reader(model, text, RegionOptions(second=second))
    assert reader is not None
    return reader


def _shared(clean: Tokens, corrupt: Tokens) -> tuple[int, int]:
    """Return how many tokens both prompts share at their start, and how many at their end."""
    least = min(len(clean), len(corrupt))
    begin = 0
    while begin < least and clean.ids[begin] == corrupt.ids[begin]:
        begin += 1
    end = 0
    while end < least - begin and clean.ids[-1 - end] == corrupt.ids[-1 - end]:
        end += 1
    return begin, end


def _places(clean: int, corrupt: int, begin: int, end: int, align: Align) -> tuple[int, ...]:
    """Return the index in ``clean`` of each token of ``corrupt``, −1 for none."""
    within, others = clean - begin - end, corrupt - begin - end
    both, first = min(within, others), align == "start"
    start, spare = begin if first else clean - end - both, [-1] * (others - both)
    middle = [*range(start, start + both)]
    return (
        *range(begin),
        *(middle + spare if first else spare + middle),
        *range(clean - end, clean),
    )


def _against(clean: Tokens, corrupt: Tokens, begin: int, end: int) -> str:
    """Return a string of the tokens that differ, such as ``Tom | . (clean), Ann (corrupt)``."""
    sides = []
    for name, tokens in (("clean", clean), ("corrupt", corrupt)):
        differ = token_labels(tokens)[begin : len(tokens) - end]
        words = " | ".join([*differ[:_MOST_SHOWN], *["…"] * (len(differ) > _MOST_SHOWN)])
        sides.append(f"{words or 'nothing'} ({name})")
    return ", ".join(sides)


StudiedPair = Studied[TokenPair, Prompts]
"""One pair of prompts as tokens; its question is the pair as it was given."""


def pair_study(
    model: Model,
    pairs: Sequence[Prompts],
    align: Align | None = None,
    target: str | None = None,
    *,
    copies: bool = False,
    advance: Advance = lambda share: None,
) -> PromptStudy[TokenPair, Prompts]:
    """Return the study of prompt pairs: each tokenized once, those that do not fit left out.

    copies: whether a pair that is given twice stays twice.
    Raises UsageError if no pair fits the model.
    """
    decoder = None
    if isinstance(model, TwoStackModel) and "decoder" in model.kinds:
        decoder = model.encode_target(target or "")
    elif target is not None:
        raise no_decoder(model)

    def studied(_: int, pair: Prompts) -> StudiedPair:
        tokens = encode_pair(model, pair, align, decoder)
        return Studied(both_texts(pair.clean, pair.second), tokens, pair, pair.name)

    read = [pair.changed(lambda text: finished(model, text, answering=True)) for pair in pairs]
    fit, notes = fitting(read, studied, "pairs")
    last = {(pair.given.clean.ids, pair.given.corrupt.ids): at for at, pair in enumerate(fit)}
    kept = fit if copies else [fit[at] for at in sorted(last.values())]
    left = copies_note(len(fit) - len(kept), len(fit), "pairs")
    return PromptStudy(kept, notes, left, advance)


def control_pairs(
    model: Model, pairs: Sequence[TokenPair], direction: Direction, draws: int, seed: int
) -> tuple[list[tuple[int, TokenPair]], int]:
    """Return an unrelated prompt pair for each pair, or ``draws`` of them for a single one.

    Returns (index of the measured pair, the unrelated pair) of each, and how many have random
    tokens as their source.

    A control is the pair with its source, the clean prompt for ``denoise`` and the corrupt one for
    ``noise``, replaced by that of another pair of equal length that differs at all changed tokens;
    without such a pair, the changed tokens are drawn at random from the vocabulary.
    """
    generator, clean = np.random.default_rng(seed), direction == "denoise"
    sources = [pair.clean if clean else pair.corrupt for pair in pairs]
    controls, drawn = list[tuple[int, TokenPair]](), 0
    for index, (pair, own) in enumerate(zip(pairs, sources, strict=True)):
        others = [sources[other] for other in generator.permutation(len(pairs)) if other != index]
        fit = [
            other
            for other in others
            if pair.places is None and len(other) == len(own)
            if all(own.ids[at] != other.ids[at] for at in pair.changed[0])
        ]
        for number in range(draws if len(pairs) == 1 else 1):
            if number < len(fit):
                source = fit[number]
            else:
                changed, drawn = pair.changed[0 if clean else 1], drawn + 1
                source = _randomised(model, own, changed, generator)
            control = replace(pair, clean=source) if clean else replace(pair, corrupt=source)
            controls.append((index, control))
    return controls, drawn


def _randomised(
    model: Model, own: Tokens, changed: Sequence[int], generator: np.random.Generator
) -> Tokens:
    """Return tokens with random ones at the changed positions, or a picture's patches mixed."""
    if own.layout is not None:
        from attnviz.models.picture_texts import PictureTextModel  # with torch

        assert isinstance(model, PictureTextModel)
        return model.scrambled(own, generator)
    vocabulary = model.vocabulary()
    drawn = generator.choice(vocabulary.plain, len(changed)).tolist()
    ids, texts = list(own.ids), list(own.texts)
    for at, number, text in zip(changed, drawn, vocabulary.texts(drawn), strict=True):
        ids[at], texts[at] = number, text
    return replace(own, ids=tuple(ids), texts=tuple(texts))
