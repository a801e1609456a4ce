"""The measurements that rules need of a model, each made once and only if a rule needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.labels import visible
from attnviz.engine.capture import Probing, open_probing
from attnviz.engine.head_run import Head, Run
from attnviz.engine.selection import choose_heads
from attnviz.engine.text_pass import token_losses
from attnviz.errors import UsageError
from attnviz.inspect.check.baseline import Baseline, by_distance
from attnviz.measures.sinks import sink_keys
from attnviz.models.model import Model
from attnviz.models.resolve import LoadOptions, load
from attnviz.progress import UNWATCHED, Advance
from attnviz.records import Input
from attnviz.texts import built_in_texts

if TYPE_CHECKING:  # rules of params alone load no model
    from attnviz.inspect.patterns.report import PatternReport

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
            self.model,
            seeds=range(self.seed, self.seed + _SEEDS),
            progress=self.advance,
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
        rows = np.concatenate([each.sum(-1, dtype=np.float64).ravel() for each in weights.values()])
        sink = sink_keys(keys, causal)
        return _Pass(
            tokens=len(keys),
            heads=tuple((layer, head) for layer in weights for head in range(len(weights[layer]))),
            sums=np.concatenate([by_distance(each, sink, causal) for each in weights.values()]),
            apart=float(np.abs(rows - 1).max()),
            losses=None if seen.logits is None else token_losses(seen.logits, given.predicted.ids),
        )

    def masses(self, given: Input, rows: range, keys: range) -> dict[int, NDArray[np.float64]]:
        """Return for each layer the attention (head,) of the queries ``rows`` to the keys ``keys``.

        Weights are summed over the keys, then averaged over the queries. rows, keys: positions.
        """
        part = np.s_[:, rows.start : rows.stop, keys.start : keys.stop]
        maps = self._run(given).weights.items()
        return {layer: each[part].sum(-1, dtype=np.float64).mean(-1) for layer, each in maps}

    @property
    def read(self) -> str:
        """Return the size of the built-in texts as a string, such as ``8 texts, 300 tokens``."""
        return f"{len(self.built_in)} texts, {self.tokens:,} tokens"

    @property
    def tokens(self) -> int:
        return sum(each.tokens for each in self.built_in)

    @cached_property
    def baseline(self) -> Baseline:
        """Return the model's baseline, to be saved or compared with a saved one."""
        from attnviz.resume import digest

        sums = np.sum([each.sums for each in self.built_in], axis=0)
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

    def place(self, typed: str) -> Head:
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
