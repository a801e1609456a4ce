"""The report of ``atlas``: what every head does over the texts of a corpus."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from attnviz.draw.report import Report
from attnviz.inspect.head.report import Firing
from attnviz.measures.labels import THRESHOLD, strengths
from attnviz.measures.registry import LABELS
from attnviz.mergeable import CorpusRecord
from attnviz.records import SINKS, HeadsRecord, Input, Kind, ModelInfo, Provenance

if TYPE_CHECKING:
    from attnviz.draw.document import Document
    from attnviz.models.model import Model

Side = Literal["query", "key"]

HALF = 0.5
"""The weight from which a head is said to fire on a text: half of a query's attention."""


class Fired(NamedTuple):
    """The strongest link of a head in a text, next to two weights to compare it with.

    link: the link. usual: the mean weight of the head's links at this distance, over all texts.
    even: the weight that uniform attention gives there.
    """

    link: Firing
    usual: float
    even: float


class Preference(NamedTuple):
    """A token that is at one end of a head's strongest links more often than its share of tokens.

    side: the end. token: its text. places: how many of the sampled texts have it there. share: the
    share of these texts. base_rate: the token's share of all tokens in the sampled texts.
    """

    side: Side
    token: str
    places: int
    share: float
    base_rate: float


@dataclass(frozen=True)
class HeadAtlas:
    """What one head does over the texts.

    scores, base_rate: means over the texts that can show a score, by name; None if none can.
    texts: how many texts can. histogram: how many of them are in each bin of the score.
    share: the share of texts on which the head fires, with a weight of at least ``HALF``.
    fires: the places where it fires most, the strongest first, and of equal places one.
    tenths: the sampled texts in ten groups of equal size, those with the weakest links first.
    prefers: the token on which it fires most clearly more often than by chance, or None.
    by_distance, even: the mean weight of a link at each distance, and that of uniform attention.
    """

    layer: int
    head: int
    scores: Mapping[str, float | None]
    base_rate: Mapping[str, float | None]
    texts: Mapping[str, int]
    histogram: Mapping[str, tuple[int, ...]]
    share: float
    fires: tuple[Fired, ...]
    tenths: tuple[tuple[Fired, ...], ...]
    prefers: Preference | None
    by_distance: tuple[float | None, ...]
    even: tuple[float | None, ...]

    @property
    def pattern(self) -> str | None:
        """Return the measure whose mean is furthest above chance, by the rule of labels, or None.

        Sinks are left out: links are no such places.
        """
        names = [name for name in self.scores if name in LABELS and name not in SINKS]
        found = strengths(names, self.scores, self.base_rate)
        best = max(found, key=lambda name: found[name], default=None)
        return best if best is not None and found[best] >= THRESHOLD else None

    @property
    def strongest(self) -> Fired | None:
        """Return the place where the head fires most; None if it fires nowhere."""
        return self.fires[0] if self.fires else None

    @property
    def excess(self) -> float:
        """Return the weight of its strongest link above what is usual for it at that distance."""
        place = self.strongest
        return 0.0 if place is None else place.link.weight - place.usual

    @property
    def median(self) -> float | None:
        """Return the median weight of its strongest links, over the sampled texts."""
        weights = [each.link.weight for tenth in self.tenths for each in tenth]
        middle = len(weights) // 2
        pair = weights[middle - 1 + len(weights) % 2 : middle + 1]
        return sum(pair) / len(pair) if pair else None


@dataclass(frozen=True, repr=False)
class AtlasReport(Report, Provenance):
    """The report of ``attnviz atlas``: on what each head fires most, over many texts.

    texts, tokens: how many were read; of a decoder the tokens are its own. kept: the texts that the
    heads' places are in, by their index. sampled: how many of them the tenths are of. maps: of all
    heads over some of them, for a page. record: the numbers, which add up with those of other
    shards.
    """

    model: ModelInfo
    kind: Kind
    texts: int
    tokens: int
    sampled: int
    heads: tuple[HeadAtlas, ...]
    kept: Mapping[int, Input]
    record: CorpusRecord
    maps: Mapping[int, HeadsRecord] = field(default_factory=dict, repr=False)

    command = "atlas"
    lists = ("heads",)

    def data(self) -> dict[str, Any]:
        from attnviz.inspect.atlas.data import atlas_data

        return atlas_data(self)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.inspect.atlas.data import atlas_rows

        return atlas_rows(self)

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.inspect.atlas.document import atlas_document

        return atlas_document(self).shown(explain=explain, hints=hints)

    def write(
        self,
        directory: str | os.PathLike[str],
        model: Model,
        format: Literal["page", "headvis"] = "page",
    ) -> None:
        """Write the atlas as a new directory, also one that was merged.

        model: as ``attnviz.load`` returns it; it is run over the texts that are shown.
        Raises UsageError if something is there, LoadError if writing fails.
        """
        from attnviz.inspect.atlas.directory import write_atlas

        write_atlas(self, model, Path(directory), format, self.palette)

    @property
    def ranking(self) -> list[HeadAtlas]:
        """Return the heads: those that prefer a token first, the clearest first, then by excess."""

        def rank(one: HeadAtlas) -> tuple[float, float]:
            known = one.prefers
            return (0.0 if known is None else known.share - known.base_rate), one.excess

        return sorted(self.heads, key=rank, reverse=True)
