"""What the options of ``attnviz verify`` ask for, and which of them do not go together."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from attnviz.errors import UsageError
from attnviz.models.memory import require_room
from attnviz.models.own import check_sizes
from attnviz.models.resolve import LoadOptions
from attnviz.verify.records import Sizes

__all__ = ["ModelWish", "OwnWish", "refuse_idle"]

_BATCH = 2
_MORE_KEYS = 4
"""Keys of cross-attention beyond the queries."""

_COPIES = 12
"""Arrays of weights that the comparisons of one case hold at once."""


@dataclass(frozen=True)
class OwnWish:
    """The options of the same names, about the library's own attention."""

    steps: bool = False
    d_model: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    seq: int | None = None
    causal: bool | None = None
    keras: bool | None = None
    dtype: str = "auto"
    seed: int = 0

    @property
    def numbers(self) -> str:
        """The type of all numbers; UsageError for one that NumPy does not compute in."""
        if self.dtype in ("auto", "float32", "float64"):
            return "float32" if self.dtype == "auto" else self.dtype
        raise UsageError(
            f"the library's own attention is verified in float32 or float64, got --dtype "
            f"{self.dtype}"
        )

    def sizes(self) -> Sizes:
        """The sizes with the usual ones where none are given, small for steps.

        Raises UsageError for heads that do not divide, or what the memory does not hold.
        """
        usual = (4, 2, 3) if self.steps else (64, 8, 7)
        given = (self.d_model, self.heads, self.seq)
        d_model, heads, tokens = (
            default if one is None else one for one, default in zip(given, usual, strict=True)
        )
        check_sizes(d_model, heads, self.kv_heads, None)
        kv_heads = _shared(heads) if self.kv_heads is None else self.kv_heads
        keys = tokens + _MORE_KEYS
        require_room(
            "these sizes take about",
            8 * (_COPIES * _BATCH * heads * tokens * keys + 12 * d_model * d_model),
            "choose a smaller --seq or --d-model",
        )
        return Sizes(d_model, heads, kv_heads, tokens, keys, _BATCH, self.seed)


def _shared(heads: int) -> int | None:
    """Key/value heads for the grouped case: the fewest above one where that is possible."""
    parts = [part for part in range(1, heads) if heads % part == 0]
    return next((part for part in parts if part > 1), parts[0] if parts else None)


@dataclass(frozen=True)
class ModelWish:
    """The options of the same names, about what a model reads."""

    text: str | None = None
    file: Path | None = None
    target: str | None = None
    truncate: bool = False


def refuse_idle(model: str | None, own: OwnWish, wish: ModelWish, loading: LoadOptions) -> None:
    """Raise UsageError for options that say nothing about what is verified."""
    if model is None:
        _refuse_loading(wish, loading)
        if own.causal is not None and not own.steps:
            raise UsageError(
                "all cases are compared, with and without a mask: --causal is for --steps or "
                "--model mha"
            )
        return
    for name in ("steps", "seq", "keras"):
        if getattr(own, name) not in (None, False) or (name == "keras" and own.keras is False):
            option = "no-keras" if own.keras is False and name == "keras" else name
            raise UsageError(
                f"--{option} is about the library's own attention: leave out --model {model}"
            )


def _refuse_loading(wish: ModelWish, loading: LoadOptions) -> None:
    """Options of a model where none is named."""
    if wish.text is not None or wish.file is not None:
        raise UsageError("a text is for a model to read: add --model tiny, or leave the text out")
    usual = LoadOptions(dtype=loading.dtype, seed=loading.seed)
    for field in fields(LoadOptions):
        if getattr(loading, field.name) != getattr(usual, field.name):
            option = field.name.replace("_", "-")
            raise UsageError(f"--{option} is for a model: add --model NAME, or leave it out")
    if wish.target is not None or wish.truncate:
        option = "truncate" if wish.target is None else "target"
        raise UsageError(f"--{option} is for a model: add --model NAME, or leave it out")
