"""What rules need of a model: its measurements, each made once, and the baseline of few numbers.

A baseline is saved so that a later model is compared with it. For each head it has the pattern
scores, and the mean attention by distance, a distribution over steps of distance from the query,
with the sink as a step of its own. The Jensen–Shannon divergence of two such distributions is at
most the mean divergence of the rows that ``diff`` measures: it is jointly convex and falls when
outcomes are merged (Lin 1991). Heads beyond a bound here are beyond it there.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.files import check_writable, whole_file
from attnviz.draw.labels import short_name, visible
from attnviz.draw.values import model_facts, write_object
from attnviz.engine.head_run import Head, Run
from attnviz.engine.probing import Probing, open_probing
from attnviz.engine.selection import choose_heads
from attnviz.engine.text_pass import token_losses
from attnviz.errors import LoadError, UsageError
from attnviz.measures.divergence import js_divergence
from attnviz.measures.registry import read_score
from attnviz.measures.sinks import sink_keys
from attnviz.models.model import Model, broken_words
from attnviz.models.resolve import LoadOptions, load
from attnviz.progress import UNWATCHED, Advance
from attnviz.reading import SETTINGS_BYTES, damaged, optional, parse_json, read_bytes, typed
from attnviz.records import Floats, Input, Kind, ModelInfo
from attnviz.texts import built_in_texts

if TYPE_CHECKING:  # rules of params alone load no model
    from attnviz.inspect.patterns.report import PatternReport

SCHEMA = "attnviz.baseline/1"

DISTANCES = (0, 1, 2, 4, 8, 16)
"""The furthest key of each step of distance; keys further away are one more step."""

_FACTS = ("name", "revision", "architecture", "layers", "heads", "dtype")
_DECIMALS = 6
_OFF = 1e-3  # how far the sum of rounded shares may be from one


def by_distance(weights: Floats, sink: NDArray[np.bool_], causal: bool) -> NDArray[np.float64]:
    """Return attention weights (head, query, key) summed over queries by distance: (head, bin).

    Bin 0 is the sink. Then come distances back from the query, in bins with the edges of
    ``DISTANCES``, and if not causal as many bins of distances ahead. sink: (key,), whether a key
    belongs to it. causal: no later key is seen; query 0, which sees only itself, is left out.
    """
    tokens = weights.shape[-1]
    apart = np.arange(tokens)[:, None] - np.arange(tokens)
    steps = 1 + np.searchsorted(DISTANCES, np.abs(apart))
    count = len(DISTANCES) + 2
    if not causal:
        steps = np.where(apart < 0, steps + len(DISTANCES), steps)
        count += len(DISTANCES)
    steps[:, sink] = 0
    first = 1 if causal and weights.shape[1] > 1 else 0
    flat = steps[first:].ravel()
    rows = weights[:, first:].reshape(len(weights), -1)
    return np.stack([np.bincount(flat, row, count) for row in rows.astype(np.float64)])


@dataclass(frozen=True, eq=False)
class Baseline:
    """The baseline of a model: a few numbers for each head, with which a later model is compared.

    tokenizer: a digest of the model's tokens of the built-in texts.
    shares: by (layer, head), the mean attention by distance, (bin,), which sums to one.
    scores: by (layer, head), the pattern scores by name; None if one was not measured.
    """

    info: ModelInfo
    kind: Kind
    tokenizer: str
    shares: Mapping[Head, Floats]
    scores: Mapping[Head, Mapping[str, float | None]]

    @property
    def origin(self) -> str:
        """Return the name of the baseline's model, with seven digits of its revision."""
        return f"{short_name(self.info.name)} {(self.info.revision or '')[:7]}".rstrip()

    def js_divergence(self, other: Baseline) -> dict[Head, float]:
        """Return by head the divergence of attention by distance, in bits; NaN if not finite."""
        pairs = {head: (shares, other.shares[head]) for head, shares in self.shares.items()}
        return {
            head: float(js_divergence(*pair)) if np.isfinite(pair).all() else math.nan
            for head, pair in pairs.items()
        }

    def score_change(self, other: Baseline) -> dict[Head, float]:
        """Return the largest change of any pattern score of each (layer, head) between baselines.

        It is NaN for a head without scores, and for one that lost or gained a score. A score that
        only one side knows, of another version of attnviz, is left out.
        """
        changes = {}
        for head, scores in self.scores.items():
            others = other.scores[head]
            pairs = [(scores[name], others[name]) for name in scores if name in others]
            apart = [
                math.nan if a is None or b is None else abs(a - b)
                for a, b in pairs
                if a is not None or b is not None
            ]
            changes[head] = float(np.max(apart)) if apart else math.nan  # of a NaN it is NaN
        return changes


