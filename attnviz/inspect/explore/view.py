"""All that the panes show: the scene, the frames behind it, and what the model has written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from attnviz.draw.axes import Axes
from attnviz.draw.labels import token_labels, visible
from attnviz.draw.numbers import NumberScale
from attnviz.draw.scale import signed_limit
from attnviz.engine.generation import Sampling, Step, written
from attnviz.engine.head_run import Head
from attnviz.engine.removals import Effects
from attnviz.errors import UsageError
from attnviz.inspect.explore.scene import Scene
from attnviz.inspect.explore.session import Frame, unlike
from attnviz.inspect.heads.links import LONGEST, link_names
from attnviz.measures.sinks import sink_of
from attnviz.records import AttentionRecord, Floats


@dataclass(frozen=True)
class Written:
    """The text that the model generates in explore, as far as it is done and shown.

    sampling: how tokens are chosen. steps: the tokens so far. at: how many of them are shown.
    running: whether more will come. paused: whether generation waits for a key.
    """

    sampling: Sampling
    steps: tuple[Step, ...] = ()
    at: int = 0
    running: bool = True
    paused: bool = False


@dataclass(frozen=True)
class View:
    """The screen state of explore: everything that the panes draw.

    scene: the user's choices: head, cursor, mode.
    frame: the result without the removed heads; whole: with all heads. other: the second side, if
        there is one; else, if heads are removed, the whole model is the second side.
    effects: the effect of each removal, if known; scanned: the share done of a running measurement.
    by_effect: whether the grid shows effects.
    written: the text that the model generates after that of ``frame``; its weights are raw.
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
        """Return the screen state for a text that is being generated.

        The cursor stands on the newest query and on the key with its largest weight.
        """
        view = replace(self, written=written)
        scene = view.scene.sized(len(view.record.queries), len(view.record.keys))
        return replace(view, scene=scene.at(*view.newest) if written.at else scene)

    @property
    def against(self) -> Frame | None:
        """Return the result with which the first side is compared, or None if there is none."""
        return self.other or (self.whole if self.frame.removed else None)

    @property
    def shown(self) -> Frame:
        """Return the result of the side that is shown."""
        return self.against or self.frame if self.scene.side == "b" else self.frame

    @property
    def comparable(self) -> bool:
        """Return whether there are two sides whose attention weights can be subtracted."""
        return self.against is not None and not self.unlike

    @property
    def unlike(self) -> str:
        """Return why the two sides cannot be subtracted for this head; empty if they can."""
        if self.against is None:
            return ""
        return unlike(self.frame, self.against, self.scene.head)

    def fitted(self, removed: frozenset[Head] | None = None) -> View:
        """Return the screen state with choices that its results allow: head, cursor and side exist.

        removed: the heads that count as removed; by default those of the result.
        """
        view = self
        if self.against is None or (self.scene.side == "difference" and self.unlike):
            view = replace(self, scene=replace(self.scene, side="a"))
        gone = self.frame.removed if removed is None else removed
        scene, record = replace(view.scene.over(view.shown), removed=gone), view.record
        return replace(view, scene=scene.sized(len(record.queries), len(record.keys)))

    @property
    def dark(self) -> bool:
        """Return whether the shown head is ablated on the shown side, and so drawn dark."""
        gone = self.scene.removed if self.scene.side == "a" else self.shown.removed
        return self.scene.side != "difference" and self.scene.head in gone

    @cached_property
    def record(self) -> AttentionRecord:
        """Return the attention record that is shown.

        For a text that is being generated it has the new tokens, but no weights.
        """
        record = self.shown.report.record
        if self.written is None or not self.written.at:
            return record
        grown = written(record.queries, self.written.steps[: self.written.at])
        keys = record.keys if record.kind == "cross" else grown
        return replace(record, queries=grown, keys=keys, layers=())

    @cached_property
    def weights(self) -> Floats:
        """Return the attention weights (query, key) of the chosen head, or their difference.

        NaN stands for weights that do not exist yet. Raises UsageError if the mode is not
        available.
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
        """Return the indices of the newest query and of its key with the largest weight.

        The attention sink is excluded.
        """
        assert self.written is not None
        step = self.written.steps[self.written.at - 1]
        layer, head = self.scene.head
        return step.place, int(self.without_sink(step.rows[layer][head]).argmax())

    def without_sink(self, row: Floats) -> Floats:
        """Return a row of attention weights with zeros for the attention sink.

        row: (key,) one query's weights.
        """
        keys = sink_of(self.shown.report.record)[1]
        left = row.copy()
        left[: len(keys)][keys[: len(row)]] = 0.0
        return left

    @property
    def limit(self) -> float:
        """Return the absolute value with the full colour in a difference.

        0 for attention weights.
        """
        if self.scene.side != "difference" or self.against is None:
            return 0.0
        return NumberScale(signed_limit(self.weights)).limit

    def axes(self, encoding: str) -> Axes:
        """Return the axes of the map with their labels.

        encoding: of the terminal, for characters that it cannot draw.
        """
        if self.written is not None and self.written.at:
            return _axes(self.record, encoding)
        axes, part = _axes_of(self.shown, encoding), self.shown.long
        return axes if part is None else replace(axes, rows=part.queries, columns=part.keys)

    def names(self, encoding: str) -> tuple[list[str], list[str]]:
        """Return the names of the queries and keys; a repeated token has its index in the name.

        encoding: of the terminal, for characters that it cannot draw.
        """
        if self.written is not None and self.written.at:
            return _names(self.record, encoding)
        if self.shown.long is not None:
            return self.shown.long.names(encoding)
        return _names_of(self.shown, encoding)


def _axes(record: AttentionRecord, encoding: str) -> Axes:
    queries = token_labels(record.queries, encoding)
    same = record.keys is record.queries
    keys = queries if same else token_labels(record.keys, encoding)
    regions = record.queries.regions, record.keys.regions
    return Axes(queries, keys, record.causal, query_regions=regions[0], key_regions=regions[1])


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
