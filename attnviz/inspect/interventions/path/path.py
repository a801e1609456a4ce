"""``attnviz path``: what later heads read straight from one head, mean over pairs of prompts.

Wang et al. 2022, section 3.1, and Goldowsky-Dill et al. 2023: path patching, to first order and
with the norms held. What is measured stands in ``engine.attribution.paths``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnviz.draw.signed import Place
from attnviz.engine.attribution.paths import path_effects
from attnviz.engine.known_labels import head_or_label
from attnviz.engine.patching import ATTENDED, Into, PathEffects
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.interventions.path.report import Listener, PathReport
from attnviz.inspect.interventions.path.request import PathRequest
from attnviz.inspect.interventions.study import Mean
from attnviz.measures.bootstrap import intervals
from attnviz.models.model import Model, NumpyModel, require_number
from attnviz.models.own import OwnAttention
from attnviz.models.pool import in_turn
from attnviz.models.work import Work, about_tokens
from attnviz.progress import UNWATCHED, Watch
from attnviz.prompts.request import PromptPairs
from attnviz.prompts.study import TokenPair, pair_study
from attnviz.records import HeadKey, Kind, ModelInfo

_BUILT_IN_STEP = 4
"""Only every fourth of the built-in pairs is used: they are enough for an interval."""

_MEMORY = 2**28
"""The bytes that what heads read may take, which decides how many heads are followed at once."""


@dataclass(frozen=True)
class AllPaths:
    """The shares of some layers' heads in later heads' inputs; ``blank``: the report on none."""

    kind: Kind
    effects: tuple[Mapping[HeadKey, PathEffects], ...]
    blank: PathReport

    def report(self, sender: Place, into: Into | None = None) -> PathReport:
        """Return the report on one head's shares; UsageError if no later head differs."""
        effects, listeners = self._effects_in_layer(sender), list[Listener]()
        for sort in ATTENDED if into is None else (into,):
            keys = {key for first, *_ in effects for key in first.shares.get(sort, {})}
            kept = [key for key in keys if key[0] == self.kind]
            listeners += [_listener(effects, sort, key, self.blank.seed) for key in kept]
        order = [*ATTENDED]
        listeners.sort(key=lambda own: (-abs(own.share.value), order.index(own.into), own.reader))
        if not listeners:
            raise UsageError(
                "no later head differs between the prompts: there is nothing to follow"
            )
        for own in listeners:
            require_number("input of a later head", own.share.value, self.blank.model)
        return replace(self.blank, sender=sender, listeners=tuple(listeners), into=into)

    def sources(self, reader: Place) -> list[tuple[Place, Listener]]:
        """Return (earlier head, its share) for each input of one head, the largest share first.

        An earlier head has up to three entries: in the queries, the keys and the values. Shares may
        be negative; their size orders them.
        reader: the (layer, head) with these inputs; keys and values are those of its key/value
            head.
        """
        (layer, head), sources = reader, list[tuple[Place, Listener]]()
        shared = head * self.blank.model.kv_heads // self.blank.model.heads
        for _, before, sender in self.effects[0]:
            if before >= layer:
                continue
            effects = self._effects_in_layer((before, sender))
            for into in ATTENDED:
                key: HeadKey = (self.kind, layer, head if into == "query" else shared)
                if any(key in own.shares.get(into, {}) for own, *_ in effects):
                    share = _listener(effects, into, key, self.blank.seed)
                    sources.append(((before, sender), share))
        return sorted(sources, key=lambda entry: -abs(entry[1].share.value))

    def _effects_in_layer(self, sender: Place) -> list[list[PathEffects]]:
        """Return for each prompt pair the effects of a head, then those of others of its layer."""
        head = (self.kind, *sender)
        return [
            [own[head], *(own[key] for key in own if key[1] == sender[0] and key != head)]
            for own in self.effects
        ]


def work(pairs: PromptPairs, request: PathRequest) -> Work:
    """Return the planned work over prompt pairs, from which the loader chooses NumPy or torch."""
    texts = [text for at in _measured(pairs) for text in pairs.prompts[at][:2]]
    return Work(about_tokens(*texts), texts=len(texts))


