"""How a model is trained, as a TOML file says it: shape, vocabulary, optimiser, phases, budget."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from attnviz.attention.checkpoint import StoredType
from attnviz.errors import LoadError, UsageError

__all__ = ["Budget", "Card", "Optimiser", "Phase", "Recipe", "Shape", "Validation", "read_recipe"]

_Part = TypeVar("_Part")


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
        _demand(self.learning_rate > 0, "learning_rate must be above 0", self.learning_rate)
        _demand(0 <= self.final_share <= 1, "final_share must be in [0, 1]", self.final_share)
        _demand(self.warmup_steps >= 0, "warmup_steps must be 0 or more", self.warmup_steps)
        for name in ("beta1", "beta2"):
            _demand(0 <= getattr(self, name) < 1, f"{name} must be in [0, 1)", getattr(self, name))
        _demand(self.weight_decay >= 0, "weight_decay must be 0 or more", self.weight_decay)
        _demand(self.clip > 0, "clip must be above 0", self.clip)


@dataclass(frozen=True)
class Phase:
    """A stretch of the training with batches of one make.

    until: share of the budget that is used up when it ends, in (0, 1].
    rate: share of the optimiser's learning rate that this phase learns with.
    layers: that compute and learn, from the first on; None for all. Those that join later begin by
        adding nothing.
    length: predicted tokens of a sequence. batch: sequences of a batch.
    repeated_tokens: share of the sequences that repeat a stretch of uniform random tokens.
    repeated_passages: share that repeats a stretch of the text.
    mirrored_tokens: share that repeats random tokens forwards and backwards by turns.
    period: least and largest length of the stretch.
    drawn_from: random tokens are among the first so many of the vocabulary; None for all of it.
    surprise: weight of the loss on random tokens before they repeat, which nothing predicts.
    """

    name: str = "text"
    until: float = 1.0
    rate: float = 1.0
    layers: int | None = None
    length: int = 256
    batch: int = 16
    repeated_tokens: float = 0.1
    repeated_passages: float = 0.05
    mirrored_tokens: float = 0.0
    period: tuple[int, int] = (4, 127)
    surprise: float = 0.0
    drawn_from: int | None = None

    def __post_init__(self) -> None:
        _demand(0 < self.until <= 1, "until must be in (0, 1]", self.until)
        _demand(0 < self.rate <= 1, "rate must be in (0, 1]", self.rate)
        _demand(self.length >= 2, "length must be 2 or more", self.length)
        _demand(self.batch >= 1, "batch must be 1 or more", self.batch)
        _demand(
            self.drawn_from is None or self.drawn_from >= 2,
            "drawn_from must be 2 or more",
            self.drawn_from,
        )
        for name in ("repeated_tokens", "repeated_passages", "mirrored_tokens", "surprise"):
            _demand(0 <= getattr(self, name) <= 1, f"{name} must be in [0, 1]", getattr(self, name))
        _demand(self.synthetic <= 1 + 1e-9, "the shares of the sequences exceed 1", self.synthetic)
        least, largest = self.period
        _demand(1 <= least <= largest, "period must be [least, largest]", list(self.period))
        _demand(
            not self.synthetic or largest < self.length - 1,
            f"period must end below the length {self.length} − 1, so that something repeats",
            list(self.period),
        )

    @property
    def synthetic(self) -> float:
        """Share of the sequences that are no plain text."""
        return self.repeated_tokens + self.repeated_passages + self.mirrored_tokens


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
            self.minutes is None or 0 < self.minutes < float("inf"),
            "minutes must be above 0",
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

    The whole text is read once at the end.
    """

    every: float = 0.05
    tokens: int = 65_536

    def __post_init__(self) -> None:
        _demand(0 < self.every <= 1, "every must be in (0, 1]", self.every)
        _demand(self.tokens >= 1, "tokens must be 1 or more", self.tokens)


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


