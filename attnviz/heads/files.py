"""What writes the heads of one run to a file, by the ending of its name; arrays among them."""

from __future__ import annotations

import json
from functools import partial
from typing import BinaryIO

import numpy as np

from attnviz.draw.files import Writer, page_files, text_file
from attnviz.heads.csv import write_heads_csv
from attnviz.heads.json import head_entry, run_facts, write_heads_json
from attnviz.heads.page import heads_page
from attnviz.records import HeadsReport

__all__ = ["heads_files", "write_heads_npz", "write_heads_safetensors"]


def _provenance(report: HeadsReport, text: str, target: str | None) -> str:
    """The JSON document without the weights."""
    heads = [head_entry(report, scores) for scores in report.heads]
    return json.dumps({**run_facts(report, text, target), "heads": heads}, allow_nan=False)


def write_heads_npz(report: HeadsReport, text: str, target: str | None, stream: BinaryIO) -> None:
    """Write an archive that ``numpy.load`` opens with ``allow_pickle=False``.

    ``weights`` (kept head, query, key) in the order of ``report.heads``; ``layers`` and ``heads``
    give each one's indices from 0, so that ``weights[(layers == 2) & (heads == 5)]`` is L2H5;
    ``tokens``, ``token_ids``, for cross attention also ``key_tokens``, ``key_token_ids``;
    ``provenance``: the JSON document without the weights. NumPy drops NUL characters at the end
    of a string: the tokens in ``provenance`` keep them.
    """
    record = report.record
    arrays = {
        "weights": np.stack([report.weights(entry.layer, entry.head) for entry in report.heads]),
        "layers": np.array([entry.layer for entry in report.heads]),
        "heads": np.array([entry.head for entry in report.heads]),
        "tokens": np.array(record.queries.texts, dtype=np.str_),
        "token_ids": np.array(record.queries.ids),
        "provenance": np.array(_provenance(report, text, target)),
    }
    if record.kind == "cross":
        arrays["key_tokens"] = np.array(record.keys.texts, dtype=np.str_)
        arrays["key_token_ids"] = np.array(record.keys.ids)
    np.savez(stream, allow_pickle=False, **arrays)


def write_heads_safetensors(
    report: HeadsReport, text: str, target: str | None, stream: BinaryIO
) -> None:
    """Write one tensor ``layer.N.weights`` (kept head, query, key) for each kept layer.

    Metadata, all JSON: ``heads`` (the head indices of each layer's tensor, by layer), ``tokens``,
    ``token_ids``, for cross attention also ``key_tokens``, ``key_token_ids``; ``provenance``: the
    JSON document without the weights. ``schema`` is plain text.
    """
    from safetensors.numpy import save

    facts = run_facts(report, text, target)
    layers = report.record.layers
    metadata = {
        "schema": facts["schema"],
        "heads": json.dumps({str(kept.layer): list(kept.heads) for kept in layers}),
        "provenance": _provenance(report, text, target),
    }
    for name in ("tokens", "token_ids", "key_tokens", "key_token_ids"):
        if name in facts:
            metadata[name] = json.dumps(facts[name])
    tensors = {f"layer.{kept.layer}.weights": np.ascontiguousarray(kept.weights) for kept in layers}
    stream.write(save(tensors, metadata=metadata))


def heads_files(
    report: HeadsReport, text: str, target: str | None, palette: str
) -> dict[str, Writer]:
    """All but the screen; ``palette`` colours the pictures."""
    return {
        ".json": text_file(partial(write_heads_json, report, text, target)),
        ".csv": text_file(partial(write_heads_csv, report)),
        ".npz": partial(write_heads_npz, report, text, target),
        ".safetensors": partial(write_heads_safetensors, report, text, target),
        **page_files(partial(heads_page, report, text, target, palette), palette),
    }
