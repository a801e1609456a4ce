"""The data of activation patching: what is exchanged between two runs, and what is predicted then.

A site is a part of a run: one head's output, its query, key, value or attention pattern, a
feed-forward block's output, or the residual stream entering a layer. In the base run a site is
replaced by its value in the source run; everything after it is computed anew. Vig et al. 2020,
"Causal Mediation Analysis for Interpreting Neural NLP"; Meng et al. 2022, "Locating and Editing
Factual Associations in GPT"; Wang et al. 2022, "Interpretability in the Wild".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from attnviz.errors import UsageError

if TYPE_CHECKING:  # the options name sites and metrics, and --help needs no NumPy
    import numpy as np
    from numpy.typing import NDArray

    from attnviz.records import HeadKey, Input, Kind

What = Literal["output", "query", "key", "value", "pattern", "mlp", "residual"]
"""The sorts of sites; what each of them is stands in ``SITES``."""

Into = Literal["query", "key", "value"]
"""The sorts that enter an attention call."""

Hook = Literal["output", "input", "weights", "block"]
"""Where in a layer a site is replaced, and thereby which models have it; NumPy stacks have all.

``output``: where heads' outputs meet, in every model. ``input``: what enters an attention call, in
models that look their attention up. ``weights``: at the softmax, unless a fused kernel of the
model's own computes it. ``block``: what enters a block or leaves a part of it, in models whose
layers are blocks in a list.
"""


class SiteSort(NamedTuple):
    """One kind of patch site, such as heads' outputs or queries, with its names.

    words: a plural noun for these values, such as ``head outputs``. hook: where they are replaced.
    shared: True if all query heads of a group share one such value, computed from the key's token.
    by_position: True if a value means something else at another position than its token's.
    last: True if only the last token is patched by default: all tokens together carry everything.
    note: words behind the sort's name in the help. lead: words before a site's name in a sentence.
    """

    words: str
    hook: Hook
    shared: bool = False
    by_position: bool = False
    last: bool = False
    note: str = ""
    lead: str = ""


SITES: Mapping[What, SiteSort] = {
    "output": SiteSort("head outputs", "output"),
    "query": SiteSort("queries", "input", by_position=True),
    "key": SiteSort("keys", "input", shared=True, by_position=True),
    "value": SiteSort("values", "input", shared=True),
    "pattern": SiteSort(
        "attention patterns", "weights", by_position=True, note=" (attention weights)"
    ),
    "mlp": SiteSort("MLP outputs", "block", lead="The MLP of "),
    "residual": SiteSort("residual stream", "block", last=True, note=" stream"),
}
"""Everything that is known of a sort of site: heads' outputs before the output projection, the
inputs of an attention call, its weights, what a feed-forward block adds, the stream that enters a
layer. A new sort is a row here, an edit for torch (``hook_points`` and ``transformers_points`` for
a part of the attention, ``scan.plan`` for blocks) and one for NumPy (``attention.growing``);
options, help and screens follow."""

WHOLE_LAYER: frozenset[What] = frozenset(s for s, sort in SITES.items() if sort.hook == "block")
"""The sorts that exist once in a layer; each head has its own of all others."""

ATTENDED: tuple[Into, ...] = get_args(Into)
"""The inputs of an attention call. If one of them is edited, the others are handed over too."""

Direction = Literal["denoise", "noise"]
"""``denoise``: activations of the clean run go into the corrupt run; ``noise``: the other way."""

PatchMethod = Literal["exact", "gradient"]
"""``exact`` measures; ``gradient`` estimates to first order (attribution patching, Nanda 2023)."""

PatchMetric = Literal["logit_diff", "log_prob", "kl"]
"""At the predicted position: logit(answer) − logit(foil); log probability of the answer, in nats;
KL divergence from the clean run's prediction, in nats."""


@dataclass(frozen=True)
class Site:
    """A patch site: a part of a run that a patch replaces.

    head: None for a kind in ``WHOLE_LAYER``; of key and value a key/value head. tokens: positions
    in the base run; None means all. edges: pairs (query, key) of a ``pattern`` that are hidden
    instead. Raises ValueError for a wrong head or no token.
    """

    sort: What
    layer: int
    head: int | None = None
    tokens: tuple[int, ...] | None = None
    edges: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if (self.head is None) != (self.sort in WHOLE_LAYER):
            raise ValueError(f"{self.sort!r} of layer {self.layer} with head {self.head}")
        if self.tokens is not None and not self.tokens:
            raise ValueError(f"{self.sort!r} of layer {self.layer} at no token")


