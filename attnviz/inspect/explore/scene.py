"""The scene: which head, token and mode are shown. Immutable: each change makes a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from attnviz.draw.palette import PALETTES
from attnviz.engine.head_run import Head
from attnviz.inspect.explore.session import Frame, Mode
from attnviz.measures.words import word_spans
from attnviz.records import Tokens

Side = Literal["a", "b", "difference"]
"""Which of two sides is shown: the first, the second, or their difference."""

SIDES: tuple[Side, ...] = get_args(Side)

PALETTE_NAMES = tuple(PALETTES)


@dataclass(frozen=True)
class Scene:
    """The user's choices on the screen of explore, such as the head, the cursor and the mode.

    heads: every (layer, head), in order. labels: the label of each.
    queries, keys: how many tokens the axes have. across: whether they are two texts; else the
        cursor stands on one token, whose row and column are highlighted.
    head: the shown one. query, key: the position of the cursor. mode: how weights are shown: raw,
        without the sink or norm-weighted. side: which of the compared sides is shown.
    removed: heads whose outputs are set to zero. palette: of the colours. index_base: 0 or 1, the
        first number in names.
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
        """Return the first scene for the result of a pass: its most notable head, its last token.

        palette: the name of the colours.
        """
        report = frame.report
        heads = tuple(sorted((entry.layer, entry.head) for entry in report.heads))
        first = report.notable[0] if report.notable else heads[0]
        record = report.record
        start = cls(heads, (), 0, 0, False, first, palette=palette, index_base=report.index_base)
        return start.over(frame).at(len(record.queries) - 1, len(record.keys) - 1)

    def over(self, frame: Frame) -> Scene:
        """Return the scene for another pass's result; head and cursor stay if they exist there."""
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
        """Return the scene for a text that has grown or shrunk.

        queries, keys: how many tokens the axes have now.
        """
        return replace(self, queries=queries, keys=keys).at(self.query, self.key)

    # Tokens ----------------------------------------------------------------------------------

    def at(self, query: int, key: int) -> Scene:
        """Return the scene with its cursor on a query and a key, or on the nearest that exist.

        query, key: their indices.
        """
        return replace(self, query=_within(query, self.queries), key=_within(key, self.keys))

    def with_token(self, place: int) -> Scene:
        """Return the scene with its cursor on a token: as query and, unless ``across``, as key.

        place: the index of the token.
        """
        return self.at(place, self.key if self.across else place)

    def found(self, tokens: Tokens, typed: str, step: int = 1) -> Scene:
        """Return the scene at the next token that begins the typed text, cyclically.

        tokens: of the queries. step: −1 for the previous one. The scene is unchanged if no token
            has the text.
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
        """Return the scene ``step`` heads further, in the order of layers; not beyond the ends."""
        place = _within(self.heads.index(self.head) + step, len(self.heads))
        return replace(self, head=self.heads[place])

    def next_layer(self, step: int = 1) -> Scene:
        """Return the scene ``step`` layers further, at this head number or the nearest below."""
        layers = list(dict.fromkeys(layer for layer, _ in self.heads))
        layer = layers[_within(layers.index(self.head[0]) + step, len(layers))]
        within = [head for head in self.heads if head[0] == layer]
        return replace(
            self, head=max((h for h in within if h[1] <= self.head[1]), default=within[0])
        )

    def in_layer(self, step: int) -> Scene:
        """Return the scene ``step`` heads further in the same layer; not beyond its ends."""
        within = [head for head in self.heads if head[0] == self.head[0]]
        return replace(self, head=within[_within(within.index(self.head) + step, len(within))])

    def next_same_label(self, step: int = 1) -> Scene:
        """Return the scene at the next (−1: the previous) head with the same label, cyclically."""
        label = self.labels[self.heads.index(self.head)]
        same = [head for head, name in zip(self.heads, self.labels, strict=True) if name == label]
        return replace(self, head=same[(same.index(self.head) + step) % len(same)])

    def next_of(self, ranking: Sequence[Head], step: int = 1) -> Scene:
        """Return the scene at the next head of a ranking; at its first if the head is not ranked.

        step: how many heads further; negative for back. It does not go beyond the ends.
        """
        if not ranking:
            return self
        place = ranking.index(self.head) + step if self.head in ranking else 0
        return self.with_head(ranking[_within(place, len(ranking))])

    def toggled(self, head: Head | None = None) -> Scene:
        """Return the scene with a head (default: the shown one) ablated, or restored if it was."""
        return replace(self, removed=self.removed ^ {head or self.head})

    # The view --------------------------------------------------------------------------------

    def next_palette(self) -> Scene:
        """Return the scene with the next palette, cyclically."""
        place = PALETTE_NAMES.index(self.palette) + 1
        return replace(self, palette=PALETTE_NAMES[place % len(PALETTE_NAMES)])

    def name(self, head: Head) -> str:
        """Return a head's name, such as ``L2H5``. head: (layer, head) from 0."""
        return f"L{head[0] + self.index_base}H{head[1] + self.index_base}"


def _within(place: int, count: int) -> int:
    return min(max(place, 0), max(count - 1, 0))


def places_of(tokens: Tokens, typed: str) -> tuple[int, ...]:
    """Return the indices of the tokens at which the typed text begins, ignoring case.

    The text may extend over several tokens; if it is found nowhere, its words are searched.
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
