"""What scans and patching ask of what runs a model: passes in which each change is a row.

NumPy, torch and the own attention have a ``Runner`` each; everything else is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Array
from attnviz.engine.effects import Variant
from attnviz.engine.patching import What
from attnviz.engine.replacing import Change, Held, Replace
from attnviz.records import Input, Kind

if TYPE_CHECKING:  # torch only where needed
    from attnviz.engine.patchable import PatchableModel

ENDING = 2
"""Tokens at a text's end that predict: its last token, and what follows it."""

Replacing = Callable[[Mapping[int | None, Change]], Replace]
"""Makes the intervention of the changes by row."""

_Found = TypeVar("_Found")


class Ends(NamedTuple):
    """What a text ends in: as it is in row 0, and with one change in each further row.

    hidden: final hidden states (row, token, width). read: what the vocabulary projection reads,
    None without one. Where only the last tokens are requested others may be missing or zero, so
    that tokens are counted from the end.
    """

    hidden: Array
    read: Array | None


@dataclass(frozen=True)
class Comparison:
    """Changed runs compared with the clean one.

    loss: (position,) clean cross-entropy in nats; NaN where no token is wanted.
    loss_delta: (change, position), changed minus clean; NaN where no token is wanted.
    kl: (change, position), KL(clean ‖ changed) in nats.
    flips: (change, position), whether the likeliest token is another.
    """

    loss: NDArray[np.floating]
    loss_delta: NDArray[np.floating]
    kl: NDArray[np.floating]
    flips: NDArray[np.bool_]


class ReadOut(Protocol):
    """The vocabulary projection of a model."""

    def logits(self, rows: Array) -> Array:
        """Return the logits (row, vocabulary) of what the projection reads (row, width)."""
        ...

    def logit_difference(
        self, clean: Array, changed: Array, answer: int, foil: int
    ) -> tuple[float, NDArray[np.float64]]:
        """Return logit(answer) − logit(foil) of a clean row (width,); its change in each changed
        one.
        """
        ...

    def compare(self, clean: Array, changed: Array, wanted: Sequence[int]) -> Comparison:
        """Compare changed runs (change, position, width) with the clean one (position, width).

        wanted: (position,) the token that came next, -1 where none is known.
        """
        ...


class Runner(Protocol):
    """Runs one model over texts with changes.

    kind: the attention whose sites are changed. heads: how many each layer has.
    notes: sentences about how it was done; more may come.
    threaded: whether several texts may run at once, each in a thread of its own.
    All but ``open``, ``heads``, ``ordered`` and ``in_torch`` is called while ``open`` is.
    """

    kind: Kind
    notes: list[str]
    threaded: bool

    @property
    def heads(self) -> Mapping[int, int]: ...

    @property
    def name(self) -> str:
        """Return the model's class, to be named in messages."""
        ...

    @property
    def mask_id(self) -> int | None:
        """Return the token that hides a word from a masked model, None if there is none."""
        ...

    @property
    def causal(self) -> bool:
        """Return whether a token's hidden state sees no later token."""
        ...

    @property
    def read_out(self) -> ReadOut | None:
        """Return how logits come from hidden states; None without a language model's head."""
        ...

    def open(self) -> AbstractContextManager[Any]:
        """Borrow the model for passes."""
        ...

    def size(self, given: Input, wanted: int) -> int:
        """Return how many of the wanted changes to a text are made in one pass.

        Raises UsageError if memory does not hold one.
        """
        ...

    def ordered(self, changes: Sequence[Change]) -> list[int]:
        """Return the changes' indices in the order in which their first sites are met."""
        ...

    def attempt(self, given: Input, changes: int, found: Callable[[], _Found]) -> _Found:
        """Return what ``found`` gives; if passes cannot be shared after all, without sharing."""
        ...

    def outputs(self, given: Input) -> Held:
        """Return by layer, as NumPy arrays, what the heads put out over one text."""
        ...

    def ends(
        self,
        given: Input,
        changes: Sequence[Change],
        replaced: Replacing,
        *,
        last: int | None = None,
        starts: Sequence[int] = (),
    ) -> Ends:
        """Return what a text ends in, without and with each of the ``ordered`` changes.

        last: how many of the last tokens are read; None for all. starts: for each change the first
        token at which it puts in something else, of a causal model; empty if that is not known.
        """
        ...

    def is_no_op(self, variant: Variant) -> bool:
        """Return whether nothing of the ablated heads is read: whatever they put out, not a bit
        changes. Rows of a batch round differently, so that a scan alone cannot tell nothing from
        rounding.
        """
        ...

    def in_torch(self) -> PatchableModel:
        """Return the model for gradients; UnsupportedError if torch does not run it."""
        ...


class SiteRunner(Runner, Protocol):
    """Runs one model with changes of any sort of site.

    rounding: by how much of the largest number the same values may differ in two runs.
    """

    rounding: float

    def sites(self, what: frozenset[What]) -> Mapping[What, Mapping[int, int]]:
        """Return of each sort by layer how many sites there are.

        Raises UnsupportedError if the model does not let this be replaced.
        """
        ...

    def plain(self, given: Input) -> Ends:
        """Return what a text ends in if nobody watches: a single row."""
        ...

    def held(self, given: Input, what: frozenset[What]) -> Held:
        """Return what a run over one text holds."""
        ...
