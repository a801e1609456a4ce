"""The scene: which head, token and mode are shown. Immutable: each change makes a new one."""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal, get_args

import numpy as np

from attnviz.draw.axes import Axes
from attnviz.draw.labels import token_labels, visible
from attnviz.draw.numbers import NumberScale
from attnviz.draw.palette import PALETTES
from attnviz.engine.generation import Sampling, Step, written
from attnviz.engine.head_run import Head
from attnviz.engine.removals import Effects
from attnviz.errors import UsageError
from attnviz.inspect.explore.session import Floats, Frame, Mode, unlike
from attnviz.inspect.heads.links import LONGEST, link_names
from attnviz.measures.sinks import sink_of
from attnviz.measures.words import word_spans
from attnviz.records import AttentionRecord, Tokens

Side = Literal["a", "b", "difference"]
"""Which of two sides is shown: the first, the second, or their difference."""

SIDES: tuple[Side, ...] = get_args(Side)

PALETTE_NAMES = tuple(PALETTES)


@dataclass(frozen=True)
class Scene:
    """What is shown of a frame, and how.

    heads: every (layer, head), in order. labels: the label of each.
    queries, keys: how many tokens the axes have. across: whether they are two texts; else the
        cursor stands on one token, whose row and column light up.
    head: the one that is shown. query, key: the place of the cursor.
    removed: heads whose outputs are zero. index_base: 0 or 1, the first number in names.
    """

    heads: tuple[Head, ...]
    labels: tuple[str, ...]
    queries: int
    keys: int
    across: bool
    head: Head
    query: int = 0
    key: int = 0
    mode: Mode = "raw"
    removed: frozenset[Head] = field(default=frozenset())
    palette: str = PALETTE_NAMES[0]
    side: Side = "a"
    index_base: int = 0

    @classmethod
    def of(cls, frame: Frame, palette: str = PALETTE_NAMES[0]) -> Scene:
        """Return the first scene of a frame: its most notable head, its last token."""
        report = frame.report
        heads = tuple(sorted((entry.layer, entry.head) for entry in report.heads))
        first = report.notable[0] if report.notable else heads[0]
        record = report.record
        start = cls(heads, (), 0, 0, False, first, palette=palette, index_base=report.index_base)
        return start.over(frame).at(len(record.queries) - 1, len(record.keys) - 1)

    def over(self, frame: Frame) -> Scene:
        """Return the same scene of another frame; head and cursor stay if the frame has them."""
        report, record = frame.report, frame.report.record
        names = {(entry.layer, entry.head): entry.label.name for entry in report.heads}
        heads = tuple(sorted(names))
        return replace(
            self,
            heads=heads,
            labels=tuple(names[head] for head in heads),
            queries=len(record.queries),
            keys=len(record.keys),
            across=record.kind == "cross",
            head=self.head if self.head in names else heads[0],
            removed=frame.removed,
            index_base=report.index_base,
        ).at(self.query, self.key)

    def sized(self, queries: int, keys: int) -> Scene:
        """Return the same scene over a text that has grown or shrunk."""
        return replace(self, queries=queries, keys=keys).at(self.query, self.key)

    # Tokens ----------------------------------------------------------------------------------

    def at(self, query: int, key: int) -> Scene:
        """Return the scene with its cursor on a query and a key, or on the nearest that exist."""
        return replace(self, query=_within(query, self.queries), key=_within(key, self.keys))

    def with_token(self, place: int) -> Scene:
        """Return the scene with its cursor on a token: as query and, unless ``across``, as key."""
        return self.at(place, self.key if self.across else place)

    def found(self, tokens: Tokens, typed: str, step: int = 1) -> Scene:
        """Return the scene at the next (−1: the previous) token with the typed text, cyclically.

        tokens: of the queries. If none has the text the scene stays as it is.
        """
        places = places_of(tokens, typed)
        if not places:
            return self
        if step > 0:
            place = next((at for at in places if at > self.query), places[0])
        else:
            place = next((at for at in reversed(places) if at < self.query), places[-1])
        return self.with_token(place)

    # Heads -----------------------------------------------------------------------------------

    def with_head(self, head: Head) -> Scene:
        """Return the scene with another head; unchanged if there is no such head."""
        return replace(self, head=head) if head in self.heads else self

    def next_head(self, step: int = 1) -> Scene:
        """Return the scene so many heads further, in the order of layers; not beyond the ends."""
        return self._head_at(self.heads.index(self.head) + step)

    def next_layer(self, step: int = 1) -> Scene:
        """Return the scene so many layers further, at the same head number or the nearest below."""
        layers = list(dict.fromkeys(layer for layer, _ in self.heads))
        layer = layers[_within(layers.index(self.head[0]) + step, len(layers))]
        within = [head for head in self.heads if head[0] == layer]
        return replace(
            self, head=max((h for h in within if h[1] <= self.head[1]), default=within[0])
        )

    def in_layer(self, step: int) -> Scene:
        """Return the scene so many heads further in the same layer; not beyond its ends."""
        within = [head for head in self.heads if head[0] == self.head[0]]
        return replace(self, head=within[_within(within.index(self.head) + step, len(within))])

    def next_same_label(self, step: int = 1) -> Scene:
        """Return the scene at the next (−1: the previous) head with the same label, cyclically."""
        label = self.labels[self.heads.index(self.head)]
        same = [head for head, name in zip(self.heads, self.labels, strict=True) if name == label]
        return replace(self, head=same[(same.index(self.head) + step) % len(same)])

    def next_of(self, ranking: Sequence[Head], step: int = 1) -> Scene:
        """Return the scene at the next head of a ranking; at its first if the head is not in it."""
        if not ranking:
            return self
        place = ranking.index(self.head) + step if self.head in ranking else 0
        return self.with_head(ranking[_within(place, len(ranking))])

    def _head_at(self, place: int) -> Scene:
        return replace(self, head=self.heads[_within(place, len(self.heads))])

    def toggled(self, head: Head | None = None) -> Scene:
        """Return the scene with a head (by default the shown one) removed, or put back."""
        return replace(self, removed=self.removed ^ {head or self.head})

    def without(self, removed: frozenset[Head]) -> Scene:
        """Return the scene with exactly these heads removed."""
        return replace(self, removed=removed)

    def cleared(self) -> Scene:
        """Return the scene with every head put back."""
        return replace(self, removed=frozenset())

    # The view --------------------------------------------------------------------------------

    def with_mode(self, mode: Mode) -> Scene:
        return replace(self, mode=mode)

    def with_side(self, side: Side) -> Scene:
        return replace(self, side=side)

    def next_palette(self) -> Scene:
        """Return the scene with the next palette, cyclically."""
        place = PALETTE_NAMES.index(self.palette) + 1
        return replace(self, palette=PALETTE_NAMES[place % len(PALETTE_NAMES)])

    def name(self, head: Head) -> str:
        """Return a head's name, such as ``L2H5``."""
        return f"L{head[0] + self.index_base}H{head[1] + self.index_base}"


