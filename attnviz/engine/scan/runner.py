"""The protocols between scans and patching and what runs a model: passes with a change in each row.

NumPy, torch and the own attention have a ``Runner`` each; everything else is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from attnviz.attention.functional import Array
from attnviz.engine.effects import Variant
from attnviz.engine.patching import What
from attnviz.engine.replacing import Change, Held, Replace
from attnviz.engine.scan.unembedding import Unembedding
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.memory import byte_text, free_memory
from attnviz.models.model import MaskToken
from attnviz.records import Input, Kind

if TYPE_CHECKING:  # torch only where needed
    import torch


ENDING = 2
"""The number of tokens at a text's end that predict: its last token, and what follows it."""

UNLIKE = 8.0
"""The value that replaces an ablated head in a trial: far from anything that a head puts out."""

Replacing = Callable[[Mapping[int | None, Change]], Replace]
"""Makes the intervention from the changes by row."""

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class ChangedRuns:
    """A request to run one text unchanged and with ablations or patches.

    changes: the ablations or patches, in the order of ``Runner.ordered``.
    replaced: returns the intervention that makes the changes of a batch's rows.
    last: how many of the last tokens are needed; None means all.
    starts: the first token that each change affects, in a causal model; empty if not known.
    """

    given: Input
    changes: Sequence[Change]
    replaced: Replacing
    last: int | None = None
    starts: Sequence[int] = ()


class Ends(NamedTuple):
    """The final states of a text: unchanged in row 0, with one ablation or patch in each other row.

    hidden: final hidden states (row, token, width).
    read: the vocabulary projection's input (row, token, width); None without a projection.
    If only the last tokens were requested, others may be missing or zero; so count from the end.
    """

    hidden: Array
    read: Array | None


class Runner(Protocol):
    """The interface to run one model over texts with an ablation or a patch in each batch row.

    kind: the attention that is changed. heads: the number of heads by layer. name: of the model's
        class, for messages. notes: sentences about how it was done; more may come.
    labels: the names of a classifier's labels, whose logits the read-out gives; empty otherwise.
    answers: True if these are the start and the end of an answer, chosen among ``label_places``.
    threaded: True if several texts may run at once, each in its own thread.
    mask_id: the token that hides a word from a masked model; None without one.
    All but ``open``, ``heads``, ``ordered`` and ``importance`` are called while ``open`` is active.
    """

    kind: Kind
    heads: Mapping[int, int]
    name: str
    notes: list[str]
    labels: Sequence[str] = ()
    answers: bool = False
    threaded: bool = False
    mask_id: MaskToken | None = None

    @property
    def causal(self) -> bool:
        """Return True if a token's hidden state sees no later token."""

    @property
    def read_out(self) -> Unembedding | None:
        """Return the vocabulary projection; None without a language-model head."""

    def label_places(self, given: Input) -> tuple[int, ...]:
        """Return the indices of the tokens whose labels count; none of a model without labels."""
        return ()

    def open(self) -> AbstractContextManager[Any]:
        """Prepare the model for passes inside this context."""

    def size(self, given: Input, wanted: int) -> int:
        """Return how many changes fit into one pass of a text; UsageError if not even one does."""

    def ordered(self, changes: Sequence[Change]) -> list[int]:
        """Return the indices of ablations or patches in the order in which a pass reaches them."""

    def attempt(self, given: Input, changes: int, run: Callable[[], _Result]) -> _Result:
        """Return ``run()``; if the model cannot run changes together, repeat it one by one.

        given: the text that it runs. changes: how many ablations or patches it makes in a pass.
        Raises UsageError if memory runs out.
        """
        return run()

    def outputs(self, given: Input) -> Held:
        """Return the heads' outputs over one text, by layer, as NumPy arrays (token, head, dim)."""

    def held(self, given: Input, sorts: frozenset[What]) -> Held:
        """Return values of some sorts by sort and layer; UnsupportedError if there are none."""
        raise UnsupportedError(f"{self.name} has only heads: nothing else in it can be replaced")

    def ends(self, runs: ChangedRuns) -> Ends:
        """Return the final states of a text: unchanged, and with each ablation or patch."""

    def is_no_op(self, variant: Variant) -> bool:
        """Return True if no later layer uses the heads, which rows of a batch cannot tell."""

    def importance(self) -> Callable[..., dict[tuple[int, int], float]]:
        """Return what estimates heads of this model by ``gradient_importance`` over some inputs.

        Raises UnsupportedError if torch cannot run the model.
        """


class SiteRunner(Runner, Protocol):
    """The interface to run one model with patches of any kind of value.

    rounding: how far equal values may differ in two runs, relative to the largest.
    """

    rounding: float

    def sites(self, sorts: frozenset[What]) -> Mapping[What, Mapping[int, int]]:
        """Return how many sites of each sort layers have; UnsupportedError if none may change."""

    def plain(self, given: Input) -> Ends:
        """Return the final states of the unchanged model over a text, as a batch of one."""


_SHARE = 0.5
"""The share of the free memory that a scan uses by default."""

_MARGIN = 1.25
"""The factor for memory that kernels use inside, and that an allocator cannot use."""


@dataclass(frozen=True)
class Room:
    """The bytes that a scan may use (None: unknown), those of a row, and those beside the rows."""

    limit: int | None
    row: int
    fixed: int

    @property
    def ablations(self) -> int | None:
        """Return how many ablations fit in memory beside the unchanged run; None for any number."""
        return None if self.limit is None else (self.limit - self.fixed) // self.row - 1

    def needed(self, ablations: int) -> int:
        """Return how many bytes a pass with this number of ablations needs."""
        return self.fixed + self.row * (1 + ablations)


def room_for(
    row: int, fixed: int, device: torch.device | None, max_memory: int | None, tokens: int
) -> Room:
    """Return the memory that a scan needs and may use.

    row: the measured bytes of a row. fixed: the bytes needed in addition to the rows. device: None
    for the CPU. tokens: of the text, for the message. max_memory: the limit in bytes; None uses a
    share of the free memory. Raises UsageError if not even one ablation fits.
    """
    free = free_memory(device)
    limit = max_memory if max_memory is not None else free and int(free * _SHARE)
    if limit is not None and free is not None and device is not None and device.type != "cpu":
        limit = min(limit, free)  # a GPU has nowhere to swap to
    room = Room(limit, max(1, int(row * _MARGIN)), fixed)
    if room.ablations is not None and room.ablations < 1:
        asked = max_memory is not None and limit == max_memory
        where = "--max-memory allows" if asked else f"{device or 'cpu'} can spare"
        raise UsageError(
            f"one more run over {tokens:,} tokens takes {byte_text(room.needed(1))}, "
            f"{where} {byte_text(limit or 0)}: shorten the text or allow more"
        )
    return room


def require_two(given: Input) -> None:
    """Raise UsageError for a text, or a decoder's text, of fewer than two tokens: no loss."""
    read = given.predicted
    if len(read) < 2:
        name = "text" if given.target is None else "target"
        raise UsageError(
            f"a {name} of {len(read)} token is too short for a loss: expected at least 2"
        )


def words_to_mask(given: Input, mask: int) -> list[int]:
    """Return the positions that a masked model may predict; UsageError if there is none."""
    read = given.predicted
    words = [
        position
        for position, (token, special) in enumerate(zip(read.ids, read.special, strict=True))
        if not special and token != mask
    ]
    if not words:
        raise UsageError("the text has no word that could be masked: expected at least 1")
    return words