@dataclass(frozen=True)
class Patch:
    """A patch: one or more sites of a run that are replaced together."""

    sites: tuple[Site, ...]

    def __post_init__(self) -> None:
        if not self.sites:
            raise ValueError("a patch replaces at least one site")

    @property
    def layers(self) -> tuple[int, ...]:
        """Return every layer in which the patch replaces something, ascending."""
        return tuple(sorted({site.layer for site in self.sites}))


@dataclass(frozen=True)
class Pair:
    """A prompt pair for patching: a clean and a corrupt prompt.

    aligned: for each token of ``corrupt`` the index of the corresponding token of ``clean``, or −1;
        ascending. None if they correspond one by one.
    Raises UsageError for lengths that do not fit.
    """

    clean: Input
    corrupt: Input
    aligned: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if (self.clean.target is None) != (self.corrupt.target is None):
            raise UsageError("one of the two prompts has a decoder text: expected both or none")
        lengths = [(len(own.text), len(own.target or ())) for own in (self.clean, self.corrupt)]
        if self.aligned is None and lengths[0] != lengths[1]:
            raise UsageError(
                f"prompts of {max(lengths[0])} and {max(lengths[1])} tokens: expected equal lengths"
            )
        if self.aligned is not None and (
            self.clean.target is not None
            or len(self.aligned) != len(self.corrupt.text)
            or any(not -1 <= token < len(self.clean.text) for token in self.aligned)
        ):
            raise UsageError("the alignment does not fit the prompts")


@dataclass(frozen=True)
class PatchOptions:
    """The options of patching that affect its numbers.

    direction: whether values of the clean run are put into the corrupt run or the reverse. method:
        ``exact``, or an estimate by gradients.
    position: the token of the corrupt prompt whose prediction counts; of a masked model the masked
        token. None is the last token, or a masked model's only mask token.
    max_memory: the most bytes that a pass may use; None takes a share of the free memory.
    metrics: those of exact patches to measure; a logit difference takes no pass over the
        vocabulary.
    """

    direction: Direction = "denoise"
    method: PatchMethod = "exact"
    position: int | None = None
    max_memory: int | None = None
    metrics: Collection[PatchMetric] = get_args(PatchMetric)

    def __post_init__(self) -> None:
        if self.max_memory is not None and self.max_memory < 1:
            raise UsageError(f"expected memory for patching, got {self.max_memory} bytes")


@dataclass(frozen=True)
class Prediction:
    """The prediction of a model at one position of a prompt, without a patch.

    position: the token that predicts, or that is masked. logits: (vocab,) float64.
    """

    position: int
    logits: NDArray[np.float64]

    @property
    def top(self) -> int:
        """Return the likeliest token's id."""
        return int(self.logits.argmax())


@dataclass(frozen=True)
class PatchScores:
    """The effects of some patches on one prompt pair: one finished piece of all measurements.

    pair: the index of the prompt pair. patches: the index of each patch among those requested.
    metrics: (patch,) float64, of the patched run, or estimated by the gradient method;
        ``logit_diff`` only if a foil was given.
    clean, corrupt: the metrics of the two runs without a patch.
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
    """The queries, keys or values of one layer in two runs, and the causes of their difference.

    clean: (token, head, dim) float64. difference: clean − corrupt. whole: its part that is linear
    in all earlier outputs, each norm scaled as in the corrupt run; alone: that of each sender.
    """

    kind: Kind
    layer: int
    sort: What
    clean: NDArray[np.float64]
    difference: NDArray[np.float64]
    whole: NDArray[np.float64]
    alone: Mapping[HeadKey, NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class PathEffects:
    """The direct effect of one head on the inputs of later heads.

    shares: (token,), add up to the sender's share of a query, key or value. explained: that of all
    earlier outputs; 1 but for the norms' scales. moved: ‖Δq‖ / ‖q‖. A head without difference has
    no entry.
    """

    sender: HeadKey
    shares: Mapping[What, Mapping[HeadKey, NDArray[np.floating]]]
    explained: Mapping[What, Mapping[HeadKey, float]]
    moved: Mapping[What, Mapping[HeadKey, float]]

    def share(self, sort: What, head: HeadKey) -> float:
        """Return the sender's share in the difference of a later head's query, key or value."""
        return float(self.shares[sort][head].sum())


def effect(patched: NDArray[np.float64], base: float, source: float) -> NDArray[np.float64]:
    """Return how far patches move a metric from the base run (0) to the source run (1).

    patched, base, source: the metric of the patched runs, of the run that was patched, and of the
        run that the values came from; the last two must differ.
    Values below 0 and above 1 are possible. For denoise it is P = (M_patched − M_corrupt) /
    (M_clean − M_corrupt) of Wang et al. 2022, for noise 1 − P.
    """
    return (patched - base) / (source - base)
