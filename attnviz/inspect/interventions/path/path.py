"""``attnviz path``: what later heads read straight from one head, mean over pairs of prompts.

Wang et al. 2022, section 3.1, and Goldowsky-Dill et al. 2023: path patching, to first order and
with the norms held. What is measured stands in ``engine.attribution.paths``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnviz.draw.report import Report
from attnviz.draw.signed import Place
from attnviz.draw.values import table_of
from attnviz.engine.attribution.parts import HeadKey
from attnviz.engine.attribution.paths import path_effects
from attnviz.engine.patching import ATTENDED, SITES, Into, PathEffects
from attnviz.engine.selection import choose_heads
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.interventions.means import Mean, intervals
from attnviz.inspect.interventions.pairs import TokenPair, decoder_text, encode_pair, fitting
from attnviz.inspect.interventions.path.request import PathRequest
from attnviz.inspect.interventions.prompts import PromptPairs
from attnviz.inspect.interventions.shown import place_name
from attnviz.models.model import Model, NumpyModel, require_number
from attnviz.models.operations import sizes_of
from attnviz.models.own import OwnAttention
from attnviz.models.pace import seconds
from attnviz.models.pool import in_turn
from attnviz.models.resolve import reckoned_tokens
from attnviz.records import UNWATCHED, Kind, ModelInfo, Provenance, Watch

if TYPE_CHECKING:
    from attnviz.draw.document import Document

_BUILT_IN_STEP = 4
"""Only every fourth of the built-in pairs is used: they are enough for an interval."""


class Listener(NamedTuple):
    """What one later head takes straight from the sender, mean over pairs.

    into: its queries, keys or values. place: (layer, head), or (layer, key/value head).
    share: the sender's share of the difference between the prompts there. Its base rate is the mean
    share of the other heads of the sender's layer. explained: the share of everything that writes
    before the later head. moved: ‖Δ‖ over the norm in the clean run.
    """

    into: Into
    place: Place
    share: Mean
    explained: float
    moved: float


@dataclass(frozen=True, repr=False)
class PathReport(Report, Provenance):
    """What later heads read from one head.

    sender: the head. pairs: the prompts. listeners: the later heads, the largest share first.
    into: the only input that was looked at, None for all.
    """

    model: ModelInfo
    sender: Place
    pairs: tuple[TokenPair, ...]
    listeners: tuple[Listener, ...]
    into: Into | None
    top: int = 8

    command = "path"

    def data(self) -> dict[str, Any]:
        from attnviz.inspect.interventions.path.data import path_data

        return path_data(self)

    def rows(self) -> Iterable[tuple[object, ...]]:
        from attnviz.inspect.interventions.path.data import path_entries

        entries = path_entries(self)
        return table_of([*entries[0]], entries)

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.inspect.interventions.path.document import path_document

        return path_document(self, explain=explain, hints=hints)

    def name(self, place: Place, into: Into | None = None) -> str:
        """Return a name such as ``L2H5``, or ``L2KV1`` for keys and values that heads share."""
        return place_name(place, self.letter(into), self.index_base)

    def letter(self, into: Into | None) -> str:
        """Return the letters before a head's number; into: an input, None for the head itself."""
        shared = into and SITES[into].shared and self.model.kv_heads < self.model.heads
        return "KV" if shared else "H"


def reckoned(pairs: PromptPairs) -> tuple[int, int]:
    """Return about how many tokens a model reads for these pairs, and in how many texts."""
    texts = [text for at in _measured(pairs) for text in pairs.prompts[at][:2]]
    return sum(map(reckoned_tokens, texts)), len(texts)


