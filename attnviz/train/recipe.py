"""How a model is trained: shape, vocabulary, optimiser, phases, budget."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from math import inf
from typing import Any

from attnviz.attention.checkpoint import StoredType
from attnviz.attention.decoder_config import GROWING, DecoderConfig, require_growth
from attnviz.errors import UsageError

__all__ = ["Budget", "Card", "Optimiser", "Phase", "Recipe", "Shape", "Validation"]


def _given(**values: float | None) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _demand(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise UsageError(f"{rule}, got {value!r}")


@dataclass(frozen=True)
class Shape:
    """The decoder: Llama's architecture, as ``DecoderConfig`` describes it.

    initializer_range: standard deviation of fresh weights. Llama's 0.02 suits widths of thousands;
    1/√d_model keeps what narrow layers write as large as what they read.
    """

    layers: int = 4
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 32
    d_model: int = 128
    d_ff: int = 344
    context: int = 1024
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        self.decoder(vocabulary=1, beginning=0)  # refuses what does not fit together
        _demand(
            0 < self.initializer_range < inf,
            "initializer_range must be above 0, and finite",
            self.initializer_range,
        )

    def decoder(self, vocabulary: int, beginning: int) -> DecoderConfig:
        """The decoder of this shape, its embedding tied; UsageError where the sizes do not fit."""
        return DecoderConfig(
            vocabulary=vocabulary, tied=True, bos=beginning, eos=beginning, **asdict(self)
        )


@dataclass(frozen=True)
class Optimiser:
    """AdamW (Loshchilov & Hutter 2019) with warm-up and cosine decay.

    learning_rate: the peak, reached after ``warmup_steps`` of each phase. final_share: the share
    of it that is left at the end. clip: the largest norm of the gradient. weight_decay: of
    matrices; norms have none.
    """

    learning_rate: float = 3e-3
    final_share: float = 0.05
    warmup_steps: int = 50
    beta1: float = 0.9
    beta2: float = 0.98
    weight_decay: float = 0.1
    clip: float = 1.0

    def __post_init__(self) -> None:
        _demand(
            0 < self.learning_rate < inf,
            "learning_rate must be above 0, and finite",
            self.learning_rate,
        )
        _demand(0 <= self.final_share <= 1, "final_share must be in [0, 1]", self.final_share)
        _demand(self.warmup_steps >= 0, "warmup_steps must be 0 or more", self.warmup_steps)
        for name in ("beta1", "beta2"):
            _demand(0 <= getattr(self, name) < 1, f"{name} must be in [0, 1)", getattr(self, name))
        _demand(
            0 <= self.weight_decay < inf,
            "weight_decay must be 0 or more, and finite",
            self.weight_decay,
        )
        _demand(0 < self.clip < inf, "clip must be above 0, and finite", self.clip)


@dataclass(frozen=True)
class Phase:
    """A stretch of the training with batches of one make.

    until: share of the budget that is used up when it ends, in (0, 1].
    tokens: None, or after how many of its own it ends before that. What forms after so many steps
        needs no more of them in a longer run.
    rate: share of the optimiser's learning rate that this phase learns with.
    beta2, weight_decay: of the optimiser in this phase, None for its own. The shorter a batch, the
        longer should be what ``beta2`` remembers (Marek et al. 2025). Where the text comes again,
        epoch after epoch, a stronger decay is to keep it from being learned by heart.
    layers, d_model, head_dim, d_ff: of the model in this phase, None for the shape's own. A later
        phase goes on with the same model made larger, see ``attention.growth``.
    length: predicted tokens of a sequence. batch: sequences of a batch.
    repeated_tokens: share of the sequences that repeat a stretch of uniform random tokens.
    repeated_passages: share that repeats a stretch of the text.
    recalled_pairs: share of pairs of random tokens that come again and again in another order.
    period: least and largest length of the stretch, or of a round of the pairs.
    surprise: weight of the loss on random tokens before they repeat, which nothing predicts.
    """

    name: str = "text"
    until: float = 1.0
    tokens: int | None = None
    rate: float = 1.0
    beta2: float | None = None
    weight_decay: float | None = None
    layers: int | None = None
    d_model: int | None = None
    head_dim: int | None = None
    d_ff: int | None = None
    length: int = 256
    batch: int = 16
    repeated_tokens: float = 0.1
    repeated_passages: float = 0.05
    recalled_pairs: float = 0.0
    period: tuple[int, int] = (4, 127)
    surprise: float = 0.0

    def __post_init__(self) -> None:
        _demand(self.name.isprintable(), "name must be text that can be printed", self.name)
        _demand(0 < self.until <= 1, "until must be in (0, 1]", self.until)
        _demand(self.tokens is None or self.tokens >= 1, "tokens must be 1 or more", self.tokens)
        _demand(0 < self.rate <= 1, "rate must be in (0, 1]", self.rate)
        self.optimiser(Optimiser())  # refuses what makes no sense
        _demand(self.length >= 2, "length must be 2 or more", self.length)
        _demand(self.batch >= 1, "batch must be 1 or more", self.batch)
        for name in ("repeated_tokens", "repeated_passages", "recalled_pairs", "surprise"):
            _demand(0 <= getattr(self, name) <= 1, f"{name} must be in [0, 1]", getattr(self, name))
        _demand(self.synthetic <= 1 + 1e-9, "the shares of the sequences exceed 1", self.synthetic)
        least, largest = self.period
        _demand(1 <= least <= largest, "period must be [least, largest]", list(self.period))
        _demand(
            not self.synthetic or largest < self.length - 1,
            f"period must end below the length {self.length} − 1, so that something repeats",
            list(self.period),
        )

    def optimiser(self, common: Optimiser) -> Optimiser:
        """The optimiser of all phases with what this one has of its own."""
        return replace(common, **_given(beta2=self.beta2, weight_decay=self.weight_decay))

    @property
    def synthetic(self) -> float:
        """Share of the sequences that are no plain text."""
        return self.repeated_tokens + self.repeated_passages + self.recalled_pairs


@dataclass(frozen=True)
class Budget:
    """How long training goes on: a number of tokens or of minutes, never both."""

    tokens: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.minutes is None):
            raise UsageError("a budget is a number of tokens or of minutes: give one of them")
        _demand(self.tokens is None or self.tokens >= 1, "tokens must be 1 or more", self.tokens)
        _demand(
            self.minutes is None or 0 < self.minutes < inf,
            "minutes must be above 0, and finite",
            self.minutes,
        )

    def used(self, tokens: int, seconds: float) -> float:
        """The share that is used up, from 0; 1 or more ends the run."""
        if self.tokens is not None:
            return tokens / self.tokens
        assert self.minutes is not None
        return seconds / (60 * self.minutes)

    def __str__(self) -> str:
        if self.tokens is not None:
            return f"{self.tokens:,} tokens"
        return f"{self.minutes:g} minute{'s' * (self.minutes != 1)}"


@dataclass(frozen=True)
class Validation:
    """How often the validation text is read (in shares of the budget), and how much of it then.

    length: of the windows that the curve is measured over, and the heads are scored over, None for
        the length of the last phase's sequences.
    The whole text is read once at the end, in windows as long as the last phase's sequences. In a
    budget of minutes it is read less often where it would take more than a share of them.
    """

    every: float = 0.05
    tokens: int = 16_384
    length: int | None = None

    def __post_init__(self) -> None:
        _demand(0 < self.every <= 1, "every must be in (0, 1]", self.every)
        _demand(self.tokens >= 1, "tokens must be 1 or more", self.tokens)
        _demand(self.length is None or self.length >= 1, "length must be 1 or more", self.length)


@dataclass(frozen=True)
class Card:
    """What only a person can say of a model, for its card; empty where nothing is said.

    name: of the model. license: an identifier as Hugging Face lists them, such as ``mit``.
    language: such as ``en``. data: what the texts are, where they come from, whose they are.
    limits: what the model is not good for.
    """

    name: str = ""
    license: str = ""
    language: str = ""
    data: str = ""
    limits: str = ""


_LARGEST_VOCABULARY = 1_000_000

# Short sequences of random tokens first, which only looking back predicts: an induction head forms
# in 250 to 400 such steps, and in no run of minutes that mixes them with text from the start. Then
# text, with enough that repeats to keep it.
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
class Recipe:
    """Everything that decides what is trained, but for the texts, and what is said of it.

    vocabulary: tokens of the byte-level BPE; None for 4,096, or fewer where the text is short.
    autocast: ``bfloat16`` for matrix products in it, ``float32`` for none, ``auto`` for what the
        device is faster in.
    stored: what the finished model's tensors are stored in, ``float16`` or ``float32``.

    Raises UsageError, naming the field, where a value makes no sense.
    """

    vocabulary: int | None = None
    seed: int = 0
    autocast: str = "auto"
    stored: StoredType = "float32"
    model: Shape = field(default_factory=Shape)
    optimiser: Optimiser = field(default_factory=Optimiser)
    phases: tuple[Phase, ...] = _QUICK
    budget: Budget = Budget(minutes=1.7)
    validation: Validation = field(default_factory=Validation)
    card: Card = field(default_factory=Card)

    def __post_init__(self) -> None:
        least = 258  # every byte, the token that begins a text, and one merge
        _demand(
            self.vocabulary is None or least <= self.vocabulary <= _LARGEST_VOCABULARY,
            f"vocabulary must be from {least} (the 256 bytes and the token that begins a text are "
            f"in it) to {_LARGEST_VOCABULARY:,}",
            self.vocabulary,
        )
        _demand(0 <= self.seed < 2**63, "seed must be from 0 to 2^63 - 1", self.seed)
        _demand(
            self.autocast in ("auto", "bfloat16", "float32"),
            "autocast must be auto, bfloat16 or float32",
            self.autocast,
        )
        _demand(
            self.stored in ("float16", "float32"),
            "stored must be float16 or float32",
            self.stored,
        )
        ends = [phase.until for phase in self.phases]
        _demand(
            bool(ends) and ends == sorted(set(ends)) and ends[-1] == 1,
            "the phases' until must rise, the last one to 1",
            ends,
        )
        _demand(
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
        for place, length in (*lengths, ("[validation]", self.window)):
            _demand(
                length <= self.model.context,
                f"{place} length must be at most the model's context, {self.model.context}",
                length,
            )

    @property
    def window(self) -> int:
        """Tokens of a window of validation text, for the curve and the heads' scores."""
        return self.validation.length or self.phases[-1].length

    def shape(self, phase: int) -> Shape:
        """Of the model in a phase."""
        wanted = self.phases[phase]
        return replace(self.model, **_given(**{name: getattr(wanted, name) for name in GROWING}))

    def phase(self, used: float, index: int = 0, read: int = 0) -> int:
        """Index of the phase at this share of the budget.

        index: of the phase that the step before belonged to. read: tokens read in that one.
        """
        while index < len(self.phases) - 1:
            phase = self.phases[index]
            if used < phase.until and (phase.tokens is None or read < phase.tokens):
                break
            index, read = index + 1, 0
        return index

    def values(self) -> dict[str, Any]:
        """The recipe as JSON values."""
        return asdict(self)
