"""The tokens of pairs of prompts, one by one or aligned, and the sources of a control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from attnviz.draw.labels import token_labels
from attnviz.engine.patching import Direction, Pair
from attnviz.errors import UsageError
from attnviz.inspect.interventions.prompts import Prompts
from attnviz.models.model import Model
from attnviz.records import Input, Tokens

Align = Literal["start", "end"]
"""From which of its ends the stretch in which two prompts differ is aligned."""

_MOST_SHOWN = 4
"""Tokens shown of the stretch in which prompts differ."""


@dataclass(frozen=True)
class TokenPair:
    """Two encoded prompts.

    places: for each token of ``corrupt`` the one of ``clean`` that it corresponds to, -1 for none;
        None where they correspond one by one.
    target: of an encoder–decoder, what its decoder has written so far.
    """

    clean: Tokens
    corrupt: Tokens
    places: tuple[int, ...] | None = None
    target: Tokens | None = None

    @property
    def engine(self) -> Pair:
        """Return the same for the engine."""
        inputs = Input(self.clean, self.target), Input(self.corrupt, self.target)
        return Pair(*inputs, self.places)

    @property
    def matches(self) -> tuple[tuple[int, int], ...]:
        """(clean, corrupt) tokens that correspond."""
        places = range(len(self.corrupt)) if self.places is None else self.places
        return tuple((place, at) for at, place in enumerate(places) if place >= 0)

    @property
    def changed(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens of either prompt that the other does not have there: clean, corrupt."""
        same = [
            (place, at)
            for place, at in self.matches
            if self.clean.ids[place] == self.corrupt.ids[at]
        ]
        kept = [set(side) for side in zip(*same, strict=True)] or [set(), set()]
        both = zip((self.clean, self.corrupt), kept, strict=True)
        clean, corrupt = (
            tuple(at for at in range(len(tokens)) if at not in some) for tokens, some in both
        )
        return clean, corrupt


def encode_pair(
    model: Model, prompts: Prompts, align: Align | None, target: Tokens | None
) -> TokenPair:
    """Return the tokens of a pair, one by one or aligned.

    Raises UsageError for prompts that are equal, too long, or of lengths that differ.
    """
    clean, corrupt = model.encode(prompts.clean), model.encode(prompts.corrupt)
    for tokens in (clean, corrupt):
        if model.context is not None and len(tokens) > model.context:
            raise UsageError(
                f"a prompt has {len(tokens):,} tokens, {model.info.name!r} takes at most "
                f"{model.context:,}: shorten it"
            )
    if clean.ids == corrupt.ids:
        raise UsageError("the two prompts are the same tokens: there is no difference to carry")
    if len(clean) == len(corrupt):
        return TokenPair(clean, corrupt, target=target)
    begin, end = _shared(clean, corrupt)
    if align is None:
        raise UsageError(
            f"the prompts have {len(clean)} and {len(corrupt)} tokens, expected equally many; they "
            f"differ in {_against(clean, corrupt, begin, end)}: choose words of as many tokens, or "
            "add --align start"
        )
    if not end:
        raise UsageError(
            "--align needs a last token that both prompts share, these end in "
            + _against(clean, corrupt, begin, end)
        )
    if target is not None:
        raise UsageError("--align is for models of one stack: choose prompts of equal length")
    return TokenPair(clean, corrupt, _places(len(clean), len(corrupt), begin, end, align))


def _shared(clean: Tokens, corrupt: Tokens) -> tuple[int, int]:
    """Return how many tokens two prompts share at their start, and of the others at their end."""
    least = min(len(clean), len(corrupt))
    begin = 0
    while begin < least and clean.ids[begin] == corrupt.ids[begin]:
        begin += 1
    end = 0
    while end < least - begin and clean.ids[-1 - end] == corrupt.ids[-1 - end]:
        end += 1
    return begin, end


def _places(clean: int, corrupt: int, begin: int, end: int, align: Align) -> tuple[int, ...]:
    """For each token of ``corrupt`` that of ``clean``: shared ends, and what lies between."""
    within = [length - begin - end for length in (clean, corrupt)]
    both, more = min(within), within[1] - min(within)
    ahead = 0 if align == "start" else within[0] - both
    middle = list(range(begin + ahead, begin + ahead + both))
    spare = [-1] * more
    middle = middle + spare if align == "start" else spare + middle
    return (*range(begin), *middle, *range(clean - end, clean))


def _against(clean: Tokens, corrupt: Tokens, begin: int, end: int) -> str:
    """Return the tokens in which two prompts differ, such as ``Tom | . (clean), Ann (corrupt)``."""
    sides = []
    for name, tokens in (("clean", clean), ("corrupt", corrupt)):
        differ = token_labels(tokens)[begin : len(tokens) - end]
        shown = [*differ[:_MOST_SHOWN], *["…"] * (len(differ) > _MOST_SHOWN)]
        sides.append(f"{' | '.join(shown) or 'nothing'} ({name})")
    return ", ".join(sides)


# The control ---------------------------------------------------------------------------------


class ControlPairs(NamedTuple):
    """Pairs whose source says nothing of the pair that they are measured on.

    pairs: (place of the measured pair, the pair in its stead). drawn: how many of them have random
    tokens where no other pair would do; all of them where there is one pair.
    """

    pairs: tuple[tuple[int, TokenPair], ...]
    drawn: int


def control_pairs(
    model: Model, pairs: Sequence[TokenPair], direction: Direction, draws: int, seed: int
) -> ControlPairs:
    """For each pair ``draws`` in which the source is another pair's, of as many tokens.

    The source is the clean prompt of ``denoise``, the corrupt one of ``noise``. Where no other pair
    has one whose differing tokens are others, random tokens of the vocabulary stand in their place.
    """
    generator = np.random.default_rng(seed)
    found, drawn = [], 0
    for place, pair in enumerate(pairs):
        others = generator.permutation(len(pairs)).tolist()
        fit = [other for other in others if _replaces(pair, pairs[other], direction)][:draws]
        for number in range(draws if len(pairs) == 1 else 1):
            if number < len(fit):
                source = _source(pairs[fit[number]], direction)
            else:
                source, drawn = _randomised(model, pair, direction, generator), drawn + 1
            found.append((place, _with_source(pair, source, direction)))
    return ControlPairs(tuple(found), drawn)


def _source(pair: TokenPair, direction: Direction) -> Tokens:
    return pair.clean if direction == "denoise" else pair.corrupt


def _with_source(pair: TokenPair, source: Tokens, direction: Direction) -> TokenPair:
    if direction == "denoise":
        return replace(pair, clean=source)
    return replace(pair, corrupt=source)


def _replaces(pair: TokenPair, other: TokenPair, direction: Direction) -> bool:
    """Return whether the other pair's source has other tokens wherever this pair's prompts
    differ.
    """
    own, others = _source(pair, direction), _source(other, direction)
    if other is pair or pair.places is not None or len(own) != len(others):
        return False
    return all(own.ids[at] != others.ids[at] for at in pair.changed[0])


def _randomised(
    model: Model, pair: TokenPair, direction: Direction, generator: np.random.Generator
) -> Tokens:
    own = _source(pair, direction)
    vocabulary = model.vocabulary()
    places = pair.changed[0 if direction == "denoise" else 1]
    drawn = generator.choice(vocabulary.plain, len(places)).tolist()
    ids, texts = list(own.ids), list(own.texts)
    for place, number, text in zip(places, drawn, vocabulary.texts(drawn), strict=True):
        ids[place], texts[place] = number, text
    return Tokens(tuple(ids), tuple(texts), own.special)
