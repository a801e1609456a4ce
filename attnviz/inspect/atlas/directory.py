"""Writes an atlas as one directory: JSON lines, and a page or the data of HeadVis."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from attnviz.draw.html import document_html
from attnviz.draw.whole_file import whole_directory
from attnviz.engine.capture import capture
from attnviz.engine.known_labels import known_labels
from attnviz.inspect.atlas.data import head_data
from attnviz.inspect.atlas.headvis import write_headvis
from attnviz.inspect.atlas.records import AtlasReport
from attnviz.inspect.atlas.request import refuse_format
from attnviz.inspect.heads.heads import heads_report
from attnviz.measures.words import joined
from attnviz.models.model import Model
from attnviz.records import HeadsRecord

_MAPS = 5
"""The most texts whose maps a page shows."""

_WEIGHTS = 2**24
"""The most weights of all heads over one of these texts."""


def write_atlas(
    report: AtlasReport,
    model: Model,
    path: Path,
    form: Literal["page", "headvis"],
    palette: str = "viridis",
) -> None:
    """Write the atlas as a new directory, whole or not at all; runs the model over some texts.

    palette: of the page. Raises UsageError if something is there, LoadError if writing fails.
    """
    refuse_format(report.kind, form)
    with whole_directory(path) as draft:
        _write_lines(draft / "heads.jsonl", map(head_data, report.heads))
        texts = (
            {
                "text": text,
                "token_ids": list(given.text.ids),
                "tokens": list(given.text.texts),
                **(
                    {}
                    if given.target is None
                    else {
                        "target_ids": list(given.target.ids),
                        "target_tokens": list(given.target.texts),
                    }
                ),
            }
            for text, given in report.kept.items()
        )
        _write_lines(draft / "texts.jsonl", texts)
        if form == "headvis":
            write_headvis(report, model, draft)
        else:
            page = document_html(with_maps(report, model).document(), palette)
            (draft / "index.html").write_text("".join(f"{line}\n" for line in page), "utf-8")


def _write_lines(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="ascii") as stream:
        stream.writelines(json.dumps(entry, allow_nan=False) + "\n" for entry in entries)


def with_maps(report: AtlasReport, model: Model) -> AtlasReport:
    """Return the report with the maps of all heads over texts on which the first ones fire most."""
    maps, info = dict[int, HeadsRecord](), report.model
    for one in report.ranking:
        if one.strongest is None or len(maps) == _MAPS:
            continue
        link = one.strongest.link
        given = report.kept[link.text]
        large = info.layers * info.heads * len(link.queries) * len(link.keys) > _WEIGHTS
        if link.text not in maps and not large:
            record = capture(model, given.text, kind=report.kind, target=given.target)
            known, text = known_labels(model, record.kind), joined(given.text)
            maps[link.text] = heads_report(record, False, report.index_base, text=text, known=known)
    return replace(report, maps=maps)
