"""Hides facts in a long text, asks for each of them, and knows at which tokens they stand.

The needle in a haystack (Kamradt 2023): each haystack holds several needles at different depths,
and ends with the cue of one of them; the others are not asked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

import numpy as np

from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.retrieve.request import Needle, RetrieveRequest
from attnviz.models.model import Model, PlacingModel
from attnviz.reading import PACKAGED
from attnviz.texts import natural_texts, read_text

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # where needles stand: the share of the haystack before them

DEFAULT_LENGTHS = (256, 512, 1000)
"""The lengths in tokens if none are given and the context holds them."""

_BUILT_IN = PACKAGED / "probes" / "needles.tsv"
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+|(?<=[。！？])")
_LONGEST = 300  # the most characters of a haystack between which no needle can stand
_FEWEST = 2  # the fewest needles in a haystack: one to ask for, and one that is not asked for
Ids = tuple[int, ...]


@dataclass(frozen=True)
class Question:
    """A prompt: a haystack, at its end the cue of one needle, and that needle's answer.

    depth: the index in ``DEPTHS`` of the needle's place.
    start: the index of the answer's first token. span: the needle's tokens in the haystack. right:
    for each token of the answer, the positions in ``span`` of the same token.
    others: for each token of the answer, the tokens at that place of answers that are not asked
    for. text: the haystack's tokens.
    """

    length: int
    depth: int
    ids: Ids
    start: int
    span: range
    right: tuple[Ids, ...]
    others: tuple[Ids, ...]
    text: range

    def shuffled(self, seed: Sequence[int]) -> Question:
        """Return the question with the haystack's tokens, needles included, in random order."""
        order = np.random.default_rng(seed).permutation(self.text).tolist()
        moved = dict(zip(order, self.text, strict=True))
        ids = (*self.ids[: self.text.start], *(self.ids[position] for position in order))
        right = tuple(tuple(map(moved.__getitem__, positions)) for positions in self.right)
        return replace(self, ids=ids + self.ids[self.text.stop :], right=right)


class Material(NamedTuple):
    """The token ids from which haystacks are put together.

    before: the tokens before every text. between: a chat template's tokens between a question and
    its answer. needles: (cue, answer, end) of each fact; the first ``asked`` may be asked for.
    sentences: those of the text in which facts are hidden.
    """

    before: Ids
    needles: tuple[tuple[Ids, Ids, Ids], ...]
    asked: int
    sentences: tuple[Ids, ...]
    between: Ids = ()


def read_sentences(file: Path | None) -> tuple[str, ...]:
    """Return the sentences of a file, or of the built-in passages if it is None."""
    text = "\n".join(natural_texts()) if file is None else read_text(None, file, "retrieve")
    return sentences_of(text)


def sentences_of(text: str) -> tuple[str, ...]:
    """Return the sentences of a text; a long one is split into pieces."""
    return tuple(piece for part in _SENTENCE.split(text) for piece in wrap(part, _LONGEST))


def needles_of(request: RetrieveRequest) -> tuple[tuple[Needle, ...], int]:
    """Return the facts to hide, filled up with built-in ones, and how many may be asked for."""
    lines = _BUILT_IN.read_text(encoding="utf-8").splitlines()
    built_in = [Needle(*line.split("\t")) for line in lines]
    given = request.needles or tuple(built_in)
    fill = [needle for needle in built_in if needle not in given]
    return (*given, *fill[: max(len(DEPTHS) - len(given), 0)]), len(given)


