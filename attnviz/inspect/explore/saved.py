"""Exploring what ``attnviz heads`` or ``generate`` saved, without the model."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attnviz.draw.labels import visible
from attnviz.engine.generation import Sampling, Step
from attnviz.engine.head_run import Head
from attnviz.engine.scan.run import Effects
from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.inspect.explore.session import Frame, LiveSession
from attnviz.inspect.generate.run import WrittenRun
from attnviz.inspect.generate.run_file import SCHEMA as RUN
from attnviz.inspect.generate.run_file import read_run
from attnviz.inspect.heads.heads import heads_report
from attnviz.inspect.heads.saved import read_heads
from attnviz.options import RegionOptions
from attnviz.reading import ARRAY_BYTES, damaged, read_bytes
from attnviz.records import AttentionRecord, HeadsRecord, LayerWeights, ModelInfo
from attnviz.regions import saved_regions

_RUN = re.compile(rb'\s*\{\s*"schema"\s*:\s*"' + re.escape(RUN.encode()) + rb'"')


_SAVED = (".npz", ".safetensors", ".json", ".jsonl")
_NO_REGIONS = RegionOptions()
_NO_MODEL = "this was saved, there is no model behind it"


@dataclass(frozen=True, eq=False)
class SavedSession:
    """A session of explore without a model: the saved attention of one text.

    seen: the only result. run: the generation that was saved after the text, or None.
    other: the other variant of a saved comparison, or None.
    """

    seen: Frame
    other: SavedSession | None = None
    run: WrittenRun | None = None

    live = False

    @property
    def info(self) -> ModelInfo:
        return self.seen.report.record.model

    @property
    def sampling(self) -> Sampling | None:
        return None if self.run is None else self.run.sampling

    def frame(self, text: str, removed: frozenset[Head] = frozenset()) -> Frame:
        """Return the only result in the file.

        Raises UsageError if another text or other ``removed`` heads are requested than it has.
        """
        if text != self.seen.text or (removed and removed != self.seen.removed):
            raise UsageError(f"{_NO_MODEL}: its text and its heads are what they are")
        return self.seen

    def effects(self, text: str, advance: Callable[[float], None]) -> Effects:
        raise UnsupportedError(f"{_NO_MODEL}: no head can be removed")

    def generation(
        self, text: str, sampling: Sampling, removed: frozenset[Head] = frozenset()
    ) -> Iterator[Step]:
        """Return the saved steps, whatever the sampling; UnsupportedError if there are none."""
        if self.run is None:
            raise UnsupportedError(f"{_NO_MODEL}: nothing can be written")
        return iter(self.run.steps)


Session = LiveSession | SavedSession
"""What makes a ``Frame`` of a text in explore: a model, or a saved file for the texts in it."""


def is_saved(typed: str) -> bool:
    """Return whether the typed string names a saved file and is not a text."""
    path = Path(typed)
    return path.suffix.lower() in _SAVED and (path.is_file() or " " not in typed.strip())


def open_saved(path: Path, regions: RegionOptions = _NO_REGIONS) -> SavedSession:
    """Return the session of a saved file, whose format is recognized by its content.

    regions: the named spans of its text, in place of the regions that it was saved with.
    It is a ``.json`` or ``.npz`` of ``attnviz heads --save``, a capture, or the lines of
    ``attnviz generate --save NAME.jsonl``. Of several variants the first two are shown. Raises
    LoadError for a file that cannot be read, is damaged, or has other content.
    """
    name = repr(visible(str(path)))
    content = read_bytes(path, name=name, most=ARRAY_BYTES)
    if not content:
        raise LoadError(f"{name} is empty: save it again with attnviz heads --save")
    if _RUN.match(content):
        with damaged(name, "save the run anew"):
            run = read_run(content, name)
        if regions.regions_given and run.kind == "cross" and run.source is not None:
            run = replace(run, source=saved_regions(run.source, run.text, regions))
        elif regions.regions_given:
            run = replace(run, begun=saved_regions(run.begun, run.text, regions))
        return _of_run(run, name)
    reports = read_heads(content, name).reports[:2]
    if regions.regions_given:
        reports = tuple(_with_regions(report, regions) for report in reports)
    frames = (  # with the heads in their original order
        Frame(report.text, replace(report, sorted_by=None), frozenset(report.ablated))
        for report in reports
    )
    first, *others = map(SavedSession, frames)
    return replace(first, other=others[0] if others else None)


def _with_regions(report: HeadsRecord, asked: RegionOptions) -> HeadsRecord:
    record = report.record
    decoder = record.kind == "decoder" and report.target is not None
    keys = saved_regions(record.keys, (report.target or "") if decoder else report.text, asked)
    queries = record.queries if record.kind == "cross" else keys
    return replace(report, record=replace(record, queries=queries, keys=keys))


def _of_run(run: WrittenRun, name: str) -> SavedSession:
    """Return the session of a saved generation; attention weights that the file lacks are NaN."""
    queries = run.begun
    keys = run.source if run.kind == "cross" and run.source is not None else queries
    layers = run.prompt
    if not layers:
        shape = (len(queries), len(keys))
        blank = np.array(np.nan, np.float32)
        if sum(map(len, run.steps[0].rows.values())) * math.prod(shape) > ARRAY_BYTES // 4:
            raise LoadError(f"{name} has a prompt of {len(queries):,} tokens, too long to be shown")
        layers = tuple(
            LayerWeights(layer, tuple(range(len(row))), np.full((len(row), *shape), blank))
            for layer, row in sorted(run.steps[0].rows.items())
        )
        for layer in layers:
            layer.weights[:, -1] = run.steps[0].rows[layer.layer]
    record = AttentionRecord(run.model, run.kind, run.kind != "cross", queries, keys, layers)
    report = heads_report(
        record, False, run.index_base, text=run.text, known=run.known, ablated=run.removed
    )
    frame = Frame(run.text, report, frozenset(run.removed), run.steps[0].likely, known=run.known)
    return SavedSession(frame, run=run)