def path(
    model: Model, pairs: PromptPairs, request: PathRequest, *, advance: Watch = UNWATCHED
) -> PathReport:
    """Measure the share of one head in the inputs of later heads, over prompt pairs.

    Raises UsageError if the sender is not exactly one head, or is in the last layer.
    """
    if isinstance(model, OwnAttention):
        raise alone(model.info)
    sender = head_or_label(model, model.kinds[0], request.sender, request.index_base)
    if sender[0] == model.info.layers - 1:
        raise UsageError(
            f"{request.sender} is in the last layer: no later head reads from it; attnviz why "
            "shows what it writes"
        )
    paths = all_paths(model, pairs, [sender[0]], seed=request.seed, advance=advance)
    report = paths.report(sender, request.into)
    return replace(report, top=request.top, index_base=request.index_base)


def alone(info: ModelInfo) -> UnsupportedError:
    """Return the error to raise for a model of one layer, in which there is no later head."""
    return UnsupportedError(
        f"{info.name!r} is attention alone, of one layer: no later head reads from it"
    )


def all_paths(
    model: Model,
    pairs: PromptPairs,
    layers: Iterable[int],
    *,
    seed: int = 0,
    advance: Watch = UNWATCHED,
) -> AllPaths:
    """Measure every head's share in later heads' inputs, over pairs; UsageError if none fits."""
    measured = [pairs.prompts[at] for at in _measured(pairs)]
    study = pair_study(model, measured, copies=True, advance=advance)
    encoded = [pair.given for pair in study.prompts]
    kind: Kind = "decoder" if "decoder" in model.kinds else model.kinds[0]
    info = model.info
    senders = [(kind, layer, head) for layer in layers for head in range(info.heads)]
    advance.begin(f"following {len(senders):,} heads × {len(encoded):,} pairs")
    tokens = max(len(pair.clean) for pair in encoded)
    most = max(_MEMORY // (24 * info.layers * info.heads * info.head_dim * tokens), info.heads)

    def effects(pair: TokenPair) -> dict[HeadKey, PathEffects]:
        return {
            effect.sender: effect
            for start in range(0, len(senders), most)
            for effect in path_effects(
                model, pair.engine.clean, pair.engine.corrupt, senders[start : start + most]
            )
        }

    in_order = (in_turn if isinstance(model, NumpyModel) else map)(effects, encoded)
    by_pair = [
        effect
        for number, measured in enumerate(in_order)
        for effect in study.watched(number, [measured])
    ]
    blank = PathReport(
        model=model.info,  # which knows by now of weights that are not finite
        sender=(0, 0),
        pairs=tuple(encoded),
        listeners=(),
        into=None,
        text=study.prompts[0].question.clean,
        source=f"{len(encoded)} of the built-in pairs" if pairs.built_in else pairs.source,
        notes=study.notes,
        seed=seed,
    )
    return AllPaths(kind, tuple(by_pair), blank)


def _measured(pairs: PromptPairs) -> range:
    return range(0, len(pairs.prompts), _BUILT_IN_STEP if pairs.built_in else 1)


def _listener(
    effects: Sequence[Sequence[PathEffects]], into: Into, key: HeadKey, seed: int
) -> Listener:
    pairs = [own for own in effects if key in own[0].shares.get(into, {})]
    first = [own[0] for own in pairs]
    shares = np.array([own.share(into, key) for own in first])
    others = [
        other.share(into, key) if key in other.shares.get(into, {}) else 0.0
        for own in pairs
        for other in own[1:]
    ]
    (ends,) = intervals(shares[:, None], seed)
    base_rate = float(np.mean(others)) if others else None
    return Listener(
        into=into,
        reader=(key[1], key[2]),
        share=Mean(float(shares.mean()), ends, base_rate=base_rate),
        explained=float(np.mean([own.explained[into][key] for own in first])),
        moved=float(np.mean([own.moved[into][key] for own in first])),
    )
