"""What heads are asked: examples that they align, and how far what they say is from the truth.

An example is a sound whose words and their times are known, or a sentence pair with gold links.
Sentence pairs: Och & Ney 2003, "A Systematic Comparison of Various Statistical Alignment Models".
Which row of cross attention belongs to a word is tried both ways (Chen et al. 2020, "Accurate Word
Alignment Induction from Neural Machine Translation"): the step that writes it, or the next, which
reads it.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.labels import token_spans
from attnviz.engine.capture import capture, encoded
from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.inspect.align.report import AlignedWord, LinkedWord, TimedWord
from attnviz.measures.divergence import SMOOTH, aligned, standardised
from attnviz.models.model import Model, TwoStackModel
from attnviz.models.speech import SpeechModel
from attnviz.progress import Advance
from attnviz.reading import TEXTS_BYTES, finite, read_bytes, text_lines
from attnviz.records import Floats, Tokens
from attnviz.tables import layout_of, table_rows

Head = tuple[int, int]
Heads = Sequence[int]
"""A set of heads: their indices, layer by layer."""


@dataclass(frozen=True)
class Example(ABC):
    """A clip or a sentence pair, whose words heads align with the other side.

    name: of the clip, or the line of the pair. scores: (head, row, column), the attention weights
    from the tokens of a target (rows) to those of a source, or to frames (columns).
    """

    name: str
    scores: NDArray[np.float32]

    def mean(self, sets: Sequence[Heads]) -> NDArray[np.float32]:
        """Return the mean of the scores of each set of heads: (set, row, column)."""
        shares = np.zeros((len(sets), len(self.scores)), np.float32)
        for at, heads in enumerate(sets):
            shares[at, list(heads)] = 1 / len(heads)
        flat = shares @ self.scores.reshape(len(self.scores), -1)
        return flat.reshape(len(sets), *self.scores.shape[1:])

    @abstractmethod
    def read(self, sets: Sequence[Heads]) -> NDArray[Any]:
        """Return what each set of heads says of each word, seconds or source words: (set, word)."""

    @abstractmethod
    def guess(self) -> NDArray[Any]:
        """Return the same (1, word) without attention: the last control."""

    @abstractmethod
    def facts(self, read: NDArray[Any]) -> Floats:
        """Return what ``HeadStudy.further`` tells more of. read: (set, word)."""

    @abstractmethod
    def wrong(self, read: NDArray[Any]) -> Floats:
        """Return how much is wrong, and of how much: (set, 2). read: (set, word)."""

    @abstractmethod
    def words(self, read: NDArray[Any]) -> Sequence[AlignedWord]:
        """Return each word beside the truth. read: (word,)."""


class HeadStudy(NamedTuple):
    """Examples, and what is told of them.

    heads: (layer, head) of each score, layer by layer. readings: by name the same examples, their
    scores taken from other rows; those with the least error are chosen. further: returns numbers
    by name from the facts of all examples, joined along their last axis. guess: the name of the
    control without attention. frame: in seconds, None for pairs. published: a list of heads that
    others chose. notes: on how the examples were read.
    """

    heads: Sequence[Head]
    readings: Mapping[str, Sequence[Example]]
    further: Callable[[Floats], Mapping[str, float]]
    guess: str
    frame: float | None = None
    published: Sequence[Head] = ()
    notes: Sequence[str] = ()


def cross_weights(
    model: TwoStackModel, tokens: Tokens, target: Tokens, name: str
) -> tuple[list[Head], NDArray[np.float32]]:
    """Return the heads of cross attention, and their weights (head, query, key) over an example.

    Raises UsageError for a target that is too long, and for weights that are not numbers.
    """
    limit = model.target_context
    if limit is not None and len(target) > limit:
        raise UsageError(
            f"{name!r} has {len(target):,} tokens, the decoder takes {limit:,}: cut it there"
        )
    layers = capture(model, tokens, kind="cross", target=target).layers
    weights = np.concatenate([layer.weights for layer in layers])
    if not np.isfinite(weights).all():
        raise UsageError(f"the attention over {name!r} has weights that are not numbers (NaN)")
    return [(layer.layer, head) for layer in layers for head in layer.heads], weights


# Clips of known words -------------------------------------------------------------------------


_LATE = 0.2  # the seconds from which a word is counted as badly timed
_CELLS = 20_000_000  # the most cells of alignments that are computed at once


class Spoken(NamedTuple):
    """A word, and the seconds at which it begins and ends."""

    word: str
    start: float
    end: float


class Clips(NamedTuple):
    """Clips: the paths of their sounds and their words, by the names of the clips."""

    paths: Mapping[str, str]
    words: Mapping[str, Sequence[Spoken]]


_WORD_COLUMNS = ("clip", "word", "start", "end")
_WORDS_EXPECTED = ", ".join(_WORD_COLUMNS)


def read_words(path: Path) -> dict[str, list[Spoken]]:
    """Return the words of each clip in the order in which they begin, by the name of the clip.

    Raises LoadError for a file that is no such table, with the line of the mistake.
    """
    source = repr(str(path))
    layout, lines = layout_of(path, text_lines(read_bytes(path, most=TEXTS_BYTES), source))
    if len(layout) > 1 and "json" not in layout:
        raise LoadError(
            f"{source} is not a table: expected .csv, .tsv or .json with {_WORDS_EXPECTED}"
        )
    clips: dict[str, list[Spoken]] = {}
    for number, row in table_rows(layout, lines, source):
        where = f"{source} line {number}" if len(layout) == 1 else f"{source} entry {number}"
        if not isinstance(row, dict) or not all(name in row for name in _WORD_COLUMNS):
            raise LoadError(f"{where} lacks a column: expected {_WORDS_EXPECTED}")
        try:
            start, end = (finite(float(row[name])) for name in ("start", "end"))
        except (TypeError, ValueError) as error:
            raise LoadError(f"{where} has no seconds in start and end") from error
        word = str(row["word"]).strip()
        if not word or not 0 <= start < end < math.inf:
            raise LoadError(
                f"{where} has {word!r} from {start:g} to {end:g} s: expected a word, and an end "
                "after its start"
            )
        clips.setdefault(str(row["clip"]).strip(), []).append(Spoken(word, start, end))
    if not clips:
        raise LoadError(f"{source} has no words: expected {_WORDS_EXPECTED}")
    return {name: sorted(words, key=lambda word: word.start) for name, words in clips.items()}


def find_clips(audio: Sequence[str], words: Mapping[str, list[Spoken]]) -> dict[str, str]:
    """Return the path of each clip's sound by the clip's name, in the order of the names.

    audio: files and directories. A clip is called as its file, with or without the ending.
    Raises LoadError for a missing file, UsageError for fewer than two clips with a sound.
    """
    paths: dict[str, str] = {}
    for given in audio:
        path = Path(given)
        if not path.exists():
            raise LoadError(f"no file or directory {given!r} here")
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        for file in files:
            for name in (file.name, file.stem, str(file)):
                if name in words:
                    paths.setdefault(name, str(file))
    if len(paths) < 2:
        first = next(iter(words))
        raise UsageError(
            f"{len(paths)} of {len(words)} clips have audio, such as {first!r}: expected two or "
            "more, one half to choose heads and one to report"
        )
    return dict(sorted(paths.items()))


@dataclass(frozen=True)
class Clip(Example):
    """A clip: its words, and the standardised weights (head, token, frame) of the recipe.

    firsts: the number of tokens before each word, and of all. frame: in seconds. ends: whether a
    row tells when its token ends, not when it begins.
    """

    spoken: Sequence[Spoken]
    firsts: Sequence[int]
    seconds: float
    frame: float
    ends: bool

    def read(self, sets: Sequence[Heads]) -> Floats:
        """Return the seconds (set, word + 1) at which words begin by sets of heads, and the end."""
        chunk = max(1, _CELLS // self.scores[0].size)
        parts = [sets[start : start + chunk] for start in range(0, len(sets), chunk)]
        tokens = np.concatenate([aligned(self.mean(some)) for some in parts])
        if self.ends:
            tokens = np.insert(tokens, 0, 0, axis=1)
        return tokens[:, list(self.firsts)] * self.frame

    def guess(self) -> Floats:
        """Return the same (1, word + 1) if tokens were spread evenly over the sound."""
        return (np.asarray(self.firsts) / self.firsts[-1] * self.seconds)[None]

    def facts(self, read: Floats) -> Floats:
        """Return how far in seconds the beginning of each word is from the truth: (set, word)."""
        return np.abs(read[:, :-1] - [word.start for word in self.spoken])

    def wrong(self, read: Floats) -> Floats:
        means = self.facts(read).mean(axis=1)
        return np.stack([means, np.ones_like(means)], axis=1)

    def words(self, read: Floats) -> list[TimedWord]:
        times = read.tolist()
        return [
            TimedWord(self.name, word.word, word.start, word.end, times[at], times[at + 1])
            for at, word in enumerate(self.spoken)
        ]


def heard(model: Model, clips: Clips, recipe: str, advance: Advance) -> HeadStudy:
    """Return what a model of speech is asked of clips.

    recipe: which rows of cross attention are aligned. ``openai`` takes those that write each token
    and the end; ``transformers`` those that read it. advance: see ``align``.
    """
    assert isinstance(model, SpeechModel)
    ends, examples, notes = recipe == "transformers", list[Clip](), list[str]()
    width = getattr(model.model.config, "median_filter_width", SMOOTH)
    for at, (name, path) in enumerate(clips.paths.items()):
        sound, words = model.hear(path), clips.words[name]
        ids = [model.word_ids(word.word) for word in words]
        target = model.transcript(sound.starts, ids)
        late = next((word for word in words if word.start >= sound.file.seconds), None)
        if late is not None:
            raise UsageError(
                f"{late.word!r} begins at {late.start:g} s, {name!r} ends at "
                f"{sound.file.seconds:.2f} s of what is read"
            )
        heads, weights = cross_weights(model, sound.tokens, target, name)
        weights = weights[:, len(sound.starts) - (not ends) :, : sound.heard]
        firsts = np.cumsum([0, *map(len, ids)]).tolist()
        scores = standardised(weights, width)
        sizes = {"seconds": sound.file.seconds, "frame": model.frame_seconds}
        examples.append(Clip(name, scores, words, firsts, ends=ends, **sizes))
        notes += sound.file.notes
        model.forget(sound)
        advance((at + 1) / len(clips.paths))
    return HeadStudy(
        heads,
        {recipe: examples},
        lambda off: {"median": float(np.median(off)), "late": float(np.mean(off > _LATE))},
        "even spacing",
        frame=model.frame_seconds,
        published=model.published,
        notes=notes,
    )


# Sentence pairs with gold links ---------------------------------------------------------------


_PAIR_COLUMNS = ("source", "target", "alignment")
_BETWEEN = re.compile(r" *(?:\|\|\||\t) *")
_LINK = re.compile(r"(\d{1,6})([-?p])(\d{1,6})")
_PAIR_EXPECTED = "source ||| target ||| 0-0 1-2 2?1"
_AS_JSON = '{"source": "a b", "target": "x y", "alignment": "0-0 1?1"}'

Link = tuple[int, int]
"""A source word and a target word, from 0."""


class GoldPair(NamedTuple):
    """A sentence pair: its words, and its gold links.

    name: its line in the file. possible: has the sure links, too.
    """

    name: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    sure: frozenset[Link]
    possible: frozenset[Link]


class GoldPairs(NamedTuple):
    """Sentence pairs. prefix: what stands before each source. notes: on how they were read."""

    pairs: Sequence[GoldPair]
    prefix: str = ""
    notes: tuple[str, ...] = ()


def read_gold(given: Path | Iterable[Mapping[str, Any]], prefix: str = "") -> GoldPairs:
    """Return the sentence pairs of a file, or of mappings with source, target and alignment.

    The file has a pair a line, its three parts between ``|||`` or tabs, or is CSV or JSON with
    these columns. Words stand between blanks; ``0-2`` is a sure link, ``0?2`` or ``0p2`` a possible
    one. Links count from 1 if none names 0, and some would else be beyond its sentence.

    Raises LoadError for a damaged row, which it names, UsageError for fewer than two pairs.
    """
    if isinstance(given, str) or not isinstance(given, Path | Iterable):
        raise UsageError(
            f"expected a list of pairs {_AS_JSON}, or a file of them: got {given!r:.40}"
        )
    where = f"{str(given)!r} line" if isinstance(given, Path) else "pair"
    rows = _file_rows(given) if isinstance(given, Path) else enumerate(given, start=1)
    pairs = [_linked(row, str(number), f"{where} {number}") for number, row in rows]
    notes = list[str]()
    once = {pair[1:]: pair for pair in reversed(pairs)}
    if len(once) < len(pairs):
        notes.append(f"{len(pairs) - len(once)} of {len(pairs)} pairs are repeated: left out")
        pairs = [pair for pair in pairs if once[pair[1:]] is pair]
    if len(pairs) < 2:
        raise UsageError(
            f"expected two or more sentence pairs, one half to choose heads and one to report, got "
            f"{len(pairs)}: {_PAIR_EXPECTED}"
        )
    if not any(pair.possible for pair in pairs):
        raise UsageError(f"no pair has a gold link to compare with: expected {_PAIR_EXPECTED}")
    first = 0
    if _beyond(pairs) and not any(0 in link for pair in pairs for link in pair.possible):
        for at, pair in enumerate(pairs):
            sure, possible = (
                frozenset((source - 1, target - 1) for source, target in links)
                for links in pair[3:]
            )
            pairs[at] = pair._replace(sure=sure, possible=possible)
        notes.append("the links count words from 1: none names 0")
        first = 1
    for pair, (source, target) in _beyond(pairs)[:1]:
        raise LoadError(
            f"{where} {pair.name} links words {source + first} and {target + first}, beyond its "
            f"sentences of {len(pair.source)} and {len(pair.target)} words: words count from "
            f"{first}{', as no link names 0' if first else ' where a link names 0'}"
        )
    return GoldPairs(pairs, prefix, tuple(notes))


def _file_rows(path: Path) -> Iterator[tuple[int, Any]]:
    source = repr(str(path))
    layout, lines = layout_of(path, text_lines(read_bytes(path, most=TEXTS_BYTES), source))
    if "json" in layout or path.suffix.lower() == ".csv":
        yield from table_rows(layout, lines, source)
        return
    for number, line in enumerate(lines, start=1):
        cells = _BETWEEN.split(line.strip(" "))
        if line.strip() and not (number == 1 and [*map(str.lower, cells)] == [*_PAIR_COLUMNS]):
            yield (
                number,
                dict(zip(_PAIR_COLUMNS, cells, strict=False)) if len(cells) == 3 else cells,
            )


def _linked(row: Any, name: str, where: str) -> GoldPair:
    """Return a sentence pair of a row. where: names it in messages."""
    if not isinstance(row, Mapping) or not all(
        isinstance(row.get(key), str) for key in _PAIR_COLUMNS
    ):
        raise LoadError(
            f"{where} is not a sentence pair with links: expected {_PAIR_EXPECTED}, in JSON "
            f"{_AS_JSON}, in a table the header source, target, alignment"
        )
    source, target = (tuple(row[key].split()) for key in _PAIR_COLUMNS[:2])
    if not source or not target:
        raise LoadError(f"{where} has no words on one side: expected {_PAIR_EXPECTED}")
    read = [(text, _LINK.fullmatch(text)) for text in row["alignment"].split()]
    for text, match in read:
        if match is None:
            raise LoadError(f"{where} has {text!r} for a link: expected 0-2, or 0?2 if possible")
    links = [(match[2], (int(match[1]), int(match[3]))) for _, match in read if match]
    sure = frozenset(link for sign, link in links if sign == "-")
    return GoldPair(name, source, target, sure, frozenset(link for _, link in links))


def _beyond(pairs: Sequence[GoldPair]) -> list[tuple[GoldPair, Link]]:
    """Return the links to words that a pair does not have, each behind its pair."""
    return [
        (pair, link)
        for pair in pairs
        for link in sorted(pair.possible)
        if link[0] >= len(pair.source) or link[1] >= len(pair.target)
    ]


@dataclass(frozen=True)
class Sentence(Example):
    """A sentence pair; its scores are the weights (head, target word, source word).

    gold: (link, target word, source word), the sure links and the possible ones.
    """

    pair: GoldPair
    gold: NDArray[np.bool_]

    def read(self, sets: Sequence[Heads]) -> NDArray[np.intp]:
        """Return the source word (set, target word) with the largest weight by sets of heads."""
        return self.mean(sets).argmax(axis=-1)

    def guess(self) -> NDArray[np.intp]:
        """Return the source words (1, target word) on the diagonal."""
        source, target = len(self.pair.source), len(self.pair.target)
        return ((np.arange(target) + 0.5) * source / target).astype(np.intp)[None]

    def facts(self, read: NDArray[np.intp]) -> Floats:
        """Return |A ∩ S|, |A ∩ P|, |A| and |S|, each (set,).

        A are the links that were read, S the sure ones and P the possible ones of the gold.
        """
        hits = self.gold[:, np.arange(read.shape[1]), read].sum(axis=-1)  # (sure or possible, set)
        sizes = [np.full(len(read), size) for size in (read.shape[1], len(self.pair.sure))]
        return np.stack([*hits, *sizes]).astype(np.float64)

    def wrong(self, read: NDArray[np.intp]) -> Floats:
        """Return |A| + |S| − |A ∩ S| − |A ∩ P| and |A| + |S|, whose quotient is the error rate."""
        sure, possible, links, whole = self.facts(read)
        return np.stack([links + whole - sure - possible, links + whole], axis=1)

    def words(self, read: NDArray[np.intp]) -> list[LinkedWord]:
        pair, words = self.pair, list[LinkedWord]()
        for at, source in enumerate(read.tolist()):
            sure, possible = self.gold[:, at]
            link = "sure" if sure[source] else "possible" if possible[source] else "wrong"
            words.append(
                LinkedWord(
                    pair=pair.name,
                    position=at,
                    word=pair.target[at],
                    gold=" ".join(pair.source[index] for index in np.flatnonzero(possible)),
                    by_heads=pair.source[source],
                    source=source,
                    link=link if possible.any() else "none",
                )
            )
        return words


def _precision_and_recall(counts: Floats) -> dict[str, float]:
    """Return precision and recall of the counts of all pairs, see ``Sentence.facts``."""
    sure, possible, links, whole = counts.sum(axis=-1).tolist()
    return {"precision": possible / links, "recall": sure / whole if whole else math.nan}


def paired(model: Model, given: GoldPairs, advance: Advance) -> HeadStudy:
    """Return what a model that translates is asked of sentence pairs.

    The weight of two words is the sum over the pieces of the source word, in the mean of the rows
    of the target word's pieces. advance: see ``align``.
    """
    if not isinstance(model, TwoStackModel) or isinstance(model, SpeechModel):
        raise UnsupportedError(
            f"{model.info.name!r} translates no text: --pairs takes an encoder–decoder, such as "
            "Helsinki-NLP/opus-mt-en-de"
        )
    readings: dict[str, list[Sentence]] = {"writes": [], "reads": []}
    heads: list[tuple[int, int]] = []
    left = list[str]()
    for at, pair in enumerate(given.pairs):
        source, target = " ".join(pair.source), " ".join(pair.target)
        before = f"{given.prefix.strip()} ".lstrip()
        tokens = encoded(model, before + source, truncate=None)
        written = model.encode_target(target)
        keys = word_pieces(tokens, before + source, pair.source, len(before))
        rows = word_pieces(written, target, pair.target)
        advance((at + 1) / len(given.pairs))
        if keys is None or rows is None:
            left.append(pair.name)
            continue
        heads, weights = cross_weights(model, tokens, written, f"pair {pair.name}")
        gold = np.zeros((2, len(pair.target), len(pair.source)), np.bool_)
        for kind, links in enumerate((pair.sure, pair.possible)):
            for from_word, to_word in links:
                gold[kind, to_word, from_word] = True
        for way, back in (("writes", 1), ("reads", 0)):
            own = np.stack(
                [weights[:, [row - back for row in word]].mean(axis=1) for word in rows], 1
            )
            scores = np.stack([own[..., word].sum(axis=-1) for word in keys], axis=-1)
            readings[way].append(Sentence(pair.name, scores, pair, gold))
    spelled = f"the tokens of {len(left)} of {len(given.pairs)} pairs do not spell their words"
    if len(readings["reads"]) < 2:
        raise UsageError(f"{spelled}: write them as {model.info.name!r} does")
    lines = ", ".join(left[:3]) + ", …" * (len(left) > 3)
    notes = [*given.notes, *[f"{spelled}: left out (line {lines})"] * bool(left)]
    return HeadStudy(heads, readings, _precision_and_recall, "diagonal", notes=notes)


def word_pieces(
    tokens: Tokens, text: str, words: Sequence[str], begins: int = 0
) -> list[list[int]] | None:
    """Return the indices of the tokens of each word; None if a word has none.

    text: what the tokens spell, in which the words, a blank between each two, begin at ``begins``.
    A blank that is a token of its own belongs to the word after it.
    """
    spans = token_spans(tokens, text)
    starts = list(accumulate((len(word) + 1 for word in words[:-1]), initial=begins))
    pieces: list[list[int]] = [[] for _ in words]
    for at, (start, stop) in enumerate(spans):
        first = len(text) - len(text[start:].lstrip())
        word = bisect(starts, first) - 1
        if start < stop and word >= 0:  # what the tokenizer added has an empty span
            pieces[word].append(at)
    return pieces if all(pieces) else None
