"""``attnviz rollout --save FILE`` and ``--json``: both matrices, as numbers or as pictures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from attnviz.draw.csv_cells import CsvTable
from attnviz.draw.legend_figure import legend_drawing
from attnviz.draw.map_figure import matrix_drawing
from attnviz.draw.model_facts import model_facts
from attnviz.draw.page import Page, Section
from attnviz.draw.provenance import model_parts
from attnviz.draw.theme import Theme
from attnviz.heads.json import weight_rows
from attnviz.heads.rollout_screen import rollout_titles
from attnviz.measures.records import Rollout

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["rollout_document", "rollout_page", "write_rollout_csv", "write_rollout_json"]

SCHEMA = "attnviz.rollout/1"


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
        "rollout": weight_rows(rollout.matrix),
        "last_layer": weight_rows(rollout.raw),
    }


def write_rollout_json(rollout: Rollout, text: str, stream: SupportsWrite[str]) -> None:
    """Write ``rollout_document``, ASCII only."""
    stream.write(json.dumps(rollout_document(rollout, text), allow_nan=False) + "\n")


def write_rollout_csv(rollout: Rollout, stream: SupportsWrite[str]) -> None:
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


def rollout_page(rollout: Rollout, text: str, palette: str) -> Page:
    parts = [words for words, _ in model_parts(rollout.model, Theme())]
    facts = [" · ".join([*parts, f"{len(rollout.tokens)} tokens"]), *rollout.model.notes]
    """The rollout beside the last layer's own attention."""
    maps = tuple(
        matrix_drawing(
            (title, ""), matrix, (rollout.tokens, rollout.tokens), rollout.causal, palette
        )
        for title, matrix in zip(
            rollout_titles(rollout), (rollout.matrix, rollout.raw), strict=True
        )
    )
    sections = [Section("", "", (legend_drawing(),)), Section("", "", maps, beside=True)]
    name = f"rollout of {rollout.model.name}"
    return Page(name, " ".join(text.split()), facts, sections)
