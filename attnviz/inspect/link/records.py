"""The report of ``attnviz link``: a key's lead as a sum, with its base rate and exact removals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from math import fsum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.report import Report
from attnviz.engine.attribution.scores import (
    SIDES,
    AskedLink,
    ReadSide,
    SideLeads,
    SplitScores,
    StreamPart,
)
from attnviz.errors import UnsupportedError
from attnviz.inspect.link.choice import LinkChoice
from attnviz.measures.bootstrap import LEAST_TEXTS, adjusted_p, includes_zero, intervals
from attnviz.records import HeadLabel, Input, ModelInfo, Provenance, Tokens

if TYPE_CHECKING:
    from attnviz.draw.document import Document
    from attnviz.draw.files import Writer

_SIGNIFICANT = 0.05


class LinkPart(NamedTuple):
    """What one part of the model adds to the lead of a key, mean over the prompts, in nats.

    side: whether it was written into the query or the key. part: who wrote; None for a bias by
        distance, which needs no writer.
    base: the mean over the control prompts, None without any. reached: how many controls of a
        single prompt have at least as large a value. without: the exact weight of the key if this
        head read its query, or its keys, without the part; None if unknown, or for many prompts.
    source: the token from which a head took most of it; None for other parts.
    interval, p: of many prompts: the 95% confidence interval; p of the difference to the base,
        adjusted for all parts.
    """

    side: ReadSide
    part: StreamPart | None
    lead: float
    base: float | None = None
    reached: int | None = None
    without: float | None = None
    source: int | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None

    @property
    def stands_out(self) -> bool:
        """Return whether the part differs significantly from its base rate."""
        return self.p is not None and self.p <= _SIGNIFICANT

    @property
    def unclear(self) -> bool:
        """Return whether the 95% interval includes zero; False without an interval."""
        return includes_zero(self.interval)


def part_leads(
    found: SplitScores, asked: AskedLink, sides: SideLeads | None = None
) -> NDArray[np.float64]:
    """Return the lead by part: of the query, then of the keys, then by distance if there is one.

    sides: the parts of both sides in another text with the same distances; None for this one's.
    """
    towards = found.coefficients(asked.key, asked.than)
    matrix, distance = found.matrix(towards), found.by_distance(towards)
    last = [] if distance is None else [distance]
    return np.concatenate([*(sides or (matrix.sum(1), matrix.sum(0))), last])


@dataclass(frozen=True)
class LinkedPrompt:
    """One prompt and one link of it: a head's attention from one token to another.

    text: as given. given: its tokens, with those of a decoder. asked: the link. found: its scores
        as sums.
    base: (control prompt, part), what ``part_leads`` gives for each control.
    """

    text: str
    given: Input
    asked: AskedLink
    found: SplitScores
    base: NDArray[np.floating]

    @property
    def tokens(self) -> Tokens:
        """Return the tokens among which the head looks."""
        return self.given.keys(self.asked.head[0])

    @property
    def weight(self) -> float:
        """Return the model's own attention weight on the key."""
        return float(self.found.weights[self.asked.key])

    @cached_property
    def towards(self) -> NDArray[np.float64]:
        return self.found.coefficients(self.asked.key, self.asked.than)

    @property
    def sum(self) -> float:
        """Return the sum of all parts in nats: the lead before a softcap."""
        return self.found.lead(self.found.scores, self.towards) + (
            self.found.by_distance(self.towards) or 0.0
        )

    @property
    def capped(self) -> float:
        """Return the sum behind a softcap; without one the same as ``sum``."""
        return self.found.lead(self.found.limited(self.found.scores), self.towards)

    @property
    def lead(self) -> float:
        """Return the lead in nats that the model's own weights give."""
        return self.found.lead(self.found.own_logs, self.towards)


