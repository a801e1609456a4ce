"""The recipe of a training: shape, vocabulary, optimiser, phases, budget; read from a TOML file.

A class is a table of the file, and a field a value of it. They are declared and checked as options
are: with type, default and range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

from attnviz.attention.checkpoint import GROWING, DecoderConfig, require_growth
from attnviz.errors import UsageError
from attnviz.options import Options, option
from attnviz.reading import read_toml

_Kind = TypeVar("_Kind", bound="RecipeTable")

_LEAST_VOCABULARY = 258  # the 256 bytes, the token that begins a text, and one merge
_SMALL = 1e-9  # the least of numbers that must be above 0, and how far others must stay below 1


def _number(default: float | None, least: float = 0, most: float | None = None) -> Any:
    return option("", "", default, min=least, max=most)


def demand(holds: bool, rule: str, given: object) -> None:
    """Raise UsageError with a rule in words and the value that breaks it, unless it holds."""
    if not holds:
        raise UsageError(f"{rule}, got {given!r}")


@dataclass(frozen=True)
class RecipeTable(Options):
    """A table of a recipe; UsageError names a field whose value is of another type or range."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for own in fields(self):
            given = getattr(self, own.name)
            finite = not isinstance(given, float) or math.isfinite(given)
            demand(finite, f"{own.name} must be finite", given)


@dataclass(frozen=True)
class DecoderShape(RecipeTable):
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
    initializer_range: float = _number(0.02, _SMALL)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.decoder(vocabulary=1, beginning=0)  # raises UsageError if sizes conflict

    def decoder(self, vocabulary: int, beginning: int) -> DecoderConfig:
        """Return the config of the decoder, with a tied embedding.

        vocabulary: how many tokens it has. beginning: the id that begins and ends a text.
        """
        return DecoderConfig(
            vocabulary=vocabulary, tied=True, bos=beginning, eos=beginning, **asdict(self)
        )


@dataclass(frozen=True)
class Optimiser(RecipeTable):
    """The settings of AdamW (Loshchilov & Hutter 2019), with warm-up and cosine decay.

    learning_rate: the peak, reached after ``warmup_steps`` of each phase. final_share: the learning
        rate at the end, as a share of the peak. clip: the largest norm of the gradient.
        weight_decay: of matrices; norms have none.
    """

    learning_rate: float = _number(3e-3, _SMALL)
    final_share: float = _number(0.05, 0, 1)
    warmup_steps: int = _number(50)
    beta1: float = _number(0.9, 0, 1 - _SMALL)
    beta2: float = _number(0.98, 0, 1 - _SMALL)
    weight_decay: float = _number(0.1)
    clip: float = _number(1.0, _SMALL)


