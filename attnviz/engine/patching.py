"""Activation patching: what is exchanged between two runs of a model, and what is predicted then.

A site is a part of a run: one head's output, its query, key, value or attention pattern, a
feed-forward block's output, the residual stream entering a layer. In the base run a site is
replaced by what it holds in the source run; all that comes after is computed anew. Vig et al. 2020,
"Causal Mediation Analysis for Interpreting Neural NLP"; Meng et al. 2022, "Locating and Editing
Factual Associations in GPT"; Wang et al. 2022, "Interpretability in the Wild".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from attnviz.errors import UsageError

if TYPE_CHECKING:  # the options name sites and metrics, and a help needs no NumPy
    import numpy as np
    from numpy.typing import NDArray

    from attnviz.engine.attribution.parts import HeadKey
    from attnviz.records import Input, Kind

What = Literal["output", "query", "key", "value", "pattern", "mlp", "residual"]
"""What is replaced. ``output``: a head's, before the output projection; ``pattern``: its attention
weights; ``mlp``: what a layer's feed-forward block adds; ``residual``: the stream entering it."""

WHOLE_LAYER: frozenset[What] = frozenset({"mlp", "residual"})
"""What a layer has once; of all else each head has its own."""

Direction = Literal["denoise", "noise"]
"""``denoise``: activations of the clean run go into the corrupt run; ``noise``: the other way."""

PatchMethod = Literal["exact", "gradient"]
"""Measured; or estimated to first order (attribution patching, Nanda 2023)."""

PatchMetric = Literal["logit_diff", "log_prob", "kl"]
"""At the predicted position: logit(answer) − logit(foil); log probability of the answer, in nats;
KL divergence from the clean run's prediction, in nats."""


@dataclass(frozen=True)
class Site:
    """A part of a run.

    layer: as the model numbers them.
    head: its number; of ``key`` and ``value`` that of a key/value head. None for what a whole layer
        has once.
    tokens: positions in the base run, ascending: of ``key`` and ``value`` tokens that are looked
        at, of all else tokens that look. None for all of them.
    Raises ValueError for a head where there is none, none where there is one, and no tokens.
    """

    what: What
    layer: int
    head: int | None = None
    tokens: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if (self.head is None) != (self.what in WHOLE_LAYER):
            raise ValueError(f"{self.what!r} of layer {self.layer} with head {self.head}")
        if self.tokens is not None and not self.tokens:
            raise ValueError(f"{self.what!r} of layer {self.layer} at no token")


@dataclass(frozen=True)
class Patch:
    """Sites that are replaced together, at least one."""

    sites: tuple[Site, ...]

    def __post_init__(self) -> None:
        if not self.sites:
            raise ValueError("a patch replaces at least one site")

    @property
    def layers(self) -> tuple[int, ...]:
        """Return every layer in which something is replaced, ascending."""
        return tuple(sorted({site.layer for site in self.sites}))


@dataclass(frozen=True)
class Pair:
    """Two prompts.

    places: for each token of ``corrupt`` the token of ``clean`` that it corresponds to, -1 for
        none; ascending. None where they correspond one by one, and the lengths are equal.
    Raises UsageError for lengths that do not fit.
    """

    clean: Input
    corrupt: Input
    places: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if (self.clean.target is None) != (self.corrupt.target is None):
            raise UsageError("one of the two prompts has a decoder text: expected both or none")
        lengths = [
            (len(given.text), len(given.target or ())) for given in (self.clean, self.corrupt)
        ]
        if self.places is None and lengths[0] != lengths[1]:
            raise UsageError(
                f"prompts of {max(lengths[0])} and {max(lengths[1])} tokens: expected equal lengths"
            )
        if self.places is not None and (
            self.clean.target is not None
            or len(self.places) != len(self.corrupt.text)
            or any(not -1 <= place < len(self.clean.text) for place in self.places)
        ):
            raise UsageError("the alignment does not fit the prompts")