def material(model: Model, sentences: Sequence[str], request: RetrieveRequest) -> Material:
    """Return the tokens of needles and sentences, tokenized together as one text.

    In a chat, the answer is the beginning of what the assistant says.
    Raises UnsupportedError if the tokenizer does not know where its tokens stand in a text, or if
    there is no template for a chat.
    """
    if not isinstance(model, PlacingModel):
        raise UnsupportedError(f"{model.info.name!r} does not know where its tokens stand")
    needles, asked = needles_of(request)
    facts = ((f"{needle.cue} ", needle.answer, ". ") for needle in needles)
    opened, closed = "", ""  # before a user's message, and between it and an answer
    if request.chat:
        if model.chat_template is None:
            raise UnsupportedError(f"{model.info.name!r} has no chat template: leave out --chat")
        from attnviz.models.chats import chat_text

        message = {"role": "user", "content": "x"}
        chat, [(start, end)], _ = chat_text(model.info.name, model.chat_template, [message], True)
        opened, closed = chat[:start], chat[end:]
    of_sentences = (f"{sentence} " for sentence in sentences)
    pieces = [opened, closed, *chain.from_iterable(facts), *of_sentences]
    text, ends = "".join(pieces), np.cumsum([*map(len, pieces)])
    tokens, spans, sides = model.placed(text, bare=request.chat)
    by_piece: list[list[int]] = [[] for _ in pieces]
    for number, (first, last), side in zip(tokens.ids, spans, sides, strict=True):
        if side is not None and last > first:
            first += min(len(text[first:last]) - len(text[first:last].lstrip()), last - first - 1)
            by_piece[int(np.searchsorted(ends, first, "right"))].append(number)
    before, between, *ids = map(tuple, by_piece)
    if not request.chat:
        before = model.vocabulary().before.ids
    count = 3 * len(needles)
    cut = tuple(zip(ids[:count:3], ids[1:count:3], ids[2:count:3], strict=True))
    return Material(before, cut, asked, (*filter(None, ids[count:]),), between)


def questions(made_of: Material, length: int, number: int, seed: int) -> tuple[Question, ...]:
    """Return the questions about one haystack: one for each of its needles that may be asked for.

    length: of the prompt with an answer, in tokens. number: of the haystack; the next number moves
    each needle to the next depth. seed: of the choice of needles and sentences.
    Raises UsageError if the needles do not fit into the length.
    """
    draw = np.random.default_rng((seed, length, number))
    order = draw.permutation(made_of.asked).tolist()
    every = [*order, *range(made_of.asked, len(made_of.needles))][: len(DEPTHS)]
    asked, needles = min(len(order), len(DEPTHS)), [made_of.needles[at] for at in every]
    while len(needles) > _FEWEST and _taken(made_of, needles) > length // 2:
        needles.pop()
    room = length - _taken(made_of, needles)
    if room < 1 or not all(cue and answer for cue, answer, _ in needles):
        raise UsageError(
            f"a length of {length:,} tokens leaves no room for a haystack: {len(needles)} needles "
            f"and a question take {length - room:,}; give longer --lengths or shorter needles"
        )
    start = int(draw.integers(len(made_of.sentences)))
    hay: list[Ids] = []
    for sentence in islice(cycle(made_of.sentences), start, None):
        hay.append(sentence[:room])
        room -= len(hay[-1])
        if room < 1:
            break
    depths = [(needle + number) % len(DEPTHS) for needle in range(len(needles))]
    sizes = np.cumsum([0, *map(len, hay)])
    at = [int(np.searchsorted(sizes, DEPTHS[depth] * sizes[-1])) for depth in depths]
    ids, starts = [*made_of.before], dict[int, int]()
    for before, sentence in enumerate([*hay, ()]):
        for needle in (needle for needle in range(len(needles)) if at[needle] == before):
            starts[needle] = len(ids)
            ids += chain.from_iterable(needles[needle])
        ids += sentence
    answers = [starts[needle] + len(cue) for needle, (cue, _, _) in enumerate(needles)]
    about = []
    for needle, (cue, answer, _) in enumerate(needles[:asked]):
        span = range(starts[needle], answers[needle] + len(answer))
        unasked = [(answers[at], len(needles[at][1])) for at in starts if at != needle]
        about.append(
            Question(
                length=length,
                depth=depths[needle],
                ids=(*ids, *cue, *made_of.between, *answer),
                start=len(ids) + len(cue) + len(made_of.between),
                span=span,
                right=tuple(tuple(at for at in span if ids[at] == token) for token in answer),
                others=tuple(
                    tuple(first + step for first, tokens in unasked if step < tokens)
                    for step in range(len(answer))
                ),
                text=range(len(made_of.before), len(ids)),
            )
        )
    return tuple(about)


def _taken(made_of: Material, needles: Sequence[tuple[Ids, Ids, Ids]]) -> int:
    question = max(len(cue) + len(answer) for cue, answer, _ in needles)
    frame = len(made_of.before) + len(made_of.between)
    return frame + sum(map(len, chain.from_iterable(needles))) + question