def _within(place: int, count: int) -> int:
    return min(max(place, 0), max(count - 1, 0))


def places_of(tokens: Tokens, typed: str) -> tuple[int, ...]:
    """Return the places of the tokens in which the typed text begins, ignoring case.

    The text may run over several tokens; if it is found nowhere, its words are searched.
    """
    wanted = typed.casefold()
    if not wanted.strip():
        return ()
    starts, folded = [], ""
    for text in tokens.texts:
        starts.append(len(folded))
        folded += text.casefold()
    places, at = [], folded.find(wanted)
    while at >= 0:
        places.append(max(place for place, start in enumerate(starts) if start <= at))
        at = folded.find(wanted, at + 1)
    return tuple(dict.fromkeys(places)) or tuple(span.start for span in word_spans(tokens, typed))


# All that is seen ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """The continuation that the model writes.

    steps: the tokens so far. at: how many of them are shown. running: whether more will come.
    """

    sampling: Sampling
    steps: tuple[Step, ...] = ()
    at: int = 0
    running: bool = True
    paused: bool = False


@dataclass(frozen=True)
class View:
    """Everything that the panes draw.

    frame: the text without the removed heads; whole: with all heads. other: the second side, if
        there is one; else, if heads are removed, the whole model is the second side.
    effects: the effect of each removal, if known; scanned: the share done of a running scan.
    by_effect: whether the grid shows effects.
    written: what the model writes after the text of ``frame``; its weights are raw.
    """

    scene: Scene
    frame: Frame
    whole: Frame
    other: Frame | None = None
    effects: Effects | None = None
    scanned: float | None = None
    by_effect: bool = False
    written: Written | None = None

    def with_written(self, written: Written) -> View:
        """Return the view of a text being written, the cursor where the newest token looked."""
        view = replace(self, written=written)
        scene = view.scene.sized(len(view.record.queries), len(view.record.keys))
        return replace(view, scene=scene.at(*view.newest) if written.at else scene)

    @property
    def against(self) -> Frame | None:
        """Return the other side, or None if there is only one."""
        return self.other or (self.whole if self.frame.removed else None)

    @property
    def shown(self) -> Frame:
        """Return the frame of the side that is shown."""
        return self.against or self.frame if self.scene.side == "b" else self.frame

    @property
    def comparable(self) -> bool:
        """Return whether there are two sides that have a difference."""
        return self.against is not None and not self.unlike

    @property
    def unlike(self) -> str:
        """Return why the two sides have no difference of this head; empty if they have one."""
        if self.against is None:
            return ""
        return unlike(self.frame, self.against, self.scene.head)

    def fitted(self, removed: frozenset[Head] | None = None) -> View:
        """Return the view with its scene fitted to its side; ``removed`` replaces the removals."""
        view = self
        if self.against is None or (self.scene.side == "difference" and self.unlike):
            view = replace(self, scene=self.scene.with_side("a"))
        gone = self.frame.removed if removed is None else removed
        scene, record = view.scene.over(view.shown).without(gone), view.record
        return replace(view, scene=scene.sized(len(record.queries), len(record.keys)))

    @property
    def dark(self) -> bool:
        """Return whether the shown head is one whose output is zero."""
        gone = self.scene.removed if self.scene.side == "a" else self.shown.removed
        return self.scene.side != "difference" and self.scene.head in gone

    @cached_property
    def record(self) -> AttentionRecord:
        """Return the record that is shown; with written tokens it has no weights."""
        record = self.shown.report.record
        if self.written is None or not self.written.at:
            return record
        grown = written(record.queries, self.written.steps[: self.written.at])
        keys = record.keys if record.kind == "cross" else grown
        return replace(record, queries=grown, keys=keys, layers=())

    @cached_property
    def weights(self) -> Floats:
        """Return the (query, key) weights of the chosen head; NaN if there is none yet.

        Raises UsageError if the mode is not available.
        """
        scene = self.scene
        if scene.side == "difference" and self.against is not None:
            if self.unlike:
                raise UsageError(self.unlike)
            a, b = (one.weights(scene.head, scene.mode) for one in (self.frame, self.against))
            return b - a if self.other is not None else a - b
        weights = self.shown.weights(scene.head, scene.mode)
        if self.written is None or not self.written.at:
            return weights
        grown = np.full((len(self.record.queries), len(self.record.keys)), np.nan)
        grown[: len(weights), : weights.shape[1]] = weights
        layer, head = scene.head
        for step in self.written.steps[: self.written.at]:
            row = step.rows[layer][head]
            grown[step.place, : len(row)] = row
        return grown

    @property
    def newest(self) -> tuple[int, int]:
        """Return the newest query and the key with its largest weight, the sink excluded."""
        assert self.written is not None
        step = self.written.steps[self.written.at - 1]
        layer, head = self.scene.head
        return step.place, int(self.without_sink(step.rows[layer][head]).argmax())

    def without_sink(self, row: Floats) -> Floats:
        """Return a row of weights with zeros on the attention sink."""
        keys = sink_of(self.shown.report.record)[1]
        left = row.copy()
        left[: len(keys)][keys[: len(row)]] = 0.0
        return left

    @property
    def limit(self) -> float:
        """Return the value at which the colours of a difference are full; 0 for weights."""
        if self.scene.side != "difference" or self.against is None:
            return 0.0
        return NumberScale(float(np.nanmax(np.abs(self.weights), initial=0.0)) or 1.0).limit

    def axes(self, encoding: str) -> Axes:
        """Return the axes of the map with their labels."""
        if self.written is not None and self.written.at:
            return _axes(self.record, encoding)
        return _axes_of(self.shown, encoding)

    def names(self, encoding: str) -> tuple[list[str], list[str]]:
        """Return the names of the queries and keys; a repeated token has its place in the name."""
        if self.written is not None and self.written.at:
            return _names(self.record, encoding)
        return _names_of(self.shown, encoding)


def _axes(record: AttentionRecord, encoding: str) -> Axes:
    queries = token_labels(record.queries, encoding)
    keys = queries if record.kind != "cross" else token_labels(record.keys, encoding)
    return Axes(queries, keys, record.causal)


def _names(record: AttentionRecord, encoding: str) -> tuple[list[str], list[str]]:
    both = link_names(replace(record, layers=()), LONGEST)
    queries, keys = ([visible(name, encoding) for name in each] for each in both)
    return queries, keys


@lru_cache(maxsize=4)
def _axes_of(frame: Frame, encoding: str) -> Axes:
    return _axes(frame.report.record, encoding)


@lru_cache(maxsize=4)
def _names_of(frame: Frame, encoding: str) -> tuple[list[str], list[str]]:
    return _names(frame.report.record, encoding)


# The command ---------------------------------------------------------------------------------


def command_line(scene: Scene, text: str, options: Sequence[str] = ()) -> str:
    """Return the ``attnviz heads`` command that gives this view, to be pasted into a shell.

    options: those that chose the model and its attention, each an argument.
    Control characters in the words are escaped (``$'…'``: bash, zsh, ksh).
    """
    words = ["attnviz", "heads", *options, "--head", scene.name(scene.head)]
    if scene.removed:
        words += ["--ablate", ",".join(map(scene.name, sorted(scene.removed)))]
    if scene.mode != "raw":
        words.append("--no-sink" if scene.mode == "no-sink" else "--norm-weighted")
    if scene.palette != PALETTE_NAMES[0]:
        words += ["--palette", scene.palette]
    if scene.index_base:
        words += ["--index-base", str(scene.index_base)]
    line = " ".join(map(shell_word, words))
    if text == "-":  # alone it means standard input
        return f"printf %s - | {line} -"
    return f"{line} {'-- ' if text.startswith('-') else ''}{shell_word(text)}"


def shell_word(word: str) -> str:
    """Return one word quoted for a shell, its control characters escaped."""
    if all(
        unicodedata.category(character)[0] not in "CZ" or character == " " for character in word
    ):
        return shlex.quote(word)
    return "$'" + "".join(map(_spelled, word)) + "'"


def _spelled(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character == " " or unicodedata.category(character)[0] not in "CZ":
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))
