"""The report of ``patterns`` over pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attnviz.draw.report import Report
from attnviz.draw.values import model_facts, table_of
from attnviz.records import ModelInfo


@dataclass(frozen=True)
class HeadOverPictures:
    """What a head does in the mean over pictures.

    label: what it does in two thirds of them or more, see ``HeadOnPicture``; else empty. times: in
        how many pictures it has its commonest label, or none.
    distance: the mean attention distance in patches. interval: its 95% bootstrap-t confidence
        interval over the pictures; None for fewer than five.
    cls, register: the shares of the attention of all patches on such tokens; None without any.
    peak: on the patch that gets most in each picture.
    """

    layer: int
    head: int
    label: str
    times: int
    distance: float
    interval: tuple[float, float] | None
    cls: float | None
    register: float | None
    peak: float


@dataclass(frozen=True, repr=False)
class PicturesReport(Report):
    """What each head of a vision model does over many pictures.

    model: its facts. paths: of the pictures. uniform: the mean distance of uniform attention, in
    patches. token: the mean share of a token under uniform attention. outlying: the number of
    pictures with patches of outlying norm. notes: on how they were read. seed: of the bootstrap.
    """

    model: ModelInfo
    paths: tuple[str, ...]
    heads: tuple[HeadOverPictures, ...]
    uniform: float
    token: float
    outlying: int = 0
    notes: tuple[str, ...] = ()
    index_base: int = 0
    seed: int = 0

    command = "patterns"
    lists = ("heads",)

    def head_name(self, head: HeadOverPictures) -> str:
        """Return the name of a head, such as ``L2H5``."""
        return f"L{head.layer + self.index_base}H{head.head + self.index_base}"

    def data(self) -> dict[str, Any]:
        """Return the JSON object that ``--json`` prints."""
        return {
            "schema": "attnviz.pictures/1",
            "model": model_facts(self.model),
            "pictures": self.paths,
            "seed": self.seed,
            "uniform": {"distance": self.uniform, "token": self.token},
            "pictures_with_outlying_norms": self.outlying,
            "notes": self.notes,
            "heads": [vars(head) for head in self.heads],
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the CSV header, then a row for each head; an interval has two columns."""
        entries = []
        for head in self.heads:
            low, high = head.interval or (None, None)
            entries.append({**vars(head), "low": low, "high": high})
        names = ("layer", "head", "label", "times", "distance", "low", "high")
        yield from table_of((*names, "cls", "register", "peak"), entries)
