"""Measures what the rules need of a model: what several of them share once, the rest not at all."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.labels import short_name, visible
from attnviz.engine.head_run import Head, HeadRun, open_heads
from attnviz.engine.probing import Probing, open_probing
from attnviz.engine.selection import choose_heads
from attnviz.engine.text_pass import token_losses
from attnviz.errors import UsageError
from attnviz.inspect.check.baseline import Baseline, by_distance, read_baseline
from attnviz.inspect.check.records import (
    BaselineRule,
    CountRule,
    LabelRule,
    LossRule,
    Outcome,
    RowsRule,
    Rule,
    ScoreRule,
    SpanRule,
)
from attnviz.measures.registry import MEASURES
from attnviz.measures.sinks import sink_keys
from attnviz.measures.words import find_in
from attnviz.models.model import Model
from attnviz.models.shapes import nearest
from attnviz.records import Advance, Input
from attnviz.texts import built_in_texts

if TYPE_CHECKING:  # rules of params alone load no model
    from attnviz.inspect.patterns.records import PatternReport

_SEEDS = 3
"""Draws of random tokens, as many as ``patterns`` takes."""

_FURTHEST = 3
"""Heads beyond a bound that are named."""

_PROBES, _TEXTS, _BASELINE = "probes", "texts", "baseline"
"""What most rules are measured on, in a word: the texts of ``patterns``, the built-in ones, these
beside what was."""

Params = Callable[[], Mapping[str, Any]]
"""The numbers of ``params --json``."""


class _Pass(NamedTuple):
    """What is kept of one text.

    heads: of its rows. sums: of each of them by ``key_steps``, (head, step). apart: the largest
    distance of a row's sum from one, NaN where a weight is no number. losses: nats of each
    predicted token; None where none is.
    """

    tokens: int
    heads: tuple[Head, ...]
    sums: NDArray[np.float64]
    apart: float
    losses: NDArray[np.float64] | None


class Measured:
    """A model, and what was measured of it so far.

    open_model: loads it when the first rule needs it. params: counts it. seed: of random tokens.
    """

    def __init__(self, open_model: Callable[[], Model], params: Params, seed: int) -> None:
        self._open = open_model
        self._params = params
        self._seed = seed
        self.baselines: dict[Path, Baseline] = {}
        self.advance: Advance = lambda share: None
        """Told of the share of the probes that is scored."""

    @cached_property
    def model(self) -> Model:
        return self._open()

    def beside(self, model: Model) -> Measured:
        """Another model to be measured likewise."""
        other = Measured(lambda: model, self._params, self._seed)
        other.advance = self.advance
        return other

    @property
    def loaded(self) -> bool:
        """Whether any rule needed the model itself."""
        return "model" in vars(self)

    @cached_property
    def probing(self) -> Probing:
        return open_probing(self.model)

    @cached_property
    def params(self) -> dict[str, float]:
        """The numbers of ``params``, by names joined with dots."""
        return dict(_numbers(self._params()))

    @cached_property
    def patterns(self) -> PatternReport:
        """All heads scored on the probes of ``patterns``."""
        from attnviz.inspect.patterns.score import score_patterns

        return score_patterns(
            self.model,
            seeds=range(self._seed, self._seed + _SEEDS),
            progress=lambda done, total: self.advance(done / total),
            examples=False,
        )

    @cached_property
    def scores(self) -> dict[Head, dict[str, float | None]]:
        """Every score and statistic of each head."""
        return {
            (entry.layer, entry.head): {**entry.statistics, **entry.scores}
            for entry in self.patterns.heads
        }

    @property
    def probed(self) -> str:
        return f"{self._probe_texts} probe texts"

    @property
    def _probe_texts(self) -> int:
        return sum(probe.texts for probe in self.patterns.probes)

    @property
    def sources(self) -> dict[str, str]:
        """What rules were measured on so far, by the names that ``Outcome.over`` has for it."""
        found = {}
        if "patterns" in vars(self):
            found[_PROBES] = f"{self._probe_texts} texts"
        if "built_in" in vars(self):
            found[_TEXTS] = f"{len(self.built_in)} built-in, {self._tokens:,} tokens"
        origins = dict.fromkeys(map(_origin, self.baselines.values()))
        return found | {_BASELINE: ", ".join(origins)}

    # Texts -----------------------------------------------------------------------------------

    @cached_property
    def _inputs(self) -> list[Input]:
        return [self.probing.input_of(text) for text in built_in_texts().texts]

    @cached_property
    def _run(self) -> Callable[[Input], HeadRun]:
        probing = self.probing
        in_order = probing.causal if probing.kind == "self" else probing.kind != "encoder"
        run, _ = open_heads(probing.model, probing.kind, self._inputs[0], in_order)
        return run

    @cached_property
    def built_in(self) -> tuple[_Pass, ...]:
        """The built-in texts, one pass each."""
        return tuple(map(self._passed, self._inputs))

    def _passed(self, given: Input) -> _Pass:
        kind, causal = self.probing.kind, self.probing.causal
        seen, keys = self._run(given), given.keys(kind)
        layers = sorted(seen.weights)
        weights = [seen.weights[layer] for layer in layers]
        heads = [(layer, head) for layer in layers for head in range(len(seen.weights[layer]))]
        rows = np.concatenate([each.sum(-1, dtype=np.float64).ravel() for each in weights])
        apart = float(np.abs(rows - 1).max())
        sink = sink_keys(keys, causal)
        sums = np.concatenate([by_distance(each, sink, causal) for each in weights])
        losses = None if seen.logits is None else token_losses(seen.logits, given.predicted.ids)
        return _Pass(len(keys), tuple(heads), sums, apart, losses)

    @property
    def read(self) -> str:
        """How much the built-in texts are."""
        return f"{len(self.built_in)} texts, {self._tokens:,} tokens"

    @property
    def _tokens(self) -> int:
        return sum(each.tokens for each in self.built_in)

    @cached_property
    def baseline(self) -> Baseline:
        """What the model does, to be saved or held against what was."""
        from attnviz.resume import digest

        sums = np.sum([each.sums for each in self.built_in], axis=0)
        heads = self.built_in[0].heads
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = sums / sums.sum(-1, keepdims=True)
        told = [
            [list(given.text.ids), [visible(text) for text in given.text.texts]]
            for given in self._inputs
        ]
        return Baseline(
            self.model.info,
            self.probing.kind,
            digest(told),
            dict(zip(heads, shares, strict=True)),
            {(entry.layer, entry.head): entry.scores for entry in self.patterns.heads},
        )

    def place(self, typed: str) -> Head:
        """The one head that a rule names; UsageError for none or several."""
        info = self.model.info
        found = choose_heads(None, [typed], info.layers, info.heads, 0) or {}
        heads = [(layer, head) for layer, chosen in found.items() for head in chosen]
        if len(heads) != 1:
            raise UsageError(f"expected one head such as L1H2, got {typed!r}")
        return heads[0]


def _numbers(data: Mapping[str, Any], before: str = "") -> list[tuple[str, float]]:
    """The whole numbers of an object, by names joined with dots."""
    found: list[tuple[str, float]] = []
    for name, value in data.items():
        if isinstance(value, dict):
            found += _numbers(value, f"{before}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append((before + name, value))
    return found


# Rules ---------------------------------------------------------------------------------------


def outcome(measured: Measured, rule: Rule) -> Outcome:
    """What becomes of a rule.

    Raises UsageError, which begins with the rule's name, for what this model does not have.
    """
    try:
        match rule:
            case ScoreRule():
                return _score(measured, rule)
            case LabelRule():
                return _labelled(measured, rule)
            case BaselineRule():
                return _against(measured, rule)
            case LossRule():
                return _loss(measured, rule)
            case SpanRule():
                return _span(measured, rule)
            case CountRule():
                return _count(measured, rule)
            case RowsRule():
                apart = float(np.max([each.apart for each in measured.built_in]))
                return Outcome(rule, apart, measured.read, _TEXTS)
    except UsageError as error:
        raise UsageError(f"rule {visible(rule.name)!r}: {error}") from error
    raise TypeError(f"no such rule: {rule!r}")


def _score(measured: Measured, rule: ScoreRule) -> Outcome:
    value = measured.scores[measured.place(rule.head)].get(rule.score)
    lost = value is None and all(
        scores.get(rule.score) is None for scores in measured.scores.values()
    )
    if lost and not measured.model.info.not_finite:
        why = measured.patterns.not_measured.get(rule.score, "it is measured of no head")
        raise UsageError(f"no score {rule.score!r} here: {why}")
    unit = MEASURES[rule.score].unit.replace("share", "")
    if value is None:  # a head that overflowed is what a gate is for
        return Outcome(rule, math.nan, measured.probed, _PROBES, unit, "this head has no number")
    return Outcome(rule, value, measured.probed, _PROBES, unit)


def _labelled(measured: Measured, rule: LabelRule) -> Outcome:
    report = measured.patterns
    if rule.label not in report.labels:
        if measured.model.info.not_finite:
            return Outcome(rule, math.nan, measured.probed, _PROBES, detail="no head has numbers")
        why = report.not_measured.get(rule.label, "no head of this model can get it")
        raise UsageError(f"no label {rule.label!r} here: {why}")
    heads = report.labelled(rule.label)
    names = ", ".join(report.name(entry.layer, entry.head) for entry in heads[:_FURTHEST])
    more = f" and {len(heads) - _FURTHEST} more" if len(heads) > _FURTHEST else ""
    return Outcome(rule, len(heads), measured.probed, _PROBES, detail=names + more)


def _against(measured: Measured, rule: BaselineRule) -> Outcome:
    now = measured.baseline
    if rule.path not in measured.baselines:
        measured.baselines[rule.path] = read_baseline(rule.path, now)
    saved = measured.baselines[rule.path]
    js = rule.of == "js_divergence"
    apart = now.js_divergence(saved) if js else now.score_change(saved)
    ranked = sorted(apart, key=lambda head: -math.inf if math.isnan(apart[head]) else -apart[head])
    within = math.ceil(rule.share * len(ranked) - 1e-9)
    value = apart[ranked[len(ranked) - within]]
    share = "all heads" if within == len(ranked) else f"{within} of {len(ranked)} heads"
    read = f"{measured._tokens} tokens" if js else measured.probed
    beyond = [head for head in ranked if not rule.bounds.hold(apart[head])]
    told = ", ".join(
        f"L{layer}H{head} {'–' if math.isnan(size := apart[layer, head]) else f'{size:.2g}'}"
        for layer, head in beyond[:3]
    )
    detail = f"{len(beyond)} of {len(ranked)} heads beyond: {told}" if beyond else ""
    unit = "bits" if js else ""
    over = _BASELINE + (f", {within} of {len(ranked)}" if within < len(ranked) else "")
    words = f"{share}, baseline {_origin(saved)}, {read}"
    return Outcome(rule, value, words, over, unit, detail)


def _origin(saved: Baseline) -> str:
    """The model that a baseline is of."""
    return f"{short_name(saved.info.name)} {(saved.info.revision or '')[:7]}".rstrip()


def _loss(measured: Measured, rule: LossRule) -> Outcome:
    if rule.texts:
        passes = tuple(measured._passed(measured.probing.input_of(text)) for text in rule.texts)
    else:
        passes = measured.built_in
    losses = [each.losses for each in passes if each.losses is not None]
    if len(losses) < len(passes):
        raise UsageError(f"{measured.model.info.name!r} predicts no next token: it has no loss")
    every = np.concatenate(losses)
    if not len(every):
        raise UsageError("the text has one token: a loss needs two, one to read, one to predict")
    texts = f"{len(passes)} texts, " if len(passes) > 1 else ""
    over = f"{texts}{sum(each.tokens for each in passes):,} tokens"
    short = over if rule.texts else _TEXTS
    return Outcome(rule, float(every.mean()), over, short, "nats/token")


def _span(measured: Measured, rule: SpanRule) -> Outcome:
    probing = measured.probing
    given = probing.input_of(rule.text)
    tokens = given.keys(probing.kind)
    key = find_in(tokens, rule.span)
    query = None if rule.queries in ("last", "all") else find_in(tokens, rule.queries)
    asked = rule.queries not in ("last", "all")
    if key is None or (asked and query is None):
        missing = rule.span if key is None else rule.queries
        words = set(re.findall(r"\w+", rule.text))
        raise UsageError(
            f"{visible(missing)!r} does not stand in its text{nearest(missing, words)}"
        )
    rows = range(len(tokens)) if rule.queries == "all" else range(len(tokens) - 1, len(tokens))
    rows = rows if query is None else query.span
    weights = measured._run(given).weights
    if rule.head:
        layer, head = measured.place(rule.head)
        chosen = weights[layer][head][None]
    else:
        chosen = np.concatenate([weights[layer] for layer in sorted(weights)])
    columns = slice(key.span.start, key.span.stop)
    mass = chosen[:, rows.start : rows.stop, columns].sum(-1, dtype=np.float64).mean()
    over = f"{len(tokens)} tokens" + ("" if rule.head else f", mean of {len(chosen)} heads")
    return Outcome(rule, float(mass), over, over)


def _count(measured: Measured, rule: CountRule) -> Outcome:
    value = measured.params.get(rule.number)
    if value is None:
        raise UsageError(
            f"params has no number {visible(rule.number)!r}{nearest(rule.number, measured.params)}"
        )
    return Outcome(rule, value, "its config", "config")