@dataclass(frozen=True)
class Phase(RecipeTable):
    """A phase of a training, in which all batches are made in the same way.

    until: share of the whole budget at which the phase ends, in (0, 1].
    tokens: number of its own tokens after which it ends earlier; None for no such limit. What forms
        after a number of steps needs no more of them in a longer run.
    rate: number by which the optimiser's learning rate is multiplied in this phase.
    beta2, weight_decay: of the optimiser in this phase, None for its own values.
    layers, d_model, head_dim, d_ff: of the model in this phase, None for those of ``DecoderShape``.
        A later phase continues with the same model made larger, see ``torch_decoder.grown``.
    length: predicted tokens of a sequence. batch: sequences of a batch.
    repeated_tokens: share of the sequences that repeat a stretch of uniform random tokens.
    repeated_passages: share of the sequences that repeat a stretch of the text.
    recalled_pairs: share of the sequences that repeat pairs of random tokens in changing order.
    period: least and largest length of the stretch, or of a round of the pairs.
    surprise: weight of the loss on random tokens before they repeat, which are not predictable.
    """

    name: str = "text"
    until: float = _number(1.0, _SMALL, 1)
    tokens: int | None = _number(None, 1)
    rate: float = _number(1.0, _SMALL, 1)
    beta2: float | None = _number(None, 0, 1 - _SMALL)
    weight_decay: float | None = _number(None)
    layers: int | None = None
    d_model: int | None = None
    head_dim: int | None = None
    d_ff: int | None = None
    length: int = _number(256, 2)
    batch: int = _number(16, 1)
    repeated_tokens: float = _number(0.1, 0, 1)
    repeated_passages: float = _number(0.05, 0, 1)
    recalled_pairs: float = _number(0.0, 0, 1)
    period: tuple[int, int] = (4, 127)
    surprise: float = _number(0.0, 0, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        demand(self.name.isprintable(), "name must be text that can be printed", self.name)
        synthetic = self.repeated_tokens + self.repeated_passages + self.recalled_pairs
        demand(synthetic <= 1 + 1e-9, "the shares of the sequences exceed 1", synthetic)
        least, largest = self.period
        demand(1 <= least <= largest, "period must be [least, largest]", list(self.period))
        demand(
            not synthetic or largest < self.length - 1,
            f"period must end below the length {self.length} − 1, so that something repeats",
            list(self.period),
        )

    def changed(self, common: _Kind, *names: str) -> _Kind:
        """Return ``common`` with this phase's own values of the settings ``names``."""
        given = {name: getattr(self, name) for name in names}
        return replace(common, **{name: own for name, own in given.items() if own is not None})


@dataclass(frozen=True)
class TrainingBudget(RecipeTable):
    """How long training lasts: a number of tokens or of minutes, never both."""

    tokens: int | None = _number(None, 1)
    minutes: float | None = _number(None, _SMALL)

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.minutes is None):
            raise UsageError("a budget is a number of tokens or of minutes: give one of them")
        super().__post_init__()

    def used(self, tokens: int, seconds: float) -> float:
        """Return the share of the budget that is used up, from 0; 1 or more ends the training."""
        return tokens / self.tokens if self.tokens else seconds / (60 * (self.minutes or 1))

    def __str__(self) -> str:
        if self.tokens is not None:
            return f"{self.tokens:,} tokens"
        return f"{self.minutes:g} minute{'s' * (self.minutes != 1)}"


@dataclass(frozen=True)
class Validation(RecipeTable):
    """The settings of validation: how often, and on how much text.

    every: the time between two validations, as a share of the budget. tokens: how many are used.
    length: of the windows for the curve and for the scores of the heads, None for the length of the
        last phase's sequences.
    The whole text is used once at the end, in windows as long as the last phase's sequences.
    """

    every: float = _number(0.05, _SMALL, 1)
    tokens: int = _number(16_384, 1)
    length: int | None = _number(None, 1)


@dataclass(frozen=True)
class Card(RecipeTable):
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
        *("repetition", 0.65, 900_000),
        length=32, batch=64, repeated_tokens=1, repeated_passages=0, period=(4, 15),
    ),
    Phase("text", length=128, batch=8, repeated_tokens=0.15, period=(4, 60)),
)  # fmt: skip


