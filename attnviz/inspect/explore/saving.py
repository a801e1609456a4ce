"""Saving the view on screen to a file, in the format that the ending of its name says."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from attnviz.draw.files import check_path, save, text_file
from attnviz.draw.report import EVERY, report_files
from attnviz.draw.terminal import terminal_block
from attnviz.draw.theme import Theme
from attnviz.errors import UsageError
from attnviz.inspect.explore.page import explored_document
from attnviz.inspect.explore.view import View, Written
from attnviz.inspect.generate.run import Ending, WrittenRun
from attnviz.inspect.generate.run_file import write_run_lines
from attnviz.inspect.heads.report import compare_heads
from attnviz.records import LayerWeights

ENDINGS = (*EVERY.split(), ".npz")
"""The endings of the files that a view can be saved as, the same as for ``attnviz heads``."""


def save_view(path: Path, view: View, theme: Theme, width: int) -> None:
    """Save the shown head, or the whole generation, to a file in the format of its ending.

    A page has all heads, of both sides and of their difference, and opens at the view.

    path: of the new file. theme, width: the colours and the columns of a drawing.
    Raises UsageError for an unknown ending and for a difference, which only a page can hold,
    LoadError if the system refuses.
    """
    if view.written is not None and view.written.at:
        if path.suffix.lower() != ".jsonl":
            raise UsageError("what was written is saved as .jsonl; Esc, then s saves the prompt")
        run = _run_of(view, view.written)
        save(path, {".jsonl": text_file(partial(write_run_lines, run))})
        return
    check_path(path, ENDINGS)
    page = path.suffix.lower() == ".html"
    if view.scene.side == "difference" and view.against is not None and not page:
        raise UsageError("a difference is not saved, but as .html: press d for one side")
    report, scene = view.shown.report, view.scene
    layer, head = scene.head
    record = replace(view.record, layers=(LayerWeights(layer, (head,), view.weights[None]),))
    chosen = replace(
        report,
        record=record,
        heads=(report.scores(layer, head),),
        notable=(scene.head,),
        selected=True,
        ablated=tuple(sorted(view.shown.removed)),
        sink=scene.mode != "no-sink",
        norm_weighted=scene.mode == "value-weighted",
    )
    seen = compare_heads([chosen])

    def screen() -> str:
        plain = Theme(theme.palette, colour=False, ascii=theme.ascii)
        return terminal_block(seen.document(), plain, width).plain

    document = partial(explored_document, view) if page else seen.document
    save(path, report_files(seen, document, theme.palette, screen))


def _run_of(view: View, written: Written) -> WrittenRun:
    """Return the generation so far as the record that ``attnviz generate`` saves."""
    report, steps, sampling = view.frame.report, written.steps, written.sampling
    ended: Ending = "end" if steps[-1].ended else "tokens"
    if not steps[-1].ended and len(steps) < sampling.tokens:
        ended = "interrupted" if written.running else "context"
    known = report.record.layers
    return WrittenRun(
        report.record.model,
        report.record.kind,
        text=view.frame.text,
        source=None,
        begun=report.record.queries,
        prompt=known if all(np.isfinite(each.weights).all() for each in known) else (),
        sampling=sampling,
        removed=tuple(sorted(view.frame.removed)),
        steps=steps,
        ending=ended,
        index_base=report.index_base,
        known=view.frame.known,
    )
