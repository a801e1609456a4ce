"""The records that the package's modules exchange: frozen dataclasses, checked on creation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.token_layout import TokenLayout

Floats = NDArray[np.floating]
"""An array of numbers of any precision."""

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

Kind = Literal["self", "encoder", "decoder", "cross"]
"""The kind of attention: ``self`` with one stack, or one of the three of an encoder–decoder."""

HeadKey = tuple[Kind, int, int]
"""The kind of a head's attention, its layer and its number."""

Score = Literal["scaled-dot", "dot", "additive"]
"""How well a query and a key match: q·k/√d_k, q·k, or Σ v·tanh(q + k)."""

PAIR = ("first", "second")
"""The names of the regions of two texts that are read together."""

UNKNOWN = ("[UNK]", "<unk>", "<UNK>")
"""The strings of tokens that stand for what a tokenizer does not know."""

_MANY_UNKNOWN = 0.1
UNKNOWN_NOTE = "are unknown to the tokenizer: the model cannot tell them apart"
"""The end of the note on a text of which more than a tenth is unknown: no label comes from it."""


@dataclass(frozen=True)
class Tokens:
    """One tokenised text: its token ids, their strings, and where they belong.

    ids: the tokenizer's numbers.
    texts: what each token stands for, leading space included; a byte that is no character by
        itself is written ``<0xE2>``. Not yet safe for a terminal: ``draw.labels`` sees to that.
    special: whether it is a special token such as [SEP]: added by the tokenizer, or typed as such.
    kept: the positions of the tokens in the text that they were taken from; empty for a whole text.
    spans: the characters of the text that each token stands for, as (start, stop), from the
        tokenizer's offsets; an empty range for added tokens. Empty if they are not known.
    regions: the name of the region that each token is in; empty if no regions were given.
    segments: for a pair of texts 0 or 1, the text that each token belongs to, if the model has an
        embedding for it (BERT's ``token_type_ids``); else empty.
    layout: where the tokens of pictures stand; None for a text alone.
    """

    ids: tuple[int, ...]
    texts: tuple[str, ...]
    special: tuple[bool, ...]
    kept: tuple[int, ...] = field(default=(), compare=False)
    regions: tuple[str, ...] = field(default=(), compare=False)
    segments: tuple[int, ...] = field(default=(), compare=False)
    spans: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    layout: TokenLayout | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.texts) == len(self.special):
            lengths = f"{len(self.ids)}, {len(self.texts)}, {len(self.special)}"
            raise ValueError(f"ids, texts and special differ in length: {lengths}")

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def bare(cls, ids: Sequence[int]) -> Tokens:
        """Return tokens of which only the ids are known; their strings are empty."""
        return cls(tuple(ids), ("",) * len(ids), (False,) * len(ids))

    def cut(self, length: int | None) -> Tokens:
        """Return the first ``length`` tokens; all of them if ``length`` is None."""
        return self.taken(range(len(self))[:length])

    def taken(self, indices: Sequence[int]) -> Tokens:
        """Return the tokens with these ``indices``, in their order."""

        def of(values: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(values[index] for index in indices if values)

        own = of(self.ids), of(self.texts), of(self.special), of(self.places)
        layout = None if self.layout is None else self.layout.taken(indices)
        return Tokens(*own, of(self.regions), of(self.segments), of(self.spans), layout)

    @property
    def predictable(self) -> tuple[int, ...]:
        """Return the ids, with −1 for those of pictures and their marks: no model predicts them."""
        if self.layout is None:
            return self.ids
        kinds = zip(self.ids, self.layout.kinds, self.special, strict=True)
        return tuple(-1 if own or kind != "text" else at for at, kind, own in kinds)

    @property
    def spaced(self) -> tuple[str, ...]:
        """Return the texts with the blank between two words at the start of the second.

        Tokenizers that mark the end of a word, not its start, have it at the end of the first.
        """
        texts = self.texts
        marks = any(text.endswith(" ") for text in texts)
        if not marks or any(text.startswith(" ") for text in texts):
            return texts
        ended = zip((" ", *texts), texts, strict=False)
        return tuple(" " * before.endswith(" ") + text.removesuffix(" ") for before, text in ended)

    @property
    def unknown(self) -> int:
        """Return how many of the tokens are unknown to the tokenizer, if more than a tenth; or 0.

        No label of a head comes from a text with so many.
        """
        number = sum(text in UNKNOWN for text in self.texts)
        return number if number > _MANY_UNKNOWN * len(self) else 0

    @property
    def joined(self) -> bool:
        """Return whether these are two texts that are read together."""
        return PAIR[1] in self.regions

    @property
    def places(self) -> Sequence[int]:
        """Return the index of each token in its whole text, from 0."""
        return self.kept or range(len(self))


REST = ("template", "special", "other")
"""The names of the region of tokens that no person named: those of a chat's template, those that
the tokenizer adds to a pair of texts, and the rest of a text."""


@dataclass(frozen=True)
class Input:
    """The tokens that a model is run on in one forward pass.

    text: the input; of an encoder–decoder that of the encoder. target: the decoder's text, or None.
    """

    text: Tokens
    target: Tokens | None = None

    @classmethod
    def of_ids(cls, ids: Sequence[int], target: Sequence[int] | None = None) -> Input:
        """Return an input of token ids only."""
        return cls(Tokens.bare(ids), None if target is None else Tokens.bare(target))

    @property
    def ids(self) -> tuple[int, ...]:
        return self.text.ids

    @property
    def target_ids(self) -> tuple[int, ...] | None:
        return None if self.target is None else self.target.ids

    @property
    def predicted(self) -> Tokens:
        """Return the tokens that a language model's head predicts: the decoder's, if it has one."""
        return self.text if self.target is None else self.target

    def masked(self, position: int, mask: int) -> Input:
        """Return the input in which the id ``mask`` replaces the token at ``position``."""
        ids = (*self.ids[:position], mask, *self.ids[position + 1 :])
        return replace(self, text=replace(self.text, ids=ids))

    def queries(self, kind: Kind) -> Tokens:
        """Return the tokens that are the queries in attention of this kind."""
        return self.text if self.target is None or kind == "encoder" else self.target

    def keys(self, kind: Kind) -> Tokens:
        """Return the tokens that are the keys in attention of this kind."""
        return self.text if kind == "cross" else self.queries(kind)


NO_PREDICTIONS = "no token is predicted"
"""The end of a note that matters only if something is predicted."""

OTHER_LAYERS = {
    **dict.fromkeys(("linear_attention", "conv", "mamba", "recurrent", "mlp", "moe"), False),
    **dict.fromkeys(("hybrid", "hybrid_sliding"), True),
}
"""The types of layers that are not attention alone: True for those that attend as well."""

_MIX_NOTHING = ("mlp", "moe")


@dataclass(frozen=True)
class ModelInfo:
    """The model that a result is from: its name, sizes, parameters and dtype.

    name: as the user gave it.
    revision: a commit, a content hash, or None if there is none (a plain directory).
    architecture: the class that was run. dtype: of the computation, such as ``float32``.
    layers, heads, kv_heads, head_dim: the sizes; query heads share a key/value head in groups of
        ``heads // kv_heads``. weights: ``trained`` (of the bundled model), ``checkpoint`` (from
        files, whatever they contain), ``random``, ``loaded`` (of a model object that Python code
        passed), ``captured`` (by another program, of which only queries and keys or weights are
        known), or ``given``: only arrays of attention weights, of an unknown model.
    seed: of the random weights; None without random weights. device: where it ran.
    notes: sentences that a reader of the result must know. score: how attention scores are computed
        from queries and keys; None for a checkpoint, which has its own way.
    not_finite: the names of tensors of the model with numbers that are not finite.
    backend: the library that ran it. processes: over how many its weights are split.
    untrained: that it predicts no better than uniform chance, with both losses; empty if it does
        better, or if that is not known.
    layer_types: what each layer is, as the config names it; empty if attention alone mixes tokens
        in every layer. layer_names: the module of each layer, of an ``nn.Module``; else empty.
    decoder_shape: layers, heads and key/value heads of a second stack, a decoder; empty if none.
    """

    name: str
    revision: str | None
    architecture: str
    dtype: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    weights: Literal["trained", "checkpoint", "random", "loaded", "captured", "given"] = "trained"
    seed: int | None = None
    device: str = "cpu"
    notes: tuple[str, ...] = ()
    score: Score | None = None
    not_finite: tuple[str, ...] = ()
    backend: Literal["numpy", "torch"] = "torch"
    processes: int = 1
    layer_types: tuple[str, ...] = ()
    layer_names: tuple[str, ...] = ()
    untrained: str = ""
    decoder_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if min(self.layers, self.heads, self.kv_heads, self.head_dim) < 1:
            raise ValueError(f"a model has at least one layer, head and dimension: {self}")

    @property
    def is_array(self) -> bool:
        """Return True if there is no model, but only arrays of attention weights."""
        return self.weights == "given"

    @property
    def is_one_layer(self) -> bool:
        """Return True for an array of one layer, whose number is not known: ``H3``, no ``L0H3``."""
        return self.is_array and self.layers == 1

    def of(self, kind: Kind) -> ModelInfo:
        """Return the facts with the sizes of the stack whose attention is of this kind."""
        if not self.decoder_shape or kind not in ("decoder", "cross"):
            return self
        layers, heads, kv_heads = self.decoder_shape
        return replace(self, layers=layers, heads=heads, kv_heads=kv_heads, layer_types=())

    @property
    def heads_of_layers(self) -> dict[int, int]:
        """Return the number of query heads of each layer that attends, by the layer's index."""
        types = dict(enumerate(self.layer_types))
        attend = (at for at in range(self.layers) if OTHER_LAYERS.get(types.get(at, ""), True))
        return dict.fromkeys(attend, self.heads)

    @property
    def not_followed(self) -> tuple[int, ...]:
        """Return the layers that mix tokens by something else than attention, or beside it."""
        kinds = enumerate(self.layer_types)
        return tuple(at for at, kind in kinds if kind in OTHER_LAYERS and kind not in _MIX_NOTHING)

    @property
    def overflow_advice(self) -> str:
        """Return advice that ends a message on overflow; an empty string if there is none."""
        narrow = self.dtype in ("float16", "bfloat16") and not self.not_finite
        return "; try --dtype float32" if narrow else ""

    def group(self, head: int) -> int | None:
        """Return the key/value head that query head ``head`` uses; None if each has its own."""
        if self.kv_heads == self.heads or self.heads % self.kv_heads:
            return None
        return head * self.kv_heads // self.heads


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The origin of a report's numbers and the numbering of its heads; reports inherit from it.

    text: the first text that the model was run on; empty if there is none.
    source: the origin of the texts, in words; empty if a person typed them.
    seed: of every random choice. seconds: how long the run took; 0 if that is unknown.
    notes: sentences that a reader of the result must know.
    complete: False if the run was interrupted or its time was up.
    index_base: 0, or 1 for names that start at one; indices inside records start at 0.
    """

    text: str = ""
    source: str = ""
    seed: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    complete: bool = True
    index_base: int = 0

    def head_name(self, head: tuple[int, int]) -> str:
        """Return the name of a head, given as (layer, head), such as ``L2H5``."""
        return f"L{head[0] + self.index_base}H{head[1] + self.index_base}"


@dataclass(frozen=True)
class LayerWeights:
    """The attention weights of the selected heads of one layer.

    layer: index from 0. heads: the index from 0 of each selected head.
    weights: float32 or float64 array (heads, query, key). mask: boolean (query, key), True if the
        query may attend to the key; None if only ``AttentionRecord.causal`` is known.
    """

    layer: int
    heads: tuple[int, ...]
    weights: Floats
    mask: Bools | None = None

    def __post_init__(self) -> None:
        shape, count = self.weights.shape, len(self.heads)
        if len(shape) != 3 or shape[0] != count:
            raise ValueError(f"expected weights of shape ({count}, query, key), got {shape}")
        if self.mask is not None and self.mask.shape != shape[1:]:
            raise ValueError(f"expected a mask of shape {shape[1:]}, got {self.mask.shape}")


@dataclass(frozen=True)
class AttentionRecord:
    """The attention weights of one run over one text, with its tokens and the model.

    kind: which attention of the model.
    causal: whether a query may not attend to later keys; such cells of a map stay blank.
    queries, keys: the tokens of the two axes (the same object for self-attention).
    layers: in order of their index; only those that were requested.
    """

    model: ModelInfo
    kind: Kind
    causal: bool
    queries: Tokens
    keys: Tokens
    layers: tuple[LayerWeights, ...]

    def __post_init__(self) -> None:
        shape = (len(self.queries), len(self.keys))
        for layer in self.layers:
            if layer.weights.shape[1:] != shape:
                raise ValueError(
                    f"layer {layer.layer}: expected weights over {shape[0]} queries and "
                    f"{shape[1]} keys, got {layer.weights.shape[1:]}"
                )

    def seen(self, layer: LayerWeights) -> Bools:
        """Return booleans (query, key), True if the query may attend to the key in this layer."""
        if layer.mask is not None:
            return layer.mask
        every = np.ones((len(self.queries), len(self.keys)), bool)
        return np.tril(every) if self.causal else every

    def __iter__(self) -> Iterator[tuple[int, int, Floats]]:
        """Yield (layer, head, attention weights (query, key)) for each selected head."""
        for layer in self.layers:
            for index, head in enumerate(layer.heads):
                yield layer.layer, head, layer.weights[index]


@dataclass(frozen=True)
class RegionShares:
    """How much of each head's attention goes from one region of a text to another.

    queries, keys: the names of the regions, and their numbers of tokens.
    heads: the (layer, head) of the first axis of the arrays (head, query region, key region).
    share: the mean, over the queries in the one region, of the sum of the weights on the keys in
        the other, in [0, 1]. uniform: the same for attention spread evenly over the keys that each
        query may attend to. on_sink: the part of ``share`` that is on the attention sink.
    above: for the weight outside the sink, its share on the region less that of even attention; NaN
        if a head has no such weight. clear: whether ``above`` is at least .10 and beyond the spread
        of the queries, of which there are ``least_queries``, and ``share`` above ``uniform``; see
        ``measures.regions``.
    """

    queries: Mapping[str, int]
    keys: Mapping[str, int]
    heads: tuple[tuple[int, int], ...]
    share: NDArray[np.float64]
    uniform: NDArray[np.float64]
    on_sink: NDArray[np.float64]
    above: NDArray[np.float64]
    clear: Bools

    least_queries: ClassVar = 5

    def __post_init__(self) -> None:
        shape = len(self.heads), len(self.queries), len(self.keys)
        for name in ("share", "uniform", "on_sink", "above", "clear"):
            if (own := getattr(self, name).shape) != shape:
                raise ValueError(f"expected {name} of shape {shape}, got {own}")


Source = Literal["card", "patterns", "text", "none"]
"""Where a head's name comes from: the card of the bundled model, a result of ``patterns`` that was
kept for this checkpoint, or enough events of the text at hand; ``none`` if it only describes the
head on this text."""


SINKS = ("first", "separator")
"""The labels of heads that attend mostly to an attention sink, as most heads do."""


class HeadLabel(NamedTuple):
    """What a head does most clearly, in one word, with the score that supports the word.

    If ``source`` is ``none`` the word is not a finding about the head: ``first`` (the attention
    sink), ``spread`` or ``peaked`` only describe its attention weights for this text.

    name: such as ``previous``; one of ``measures.registry``.
    letter: one letter, for where the name does not fit. score: in [0, 1]. If the card or
        ``patterns`` names the head, the score measured there, the same for every text; else the
        measure of this name for the current text; for an attention sink the weight on it.
    base_rate: the same measure of uniform attention over the keys that each query of the current
        text may attend to. short: the name in three or four letters, for the cell of a head.
    said: the name as papers use it, such as ``previous token``. source: where the name comes from.
    events: the number of queries of the current text that ``on_text`` is a mean of.
    on_text: the measure of this name for the current text; NaN if the text has no case of it (no
        token repeats, say).
    date: when ``patterns`` stored the label, such as ``2026-11-21``; empty for other sources.
    """

    name: str
    letter: str
    score: float
    base_rate: float
    short: str = ""
    said: str = ""
    source: Source = "none"
    events: int = 0
    on_text: float = math.nan
    date: str = ""

    def __repr__(self) -> str:
        return f"HeadLabel({self.name} {self.score:.3g}, uniform {self.base_rate:.3g})"

    @property
    def is_finding(self) -> bool:
        """Return True if the name is a tested finding; False if it only describes the weights."""
        return self.source != "none"

    @property
    def is_known(self) -> bool:
        """Return True if the label was measured on other texts, before: see ``source``."""
        return self.source in ("card", "patterns")


NO_LABEL = HeadLabel("no numbers", "?", math.nan, math.nan, "nan", "no numbers")
"""The label of a head whose weights are not all finite."""


class HeadScores(NamedTuple):
    """All measures of one head for one text, and its label.

    scores: by name; None if the text has no case of a measure (no token repeats, say).
    """

    layer: int
    head: int
    scores: Mapping[str, float | None]
    label: HeadLabel

    @property
    def place(self) -> tuple[int, int]:
        """Return (layer, head)."""
        return self.layer, self.head

    def __repr__(self) -> str:
        known = {name: value for name, value in self.scores.items() if value is not None}
        scores = ", ".join(f"{name} {value:.3g}" for name, value in known.items())
        return f"HeadScores(layer {self.layer}, head {self.head}, {self.label}, {scores})"


@dataclass(frozen=True, eq=False)
class HeadVectors:
    """The vectors behind the attention weights of a run, as far as the model shows them.

    norms: ‖v_j W_O^h‖ of each layer, (head, key): the length of what a key's value writes.
    queries, keys: (head, token, d) of each layer; factor: multiplies their products, the scores.
    notes: what is missing, and why.
    """

    norms: Mapping[int, Floats] = field(default_factory=dict)
    queries: Mapping[int, Floats] = field(default_factory=dict)
    keys: Mapping[int, Floats] = field(default_factory=dict)
    factor: float = 1.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class HeadsRecord:
    """The result of ``attnviz heads`` for one text; a ``HeadsReport`` has one or several.

    record: the attention weights.
    heads: the scores, one entry per selected head, in the order of ``record`` or as sorted.
    notable: the heads whose maps are shown in full, as (layer, head).
    selected: whether the user selected heads; else the record has all.
    index_base: 0, or 1 for names that start at one; indices inside records start at 0.
    sorted_by: the measure by which ``heads`` are sorted, or None for layer by layer. text: the text
        that the model was run on. target: the decoder's text, or for ``mha`` that of the queries.
    sinks: the mean weight of each head (layer, head) on the attention sink, see ``measures.sinks``;
        empty if the text has none. resting: a head with more than this weight on the sink counts as
        resting on it.
    sink: whether ``record`` has the weights on the sink; else its rows are rescaled without them.
    ablated: (layer, head) whose outputs were zero. norm_weighted: whether each weight of ``record``
        is multiplied by the norm of the value that it moves, rows rescaled.
    vectors: what makes the weights; None if it was not asked for.
    regions: the shares of the model's own weights between the regions of the text; None if no
        regions were given.
    """

    record: AttentionRecord
    heads: tuple[HeadScores, ...]
    notable: tuple[tuple[int, int], ...]
    selected: bool
    index_base: int = 0
    sorted_by: str | None = None
    text: str = ""
    target: str | None = None
    sinks: Mapping[tuple[int, int], float] = field(default_factory=dict)
    resting: float = 1.0
    sink: bool = True
    ablated: tuple[tuple[int, int], ...] = ()
    norm_weighted: bool = False
    regions: RegionShares | None = None
    vectors: HeadVectors | None = field(default=None, repr=False)

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Return (layer, head) of each of ``heads``, in the same order."""
        return tuple(entry.place for entry in self.heads)

    def rests(self, layer: int, head: int) -> bool:
        """Return True if a head's weight on the attention sink is above ``resting``."""
        return self.sinks.get((layer, head), 0.0) > self.resting

    def name(self, layer: int, head: int) -> str:
        """Return a head's name, such as ``L2H5``; ``H5`` for an array without known layer."""
        if self.record.model.is_one_layer:
            return f"H{head + self.index_base}"
        return f"L{layer + self.index_base}H{head + self.index_base}"

    def weights(self, layer: int, head: int) -> Floats:
        """Return the attention weights (query, key) of a selected head; KeyError for another."""
        for kept in self.record.layers:
            if kept.layer == layer and head in kept.heads:
                return np.asarray(kept.weights[kept.heads.index(head)])
        raise KeyError(f"{self.name(layer, head)} was not kept")

    def scores(self, layer: int, head: int) -> HeadScores:
        """Return the scores of a selected head; KeyError for another."""
        for entry in self.heads:
            if entry.place == (layer, head):
                return entry
        raise KeyError(f"{self.name(layer, head)} was not kept")