@dataclass(frozen=True)
class Recipe(RecipeTable):
    """All settings of a training except the texts, and the facts for the model card.

    vocabulary: tokens of the byte-level BPE; None for 4,096, or fewer if the text is short.
    seed: of the parameters and of the order of the text.
    autocast: ``bfloat16`` or ``float32`` for matrix products, ``auto`` for the faster of the two.
    stored: the type of the finished model's tensors, ``float16`` or ``float32``.
    model: its final sizes. optimiser, phase, budget, validation: how it is trained, in which
        phases, how long, and how often validated. card: facts for the model card.

    Raises UsageError that names the field if a value is not valid.
    """

    vocabulary: int | None = _number(None, _LEAST_VOCABULARY, 1_000_000)
    seed: int = _number(0, 0, 2**63 - 1)
    autocast: Literal["auto", "bfloat16", "float32"] = "auto"
    stored: Literal["float16", "float32"] = "float32"
    model: DecoderShape = DecoderShape()
    optimiser: Optimiser = Optimiser()
    phase: tuple[Phase, ...] = _QUICK
    budget: TrainingBudget = TrainingBudget(minutes=1.7)
    validation: Validation = Validation()
    card: Card = Card()

    def __post_init__(self) -> None:
        super().__post_init__()
        ends, last = [phase.until for phase in self.phase], self.phase[-1:]
        rises = bool(ends) and ends == sorted(set(ends)) and ends[-1] == 1
        demand(rises, "the phases' until must rise, the last one to 1", ends)
        rule = "the last phase goes on to the end: leave out its tokens"
        demand(last[0].tokens is None, rule, last[0].tokens)
        shapes = [self.shape(index) for index in range(len(self.phase))]
        for small, large in pairwise(shapes):
            require_growth(small.decoder(1, 0), large.decoder(1, 0))
        if shapes[-1] != self.model:
            raise UsageError(
                f"the last phase has the model's own shape: leave out its {', '.join(GROWING)}"
            )
        most = self.model.context
        lengths = [(f"[[phase]] {phase.name!r}:", phase.length) for phase in self.phase]
        for owner, length in (*lengths, ("[validation]", self.window)):
            demand(
                length <= most,
                f"{owner} length must be at most the model's context, {most}",
                length,
            )

    @property
    def window(self) -> int:
        """Return how many tokens a window of validation text has, for curve and head scores."""
        return self.validation.length or self.phase[-1].length

    def shape(self, phase: int) -> DecoderShape:
        """Return the sizes of the model in a phase. phase: its index."""
        return self.phase[phase].changed(self.model, *GROWING)

    def phase_at(self, used: float, index: int = 0, read: int = 0) -> int:
        """Return the index of the phase at a point of the training.

        used: the share of the budget used so far. index: phase of the step before. read: tokens
            trained on in that phase."""
        while index < len(self.phase) - 1:
            phase = self.phase[index]
            if used < phase.until and (phase.tokens is None or read < phase.tokens):
                break
            index, read = index + 1, 0
        return index

    def identity(self) -> dict[str, Any]:
        """Return by name the settings that must be equal in a training and its continuation."""
        flat: dict[str, Any] = {}
        for name, given in asdict(self).items():
            rows = enumerate(given, 1) if name == "phase" else [("", given)]
            for number, row in rows:
                table = row if isinstance(row, dict) else {"": row}
                flat |= {f"{name} {number} {own}": value for own, value in table.items()}
        flat = {" ".join(name.split()): value for name, value in flat.items()}
        # The words of the card do not change the model.
        return {name: value for name, value in flat.items() if not name.startswith("card")}


def read_recipe(path: Path) -> Recipe:
    """Return the recipe in a TOML file; missing values are the defaults of ``Recipe``.

    Raises LoadError if the file cannot be read or is not TOML, UsageError that names the field if a
    value is not valid.
    """
    values = read_toml(path, "a recipe")
    try:
        return _table(Recipe, values, "")
    except UsageError as error:
        raise UsageError(f"{str(path)!r}: {error}") from error


def _table(kind: type[_Kind], values: Any, heading: str) -> _Kind:
    """Return one table of a TOML file as a dataclass. heading: of the table, for messages."""
    if not isinstance(values, Mapping):
        raise UsageError(f"{heading}must be a table, got {values!r}")
    hints, read = get_type_hints(kind), dict(values)
    types = {own.name: hints[own.name] for own in fields(kind)}
    for name, given in values.items():
        if name not in types:
            near = get_close_matches(name, types, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(types)}"
            raise UsageError(f"{heading}has no field {name!r}; {hint}")
        if types[name] == tuple[Phase, ...]:
            rows = given if isinstance(given, list) else [given]
            read[name] = tuple(_table(Phase, row, "[[phase]] ") for row in rows)
        elif isinstance(types[name], type) and issubclass(types[name], RecipeTable):
            read[name] = _table(types[name], given, f"[{name}] ")
    try:
        return kind(**read)
    except UsageError as error:
        raise UsageError(f"{heading}{error}") from error
