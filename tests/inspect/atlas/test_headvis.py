"""The files for HeadVis against a description of its format that shares no code with the writer.

What is stated here is what the docstrings of its ``data_pipeline.py`` ask for and what its front
end reads: ``src/Index.svelte``, ``src/lib/data.js`` and ``src/components/MetricsTab.svelte``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnviz.inspect.atlas.records import AtlasReport

PAIR, BINS, RANKED = "pair", "bins", "ranked"

CONFIG: dict[str, Any] = {
    "model_name": str,
    "heads": [PAIR],
    "n_layers": int,
    "n_heads": int,
    "n_intervals": int,
    "metrics": [str],
    "metric_descriptions": {str: str},
    "head_data_pattern": str,
    "has_umap": bool,
    "umap_heads": [PAIR],
    "custom_plots": [{"key": str, "label": str}],
    "custom_tables": [{"key": str, "label": str}],
    "statistics_display": {str: {"label": str, "format": str}},
}
SEQUENCE = {
    "sequence_id": int,
    "interval": int,
    "tokens": [str],
    "attention_indices": [int],
    "attention_values": [float],
    "seq_len": int,
    "max_activation": float,
}
HEAD = {
    "sequences": [SEQUENCE],
    "qk_distance_histogram": BINS,
    "top_query_tokens": RANKED,
    "top_key_tokens": RANKED,
    "histogram": BINS,
    "statistics": {str: float},
}
RANK = {"token": str, "weight": float}


def faults(found: Any, wanted: Any, where: str) -> list[str]:
    """Return where a value is not of the described form, a line for each place."""
    if wanted == PAIR:
        fit = isinstance(found, list) and [type(each) for each in found] == [int, int]
        return [] if fit else [f"{where}: {found!r} is no pair of layer and head"]
    if wanted == RANKED:
        return faults(found, [RANK], where)
    if wanted == BINS:
        form = {"bin_edges": [float], "bin_values": [float]}
        if wrong := faults(found, form, where):
            return wrong
        ends = found["bin_edges"]
        fit = len(ends) == len(found["bin_values"]) + 1 and ends == sorted({*ends})
        return [] if fit else [f"{where}: the ends of the bins do not fit"]
    if isinstance(wanted, list):
        if not isinstance(found, list):
            return [f"{where}: no list"]
        return [
            line
            for at, each in enumerate(found)
            for line in faults(each, wanted[0], f"{where}.{at}")
        ]
    if isinstance(wanted, dict):
        if not isinstance(found, dict):
            return [f"{where}: no object"]
        if str in wanted:
            wanted = dict.fromkeys(found, wanted[str])
        if {*found} != {*wanted}:
            return [f"{where}: other fields: {sorted({*found} ^ {*wanted})}"]
        return [
            line for name in wanted for line in faults(found[name], wanted[name], f"{where}.{name}")
        ]
    number = wanted is float and type(found) is int
    return (
        [] if number or type(found) is wanted else [f"{where}: {found!r} is no {wanted.__name__}"]
    )


def sequence_faults(found: dict[str, Any], intervals: int, where: str) -> list[str]:
    """Return what does not fit within a sequence: lengths, places and the largest weight."""
    length, places, values = (
        found[name] for name in ("seq_len", "attention_indices", "attention_values")
    )
    inside = [
        value
        for place, value in zip(places, values, strict=False)
        if place // length and place % length and place // length != place % length
    ]
    fits = {
        "interval": 1 <= found["interval"] <= intervals,
        "tokens": len(found["tokens"]) == length,
        "attention_values": len(values) == len(places),
        "attention_indices": all(0 <= place < length * length for place in places)
        and len({*places}) == len(places),
        "max_activation": found["max_activation"] >= max(inside, default=0.0),
        "decimals": all(round(value, 4) == value for value in values),
    }
    return [f"{where}.{name}" for name, fit in fits.items() if not fit]


def data_faults(data: Path) -> list[str]:
    """Return every fault of a ``data/`` that the front end of HeadVis would read."""
    config = json.loads((data / "config.json").read_text())
    if wrong := faults(config, CONFIG, "config"):
        return wrong
    rows = json.loads((data / "scatter_data.json").read_text())
    offered = [name for name, value in rows[0].items() if type(value) in (int, float)]
    if offered != ["layer", "head", *config["metrics"]]:
        wrong.append(f"scatter_data: the first row offers the axes {offered}")
    if sorted([row["layer"], row["head"]] for row in rows) != sorted(config["heads"]):
        wrong.append("scatter_data: other heads than config.heads")
    for row in rows:
        known = {name: value for name, value in row.items() if value is not None}
        wrong += faults(known, dict.fromkeys(known, float), "scatter_data")
    if not {*config["metric_descriptions"]} <= {*config["metrics"]}:
        wrong.append("config.metric_descriptions: of no metric")
    shown = {**{each["key"]: BINS for each in config["custom_plots"]}}
    if "histogram" in shown:
        wrong.append("config.custom_plots: the metrics tab draws histogram without being asked")
    shown |= {each["key"]: RANKED for each in config["custom_tables"]}
    for layer, head in config["heads"]:
        pattern = config["head_data_pattern"]
        name = pattern.replace("{layer}", str(layer)).replace("{head}", str(head))
        found = json.loads((data / "heads" / name).read_text())
        if of_head := faults(found, HEAD, name):
            wrong += of_head
            continue
        wrong += [line for key, form in shown.items() for line in faults(found[key], form, name)]
        ids = [each["sequence_id"] for each in found["sequences"]]
        if len({*ids}) != len(ids):
            wrong.append(f"{name}: a sequence twice")
        for each in found["sequences"]:
            wrong += sequence_faults(each, config["n_intervals"], f"{name}.{each['sequence_id']}")
    for name in ("server_config.json", "attributions/manifest.json"):
        wrong += faults(json.loads((data / name).read_text()), {}, name)
    return wrong


@pytest.fixture(scope="module")
def data(whole: AtlasReport, tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("headvis")
    whole.write(path, tiny, "headvis")
    return path / "data"


def test_the_files_are_of_the_format(data: Path) -> None:
    assert data_faults(data) == []


@pytest.mark.long
def test_the_description_finds_faults(data: Path) -> None:
    """A field that is missing, a place outside the map, and a metric that the first row lacks."""
    for name in ("config.json", "scatter_data.json", "heads/L0H0.json"):
        found = json.loads((data / name).read_text())
        text = (data / name).read_text()
        if name == "config.json":
            del found["heads"]
        elif name == "scatter_data.json":
            found[0]["pattern_entropy"] = None
        else:
            found["sequences"][0]["attention_indices"][0] = found["sequences"][0]["seq_len"] ** 2
        (data / name).write_text(json.dumps(found))
        try:
            assert len(data_faults(data)) == 1
        finally:
            (data / name).write_text(text)


@pytest.mark.long
def test_a_score_that_the_first_head_lacks_is_still_an_axis(
    whole: AtlasReport, tiny: Any, tmp_path: Path
) -> None:
    """The front end offers the numbers of the first row; a score that no head has is left out."""
    heads = [
        replace(one, scores={**one.scores, "entropy": None if at == 0 else 1.0, "induction": None})
        for at, one in enumerate(whole.heads)
    ]
    replace(whole, heads=tuple(heads)).write(tmp_path, tiny, "headvis")
    assert data_faults(tmp_path / "data") == []
    rows = json.loads((tmp_path / "data" / "scatter_data.json").read_text())
    assert rows[0]["pattern_entropy"] == 1.0
    assert [row["pattern_entropy"] for row in rows if row["layer"] == row["head"] == 0] == [None]
    assert not any("induction_score" in row for row in rows)
