"""The report of ``attnviz generate``: a text, what heads attended to during the writing, its file.

The file (``.jsonl``) can be read back; its weights have four significant digits. Anyone may have
written a file that is read, so all of it is checked.

    {"schema": "attnviz.generate/1", "model": …, "prompt": …, "sampling": …, …, "tokens": …}
    {"prompt_rows": {"0": [[[w], [w, w], …], …], …}}     by layer: head, query, keys up to the query
    {"token": …, "id": …, "probability": …, "likely": …, …, "rows": {"0": [[w, …], …], …}}
    …
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.files import Writer, text_file
from attnviz.draw.regions import region_facts, share_facts
from attnviz.draw.report import Report, fields_of
from attnviz.draw.values import json_values, known_label_facts, model_facts, model_of
from attnviz.engine.generation import Sampling, Step, written
from attnviz.engine.head_run import Head
from attnviz.engine.known_labels import head_list, labels_of
from attnviz.engine.likely import Likely
from attnviz.errors import LoadError
from attnviz.measures.labels import KnownLabels, best_label, strength
from attnviz.measures.regions import RegionSums, regions_of, shares
from attnviz.measures.registry import label_named
from attnviz.measures.rows import Conditions, RowBlock, TextFacts, base_rates, scores_of
from attnviz.measures.sinks import sink_keys
from attnviz.measures.words import text_of
from attnviz.reading import damaged, finite, one_of, optional, parse_json, typed
from attnviz.records import Floats, HeadLabel, Kind, LayerWeights, ModelInfo, RegionShares, Tokens

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


Ending = Literal["tokens", "end", "context", "interrupted", "failed"]
"""Why a text ends: it has as many tokens as requested, an end-of-text token was written, the
context is full, Ctrl-C was pressed, or the next step failed."""


@dataclass(frozen=True, eq=False)
class WrittenRun:
    """A finished or interrupted generation: the text that a model wrote, and its attention weights.

    model: its facts. kind: the attention that is shown. text: the prompt, as it was given.
    source: the encoder's tokens; None if the model has no encoder.
    begun: the tokens before the generated ones: the prompt, or a decoder's start.
    prompt: the attention weights over these, all heads; empty if they were not recorded.
    sampling: how tokens were chosen. ending: why the text ended. removed: (layer, head) of heads
        whose outputs were set to zero. steps: the generated tokens, in order.
    index_base: 0 or 1, the first number in names of layers and heads.
    known: labels of the model's heads that were measured before the generation.
    region: that of the generated tokens, if the prompt has regions.
    Raises ValueError if the rows of weights do not fit the tokens.
    """

    model: ModelInfo
    kind: Kind
    text: str
    source: Tokens | None
    begun: Tokens
    prompt: tuple[LayerWeights, ...]
    sampling: Sampling
    removed: tuple[Head, ...]
    steps: tuple[Step, ...]
    ending: Ending
    index_base: int = 0
    known: KnownLabels | None = None
    region: str = "written"

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("nothing was written")
        shapes = {layer: len(row) for layer, row in self.steps[0].rows.items()}
        for query, step in enumerate(self.steps, len(self.begun) - 1):
            keys = query + 1 if self.kind != "cross" else len(self.source or ())
            own = {layer: row.shape for layer, row in step.rows.items()}
            if step.query != query or own != {at: (n, keys) for at, n in shapes.items()}:
                raise ValueError(f"the rows of token {query + 1} do not fit the text")

    @cached_property
    def tokens(self) -> Tokens:
        """Return the tokens of the prompt (``begun``), followed by the generated ones."""
        return written(self.begun, self.steps, self.region)

    @cached_property
    def regions(self) -> RegionShares | None:
        """Return the steps' mean attention share on each region; None if keys have no regions."""
        if not self.keys.regions:
            return None
        places = np.arange(self.start, len(self.queries))
        asking = replace(self.queries.taken(places.tolist()), regions=(self.region,) * len(places))
        seen = (np.arange(len(self.keys)) <= places[:, None]) | (self.kind == "cross")
        layers = {}
        for layer, row in self.steps[0].rows.items():
            sums = RegionSums(asking, self.keys, self.sink)
            sums.add(self.weights(layer), 0, seen)
            layers[layer, tuple(range(len(row)))] = sums.sums()
        return shares(asking, self.keys, layers)

    @property
    def text_written(self) -> str:
        """Return the generated text; an incomplete character at its end becomes U+FFFD."""
        return text_of([step.text for step in self.steps if not step.ended])

    @property
    def queries(self) -> Tokens:
        """Return the tokens that were queries: all but the last generated one."""
        return self.tokens.cut(len(self.tokens) - 1)

    @property
    def keys(self) -> Tokens:
        """Return the tokens that could be attended to."""
        return self.queries if self.kind != "cross" or self.source is None else self.source

    @property
    def start(self) -> int:
        """Return the index of the first query, after which the first token was generated."""
        return self.steps[0].query

    @property
    def heads(self) -> tuple[Head, ...]:
        rows = self.steps[0].rows
        return tuple((layer, head) for layer in sorted(rows) for head in range(len(rows[layer])))

    def name(self, head: Head) -> str:
        """Return a head's name, such as ``L2H5``."""
        return f"L{head[0] + self.index_base}H{head[1] + self.index_base}"

    def weights(self, layer: int) -> Floats:
        """Return a layer's attention weights (head, step, key), zero for keys after a step."""
        rows = [step.rows[layer] for step in self.steps]
        whole = np.zeros((len(rows[0]), len(rows), len(self.keys)), rows[0].dtype)
        for number, row in enumerate(rows):
            whole[:, number, : row.shape[1]] = row
        return whole

    @property
    def sink(self) -> NDArray[np.bool_]:
        """Return a mask (key,), True for the keys that belong to the attention sink."""
        return sink_keys(self.keys, self.kind != "cross")

    def peaks(self, head: Head) -> Floats:
        """Return the largest attention weight of each key at any step: (key,), NaN for the sink.

        head: (layer, head). Means over steps would not be comparable: the last tokens are there for
        a few steps only.
        """
        return np.where(self.sink, np.nan, self.weights(head[0])[head[1]].max(0))

    @cached_property
    def copies(self) -> Mapping[Head, int]:
        """Return of each head in how many steps it attends most to the token that comes next.

        The sink is left out; a step in which nothing else is attended to is no copy.
        """
        keys, copies = np.array(self.keys.ids), dict[Head, int]()
        following = np.array([step.id for step in self.steps])
        for layer in self.steps[0].rows:
            weights = np.where(self.sink, 0.0, self.weights(layer))
            equal = (keys[weights.argmax(-1)] == following) & (weights.max(-1) > 0)
            copies |= {(layer, head): int(row.sum()) for head, row in enumerate(equal)}
        return copies

    def sources(self, head: Head, step: int, count: int) -> list[tuple[int, float]]:
        """Return the ``count`` keys with the largest attention weights in a step: (index, weight).

        head: (layer, head). step: its index. The sink is left out.
        """
        row = self.steps[step].rows[head[0]][head[1]]
        row = np.where(self.sink[: len(row)], 0.0, row)
        order = np.argsort(-row, kind="stable")[:count].tolist()
        return [(at, float(row[at])) for at in order if row[at] > 0]

    def sink_weight(self, head: Head, step: int) -> float:
        """Return a head's weight on the attention sink in a step. head: (layer, head)."""
        row = self.steps[step].rows[head[0]][head[1]]
        return float(row[self.sink[: len(row)]].sum())


