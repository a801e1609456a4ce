"""``attnviz rollout --save FILE`` and ``--json``: both matrices, as numbers or as pictures."""

from __future__ import annotations

import codecs
import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnviz.patterns import Rollout
from attnviz.render.export.drawing import Drawing, flow
from attnviz.render.export.drawing_plot import write_drawing_png
from attnviz.render.export.legend_figure import legend_drawing
from attnviz.render.export.map_figure import matrix_drawing
from attnviz.render.export.model_facts import model_facts
from attnviz.render.export.path_check import check_path
from attnviz.render.export.sections import Page, Section, page_drawing, page_html
from attnviz.render.export.svg import svg_document
from attnviz.render.export.whole_file import whole_file
from attnviz.render.facts import model_parts
from attnviz.render.rollout import rollout_titles
from attnviz.render.theme import Theme

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = [
    "SAVED",
    "SCHEMA",
    "check_save_path",
    "rollout_document",
    "save_rollout",
    "write_rollout_json",
]

SCHEMA = "attnviz.rollout/1"
SAVED = (".json", ".csv", ".svg", ".html", ".png", ".txt")
"""The endings that are known."""

_ROOM = 1400.0


def check_save_path(path: Path) -> None:
    """Raise one line if ``save_rollout`` could not write ``path``; see ``check_path``."""
    check_path(path, SAVED)


def rollout_document(rollout: Rollout, text: str) -> dict[str, Any]:
    """Everything of a rollout as one JSON object."""
    return {
        "schema": SCHEMA,
        "model": model_facts(rollout.model),
        "text": text,
        "kind": rollout.kind,
        "causal": rollout.causal,
        "layers": rollout.layers,
        "tokens": list(rollout.tokens.texts),
        "token_ids": list(rollout.tokens.ids),
        "rollout": rollout.matrix.tolist(),
        "last_layer": rollout.raw.tolist(),
    }


def write_rollout_json(rollout: Rollout, text: str, stream: SupportsWrite[str]) -> None:
    """Write ``rollout_document``, ASCII only."""
    stream.write(json.dumps(rollout_document(rollout, text), allow_nan=False) + "\n")


def _write_csv(rollout: Rollout, stream: SupportsWrite[str]) -> None:
    """A line a pair: query and key with their tokens, the rollout and the last layer's weight."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("query", "key", "query_token", "key_token", "rollout", "last_layer"))
    texts = rollout.tokens.texts
    for query, (row, last) in enumerate(
        zip(rollout.matrix.tolist(), rollout.raw.tolist(), strict=True)
    ):
        keys = query + 1 if rollout.causal else len(texts)
        for key in range(keys):
            writer.writerow((query, key, texts[query], texts[key], repr(row[key]), repr(last[key])))


def _page(rollout: Rollout, text: str, palette: str) -> Page:
    parts = [words for words, _ in model_parts(rollout.model, Theme())]
    facts = [" · ".join([*parts, f"{len(rollout.tokens)} tokens"]), *rollout.model.notes]
    maps: list[Drawing] = [
        matrix_drawing(
            (title, ""), matrix, (rollout.tokens, rollout.tokens), rollout.causal, palette
        )
        for title, matrix in zip(
            rollout_titles(rollout), (rollout.matrix, rollout.raw), strict=True
        )
    ]
    drawn = (legend_drawing(), flow("rollout and last layer", maps, _ROOM, 32))
    name = f"rollout of {rollout.model.name}"
    return Page(name, " ".join(text.split()), facts, [Section("", "", drawn)])


def save_rollout(rollout: Rollout, text: str, path: Path, palette: str, screen_text: str) -> None:
    """Write a rollout whole or not at all; ``screen_text`` is what a ``.txt`` holds.

    Raises what ``check_save_path`` raises, and LoadError where the system refuses on the way.
    """
    check_save_path(path)
    ending = path.suffix.lower()
    with whole_file(path) as stream:
        out = codecs.getwriter("utf-8")(stream, "backslashreplace")
        if ending == ".json":
            write_rollout_json(rollout, text, out)
        elif ending == ".csv":
            _write_csv(rollout, out)
        elif ending == ".txt":
            out.write(screen_text)
        elif ending == ".html":
            page = _page(rollout, text, palette)
            out.writelines(f"{piece}\n" for piece in page_html(page, palette))
        elif ending == ".png":
            write_drawing_png(page_drawing(_page(rollout, text, palette)), palette, stream)
        else:
            out.write(svg_document(page_drawing(_page(rollout, text, palette)), palette))
