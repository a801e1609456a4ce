"""The report for programs: the object of ``--json`` and the table of ``--save FILE.csv``.

Indices start at 0 whatever the names on the screen show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from attnviz.draw.values import json_number, known_label_facts, model_facts, table_of, token_facts
from attnviz.engine.answers import START_END
from attnviz.engine.attribution.lens import BlockReading, HeadReading
from attnviz.inspect.lens.records import LensReport

SCHEMA = "attnviz.lens/1"


def lens_data(report: LensReport) -> dict[str, Any]:
    """Return the whole report as one JSON object."""
    found, given = report.found, report.given
    target = given.target
    return {
        "schema": SCHEMA,
        "model": model_facts(report.model),
        "prompt": report.text,
        "source": report.source or None,
        **token_facts(given.text),
        **(
            {}
            if target is None
            else {"target_tokens": list(target.texts), "target_ids": list(target.ids)}
        ),
        "position": found.position,
        "answer": {"id": found.answer, "token": report.answer},
        **({"labels": list(report.classes)} if report.classes else {}),
        **({} if found.end is None else {"answer_end": START_END[found.end]}),
        "entry": report.entry,
        "softcap": found.softcap,
        "apart": json_number(found.apart),
        "tolerance": json_number(found.tolerance),
        "notes": list(report.notes),
        "layers": [_block(report, each) for each in found.blocks],
        "heads": [_head(report, each) for each in found.heads if each.head[0] in report.kinds],
    }


def _block(report: LensReport, each: BlockReading) -> dict[str, Any]:
    top = [{"id": one, "token": report.words[one], "probability": p} for one, p in each.top]
    return {
        "layer": each.block,
        "probability": json_number(each.probability),
        "rank": each.rank,
        "kl": json_number(each.kl),
        "top": top,
    }


def _head(report: LensReport, each: HeadReading) -> dict[str, Any]:
    kind, layer, head = each.head
    label = report.labels.get(each.head)

    def words(changes: Sequence[tuple[int, float]]) -> list[dict[str, Any]]:
        return [
            {"id": one, "token": report.words[one], "logits": json_number(value)}
            for one, value in changes
        ]

    return {
        "attention": kind,
        "layer": layer,
        "head": head,
        "answer": json_number(each.answer),
        "raises": words(each.raises),
        "lowers": words(each.lowers),
        **({} if label is None else {"label": known_label_facts(label)}),
    }


def write_lens_npz(report: LensReport, stream: BinaryIO) -> None:
    """Write a NumPy archive with the numbers and top words of each reading, and of each head."""
    blocks = report.found.blocks
    heads = [each for each in report.found.heads if each.head[0] in report.kinds]
    np.savez(
        stream,
        allow_pickle=False,
        blocks=np.array([report.block_name(each.block) for each in blocks]),
        probability=np.array([each.probability for each in blocks]),
        rank=np.array([each.rank for each in blocks]),
        kl=np.array([each.kl for each in blocks]),
        top_ids=np.array([[one for one, _ in each.top] for each in blocks]),
        top_probability=np.array([[p for _, p in each.top] for each in blocks]),
        heads=np.array([report.name(each.head) for each in heads]),
        logits=np.array([each.answer for each in heads]),
    )


def lens_rows(report: LensReport) -> Iterator[tuple[object, ...]]:
    """Yield the table: the readings before and after each block, then what heads write."""
    names = ("part", "layer", "head", "probability", "rank", "kl", "answer", "most", "least")
    blocks = (
        {"part": "block", "most": report.words[each.top[0][0]], **_block(report, each)}
        for each in report.found.blocks
    )
    yield from table_of(names, blocks)
    for each in report.found.heads:
        if each.head[0] not in report.kinds:
            continue
        entry = _head(report, each)
        entry |= {"part": entry["attention"] + " head"}
        for name, changes in (("most", each.raises), ("least", each.lowers)):
            entry[name] = report.words[changes[0][0]] if changes else None
        yield tuple(entry.get(name) for name in names)
