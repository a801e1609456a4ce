"""A run for programs: one JSON object, a table of its steps, and a file that can be read back.

The file of a run (``.jsonl``) has weights of four significant digits. Anyone may have written a
file that is read, so all of it is checked.

    {"schema": "attnviz.generate/1", "model": …, "prompt": …, "sampling": …, …, "tokens": …}
    {"prompt_rows": {"0": [[[w], [w, w], …], …], …}}     by layer: head, query, keys up to the query
    {"token": …, "id": …, "probability": …, "likely": …, …, "rows": {"0": [[w, …], …], …}}
    …
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from attnviz.draw.regions import region_facts, share_facts
from attnviz.draw.values import json_number, known_label_facts, model_facts, model_of
from attnviz.engine.generation import Sampling, Step
from attnviz.engine.head_run import Head
from attnviz.engine.known_labels import head_list, labels_of
from attnviz.engine.likely import Likely
from attnviz.errors import LoadError
from attnviz.inspect.generate.records import Ending, GenerateReport, WrittenRun
from attnviz.measures.labels import KnownLabels
from attnviz.measures.regions import regions_of
from attnviz.reading import damaged, finite, one_of, parse_json, typed
from attnviz.records import Floats, Kind, LayerWeights, Tokens

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

SCHEMA = "attnviz.generate/1"

_DIGITS = 4
_SOURCES = 5
"""The number of most attended tokens that are listed for each step."""

_MOST_PROMPT = 2**23
"""The most weights of the prompt, over all heads, that a file holds; more are left out."""

_ANEW = "save the run anew"

_ROUNDING = 0.02
"""How far a row of rounded weights may sum to more than one."""


def _header(run: WrittenRun) -> dict[str, Any]:
    """Return the JSON object of a file's first line: model, prompt, sampling, ablated heads."""
    source = run.begun if run.source is None else run.source
    header = {
        "schema": SCHEMA,
        "model": model_facts(run.model),
        "prompt": run.text,
        "kind": run.kind,
        **_tokens(source),
        "sampling": vars(run.sampling),
        "removed": [list(head) for head in run.removed],
        "ending": run.ending,
    }
    return header if run.source is None else {**header, "begun": _tokens(run.begun)}


def _tokens(tokens: Tokens) -> dict[str, Any]:
    return {
        "tokens": list(tokens.texts),
        "token_ids": list(tokens.ids),
        "special": list(tokens.special),
    }


def _labels(known: KnownLabels) -> dict[str, Any]:
    return {"source": known.source, "date": known.date or None, "heads": head_list(known)}


def _step(step: Step) -> dict[str, Any]:
    return {
        "token": step.text,
        "id": step.id,
        "ended": step.ended,
        "probability": step.probability,
        "entropy": step.entropy,
        "likely": [
            {"token": one.text, "id": one.id, "probability": one.probability} for one in step.likely
        ],
    }


# One object ----------------------------------------------------------------------------------


def run_data(report: GenerateReport) -> dict[str, Any]:
    """Return the whole report of a generation as JSON values; indices start at 0.

    Attention weights are included for the shown heads; the ``sources`` of a step are those of the
    first shown head.
    """
    run, shown = report.run, report.heads
    weights = {layer: run.weights(layer) for layer, _ in shown}
    heads = []
    for (layer, head), one in report.found.items():
        entry = {
            "layer": layer,
            "head": head,
            "name": one.name,
            "known": one.known,
            "score": json_number(one.score),
            "base_rate": json_number(one.uniform),
            "steps": one.steps,
            "label": None if one.label is None else known_label_facts(one.label),
        }
        if run.regions is not None:
            entry["regions"] = share_facts(run.regions, (layer, head))
        if (layer, head) in shown:
            entry["weights"] = _rounded(weights[layer][head])
        heads.append(entry)
    return {
        **_header(run),
        "written": run.text_written,
        **({"regions": region_facts(run.keys)} if run.keys.regions else {}),
        "shown": {"layer": shown[0][0], "head": shown[0][1]},
        "steps": [_step_entry(run, shown[0], place) for place in range(len(run.steps))],
        "heads": heads,
    }


def _step_entry(run: WrittenRun, head: Head, place: int) -> dict[str, Any]:
    """Return the JSON object of a generation step, with the tokens that one head attended to most.

    head: (layer, head). place: the index of the step.
    """
    keys = run.keys
    sources = [
        {"index": at, "token": keys.texts[at], "weight": weight}
        for at, weight in run.sources(head, place, _SOURCES)
    ]
    sink = json_number(run.sink_weight(head, place))
    return {**_step(run.steps[place]), "sources": sources, "sink_weight": sink}


