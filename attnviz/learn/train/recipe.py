"""The recipe of a training: shape, vocabulary, optimiser, phases, budget."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, Literal

from attnviz.attention.decoder_config import GROWING, DecoderConfig, require_growth
from attnviz.errors import UsageError
from attnviz.learn.train.tables import (
    FieldRule,
    FieldTable,
    choice,
    demand,
    listed,
    read_table,
    value,
)

_POSITIVE = FieldRule("above 0, and finite", lambda given: 0 < given < inf)
_NOT_NEGATIVE = FieldRule("0 or more, and finite", lambda given: 0 <= given < inf)
_SHARE = FieldRule("in [0, 1]", lambda given: 0 <= given <= 1)
_SOME_SHARE = FieldRule("in (0, 1]", lambda given: 0 < given <= 1)
_MEMORY = FieldRule("in [0, 1)", lambda given: 0 <= given < 1)
_COUNT = FieldRule("1 or more", lambda given: given >= 1)

_LARGEST_VOCABULARY = 1_000_000
_LEAST_VOCABULARY = 258
"""The 256 bytes, the token that begins a text, and one merge."""

_VOCABULARY = FieldRule(
    f"from {_LEAST_VOCABULARY} (the 256 bytes and the token that begins a text are in it) to "
    f"{_LARGEST_VOCABULARY:,}",
    lambda given: _LEAST_VOCABULARY <= given <= _LARGEST_VOCABULARY,
)


def _given(**values: float | None) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class DecoderShape(FieldTable):
    """The sizes of a decoder to train: Llama's architecture, as ``DecoderConfig`` describes it.

    layers, heads, kv_heads: how many layers, and query heads and key/value heads in each.
    head_dim, d_model, d_ff: the width of a head, of the model and of the feed-forward block.
    context: the longest text in tokens.
    initializer_range: standard deviation of initial parameters. Llama's 0.02 suits widths of
        thousands; with 1/√d_model the outputs of narrow layers are as large as their inputs.
    """

    layers: int = 4
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 32
    d_model: int = 128
    d_ff: int = 344
    context: int = 1024
    initializer_range: float = value(0.02, _POSITIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.decoder(vocabulary=1, beginning=0)  # raises UsageError if sizes conflict

    def decoder(self, vocabulary: int, beginning: int) -> DecoderConfig:
        """Return the config of the decoder with a tied embedding.

        vocabulary: how many tokens it has. beginning: the id that begins and ends a text. Raises
            UsageError if its sizes conflict.
        """
        return DecoderConfig(
            vocabulary=vocabulary, tied=True, bos=beginning, eos=beginning, **asdict(self)
        )


@dataclass(frozen=True)
class Optimiser(FieldTable):
    """The settings of AdamW (Loshchilov & Hutter 2019), with warm-up and cosine decay.

    learning_rate: the peak, reached after ``warmup_steps`` of each phase. final_share: the learning
        rate at the end, as a share of the peak. clip: the largest norm of the gradient.
        weight_decay: of matrices; norms have none.
    """

    learning_rate: float = value(3e-3, _POSITIVE)
    final_share: float = value(0.05, _SHARE)
    warmup_steps: int = value(50, FieldRule("0 or more", lambda given: given >= 0))
    beta1: float = value(0.9, _MEMORY)
    beta2: float = value(0.98, _MEMORY)
    weight_decay: float = value(0.1, _NOT_NEGATIVE)
    clip: float = value(1.0, _POSITIVE)


@dataclass(frozen=True)
class Phase(FieldTable):
    """A phase of a training, in which all batches are made in the same way.

    until: share of the whole budget at which the phase ends, in (0, 1].
    tokens: number of its own tokens after which it ends earlier; None for no such limit. What forms
        after a number of steps needs no more of them in a longer run.
    rate: number by which the optimiser's learning rate is multiplied in this phase.
    beta2, weight_decay: of the optimiser in this phase, None for its own values. The shorter a
        batch, the longer ``beta2`` should remember (Marek et al. 2025). If the text is repeated,
        epoch after epoch, a stronger decay counters memorising.
    layers, d_model, head_dim, d_ff: of the model in this phase, None for those of ``DecoderShape``.
        A later phase continues with the same model made larger, see ``torch_decoder.grown``.
    length: predicted tokens of a sequence. batch: sequences of a batch.
    repeated_tokens: share of the sequences that repeat a stretch of uniform random tokens.
    repeated_passages: share of the sequences that repeat a stretch of the text.
    recalled_pairs: share of the sequences that repeat pairs of random tokens in changing order.
    period: least and largest length of the stretch, or of a round of the pairs.
    surprise: weight of the loss on random tokens before they repeat, which are not predictable.
    """

    name: str = value("text", FieldRule("text that can be printed", str.isprintable))
    until: float = value(1.0, _SOME_SHARE)
    tokens: int | None = value(None, _COUNT)
    rate: float = value(1.0, _SOME_SHARE)
    beta2: float | None = value(None, _MEMORY)
    weight_decay: float | None = value(None, _NOT_NEGATIVE)
    layers: int | None = None
    d_model: int | None = None
    head_dim: int | None = None
    d_ff: int | None = None
    length: int = value(256, FieldRule("2 or more", lambda given: given >= 2))
    batch: int = value(16, _COUNT)
    repeated_tokens: float = value(0.1, _SHARE)
    repeated_passages: float = value(0.05, _SHARE)
    recalled_pairs: float = value(0.0, _SHARE)
    period: tuple[int, int] = (4, 127)
    surprise: float = value(0.0, _SHARE)

    def __post_init__(self) -> None:
        super().__post_init__()
        demand(self.synthetic <= 1 + 1e-9, "the shares of the sequences exceed 1", self.synthetic)
        least, largest = self.period
        demand(1 <= least <= largest, "period must be [least, largest]", list(self.period))
        demand(
            not self.synthetic or largest < self.length - 1,
            f"period must end below the length {self.length} − 1, so that something repeats",
            list(self.period),
        )

    def optimiser(self, common: Optimiser) -> Optimiser:
        """Return the optimiser's settings in this phase.

        common: the settings of all phases, some of which this phase replaces.
        """
        return replace(common, **_given(beta2=self.beta2, weight_decay=self.weight_decay))

    @property
    def synthetic(self) -> float:
        """Return the share of the sequences that are not plain text."""
        return self.repeated_tokens + self.repeated_passages + self.recalled_pairs


@dataclass(frozen=True)
class TrainingBudget(FieldTable):
    """How long training lasts: a number of tokens or of minutes, never both."""

    tokens: int | None = value(None, _COUNT)
    minutes: float | None = value(None, _POSITIVE)

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.minutes is None):
            raise UsageError("a budget is a number of tokens or of minutes: give one of them")
        super().__post_init__()

    def used(self, tokens: int, seconds: float, reserve: float = 0.0) -> float:
        """Return the share of the budget that is used up, from 0; 1 or more ends the training.

        tokens, seconds: how many were used so far.
        reserve: seconds of a budget in minutes kept for the work after the last step.
        """
        if self.tokens is not None:
            return tokens / self.tokens
        assert self.minutes is not None
        return seconds / (60 * self.minutes - reserve)

    def __str__(self) -> str:
        if self.tokens is not None:
            return f"{self.tokens:,} tokens"
        return f"{self.minutes:g} minute{'s' * (self.minutes != 1)}"


@dataclass(frozen=True)
class Validation(FieldTable):
    """The settings of validation: how often, and on how much text.

    every: the time between two validations, as a share of the budget. tokens: how many are used.
    length: of the windows for the curve and for the scores of the heads, None for the length of the
        last phase's sequences.
    The whole text is used once at the end, in windows as long as the last phase's sequences. With a
    budget in minutes, validation takes at most a share of the time, during the run and at the end.
    """

    every: float = value(0.05, _SOME_SHARE)
    tokens: int = value(16_384, _COUNT)
    length: int | None = value(None, _COUNT)


@dataclass(frozen=True)
class Card(FieldTable):
    """The facts for a model card that only a person can give; empty if not given.

    name: of the model. license: an identifier from Hugging Face's list, such as ``mit``.
    language: such as ``en``. data: what the texts are, where they come from, whose they are.
    limits: what the model is not good for.
    """

    name: str = ""
    license: str = ""
    language: str = ""
    data: str = ""
    limits: str = ""


# Short sequences of random tokens come first, as only looking back predicts them: an induction head
# forms in 250 to 400 such steps, but not within minutes if they are mixed with text from the start.
# Then comes text, with enough repetition to keep the head.
_QUICK = (
    Phase(
        "repetition",
        0.65,
        tokens=900_000,
        length=32,
        batch=64,
        repeated_tokens=1,
        repeated_passages=0,
        period=(4, 15),
    ),
    Phase("text", length=128, batch=8, repeated_tokens=0.15, period=(4, 60)),
)


@dataclass(frozen=True)
class Recipe(FieldTable):
    """All settings of a training except the texts, and the facts for the model card.

    vocabulary: tokens of the byte-level BPE; None for 4,096, or fewer if the text is short.
    seed: of the parameters and of the order of the text.
    autocast: ``bfloat16`` or ``float32`` for matrix products, ``auto`` for the faster of the two.
    stored: the type of the finished model's tensors, ``float16`` or ``float32``.
    model: its final sizes. optimiser, phases, budget, validation: how it is trained, in which
        phases, how long, and how often validated. card: facts for the model card.

    Raises UsageError that names the field if a value is not valid.
    """

    vocabulary: int | None = value(None, _VOCABULARY)
    seed: int = value(0, FieldRule("from 0 to 2^63 - 1", lambda given: 0 <= given < 2**63))
    autocast: str = choice("auto", "auto", "bfloat16", "float32")
    stored: Literal["float16", "float32"] = choice("float32", "float16", "float32")
    model: DecoderShape = field(default_factory=DecoderShape)
    optimiser: Optimiser = field(default_factory=Optimiser)
    phases: tuple[Phase, ...] = listed(_QUICK, "phase")
    budget: TrainingBudget = TrainingBudget(minutes=1.7)
    validation: Validation = field(default_factory=Validation)
    card: Card = field(default_factory=Card)

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = [phase.until for phase in self.phases]
        demand(
            bool(ends) and ends == sorted(set(ends)) and ends[-1] == 1,
            "the phases' until must rise, the last one to 1",
            ends,
        )
        demand(
            self.phases[-1].tokens is None,
            "the last phase goes on to the end: leave out its tokens",
            self.phases[-1].tokens,
        )
        shapes = [self.shape(index) for index in range(len(self.phases))]
        for small, large in pairwise(shapes):
            require_growth(small.decoder(1, 0), large.decoder(1, 0))
        if shapes[-1] != self.model:
            raise UsageError(
                f"the last phase has the model's own shape: leave out its {', '.join(GROWING)}"
            )
        lengths = [(f"[[phase]] {phase.name!r}:", phase.length) for phase in self.phases]
        for owner, length in (*lengths, ("[validation]", self.window)):
            demand(
                length <= self.model.context,
                f"{owner} length must be at most the model's context, {self.model.context}",
                length,
            )

    @property
    def window(self) -> int:
        """Return how many tokens a window of validation text has, for curve and head scores."""
        return self.validation.length or self.phases[-1].length

    def shape(self, phase: int) -> DecoderShape:
        """Return the sizes of the model in a phase. phase: its index."""
        wanted = self.phases[phase]
        return replace(self.model, **_given(**{name: getattr(wanted, name) for name in GROWING}))

    def phase(self, used: float, index: int = 0, read: int = 0) -> int:
        """Return the index of the phase at a point of the training.

        used: the share of the budget used so far. index: phase of the step before. read: tokens
            trained on in that phase.
        """
        while index < len(self.phases) - 1:
            phase = self.phases[index]
            if used < phase.until and (phase.tokens is None or read < phase.tokens):
                break
            index, read = index + 1, 0
        return index

    def identity(self) -> dict[str, Any]:
        """Return the settings, as JSON values, that must be the same to resume a saved training."""
        values = asdict(self)
        del values["card"]  # the card's words do not change the model
        values["phases"] = [{**phase, "period": [*phase["period"]]} for phase in values["phases"]]
        return values


def read_recipe(path: Path) -> Recipe:
    """Return the recipe in a TOML file; missing values are the defaults of ``Recipe``."""
    return read_table(Recipe, path, "a recipe")
