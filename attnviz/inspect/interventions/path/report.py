"""The report of ``attnviz path``: the share of one head in the inputs of later heads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from attnviz.draw.report import Report
from attnviz.draw.signed import Place
from attnviz.draw.values import model_facts, table_of, token_facts
from attnviz.engine.patching import SITES, Into
from attnviz.inspect.interventions.study import Mean, cell_name
from attnviz.prompts.study import TokenPair
from attnviz.records import ModelInfo, Provenance

_LARGE, _TIMES = 0.1, 2.0
"""The least share that is called clear, and how many times as large as the mean share of the other
heads of the layer the lower end of its interval must be."""


class Listener(NamedTuple):
    """The sender's share in one input of a later head, mean over prompt pairs.

    reader: the (layer, head). share: the sender's share of the input's difference between the
        prompts. Its base rate is the mean share of the other heads of the sender's layer.
        explained: the share of everything written before the later head. moved: the norm of the
        input's difference, divided by the input's norm in the clean run.
    """

    into: Into
    reader: Place
    share: Mean
    explained: float
    moved: float

    def data(self) -> dict[str, Any]:
        """Return the JSON object of this share."""
        low, high = self.share.interval or (None, None)
        return {
            **dict(zip(("layer", "head"), self.reader, strict=True)),
            "into": self.into,
            "share": self.share.value,
            "ci_low": low,
            "ci_high": high,
            "other_heads": self.share.base_rate,
            "explained": self.explained,
            "moved": self.moved,
        }

    @property
    def clear(self) -> bool:
        """Return whether the share is large, and its lower end many times the mean of others."""
        if self.share.interval is None or self.share.value < _LARGE:
            return False
        return self.share.interval[0] > _TIMES * max(self.share.base_rate or 0.0, 0.0)


@dataclass(frozen=True, repr=False)
class PathReport(Report, Provenance):
    """The report of ``attnviz path``: the share of one head, the sender, in later heads' inputs.

    listeners: the later heads with the share in each input, the largest share first. into: the
        input that the user chose, queries, keys or values; None for all three. top: the number of
        rows in the ranking.
    """

    model: ModelInfo
    sender: Place
    pairs: tuple[TokenPair, ...]
    listeners: tuple[Listener, ...]
    into: Into | None
    top: int = 8

    command = "path"

    def data(self) -> dict[str, Any]:
        """Return the whole report as one JSON object."""
        pair = self.pairs[0]
        return {
            "schema": "attnviz.path/1",
            "model": model_facts(self.model),
            "sender": dict(zip(("layer", "head"), self.sender, strict=True)),
            "clean": token_facts(pair.clean),
            "corrupt": token_facts(pair.corrupt),
            "method": "direct path, norms held at the corrupt run",
            "into": self.into,
            "source": self.source or None,
            "pair_count": len(self.pairs),
            "seed": self.seed,
            "notes": self.notes,
            "heads": [listener.data() for listener in self.listeners],
        }

    def rows(self) -> Iterable[tuple[object, ...]]:
        """Return the table: a row for each input of a later head."""
        entries = self.data()["heads"]
        return table_of([*entries[0]], entries)

    def name(self, head: Place, into: Into | None = None) -> str:
        """Return a head's name: ``L2H5``, or ``L2KV1`` for shared keys or values of ``into``."""
        return cell_name(head, self.letter(into), self.index_base)

    def letter(self, into: Into | None) -> str:
        """Return the letters before a head's number in its name, ``H`` or ``KV``."""
        shared = into and SITES[into].shared and self.model.kv_heads < self.model.heads
        return "KV" if shared else "H"
