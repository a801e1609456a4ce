"""The report of ``atlas``: what every head does over the texts of a corpus."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.files import whole_directory
from attnviz.draw.html import document_html
from attnviz.draw.report import Report, fields_of
from attnviz.draw.values import model_facts, table_of, write_object
from attnviz.engine.capture import capture
from attnviz.engine.known_labels import known_labels
from attnviz.inspect.head.report import Firing
from attnviz.inspect.heads.heads import heads_report
from attnviz.measures.labels import least_strength, strengths, strongest
from attnviz.measures.registry import LABELS, MEASURES, OF_ONE_TEXT
from attnviz.measures.words import joined
from attnviz.mergeable import CorpusRecord
from attnviz.models.model import Model
from attnviz.records import SINKS, HeadsRecord, Input, Kind, ModelInfo, Provenance

FIRES = "fires"
NAMES = (FIRES, *OF_ONE_TEXT)
"""The scores that a text gives each head: the weight of its strongest link, and measures."""

BINS = 20
"""The bins of the histogram of each score."""

FARTHEST = (1, 2, 3, 4, *(2**power for power in range(3, 21)))
"""The largest distance in tokens of each group, such as of 5 to 8; the last group has no end."""

Side = Literal["query", "key"]

HALF = 0.5
"""The weight from which a head is said to fire on a text: half of a query's attention."""

_MAPS = 5  # the most texts whose maps a page shows
_WEIGHTS = 2**24  # the most weights of all heads over one of these texts


def distances(kind: Kind) -> Iterator[str]:
    """Yield the name of each group of distances, such as ``1`` or ``5–8``."""
    if kind == "cross":
        yield "all"
        return
    for before, farthest in pairwise((0, *FARTHEST)):
        yield f"{farthest}" if farthest == before + 1 else f"{before + 1}–{farthest}"


def edges(name: str) -> NDArray[np.float64]:
    """Return the bin edges of a score's histogram; the last bin also counts larger values."""
    unit = MEASURES[name].unit if name in MEASURES else "share"
    if unit == "tokens":
        return np.array([0.0, *(2.0**power for power in range(BINS))])
    return np.linspace(0.0, 1.0 if unit == "share" else 10.0, BINS + 1)


class Fired(NamedTuple):
    """The strongest link of a head in a text, next to two weights to compare it with.

    usual: the mean weight of the head's links at this distance, over all texts.
    even: the weight that uniform attention gives there.
    """

    link: Firing
    usual: float
    even: float


class Preference(NamedTuple):
    """A token that is at one end of a head's strongest links more often than its share of tokens.

    places: how many of the sampled texts have it there. share: the share of these texts. base_rate:
    the token's share of all tokens in the sampled texts.
    """

    side: Side
    token: str
    places: int
    share: float
    base_rate: float


@dataclass(frozen=True)
class HeadAtlas:
    """The behaviour of one head over all texts.

    scores, base_rate: means over the texts that can show a score, by name; None if none can.
    texts: how many texts can. histogram: how many of them are in each bin of the score.
    share: the share of texts on which the head fires: its strongest link has at least ``HALF``.
    fires: the strongest links, the strongest first; of equal links only one.
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
        """Return the name of the pattern score whose mean is furthest above chance, or None.

        None if it is not far enough above for a label. Scores of attention sinks are left out.
        """
        names = [name for name in self.scores if name in LABELS and name not in SINKS]
        gains = strengths(names, self.scores, self.base_rate)
        return strongest({at: gain for at, gain in gains.items() if gain >= least_strength(at)})

    @property
    def strongest(self) -> Fired | None:
        """Return the strongest link of the head over all texts; None if it has no link."""
        return self.fires[0] if self.fires else None

    @property
    def excess(self) -> float:
        """Return the weight of the strongest link minus the head's mean weight at its distance."""
        best = self.strongest
        return 0.0 if best is None else best.link.weight - best.usual

    @property
    def median(self) -> float | None:
        """Return the median over the sampled texts of the weight of the head's strongest link."""
        weights = [fired.link.weight for tenth in self.tenths for fired in tenth]
        middle = len(weights) // 2
        pair = weights[middle - 1 + len(weights) % 2 : middle + 1]
        return sum(pair) / len(pair) if pair else None

    def data(self) -> dict[str, Any]:
        """Return the facts of the head as a JSON object, which is one line of ``heads.jsonl``."""
        measured = ("scores", "base_rate", "texts", "histogram", "share", "median", "pattern")
        return {
            **fields_of(self, ("layer", "head", *measured)),
            "prefers": None if self.prefers is None else self.prefers._asdict(),
            "fires": [_place(fired) for fired in self.fires],
            "tenths": [[_place(fired) for fired in tenth] for tenth in self.tenths],
            **fields_of(self, ("by_distance", "even")),
        }