# The file of a run -----------------------------------------------------------------------------


SCHEMA = "attnviz.generate/1"
_ANEW = "save the run again"
_DIGITS = 4  # the significant digits of a weight in a file
_MOST_PROMPT = 2**23  # the most weights of the prompt, over all heads; more are left out
_ROUNDING = 0.02  # how far a row of rounded weights may sum to more than one


def run_facts(run: WrittenRun) -> dict[str, Any]:
    """Return the facts at the start of a run as JSON: model, prompt, sampling, ablated heads."""
    facts = {
        "schema": SCHEMA,
        "model": model_facts(run.model),
        "prompt": run.text,
        "kind": run.kind,
        **_tokens(run.begun if run.source is None else run.source),
        "sampling": vars(run.sampling),
        **fields_of(run, ("removed", "ending")),
    }
    return facts if run.source is None else {**facts, "begun": _tokens(run.begun)}


def _tokens(tokens: Tokens) -> dict[str, Any]:
    return {"tokens": tokens.texts, "token_ids": tokens.ids, "special": tokens.special}


def step_facts(step: Step) -> dict[str, Any]:
    """Return the token that a step wrote, and its likeliest alternatives, as JSON values."""
    return {
        "token": step.text,
        **fields_of(step, ("id", "ended", "probability", "entropy")),
        "likely": [
            {"token": token.text, "id": token.id, "probability": token.probability}
            for token in step.likely
        ],
    }


def write_run_lines(run: WrittenRun, stream: SupportsWrite[str]) -> None:
    """Write a generation as JSON lines, which ``read_run`` and ``attnviz explore`` can read."""
    known, labels = run.known, None
    if known is not None:
        labels = {"source": known.source, "date": known.date or None, "heads": head_list(known)}
    small = sum(layer.weights.size for layer in run.prompt) <= _MOST_PROMPT
    prompt = {}
    for layer in run.prompt if small else ():
        heads = rounded(layer.weights)
        if run.kind != "cross":  # later keys have no weight
            heads = [[row[: query + 1] for query, row in enumerate(head)] for head in heads]
        prompt[str(layer.layer)] = heads
    lines = [{**run_facts(run), "labels": labels}, {"prompt_rows": prompt}]
    steps = (
        {**step_facts(step), "rows": {str(at): rounded(row) for at, row in step.rows.items()}}
        for step in run.steps
    )
    for line in chain(lines, steps):
        stream.write(json.dumps(line, allow_nan=False) + "\n")