@dataclass(frozen=True, repr=False)
class LinkReport(Report, Provenance):
    """The report of ``attnviz link``: why a head attends from one token to another.

    model: the model that ran. prompts: at least one; if their parts do not sum to the lead, only
        one. label: what the head is known to do, or None. chosen: why this link was chosen; None
        if a person named a part of it, and for many prompts.
    """

    model: ModelInfo
    prompts: tuple[LinkedPrompt, ...]
    label: HeadLabel | None = None
    chosen: LinkChoice | None = None

    command = "link"
    lists = ("parts", "pairs")

    def data(self) -> dict[str, Any]:
        from attnviz.inspect.link.data import link_data

        return link_data(self)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.inspect.link.data import link_rows

        return link_rows(self)

    def arrays(self) -> Mapping[str, Writer]:
        from attnviz.inspect.link.data import write_link_npz

        return {".npz": partial(write_link_npz, self)}

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.inspect.link.document import link_document

        return link_document(self).shown(explain=explain, hints=hints)

    def require_tally(self) -> None:
        """Raise UnsupportedError if the parts do not sum to what the model's own weights tell."""
        if not self.tallies:
            raise UnsupportedError(
                f"the parts of {self.model.name!r} do not sum to the scores of {self.head} (apart "
                f"by {self.first.found.gap:.2g}): why it looks there is not known; attnviz ablate "
                "measures heads in another way"
            )

    @property
    def first(self) -> LinkedPrompt:
        return self.prompts[0]

    @property
    def many(self) -> bool:
        return len(self.prompts) > 1

    @property
    def head(self) -> str:
        """Return the name of the head."""
        return self.head_name(self.first.asked.head[1:])

    @property
    def tallies(self) -> bool:
        """Return whether each sum gives the model's own weights; if not, no part means anything."""
        return all(each.found.tallies for each in self.prompts)

    @property
    def sum(self) -> float:
        """Return the sum of all parts in nats, mean over the prompts."""
        return fsum(each.sum for each in self.prompts) / len(self.prompts)

    @property
    def controls(self) -> int:
        """Return the number of control prompts of each prompt."""
        return min(len(each.base) for each in self.prompts)

    @cached_property
    def parts(self) -> tuple[LinkPart, ...]:
        """Return what each part adds: those of the query, those of the keys, distance."""
        values = np.array([part_leads(each.found, each.asked) for each in self.prompts])
        means, count = values.mean(0), len(self.first.found.parts)
        bases = np.array([each.base.mean(0) for each in self.prompts]) if self.controls else None
        places: list[tuple[ReadSide, int | None]] = [
            (side, at) for side in SIDES for at in range(count)
        ]
        places += [("key", None)] * (len(means) - len(places))
        ends, p = intervals(values, self.seed), list[float | None]([None] * len(means))
        if len(values) >= LEAST_TEXTS and bases is not None and self.model.weights != "random":
            p = adjusted_p(values - bases, self.seed).tolist()
        return tuple(
            LinkPart(
                side=side,
                part=None if at is None else self.first.found.parts[at],
                lead=float(means[row]),
                base=None if bases is None else float(bases[:, row].mean()),
                reached=None if self.many or bases is None else self._reached(row),
                without=None if self.many else self._without(side, at),
                source=self._source(side, at),
                interval=ends[row],
                p=p[row],
            )
            for row, (side, at) in enumerate(places)
        )

    def _reached(self, row: int) -> int:
        value = part_leads(self.first.found, self.first.asked)[row]
        base = self.first.base[:, row]
        return int((base >= value).sum() if value >= 0 else (base <= value).sum())

    def _without(self, side: ReadSide, at: int | None) -> float | None:
        found, key = self.first.found, self.first.asked.key
        if at is None:
            bias = np.where(np.isfinite(found.added), found.added, 0.0)
            return float(found.weight(found.scores - bias, key))
        if side not in found.without:
            return None
        weight = float(found.weight(found.without[side][at], key))
        return None if np.isnan(weight) else weight

    def _source(self, side: ReadSide, at: int | None) -> int | None:
        row = None if at is None or self.many else self.first.found.sources.get((side, at))
        if row is None:
            return None
        return int(np.argmax(row if row.sum() >= 0 else -row))

    def of_side(self, side: ReadSide) -> list[LinkPart]:
        """Return the parts written into the query or the key, the largest first."""
        found = [part for part in self.parts if part.side == side]
        return sorted(found, key=lambda part: -abs(part.lead))

    def name(self, part: StreamPart | None) -> str:
        """Return the name of a part as the screen says it: ``token``, ``L0H0``, ``L0 MLP``."""
        if part is None:
            return "distance"
        if part.layer is None:
            return part.kind
        layer = f"L{part.layer + self.index_base}"
        if part.head is not None:
            return self.head_name((part.layer, part.head)) + " cross" * part.crosses
        own = part.kind == "bias" and part.layer == self.first.asked.head[1]
        return "own bias" if own else f"{layer} {'MLP' if part.kind == 'mlp' else 'bias'}"