@dataclass(frozen=True, repr=False)
class AtlasReport(Report, Provenance):
    """The report of ``attnviz atlas``: the strongest links of each head over many texts.

    texts, tokens: how many were read; for a decoder its own tokens are counted. kept: the texts of
    the links in ``heads``, by index. sampled: the number of texts behind ``HeadAtlas.tenths``.
    maps: of all heads over some kept texts, for a page.
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
        """Return the atlas as one JSON object; indices start at 0."""
        return {
            "schema": "attnviz.atlas/1",
            "model": model_facts(self.model),
            "kind": self.kind,
            "source": self.source or None,
            "index_base": 0,
            **fields_of(self, ("complete", "notes", "texts", "tokens", "sampled")),
            "bins": {name: edges(name) for name in NAMES},
            "distances": [*distances(self.kind)],
            "heads": [head.data() for head in self.heads],
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the CSV header, then a row for each head: its mean scores, its strongest link."""
        names = ("layer", "head", "share", "median", "pattern", *NAMES)
        places = ("query_token", "key_token", "weight", "usual", "even")
        prefers = ("side", "token", "token_share", "token_base_rate")
        entries = []
        for head in self.heads:
            entry = head.data() | dict(head.scores)
            entry |= _place(head.strongest) if head.strongest is not None else {}
            if (known := head.prefers) is not None:
                entry |= dict(zip(prefers, (known.side, known.token, *known[3:]), strict=True))
            entries.append(entry)
        return table_of((*names, *places, *prefers), entries)

    def write(self, directory: str | os.PathLike[str], model: Model, palette: str = "") -> None:
        """Write the atlas to a new directory: ``heads.jsonl``, ``texts.jsonl`` and ``index.html``.

        model: as ``attnviz.load`` returns it; it is run over the texts that the page shows.
        palette: of the page; empty for the report's own.
        Raises UsageError if the directory exists and is not empty, LoadError if writing fails.
        """
        with whole_directory(Path(directory)) as draft:
            _write_lines(draft / "heads.jsonl", (head.data() for head in self.heads))
            texts = list[dict[str, Any]]()
            for at, given in self.kept.items():
                texts.append({"text": at, "token_ids": given.text.ids, "tokens": given.text.texts})
                if (target := given.target) is not None:
                    texts[-1] |= {"target_ids": target.ids, "target_tokens": target.texts}
            _write_lines(draft / "texts.jsonl", texts)
            page = document_html(self.with_maps(model).document(), palette or self.palette)
            (draft / "index.html").write_text("".join(f"{line}\n" for line in page), "utf-8")

    def with_maps(self, model: Model) -> AtlasReport:
        """Return the report with ``maps`` of the texts that have the first heads' best links."""
        maps, info = dict[int, HeadsRecord](), self.model
        for head in self.ranking:
            if head.strongest is None or len(maps) == _MAPS:
                continue
            link = head.strongest.link
            given = self.kept[link.text]
            large = info.layers * info.heads * len(link.queries) * len(link.keys) > _WEIGHTS
            if link.text not in maps and not large:
                record = capture(model, given.text, kind=self.kind, target=given.target)
                known, text = known_labels(model, record.kind), joined(given.text)
                shown = heads_report(record, False, self.index_base, text=text, known=known)
                maps[link.text] = shown
        return replace(self, maps=maps)

    @property
    def ranking(self) -> list[HeadAtlas]:
        """Return the heads, those that most clearly prefer a token first, then by ``excess``."""

        def rank(head: HeadAtlas) -> tuple[float, float]:
            known = head.prefers
            return (0.0 if known is None else known.share - known.base_rate), head.excess

        return sorted(self.heads, key=rank, reverse=True)


def _place(fired: Fired) -> dict[str, Any]:
    link = fired.link
    return {
        **fields_of(link, ("text", "query", "key")),
        "query_token": link.queries.texts[link.query],
        "key_token": link.keys.texts[link.key],
        "weight": link.weight,
        **fields_of(fired, ("usual", "even")),
    }


def _write_lines(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="ascii") as stream:
        for entry in entries:
            write_object(entry, stream, None)