def rounded(weights: Floats) -> list[Any]:
    """Return weights with four significant digits as lists; None for NaN and infinity."""
    numbers = np.nan_to_num(weights.astype(np.float64), posinf=0.0, neginf=0.0)
    with np.errstate(divide="ignore"):
        places = _DIGITS - 1 - np.floor(np.log10(np.abs(numbers)))
    power = 10.0 ** np.clip(places, 0, 22)
    kept = np.rint(numbers * power) / power
    return json_values(np.where(np.isfinite(weights), kept, np.nan))


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
            f"{name} is not a saved run: expected the lines that attnviz generate --save "
            f"NAME.jsonl writes, the first with the schema {SCHEMA!r}"
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
        layers, heads = self._info.layers, self._info.heads
        if any(not (0 <= layer < layers and 0 <= head < heads) for layer, head in known.heads):
            raise ValueError("a label of a head that the model does not have")
        return known

    def _check(self, layers: Mapping[int, Sequence[object]]) -> None:
        """Raise ValueError if the model has no such layers, or fewer heads than one of them."""
        if any(not 0 <= layer < self._info.layers for layer in layers):
            raise ValueError(f"a layer that is none of {self._info.layers}")
        if any(len(heads) > self._info.heads for heads in layers.values()):
            raise ValueError(f"more heads than {self._info.heads}")

    def _keys(self, query: int) -> int:
        return query + 1 if self._source is None else len(self._source)

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
        self._check({own.layer: own.heads for own in layers})
        return tuple(layers)

    def step(self, facts: Mapping[str, Any], query: int) -> Step:
        """Return the step after the token with the index ``query``."""
        keys = self._keys(query)
        rows = {int(layer): _weights(heads, keys) for layer, heads in facts["rows"].items()}
        self._check({layer: [*row] for layer, row in rows.items()})
        return Step(
            query=query,
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
        tuple(typed(mark, bool) for mark in facts["special"]),
    )


def _weights(rows: Any, keys: int) -> Floats:
    """Return weights (row, key) from a file; ValueError if they cannot be shares of one."""
    weights = np.asarray(rows, np.float32)
    if weights.ndim != 2 or weights.shape[1] != keys:
        raise ValueError(f"rows of shape {weights.shape} where each has {keys} keys")
    known = np.nan_to_num(weights)
    if np.isinf(weights).any() or (known < 0).any() or (known.sum(-1) > 1 + _ROUNDING).any():
        raise ValueError("weights that are not shares of one")
    return weights


def _probability(facts: Mapping[str, Any]) -> float:
    value = facts["probability"]
    if not 0 <= (number := finite(value)) <= 1:
        raise ValueError(f"{value!r} is not a probability")
    return number


NAMED = ("previous", "self", "first", "duplicate", "induction", "separator", "delimiter")
"""The measures of what a head attends to, token by token."""

TELLING = ("previous", "duplicate", "induction", "delimiter")
"""The labels that show where a head attends while it writes: not at itself, nor at the sink."""

_SPREAD, _PEAKED = ("spread", "normalised_entropy"), ("peaked", "confidence")
_DIFFUSE = 0.6  # the normalised entropy from which a head without another name is called diffuse
_SOURCES = 5  # the number of most attended tokens that are listed for each step


class HeadActivity(NamedTuple):
    """The attention of one head during a generation, described by one measure.

    name: of its label, or of the measure that describes it. score: the mean of that measure, in [0,
        1], over ``steps`` generation steps. uniform: the score of uniform attention.
    label: the head's label in the model's card or from ``patterns``; None without one.
    """

    name: str
    score: float
    uniform: float
    steps: int
    label: HeadLabel | None = None

    @property
    def known(self) -> bool:
        """Return whether the name is that of the head's label, because these steps can show it."""
        return self.label is not None and self.label.name == self.name

    @property
    def words(self) -> str:
        return label_named(self.name).said