# Small batches: a run of minutes needs many steps more than even ones. Short sequences that repeat
# come first; without them no head looks at the token before within minutes.
_QUICK = (
    Phase("short", 0.4, length=32, batch=16, repeated_tokens=0.6, period=(4, 15)),
    Phase("text", 1.0, length=128, batch=8, repeated_tokens=0.15, period=(4, 60)),
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
    budget: Budget = Budget(minutes=1.5)
    validation: Validation = field(default_factory=Validation)
    card: Card = field(default_factory=Card)

    def __post_init__(self) -> None:
        least = 258  # every byte, the token that begins a text, and one merge
        _demand(
            self.vocabulary is None or self.vocabulary >= least,
            f"vocabulary must be {least} or more (the 256 bytes and the token that begins a text "
            "are in it)",
            self.vocabulary,
        )
        _demand(self.seed >= 0, "seed must be 0 or more", self.seed)
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
        for phase in self.phases:
            _demand(
                phase.layers is None or 1 <= phase.layers <= self.model.layers,
                f"layers of a phase must be 1 to the model's, {self.model.layers}",
                phase.layers,
            )
        depths = [self.depth(index) for index in range(len(self.phases))]
        _demand(
            depths == sorted(depths) and depths[-1] == self.model.layers,
            "the phases' layers must not fall, and all layers compute in the last one",
            depths,
        )
        for phase in self.phases:
            _demand(
                phase.length <= self.model.context,
                f"length must be at most the model's context, {self.model.context}",
                phase.length,
            )

    def depth(self, phase: int) -> int:
        """How many layers compute in a phase."""
        return self.phases[phase].layers or self.model.layers

    def phase(self, used: float) -> int:
        """Index of the phase at this share of the budget."""
        return next(
            (index for index, phase in enumerate(self.phases) if used < phase.until),
            len(self.phases) - 1,
        )

    def values(self) -> dict[str, Any]:
        """The recipe as JSON values."""
        return asdict(self)


def read_recipe(path: Path) -> Recipe:
    """The recipe in a TOML file; what it leaves out is as in ``Recipe()``.

    Raises LoadError where the file cannot be read or is no TOML, UsageError, naming the field,
    where it says something else than a recipe.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"{str(path)!r} cannot be read as a recipe: {error}") from error
    try:
        return _recipe(table)
    except UsageError as error:
        raise UsageError(f"{str(path)!r}: {error}") from error


def _recipe(table: Mapping[str, Any]) -> Recipe:
    parts = dict(table)
    if "phase" in parts:
        listed = parts.pop("phase")
        if not (isinstance(listed, list) and all(isinstance(item, dict) for item in listed)):
            raise UsageError("phase must be a list of tables: [[phase]]")
        parts["phases"] = tuple(_phase(item) for item in listed)
    elif "phases" in parts:
        raise UsageError("no field 'phases'; did you mean [[phase]]?")
    for name, kind in (
        ("model", Shape),
        ("optimiser", Optimiser),
        ("budget", Budget),
        ("validation", Validation),
        ("card", Card),
    ):
        if name in parts:
            if not isinstance(parts[name], dict):
                raise UsageError(f"{name} must be a table: [{name}]")
            parts[name] = _part(kind, parts[name], f"[{name}] ")
    return _part(Recipe, parts, "")


def _phase(values: Mapping[str, Any]) -> Phase:
    parts = dict(values)
    if "period" in parts:
        period = parts["period"]
        if not (
            isinstance(period, list)
            and len(period) == 2
            and all(isinstance(one, int) and not isinstance(one, bool) for one in period)
        ):
            raise UsageError(f"[[phase]] period must be two whole numbers, got {period!r}")
        parts["period"] = tuple(period)
    return _part(Phase, parts, "[[phase]] ")


def _part(kind: type[_Part], values: Mapping[str, Any], place: str) -> _Part:
    """An instance of a part of the recipe; UsageError for unknown names and other types."""
    known = {one.name: str(one.type) for one in fields(kind)}  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise UsageError(f"{place}has no field {name!r}{hint}")
        _check_type(place + name, known[name], value)
    try:
        return kind(**values)
    except UsageError as error:
        raise UsageError(f"{place}{error}") from error


def _check_type(name: str, kind: str, value: object) -> None:
    plain = not isinstance(value, bool)
    if kind.startswith("int") and not (plain and isinstance(value, int)):
        raise UsageError(f"{name} must be a whole number, got {value!r}")
    if kind.startswith("float") and not (plain and isinstance(value, int | float)):
        raise UsageError(f"{name} must be a number, got {value!r}")
    if kind in ("str", "StoredType") and not isinstance(value, str):
        raise UsageError(f"{name} must be a text in quotes, got {value!r}")
