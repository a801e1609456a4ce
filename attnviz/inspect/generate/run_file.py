"""The file of a run (``.jsonl``), which can be read back: its weights have four significant digits.

Anyone may have written a file that is read, so all of it is checked.

    {"schema": "attnviz.generate/1", "model": …, "prompt": …, "sampling": …, …, "tokens": …}
    {"prompt_rows": {"0": [[[w], [w, w], …], …], …}}     by layer: head, query, keys up to the query
    {"token": …, "id": …, "probability": …, "likely": …, …, "rows": {"0": [[w, …], …], …}}
    …
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from attnviz.draw.values import json_values, model_facts, model_of
from attnviz.engine.generation import Sampling, Step
from attnviz.engine.known_labels import head_list, labels_of
from attnviz.engine.likely import Likely
from attnviz.errors import LoadError
from attnviz.inspect.generate.run import Ending, WrittenRun
from attnviz.measures.labels import KnownLabels
from attnviz.reading import damaged, finite, one_of, optional, parse_json, typed
from attnviz.records import Floats, Kind, LayerWeights, Tokens

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

SCHEMA = "attnviz.generate/1"

_DIGITS = 4
_MOST_PROMPT = 2**23
"""The most weights of the prompt, over all heads, that a file holds; more are left out."""

_ANEW = "save the run anew"

_ROUNDING = 0.02
"""How far a row of rounded weights may sum to more than one."""


def run_facts(run: WrittenRun) -> dict[str, Any]:
    """Return the facts at the start of a run as JSON: model, prompt, sampling, ablated heads."""
    facts = {
        "schema": SCHEMA,
        "model": model_facts(run.model),
        "prompt": run.text,
        "kind": run.kind,
        **_tokens(run.begun if run.source is None else run.source),
        "sampling": vars(run.sampling),
        "removed": run.removed,
        "ending": run.ending,
    }
    return facts if run.source is None else {**facts, "begun": _tokens(run.begun)}


def _tokens(tokens: Tokens) -> dict[str, Any]:
    return {"tokens": tokens.texts, "token_ids": tokens.ids, "special": tokens.special}


def step_facts(step: Step) -> dict[str, Any]:
    """Return the token that a step wrote, and its likeliest alternatives, as JSON values."""
    return {
        "token": step.text,
        "id": step.id,
        "ended": step.ended,
        "probability": step.probability,
        "entropy": step.entropy,
        "likely": [
            {"token": token.text, "id": token.id, "probability": token.probability}
            for token in step.likely
        ],
    }


def write_run_lines(run: WrittenRun, stream: SupportsWrite[str]) -> None:
    """Write a generation as JSON lines, which ``read_run`` and ``attnviz explore`` can read.

    stream: where they are written.
    """
    known, labels = run.known, None
    if known is not None:
        labels = {"source": known.source, "date": known.date or None, "heads": head_list(known)}
    small = sum(layer.weights.size for layer in run.prompt) <= _MOST_PROMPT
    prompt = {str(one.layer): _prompt(run, one) for one in run.prompt if small}
    lines = [{**run_facts(run), "labels": labels}, {"prompt_rows": prompt}]
    steps = (
        {**step_facts(step), "rows": {str(at): rounded(row) for at, row in step.rows.items()}}
        for step in run.steps
    )
    for line in chain(lines, steps):
        stream.write(json.dumps(line, allow_nan=False) + "\n")


def _prompt(run: WrittenRun, layer: LayerWeights) -> list[list[list[float | None]]]:
    """Return a layer's attention weights over the prompt as lists (head, query, key).

    In self-attention each row ends at its query, because later keys have no weight.
    """
    whole = rounded(layer.weights)
    if run.kind == "cross":
        return whole
    return [[row[: place + 1] for place, row in enumerate(head)] for head in whole]


def rounded(weights: Floats) -> list[Any]:
    """Return weights with four significant digits as lists; None for NaN and infinity."""
    numbers = np.nan_to_num(weights.astype(np.float64), posinf=0.0, neginf=0.0)
    with np.errstate(divide="ignore"):
        places = _DIGITS - 1 - np.floor(np.log10(np.abs(numbers)))
    power = 10.0 ** np.clip(places, 0, 22)
    found = np.rint(numbers * power) / power
    lists: list[Any] = json_values(np.where(np.isfinite(weights), found, np.nan))
    return lists


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
        run = _Run(header)
    prompt: tuple[LayerWeights, ...] = ()
    steps: list[Step] = []
    for number, line in lines:
        with damaged(f"{name} line {number}", _ANEW):
            facts = _object(line, f"{name} line {number}")
            if number == 2:
                prompt = run.prompt(facts["prompt_rows"])
            else:
                steps.append(run.step(facts, len(run.begun) - 1 + len(steps)))
    with damaged(f"{name} line 1", _ANEW):
        return run.whole(prompt=prompt, steps=tuple(steps))


def _object(line: bytes, name: str) -> dict[str, Any]:
    facts = parse_json(line, name)
    if not isinstance(facts, dict):
        raise LoadError(f"{name} should hold a JSON object, not {type(facts).__name__}")
    return facts


class _Run:
    """The checked first line of a saved generation, with which the other lines must agree."""

    def __init__(self, header: Mapping[str, Any]) -> None:
        self._info = info = model_of(header["model"])
        kind: Kind = one_of(header["kind"], ("self", "decoder", "cross"))
        ending: Ending = one_of(header["ending"], get_args(Ending))
        source = _tokens_of(header)
        self.begun = source if kind == "self" else _tokens_of(header["begun"])
        self._source = source if kind == "cross" else None
        removed = tuple((typed(layer, int), typed(head, int)) for layer, head in header["removed"])
        self._check({layer: () for layer, _ in removed})
        sampling = header["sampling"]
        top_k, top_p = sampling["top_k"], sampling["top_p"]
        self.whole = partial(
            WrittenRun,
            model=info,
            kind=kind,
            text=typed(header["prompt"], str),
            source=None if kind == "self" else source,
            begun=self.begun,
            sampling=Sampling(
                typed(sampling["tokens"], int),
                finite(sampling["temperature"]),
                optional(top_k, int),
                None if top_p is None else finite(top_p),
                typed(sampling["seed"], int),
            ),
            removed=removed,
            ending=ending,
            known=self._labels(header.get("labels")),
        )

    def _labels(self, facts: Mapping[str, Any] | None) -> KnownLabels | None:
        if facts is None:
            return None
        known = labels_of(facts, one_of(facts["source"], ("card", "patterns")))
        if any(
            not (0 <= layer < self._info.layers and 0 <= head < self._info.heads)
            for layer, head in known.heads
        ):
            raise ValueError("a label of a head that the model does not have")
        return known

    def _check(self, layers: Mapping[int, Sequence[object]]) -> None:
        """Raise ValueError if the model has no such layers, or fewer heads than one of them."""
        if any(not 0 <= layer < self._info.layers for layer in layers):
            raise ValueError(f"a layer that is none of {self._info.layers}")
        if any(len(heads) > self._info.heads for heads in layers.values()):
            raise ValueError(f"more heads than {self._info.heads}")

    def _keys(self, place: int) -> int:
        return place + 1 if self._source is None else len(self._source)

    def prompt(self, facts: Mapping[str, Any]) -> tuple[LayerWeights, ...]:
        """Return the weights over the prompt. facts: by layer the rows (head, query, key)."""
        queries, layers = len(self.begun), []
        for layer, heads in facts.items():
            rows = [
                [_weights([row], self._keys(at))[0] for at, row in enumerate(head)]
                for head in heads
            ]
            if any(len(head) != queries for head in rows):
                raise ValueError(f"the prompt has {queries} tokens, and other numbers of rows")
            weights = np.zeros((len(rows), queries, self._keys(queries - 1)), np.float32)
            for head, query in np.ndindex(weights.shape[:2]):
                weights[head, query, : len(rows[head][query])] = rows[head][query]
            layers.append(LayerWeights(int(layer), tuple(range(len(rows))), weights))
        self._check({one.layer: one.heads for one in layers})
        return tuple(layers)

    def step(self, facts: Mapping[str, Any], place: int) -> Step:
        """Return the step after the token with the index ``place``."""
        rows = {
            int(layer): _weights(heads, self._keys(place)) for layer, heads in facts["rows"].items()
        }
        self._check({layer: [*row] for layer, row in rows.items()})
        return Step(
            place=place,
            id=typed(facts["id"], int),
            text=typed(facts["token"], str),
            probability=_probability(facts),
            likely=tuple(
                Likely(typed(token["token"], str), typed(token["id"], int), _probability(token))
                for token in facts["likely"]
            ),
            entropy=finite(facts["entropy"]),
            rows=rows,
            ended=typed(facts["ended"], bool),
        )


def _tokens_of(facts: Mapping[str, Any]) -> Tokens:
    return Tokens(
        tuple(typed(number, int) for number in facts["token_ids"]),
        tuple(typed(text, str) for text in typed(facts["tokens"], list)),
        tuple(typed(special, bool) for special in facts["special"]),
    )


def _weights(rows: Any, keys: int) -> Floats:
    """Return attention weights (row, key) from a file as an array; null becomes NaN.

    rows: the lists in the file. keys: how many numbers each row must have.
    Raises ValueError if the weights cannot be shares of one.
    """
    weights = np.asarray(rows, np.float32)
    if weights.ndim != 2 or weights.shape[1] != keys:
        raise ValueError(f"rows of shape {weights.shape} where each has {keys} keys")
    known = np.nan_to_num(weights)
    if np.isinf(weights).any() or (known < 0).any() or (known.sum(-1) > 1 + _ROUNDING).any():
        raise ValueError("weights that are no shares of one")
    return weights


def _probability(facts: Mapping[str, Any]) -> float:
    value = facts["probability"]
    if not 0 <= (number := finite(value)) <= 1:
        raise ValueError(f"{value!r} is no probability")
    return number