def run_rows(run: WrittenRun, shown: Sequence[Head]) -> Iterator[tuple[object, ...]]:
    """Yield the CSV header, then a row for each generation step and each shown head.

    shown: the (layer, head) of each shown head. The columns begin with step, token, id,
    probability, entropy, layer and head.
    """
    regions = [*regions_of(run.keys)] if run.keys.regions else []
    of_keys = np.asarray(run.keys.regions)
    yield (
        *("step", "token", "id", "probability", "entropy", "layer", "head"),
        *("source_index", "source_token", "weight", "sink_weight"),
        *(f"region_{name}" for name in regions),
    )
    for place, step in enumerate(run.steps):
        for head in shown:
            at, weight = next(iter(run.sources(head, place, 1)), (None, None))
            source = None if at is None else run.keys.texts[at]
            told = (place, step.text, step.id, step.probability, step.entropy)
            row = step.rows[head[0]][head[1]]
            there = of_keys[: len(row)]
            sums = [float(row[there == name].sum()) for name in regions]
            yield (*told, *head, at, source, weight, run.sink_weight(head, place), *sums)


# Line by line --------------------------------------------------------------------------------


def write_run_lines(run: WrittenRun, stream: SupportsWrite[str]) -> None:
    """Write a generation as JSON lines, which ``read_run`` and ``attnviz explore`` can read.

    stream: where they are written.
    """

    def line(value: Mapping[str, Any]) -> None:
        stream.write(json.dumps(value, allow_nan=False) + "\n")

    line({**_header(run), "labels": None if run.known is None else _labels(run.known)})
    line({"prompt_rows": {str(one.layer): _prompt(run, one) for one in _kept(run)}})
    for step in run.steps:
        rows = {str(layer): _rounded(row) for layer, row in step.rows.items()}
        line({**_step(step), "rows": rows})


def _kept(run: WrittenRun) -> Sequence[LayerWeights]:
    weights = sum(layer.weights.size for layer in run.prompt)
    return run.prompt if weights <= _MOST_PROMPT else ()


def _prompt(run: WrittenRun, layer: LayerWeights) -> list[list[list[float | None]]]:
    """Return a layer's attention weights over the prompt as lists (head, query, key).

    In self-attention each row ends at its query, because later keys have no weight.
    """
    whole = _rounded(layer.weights)
    if run.kind == "cross":
        return whole
    return [[row[: place + 1] for place, row in enumerate(head)] for head in whole]


def _rounded(weights: Floats) -> list[Any]:
    """Return weights with four significant digits; None for NaN and infinity."""
    exact = np.asarray(weights, np.float64)
    finite = np.isfinite(exact)
    numbers = np.where(finite, exact, 0.0)
    with np.errstate(divide="ignore"):
        places = _DIGITS - 1 - np.floor(np.log10(np.abs(numbers)))
    power = 10.0 ** np.clip(places, 0, 22)
    found: Any = np.rint(numbers * power) / power
    if not finite.all():
        found = found.astype(object)
        found[~finite] = None
    rounded: list[Any] = found.tolist()
    return rounded


# Read back ------------------------------------------------------------------------------------


def read_run(content: bytes, name: str) -> WrittenRun:
    """Return the generation saved in a file of ``attnviz generate --save NAME.jsonl``.

    content: the whole file. name: of the file, for messages.
    Raises LoadError, in one line, if the file is damaged or has other content.
    """
    lines = enumerate(io.BytesIO(content), start=1)
    header = _object(next(lines, (1, b""))[1], f"{name} line 1")
    if header.get("schema") != SCHEMA or "steps" in header:
        raise LoadError(
            f"{name} is no run: expected the lines that attnviz generate --save NAME.jsonl writes, "
            f"the first with the schema {SCHEMA!r}"
        )
    with damaged(f"{name} line 1", _ANEW):
        read = _Header(header)
    prompt: tuple[LayerWeights, ...] = ()
    steps: list[Step] = []
    for number, line in lines:
        with damaged(f"{name} line {number}", _ANEW):
            found = _object(line, f"{name} line {number}")
            if number == 2:
                prompt = read.prompt(found["prompt_rows"])
            else:
                steps.append(read.step(found))
    with damaged(f"{name} line 1", _ANEW):
        return read.run(prompt=prompt, steps=tuple(steps))


def _object(line: bytes, name: str) -> dict[str, Any]:
    found = parse_json(line, name)
    if not isinstance(found, dict):
        raise LoadError(f"{name} should hold a JSON object, not {type(found).__name__}")
    return found


