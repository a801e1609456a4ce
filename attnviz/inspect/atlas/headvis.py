"""Writes an atlas as the ``data/`` that the front end of HeadVis reads.

The fields are those of the docstrings of ``data_pipeline.py`` in github.com/anthropics/headvis
(2026-05-04), which are its specification: the maps of the texts by tenths of their largest weight.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnviz.engine.capture import capture
from attnviz.inspect.atlas.records import HALF, AtlasReport, HeadAtlas
from attnviz.inspect.atlas.scan import FIRES, NAMES
from attnviz.inspect.atlas.tally import edges
from attnviz.models.model import Model
from attnviz.records import Floats, Tokens

_INTERVALS = 10
_A_ROW, _LEAST = 8, 0.005
"""The most weights of a query that are written, and the least of them."""

_TOKENS = 50
_THEIR_NAMES = {
    "self": "self_attention_score",
    "previous": "previous_token_score",
    "entropy": "pattern_entropy",
    "distance": "qk_distance",
    "induction": "induction_score",
}
_MEANINGS = {
    FIRES: "Strongest link of a text, the sink left out: mean over texts",
    "fires_even": "Uniform attention at the same links: mean over texts",
    "share": f"Share of texts with a link of at least {HALF}",
}
_STATISTICS = {
    "mean_max_activation": "Mean max activation",
    "share": f"Texts with a link of at least {HALF}",
    "strongest": "Strongest link",
    "usual": "Usual weight at that distance",
    "even": "Uniform attention there",
    "token_share": "Sampled texts whose strongest link has the preferred token",
    "token_base_rate": "That token's share of all tokens",
}


def write_headvis(report: AtlasReport, model: Model, directory: Path) -> None:
    """Write ``data/`` into a directory; runs the model again over the texts that are shown."""
    data, drafts = directory / "data", directory / "drafts"
    for folder in (data / "heads", data / "attributions", drafts):
        folder.mkdir(parents=True)
    sampled = {(one.layer, one.head): {*_texts(one.tenths)} for one in report.heads}
    shown = {(one.layer, one.head): {*_texts((one.fires, *one.tenths))} for one in report.heads}
    for text, given in report.kept.items():
        wanted: dict[int, set[int]] = {}
        for (layer, head), texts in shown.items():
            if text in texts:
                wanted.setdefault(layer, set()).add(head)
        for layer, head, weights in capture(
            model, given.text, kind=report.kind, target=given.target, heads=wanted
        ):
            with (drafts / f"L{layer}H{head}").open("a", encoding="ascii") as stream:
                stream.write(
                    json.dumps(_sequence(text, given.queries(report.kind), weights)) + "\n"
                )
    for one in report.heads:
        draft = drafts / f"L{one.layer}H{one.head}"
        lines = draft.read_text("ascii").splitlines() if draft.exists() else []
        draft.unlink(missing_ok=True)
        found = _head(one, [*map(json.loads, lines)], sampled[one.layer, one.head])
        _write(data / "heads" / f"L{one.layer}H{one.head}.json", found)
    drafts.rmdir()
    rows = _scatter(report.heads)
    _write(data / "scatter_data.json", rows)
    _write(data / "config.json", _config(report, [*rows[0]][2:]))
    for name in ("server_config.json", "attributions/manifest.json"):
        _write(data / name, {})


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, allow_nan=False), "ascii")


def _texts(parts: Sequence[Sequence[Any]]) -> Iterator[int]:
    return (each.link.text for part in parts for each in part)


def _sequence(text: int, tokens: Tokens, weights: Floats) -> dict[str, Any]:
    """Return a text with the head's weights (query, key), of each query the largest.

    ``max_activation`` leaves out the diagonal, and position 0 as query and as key.
    """
    length = len(tokens)
    least = np.sort(weights, -1)[:, -min(_A_ROW, length), None]
    kept = np.flatnonzero((weights >= np.maximum(least, _LEAST)) & np.isfinite(weights))
    apart = np.where(np.eye(length, dtype=bool), 0, np.nan_to_num(weights))[1:, 1:]
    return {
        "sequence_id": text,
        "tokens": list(tokens.texts),
        "attention_indices": kept.tolist(),
        "attention_values": weights.ravel()[kept].astype(np.float64).round(4).tolist(),
        "seq_len": length,
        "max_activation": round(float(apart.max(initial=0.0)), 4),
    }


def _head(one: HeadAtlas, sequences: list[dict[str, Any]], sampled: set[int]) -> dict[str, Any]:
    """Return the file of a head. sampled: the texts whose largest weights make the intervals."""
    drawn = [each["max_activation"] for each in sequences if each["sequence_id"] in sampled]
    ranked = np.sort(drawn)
    for each in sequences:
        below = int(np.searchsorted(ranked, each["max_activation"])) / max(len(ranked), 1)
        each["interval"] = min(int(below * _INTERVALS) + 1, _INTERVALS)
    gaps: Counter[int] = Counter()
    weights: dict[str, Counter[str]] = {"query": Counter(), "key": Counter()}
    for each in sequences:
        length, tokens = each["seq_len"], each["tokens"]
        pairs = zip(each["attention_indices"], each["attention_values"], strict=True)
        for place, value in pairs:
            query, key = divmod(place, length)
            gaps[int(abs(query - key)).bit_length()] += 1
            weights["query"][tokens[query]] += value
            weights["key"][tokens[key]] += value
    most = max(gaps, default=0)
    return {
        "sequences": sequences,
        "qk_distance_histogram": {
            "bin_edges": [0, *(2**at for at in range(most + 1))],
            "bin_values": [gaps[at] for at in range(most + 1)],
        },
        **{f"top_{side}_tokens": _ranked(found) for side, found in weights.items()},
        "histogram": {
            "bin_edges": edges(FIRES).round(4).tolist(),
            "bin_values": list(one.histogram[FIRES]),
        },
        "statistics": _statistics(one, drawn),
    }


def _ranked(found: Counter[str]) -> list[dict[str, Any]]:
    return [{"token": token, "weight": round(w, 4)} for token, w in found.most_common(_TOKENS)]


def _statistics(one: HeadAtlas, drawn: Sequence[float]) -> dict[str, float]:
    found = {"mean_max_activation": float(np.mean(drawn)) if drawn else 0.0, "share": one.share}
    if (place := one.strongest) is not None:
        found |= {"strongest": place.link.weight, "usual": place.usual, "even": place.even}
    if one.prefers is not None:
        found |= {"token_share": one.prefers.share, "token_base_rate": one.prefers.base_rate}
    return {name: round(value, 4) for name, value in found.items()}


def _scatter(heads: Sequence[HeadAtlas]) -> list[dict[str, Any]]:
    """Return a row for every head, those with the most numbers first.

    The front end offers as axes what is a number in the first row. A metric that no head has is
    left out.
    """
    rows = [_metrics(one) for one in heads]
    kept = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    rows.sort(key=lambda row: [*row.values()].count(None))
    return [{name: row[name] for name in kept} for row in rows]


def _metrics(one: HeadAtlas) -> dict[str, Any]:
    scores = {_THEIR_NAMES.get(name, name): one.scores[name] for name in NAMES}
    scores |= {"fires_even": one.base_rate[FIRES], "share": one.share}
    known = {name: value if value is None else round(value, 4) for name, value in scores.items()}
    return {"layer": one.layer, "head": one.head, **known}


def _config(report: AtlasReport, metrics: Sequence[str]) -> dict[str, Any]:
    info = report.model
    tables = {"top_query_tokens": "Top query tokens", "top_key_tokens": "Top key tokens"}
    return {
        "model_name": info.name,
        "heads": [[one.layer, one.head] for one in report.heads],
        "n_layers": info.layers,
        "n_heads": info.heads,
        "n_intervals": _INTERVALS,
        "metrics": list(metrics),
        "metric_descriptions": {name: _MEANINGS[name] for name in metrics if name in _MEANINGS},
        "head_data_pattern": "L{layer}H{head}.json",
        "has_umap": False,
        "umap_heads": [],
        "custom_plots": [{"key": "qk_distance_histogram", "label": "Q-K distance"}],
        "custom_tables": [{"key": key, "label": label} for key, label in tables.items()],
        "statistics_display": {
            name: {"label": label, "format": "default"} for name, label in _STATISTICS.items()
        },
    }