@dataclass(frozen=True, repr=False)
class GenerateReport(Report):
    """The report of ``attnviz generate``: the generated text, and where the heads attended.

    Iterating yields the generation steps. run: the generation. activity: of each (layer, head).
    heads: those that are shown in full; the first one colours the text. chosen: whether the user
    chose them.
    """

    run: WrittenRun
    activity: Mapping[Head, HeadActivity]
    heads: tuple[Head, ...]
    chosen: bool = False

    command = "generate"
    lists = None

    def __iter__(self) -> Iterator[Step]:
        return iter(self.run.steps)

    @property
    def head(self) -> Head:
        """Return the (layer, head) whose weights colour the text."""
        return self.heads[0]

    def data(self) -> dict[str, Any]:
        """Return the whole report of a generation as JSON values; indices start at 0.

        Attention weights are included for the shown heads; the ``sources`` of a step are those of
        the first shown head.
        """
        run, keys, (layer, head) = self.run, self.run.keys, self.head
        steps = []
        for number, step in enumerate(run.steps):
            sources = [
                {"index": at, "token": keys.texts[at], "weight": weight}
                for at, weight in run.sources(self.head, number, _SOURCES)
            ]
            more = {"sources": sources, "sink_weight": run.sink_weight(self.head, number)}
            steps.append(step_facts(step) | more)
        return {
            **run_facts(run),
            "written": run.text_written,
            **({"regions": region_facts(keys)} if keys.regions else {}),
            "shown": {"layer": layer, "head": head},
            "steps": steps,
            "heads": [self._head_facts(*entry) for entry in self.activity.items()],
        }

    def _head_facts(self, head: Head, activity: HeadActivity) -> dict[str, Any]:
        run, (layer, number), label = self.run, head, activity.label
        return {
            "layer": layer,
            "head": number,
            **fields_of(activity, ("name", "known", "score")),
            "base_rate": activity.uniform,
            "steps": activity.steps,
            "label": None if label is None else known_label_facts(label),
            **({} if run.regions is None else {"regions": share_facts(run.regions, head)}),
            **({"weights": rounded(run.weights(layer)[number])} if head in self.heads else {}),
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the CSV header, then a row for each generation step and each shown head.

        The columns begin with step, token, id, probability, entropy, layer and head.
        """
        run, of_keys = self.run, np.asarray(self.run.keys.regions)
        regions = [*regions_of(run.keys)] if run.keys.regions else []
        yield (
            *("step", "token", "id", "probability", "entropy", "layer", "head"),
            *("source_index", "source_token", "weight", "sink_weight"),
            *(f"region_{name}" for name in regions),
        )
        for number, step in enumerate(run.steps):
            for head in self.heads:
                at, weight = next(iter(run.sources(head, number, 1)), (None, None))
                source = None if at is None else run.keys.texts[at]
                row = step.rows[head[0]][head[1]]
                sums = [float(row[of_keys[: len(row)] == name].sum()) for name in regions]
                facts = (number, step.text, step.id, step.probability, step.entropy, *head)
                yield (*facts, at, source, weight, run.sink_weight(head, number), *sums)

    def arrays(self) -> Mapping[str, Writer]:
        """Return the function that writes the run to a ``.jsonl`` file for ``attnviz explore``."""
        return {".jsonl": text_file(lambda stream: write_run_lines(self.run, stream))}


def activities(run: WrittenRun) -> dict[Head, HeadActivity]:
    """Return the activity of every (layer, head) during a generation, from its attention weights.

    A head is named by its known label, if the text can show it; else by the measure that gained
    most over uniform attention, as ``best_label`` decides. A query is taken to see each key to
    which some head of the layer gives any weight.
    """
    facts = TextFacts(run.queries, run.keys, Conditions(run.kind, run.kind != "cross"))
    names = (*NAMED, _SPREAD[1], _PEAKED[1])
    doing, labels = dict[Head, HeadActivity](), {} if run.known is None else run.known.named()
    for layer in sorted(run.steps[0].rows):
        weights = run.weights(layer)
        seen = np.asarray(np.any(weights > 0, axis=0))
        uniform, counts = base_rates(facts, names, seen, run.start)
        scores = scores_of(RowBlock(facts, weights, run.start, seen), names)
        for head in range(len(weights)):
            own = {name: float(values[head]) for name, values in scores.items()}
            label = labels.get((layer, head))
            name, measure = _called(own, uniform, None if label is None else label.name)
            base = uniform[measure]
            base = math.nan if base is None else base
            doing[layer, head] = HeadActivity(name, own[measure], base, counts[measure], label)
    return doing


def _called(
    scores: Mapping[str, float], uniform: Mapping[str, float | None], known: str | None
) -> tuple[str, str]:
    """Return a head's name and the measure behind it, for the weights of a generation.

    known: the name of the head's label, if it was measured before.
    """
    shown = {name for name, score in scores.items() if not math.isnan(score)}
    gained = {name: strength(scores[name], uniform[name]) or 0.0 for name in NAMED if name in shown}
    name = known if known in shown else best_label(gained, scores, uniform, {})
    if name is not None:
        return name, name
    return _SPREAD if scores[_SPREAD[1]] >= _DIFFUSE else _PEAKED