@dataclass(frozen=True)
class PatchOptions:
    """The choices that decide the numbers.

    position: the token of the corrupt prompt at which is predicted, of a masked model the masked
        one. None: the last; of a masked model its only mask token.
    max_memory: bytes that a pass may hold; None for a share of what is free.
    """

    direction: Direction = "denoise"
    method: PatchMethod = "exact"
    position: int | None = None
    max_memory: int | None = None

    def __post_init__(self) -> None:
        if self.max_memory is not None and self.max_memory < 1:
            raise UsageError(f"expected memory for patching, got {self.max_memory} bytes")


@dataclass(frozen=True)
class Prediction:
    """What a model predicts at one position of a prompt, with nothing patched.

    position: the token that predicts, or that is masked. logits: (word,) float64.
    """

    position: int
    logits: NDArray[np.float64]

    @property
    def top(self) -> int:
        """Return the likeliest token's id."""
        return int(self.logits.argmax())


@dataclass(frozen=True)
class PatchScores:
    """What some patches do to one pair: one piece of the whole, complete by itself.

    pair: index of the pair.
    patches: index of each patch among those that were asked for.
    metrics: (patch,) float64 of the patched run; of the gradient method the estimate.
        ``logit_diff`` only where a foil was given.
    clean, corrupt: the same metrics of the two plain runs.
    """

    pair: int
    patches: tuple[int, ...]
    metrics: Mapping[PatchMetric, NDArray[np.float64]]
    clean: Mapping[PatchMetric, float]
    corrupt: Mapping[PatchMetric, float]

    def __post_init__(self) -> None:
        for name, values in self.metrics.items():
            if name not in get_args(PatchMetric) or values.shape != (len(self.patches),):
                raise ValueError(f"expected {len(self.patches)} numbers of {name}")


@dataclass(frozen=True, eq=False)
class PathRead:
    """What the heads of one layer read in two runs, and what of its difference comes from where.

    what: their queries, keys or values. clean: those of the clean run, (token, head, dim) float64.
    difference: clean − corrupt.
    whole: the part of the difference that is linear in all that was written before, with each norm
        scaled as in the corrupt run.
    alone: the same for what single heads wrote, for those that stand before this layer.
    """

    kind: Kind
    layer: int
    what: What
    clean: NDArray[np.float64]
    difference: NDArray[np.float64]
    whole: NDArray[np.float64]
    alone: Mapping[HeadKey, NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class PathEffects:
    """The direct effect of one head on what goes into later heads.

    sender: the head.
    shares: for ``query``, ``key`` and ``value`` of each later head, by token: (token,), which add
        up to its share. Keys and values are those of key/value heads, where heads share them.
    explained: for the same the sum of the shares of all that writes before it; how far it is from 1
        is what holding the norms leaves out.
    moved: for the same ‖Δq‖ / ‖q‖ over all tokens, of the clean run: how much there is to explain.
    A head whose queries do not differ at all has no entry.
    """

    sender: HeadKey
    shares: Mapping[What, Mapping[HeadKey, NDArray[np.floating]]]
    explained: Mapping[What, Mapping[HeadKey, float]]
    moved: Mapping[What, Mapping[HeadKey, float]]

    def share(self, what: What, head: HeadKey) -> float:
        """Return the sender's share in the difference of one head's queries, keys or values."""
        return float(self.shares[what][head].sum())


def effect(patched: NDArray[np.float64], base: float, source: float) -> NDArray[np.float64]:
    """Return the share of the way from the base run to the source run that a patch goes.

    0 where it changes nothing, 1 where it brings all; below 0 and above 1 are possible. For denoise
    it is P = (M_patched − M_corrupt) / (M_clean − M_corrupt) of Wang et al. 2022, for noise 1 − P.
    The caller sees to it that the two runs differ.
    """
    share: NDArray[np.float64] = (patched - base) / (source - base)
    return share