def check_finite(baseline: Baseline) -> None:
    """Raise UsageError, or LoadError for broken parameters, if attention is not finite."""
    lost = [
        f"L{layer}H{head}"
        for (layer, head), shares in baseline.shares.items()
        if not np.isfinite(shares).all() or set(baseline.scores[layer, head].values()) <= {None}
    ]
    if lost:
        told = (
            f"no baseline: the attention of {len(lost)} of {len(baseline.shares)} heads "
            f"({lost[0]} first) is not a number, so nothing can be compared with it"
        )
        if broken := broken_words(baseline.info.not_finite):
            raise LoadError(f"{told}: {broken[0]}")
        raise UsageError(f"{told}{baseline.info.overflow_advice}")


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write a baseline as JSON; LoadError if that fails, and as ``check_finite``."""
    check_finite(baseline)
    info = model_facts(baseline.info)
    facts = {
        "schema": SCHEMA,
        "model": {name: info[name] for name in _FACTS},
        "kind": baseline.kind,
        "tokenizer": baseline.tokenizer,
        "distances": ["sink", *DISTANCES, "further"],
        "heads": [
            {
                "layer": head[0],
                "head": head[1],
                "by_distance": [round(float(share), _DECIMALS) for share in shares],
                "scores": {
                    name: None if value is None else round(float(value), _DECIMALS)
                    for name, value in baseline.scores[head].items()
                },
            }
            for head, shares in baseline.shares.items()
        ],
    }
    content = io.StringIO()
    write_object(facts, content, ("heads",))
    with whole_file(path) as stream:
        stream.write(content.getvalue().encode("ascii"))


def check_beside(path: Path, rules: Path) -> None:
    """Raise an error unless ``path``, links followed, is writable beside or below ``rules``."""
    folder = os.path.realpath(rules.parent)
    if not Path(os.path.realpath(path)).is_relative_to(folder):
        raise UsageError(
            f"{visible(str(path))!r} does not lie in the directory of {visible(str(rules))!r} or "
            "below it: no baseline is written elsewhere; name one there"
        )
    check_writable(path)


def read_baseline(path: Path, now: Baseline) -> Baseline:
    """Return a saved baseline, checked to be comparable with that of the present model.

    Raises LoadError for a file that cannot be read or is damaged, UsageError for one of another
    schema, or of a model of another architecture, another size or another tokenizer.
    """
    shown = repr(visible(str(path)))
    renew = "renew it with attnviz check --update"
    try:
        data = parse_json(read_bytes(path, name=shown, most=SETTINGS_BYTES), shown)
    except LoadError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise LoadError(f"there is no baseline {shown}: write it with --update") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        got = f"the schema {visible(str(schema))[:40]!r}" if schema else "no schema"
        raise UsageError(f"{shown} holds {got}, expected {SCHEMA!r}: {renew}")
    with damaged(shown, renew):
        saved, model = _read(data, now), data["model"]
        ties = {
            "architecture": (model["architecture"], now.info.architecture),
            "number of layers": (model["layers"], now.info.layers),
            "number of heads": (len(saved.shares), len(now.shares)),
            "attention": (saved.kind, now.kind),
            "tokenizer": (saved.tokenizer, now.tokenizer),
        }
    for fact, pair in ties.items():
        if pair[0] != pair[1]:
            was, here = (visible(str(value))[:60] for value in pair)
            raise UsageError(
                f"{shown} is the baseline of another model: its {fact} is {was}, here {here}; "
                f"{renew}"
            )
    return saved


def _read(data: dict[str, Any], now: Baseline) -> Baseline:
    model = data["model"]
    name, dtype = typed(model["name"], str), typed(model["dtype"], str)
    revision = optional(model["revision"], str)
    info = replace(now.info, name=name, dtype=dtype, revision=revision)
    steps = len(next(iter(now.shares.values())))
    shares, scores = dict[Head, Floats](), dict[Head, dict[str, float | None]]()
    for entry in data["heads"]:
        head = typed(entry["layer"], int), typed(entry["head"], int)
        own = shares[head] = np.array(entry["by_distance"], float)
        if own.shape != (steps,) and data["tokenizer"] == now.tokenizer:
            raise ValueError(f"expected {steps} numbers by distance")
        if not (own >= 0).all() or not abs(own.sum() - 1) <= _OFF:
            raise ValueError("expected numbers by distance that sum to one")
        scores[head] = {
            str(name): read_score(name, score) for name, score in entry["scores"].items()
        }
    if len(shares) < len(data["heads"]):
        raise ValueError("a head is listed twice")
    if shares.keys() != now.shares.keys() and len(shares) == len(now.shares):
        raise ValueError("its heads are others")
    return Baseline(info, data["kind"], str(data["tokenizer"]), shares, scores)


# The measurements ----------------------------------------------------------------------------


_SEEDS = 3  # how many draws of random tokens are used, the same as in patterns

PROBES, TEXTS, BASELINE = "probes", "texts", "baseline"
"""The sources of rules: the texts of ``patterns``, the built-in texts, these and the baseline."""


class _Pass(NamedTuple):
    """The measurements of one run of the model over a text.

    heads: (layer, head), for the rows of ``sums``, which is the attention by distance, (head, bin).
        apart: the largest distance of a query's weight sum from one, NaN if a weight is not finite.
        losses: nats of each predicted token; None if the model predicts none.
    """

    tokens: int
    heads: tuple[Head, ...]
    sums: NDArray[np.float64]
    apart: float
    losses: NDArray[np.float64] | None


@dataclass(eq=False)
class CheckedModel:
    """The model that rules are about; it makes and stores the measurements that rules need.

    name: as the user typed it. loading, load: how it is loaded when the first rule needs it.
    advance: is called with the share of the probes that is scored.
    """

    name: str
    seed: int
    loading: LoadOptions
    load: Callable[[str, LoadOptions], Model] = load
    given: Model | None = None
    advance: Advance = UNWATCHED
    baselines: dict[Path, Baseline] = field(default_factory=dict)

    @cached_property
    def model(self) -> Model:
        return self.load(self.name, self.loading) if self.given is None else self.given

    @property
    def loaded(self) -> bool:
        """Return whether the model was loaded, because a rule needs more than its config."""
        return "model" in vars(self)

    @cached_property
    def probing(self) -> Probing:
        return open_probing(self.model)

    @cached_property
    def params(self) -> dict[str, float]:
        """Return the numbers that ``params --json`` prints, by their keys joined with dots."""
        from attnviz.count.params.params import params
        from attnviz.count.params.request import NamedModel, ParamsRequest

        named = NamedModel(self.name, loaded=self.given)
        request = ParamsRequest(revision=self.loading.revision, offline=self.loading.offline)
        return dict(_numbers(params([named], request).facts()))

    @cached_property
    def patterns(self) -> PatternReport:
        """Return the report of ``attnviz patterns`` on this model over the built-in probes."""
        from attnviz.inspect.patterns.score import score_patterns

        return score_patterns(
            self.model, seeds=range(self.seed, self.seed + _SEEDS), progress=self.advance
        )

    @cached_property
    def scores(self) -> dict[Head, dict[str, float | None]]:
        """Return all pattern scores and statistics of each head, by name; None: not measured."""
        return {head.place: {**head.statistics, **head.scores} for head in self.patterns.heads}

    @property
    def probed(self) -> str:
        """Return the size of the probes as a string, such as ``92 probe texts``."""
        return f"{sum(probe.texts for probe in self.patterns.probes)} probe texts"

    @property
    def sources(self) -> dict[str, str]:
        """Return descriptions of the texts used so far, by the names in ``Outcome.over``."""
        used = {}
        if "patterns" in vars(self):
            used[PROBES] = self.probed.replace(" probe", "")
        if "built_in" in vars(self):
            used[TEXTS] = f"{len(self.built_in)} built-in, {self.tokens:,} tokens"
        origins = dict.fromkeys(baseline.origin for baseline in self.baselines.values())
        return used | {BASELINE: ", ".join(origins)}

    # Texts -----------------------------------------------------------------------------------

    @cached_property
    def _inputs(self) -> list[Input]:
        return [self.probing.input_of(text) for text in built_in_texts().texts]

    @cached_property
    def _run(self) -> Run:
        return self.probing.open_heads(self._inputs[0])[0]

    @cached_property
    def built_in(self) -> tuple[_Pass, ...]:
        """Return the measurements of one run over each built-in text."""
        return tuple(map(self.passed, self._inputs))

    def passed(self, given: Input) -> _Pass:
        """Return the measurements of one run over a text."""
        kind, causal = self.probing.kind, self.probing.causal
        seen, keys = self._run(given), given.keys(kind)
        weights = {layer: seen.weights[layer] for layer in sorted(seen.weights)}
        rows = np.concatenate([own.sum(-1, dtype=np.float64).ravel() for own in weights.values()])
        sink = sink_keys(keys, causal)
        return _Pass(
            tokens=len(keys),
            heads=tuple((layer, head) for layer in weights for head in range(len(weights[layer]))),
            sums=np.concatenate([by_distance(own, sink, causal) for own in weights.values()]),
            apart=float(np.abs(rows - 1).max()),
            losses=None if seen.logits is None else token_losses(seen.logits, given.predicted.ids),
        )

    def masses(self, given: Input, rows: range, keys: range) -> dict[int, NDArray[np.float64]]:
        """Return by layer the attention (head,) to all ``keys`` together, mean over ``rows``."""
        part = np.s_[:, rows.start : rows.stop, keys.start : keys.stop]
        maps = self._run(given).weights.items()
        return {layer: own[part].sum(-1, dtype=np.float64).mean(-1) for layer, own in maps}

    @property
    def read(self) -> str:
        """Return the size of the built-in texts as a string, such as ``8 texts, 300 tokens``."""
        return f"{len(self.built_in)} texts, {self.tokens:,} tokens"

    @property
    def tokens(self) -> int:
        return sum(run.tokens for run in self.built_in)

    @cached_property
    def baseline(self) -> Baseline:
        """Return the model's baseline, to be saved or compared with a saved one."""
        from attnviz.resume import digest

        sums = np.sum([run.sums for run in self.built_in], axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = sums / sums.sum(-1, keepdims=True)
        texts = [given.text for given in self._inputs]
        return Baseline(
            self.model.info,
            self.probing.kind,
            digest([[list(text.ids), [*map(visible, text.texts)]] for text in texts]),
            dict(zip(self.built_in[0].heads, shares, strict=True)),
            {head.place: head.scores for head in self.patterns.heads},
        )

    def head(self, typed: str) -> Head:
        """Return the (layer, head) of the one head ``typed``, such as ``L1H2``; else UsageError."""
        info = self.model.info
        chosen = choose_heads(None, [typed], info.layers, info.heads, 0) or {}
        heads = [(layer, head) for layer, some in chosen.items() for head in some]
        if len(heads) != 1:
            raise UsageError(f"expected one head such as L1H2, got {typed!r}")
        return heads[0]


def _numbers(data: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a JSON object as (name, number); nested keys are joined with dots."""
    for name, value in data.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{before}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield before + name, value
