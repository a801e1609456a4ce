"""``attnviz rollout --save FILE`` and ``--json``: both matrices, as numbers or as pictures."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnviz.patterns import Rollout
from attnviz.render.export.csv_cells import CsvTable
from attnviz.render.export.drawing import Drawing, flow
from attnviz.render.export.legend_figure import legend_drawing
from attnviz.render.export.map_figure import matrix_drawing
from attnviz.render.export.model_facts import model_facts
from attnviz.render.export.path_check import check_path
from attnviz.render.export.saved_file import TextWriter, save_page, save_text
from attnviz.render.export.sections import Page, Section
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
    writer = CsvTable(stream)
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
    writers: dict[str, TextWriter] = {
        ".json": partial(write_rollout_json, rollout, text),
        ".csv": partial(_write_csv, rollout),
        ".txt": lambda out: out.write(screen_text),
    }
    write = writers.get(path.suffix.lower())
    if write is not None:
        save_text(path, write)
    else:
        save_page(path, _page(rollout, text, palette), palette)