class _Header:
    """The checked first line of a saved generation, with which the other lines must agree."""

    def __init__(self, header: Mapping[str, Any]) -> None:
        self._info = model_of(header["model"])
        self._kind: Kind = one_of(header["kind"], ("self", "decoder", "cross"))
        ending: Ending = one_of(header["ending"], get_args(Ending))
        source = _read_tokens(header)
        self._source = None if self._kind == "self" else source
        self._begun = source if self._kind == "self" else _read_tokens(header["begun"])
        self._place = len(self._begun) - 1
        removed = tuple((typed(layer, int), typed(head, int)) for layer, head in header["removed"])
        self._check(layer for layer, _ in removed)
        self.run = partial(
            WrittenRun,
            model=self._info,
            kind=self._kind,
            text=typed(header["prompt"], str),
            source=self._source,
            begun=self._begun,
            sampling=_sampling(header["sampling"]),
            removed=removed,
            ending=ending,
            known=self._labels(header.get("labels")),
        )

    def _labels(self, given: Mapping[str, Any] | None) -> KnownLabels | None:
        if given is None:
            return None
        known = labels_of(given, one_of(given["source"], ("card", "patterns")))
        sizes = self._info.layers, self._info.heads
        if any(
            not (0 <= at < size)
            for head in known.heads
            for at, size in zip(head, sizes, strict=True)
        ):
            raise ValueError("a label of a head that the model does not have")
        return known

    def _check(self, layers: Iterable[int]) -> None:
        if any(not 0 <= layer < self._info.layers for layer in layers):
            raise ValueError(f"a layer that is none of {self._info.layers}")

    def _check_heads(self, layers: Mapping[int, Sequence[object]]) -> None:
        self._check(layers)
        if any(len(heads) > self._info.heads for heads in layers.values()):
            raise ValueError(f"more heads than {self._info.heads}")

    def _keys(self, place: int) -> int:
        across = self._kind == "cross" and self._source is not None
        return len(self._source or ()) if across else place + 1

    def prompt(self, given: Mapping[str, Any]) -> tuple[LayerWeights, ...]:
        queries = len(self._begun)
        keys = self._keys(queries - 1)
        layers = []
        for layer, heads in given.items():
            rows = [
                [_weights([row], self._keys(at)) for at, row in enumerate(head)] for head in heads
            ]
            if any(len(head) != queries for head in rows):
                raise ValueError(f"the prompt has {queries} tokens, and other numbers of rows")
            weights = np.zeros((len(rows), queries, keys), np.float32)
            for head, each in enumerate(rows):
                for place, row in enumerate(each):
                    weights[head, place, : row.shape[1]] = row[0]
            layers.append(LayerWeights(int(layer), tuple(range(len(rows))), weights))
        self._check_heads({one.layer: one.heads for one in layers})
        return tuple(layers)

    def step(self, given: Mapping[str, Any]) -> Step:
        keys = self._keys(self._place)
        rows = {int(layer): _weights(heads, keys) for layer, heads in given["rows"].items()}
        self._check_heads({layer: [*row] for layer, row in rows.items()})
        step = Step(
            place=self._place,
            id=typed(given["id"], int),
            text=typed(given["token"], str),
            probability=_share(given["probability"]),
            likely=tuple(
                Likely(typed(one["token"], str), typed(one["id"], int), _share(one["probability"]))
                for one in given["likely"]
            ),
            entropy=finite(given["entropy"]),
            rows=rows,
            ended=typed(given["ended"], bool),
        )
        self._place += 1
        return step


def _sampling(given: Mapping[str, Any]) -> Sampling:
    top_k, top_p = given["top_k"], given["top_p"]
    return Sampling(
        typed(given["tokens"], int),
        finite(given["temperature"]),
        None if top_k is None else typed(top_k, int),
        None if top_p is None else finite(top_p),
        typed(given["seed"], int),
    )


def _read_tokens(given: Mapping[str, Any]) -> Tokens:
    return Tokens(
        tuple(typed(number, int) for number in given["token_ids"]),
        tuple(typed(text, str) for text in typed(given["tokens"], list)),
        tuple(typed(special, bool) for special in given["special"]),
    )


def _weights(rows: Any, keys: int) -> Floats:
    """Return attention weights (row, key) from a file as an array; null becomes NaN.

    rows: the lists in the file. keys: how many numbers each row must have.
    Raises ValueError if the weights cannot be shares of one.
    """
    found = np.asarray(rows, np.float32)
    if found.ndim != 2 or found.shape[1] != keys:
        raise ValueError(f"rows of shape {found.shape} where each has {keys} keys")
    known = np.nan_to_num(found)
    if np.isinf(found).any() or (known < 0).any() or (known.sum(-1) > 1 + _ROUNDING).any():
        raise ValueError("weights that are no shares of one")
    return found


def _share(value: Any) -> float:
    if not 0 <= (number := finite(value)) <= 1:
        raise ValueError(f"{value!r} is no probability")
    return number