def path(
    model: Model, pairs: PromptPairs, request: PathRequest, *, advance: Watch = UNWATCHED
) -> PathReport:
    """Measure what later heads read from one head over the pairs.

    pairs: what ``pairs.read_pairs`` returns for the request.

    Raises UsageError if the sender is not exactly one head, or is in the last layer.
    """
    if isinstance(model, OwnAttention):
        raise UnsupportedError(
            f"{model.info.name!r} is attention alone, of one layer: no later head reads from it"
        )
    sender = _sender(model, request.sender, request.index_base)
    target = decoder_text(model, None)
    encoded, notes = fitting(
        pairs,
        _measured(pairs),
        lambda place: encode_pair(model, pairs.prompts[place], None, target),
    )
    kind: Kind = "decoder" if "decoder" in model.kinds else model.kinds[0]
    layer = [(kind, sender[0], number) for number in range(model.info.heads)]
    senders = [layer[sender[1]], *(each for each in layer if each[2] != sender[1])]
    advance.expect(
        f"following {len(senders):,} heads × {len(encoded):,} pairs",
        lambda: _seconds(model, list(encoded.values())),
    )

    def effects(pair: TokenPair) -> Sequence[PathEffects]:
        return path_effects(model, pair.engine.clean, pair.engine.corrupt, senders)

    found = []
    each = in_turn if isinstance(model, NumpyModel) else map
    for done, measured in enumerate(each(effects, encoded.values()), start=1):
        found.append(measured)
        advance(done / len(encoded))
    listeners = _listeners(found, kind, request.into, request.seed)
    for one in listeners:
        require_number("input of a later head", one.share.value, model.info)
    return PathReport(
        model=model.info,
        sender=sender,
        pairs=tuple(encoded.values()),
        listeners=listeners,
        into=request.into,
        text=pairs.prompts[next(iter(encoded))].clean,
        source=f"{len(encoded)} of the built-in pairs" if pairs.built_in else pairs.source,
        notes=tuple(notes),
        seed=request.seed,
        top=request.top,
        index_base=request.index_base,
    )


def _measured(pairs: PromptPairs) -> range:
    return range(0, len(pairs.prompts), _BUILT_IN_STEP if pairs.built_in else 1)


def _seconds(model: Model, pairs: Sequence[TokenPair]) -> float:
    """Return about how long the pairs take: mostly the runs of both prompts."""
    sizes = sizes_of(model)
    runs = sum(sizes.forward(len(one.clean)) + sizes.forward(len(one.corrupt)) for one in pairs)
    return seconds(model, runs, len(pairs))


def _sender(model: Model, head: str, base: int) -> Place:
    info = model.info
    chosen = choose_heads(None, [head], info.layers, info.heads, base) or {}
    places = [(layer, number) for layer, some in chosen.items() for number in some]
    if len(places) != 1:
        raise UsageError(f"expected one head, such as L0H0, got {head!r}: {len(places)} heads")
    ((layer, _),) = places
    if layer == info.layers - 1:
        raise UsageError(
            f"{head} is in the last layer: no later head reads from it; attnviz why shows what it "
            "writes"
        )
    return places[0]


def _listeners(
    found: Sequence[Sequence[PathEffects]], kind: Kind, into: Into | None, seed: int
) -> tuple[Listener, ...]:
    """Return the later heads whose inputs differ between the prompts, the largest share first."""
    made = []
    for what in ATTENDED if into is None else (into,):
        keys = {key for own, *_ in found for key in own.shares.get(what, {}) if key[0] == kind}
        made += [_listener(found, what, key, seed) for key in keys]
    made.sort(key=lambda one: (-abs(one.share.value), ATTENDED.index(one.into), one.place))
    if not made:
        raise UsageError("no later head differs between the prompts: there is nothing to follow")
    return tuple(made)


def _listener(
    found: Sequence[Sequence[PathEffects]], what: Into, key: HeadKey, seed: int
) -> Listener:
    there = [effects for effects in found if key in effects[0].shares.get(what, {})]
    shares = np.array([effects[0].share(what, key) for effects in there])
    others = [
        each.share(what, key) if key in each.shares.get(what, {}) else 0.0
        for effects in there
        for each in effects[1:]
    ]
    (ends,) = intervals(shares[:, None], seed)
    base_rate = float(np.mean(others)) if others else None
    return Listener(
        into=what,
        place=(key[1], key[2]),
        share=Mean(float(shares.mean()), ends, base_rate=base_rate),
        explained=float(np.mean([effects[0].explained[what][key] for effects in there])),
        moved=float(np.mean([effects[0].moved[what][key] for effects in there])),
    )
