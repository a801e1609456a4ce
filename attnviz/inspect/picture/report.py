"""The report of ``heads`` on a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnviz.draw.report import Report, fields_of
from attnviz.draw.values import model_facts, npz_file, shortest, table_of
from attnviz.records import Floats, ModelInfo
from attnviz.token_layout import TokenLayout

if TYPE_CHECKING:
    from attnviz.draw.files import Writer
    from attnviz.inspect.heads.report import HeadsReport


class Query(NamedTuple):
    """The query that is shown, by name, and its index; ``pool`` and ``mean`` are no token: None."""

    name: str
    token: int | None


@dataclass(frozen=True, eq=False)
class HeadOnPicture:
    """What one head does on a picture.

    layer, head: from 0; the heads of a pooling head have the layer after the last, and no more
        than a row.
    row: (token,) the attention weights of the query. means: (token,) those in the mean of all
        patches as queries.
    distance: the mean attention distance in patches. cls, register: the shares of the attention of
        all patches on these tokens; None without any. peak: the index of the patch that gets most.
    label: ``local``, ``sink: CLS``, ``sink: registers``, ``sink: one patch``, or empty.
    """

    layer: int
    head: int
    row: Floats
    means: Floats | None = None
    distance: float = float("nan")
    cls: float | None = None
    register: float | None = None
    peak: int = -1
    label: str = ""

    @property
    def peak_share(self) -> float:
        """Return the share of the attention of all patches on the patch that gets most."""
        return 0.0 if self.means is None else float(self.means[self.peak])


@dataclass(frozen=True, repr=False)
class PictureReport(Report):
    """Where each head of a vision model looks, over one picture.

    model: its facts. name: of the picture. layout: where the model's tokens stand, with the
        picture. query: whose rows are shown.
    heads: all heads, or the chosen ones (``selected``), in the order of the layers.
    uniform: the mean distance in patches of attention that is even on all patches.
    norms: (token,) of the states after the last layer. artefacts: the patches whose norm is far
        above all others. notes: on how the picture was read. maps: the whole maps, for a page.
    """

    model: ModelInfo
    name: str
    layout: TokenLayout
    query: Query
    heads: tuple[HeadOnPicture, ...]
    uniform: float
    norms: Floats
    artefacts: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    index_base: int = 0
    selected: bool = False
    maps: HeadsReport | None = None

    command = "heads"
    lists = ("heads",)

    @property
    def measured(self) -> tuple[HeadOnPicture, ...]:
        """Return the heads of the model's layers, without those of a pooling head."""
        return tuple(head for head in self.heads if head.means is not None)

    @property
    def asking(self) -> tuple[HeadOnPicture, ...]:
        """Return the heads whose query is shown: of a pooling head alone if that was asked."""
        return tuple(head for head in self.heads if head.means is None) or self.heads

    def head_name(self, head: HeadOnPicture) -> str:
        """Return the name of a head, such as ``L2H5`` or ``pool H3``."""
        if head.means is None:
            return f"pool H{head.head + self.index_base}"
        return f"L{head.layer + self.index_base}H{head.head + self.index_base}"

    def on_patches(self, head: HeadOnPicture) -> Floats:
        """Return the query's weights (row, column) on the patches of the first grid."""
        return self.layout.mapped(head.row, 0)

    def patch_name(self, token: int) -> str:
        """Return ``row,column`` of a patch."""
        return self.layout.names()[token]

    def data(self) -> dict[str, Any]:
        """Return the JSON object that ``--json`` prints; rows are by token."""
        layout, (height, width, _) = self.layout, self.layout.pictures[0].shape
        return {
            "schema": "attnviz.picture/1",
            "model": model_facts(self.model),
            "picture": {"name": self.name, "width": width, "height": height},
            "grids": [grid._asdict() for grid in layout.grids],
            "tokens": layout.names(),
            "kinds": layout.kinds,
            "query": self.query.name,
            "uniform": {"distance": self.uniform, "token": 1 / len(layout)},
            "artefacts": [layout.names()[token] for token in self.artefacts],
            "notes": self.notes,
            "heads": [self._facts(head) for head in self.heads],
        }

    def _facts(self, head: HeadOnPicture) -> dict[str, Any]:
        facts: dict[str, Any] = {"head": self.head_name(head)}
        if head.means is not None:
            facts |= fields_of(head, ("label", "distance", "cls", "register"))
            facts |= {"peak": self.patch_name(head.peak), "peak_share": head.peak_share}
        return {**facts, "row": shortest(head.row.astype(np.float32))}

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the CSV header, then a row for each head and token: the weights of its query."""
        names = self.layout.names()
        yield ("layer", "head", "token", "kind", "weight", "mean_of_patches")
        for head in self.heads:
            means = [None] * len(names) if head.means is None else head.means.tolist()
            for at, weight in enumerate(head.row.tolist()):
                yield head.layer, head.head, names[at], self.layout.kinds[at], weight, means[at]

    def arrays(self) -> Mapping[str, Writer]:
        """Return the function that writes all rows (head, token) to a file of NumPy arrays."""
        kept = self.measured
        means = np.stack([head.means for head in kept if head.means is not None])
        return {
            ".npz": npz_file(
                rows=np.stack([head.row for head in self.asking]),
                means=means,
                heads=np.array([(head.layer, head.head) for head in kept]),
                tokens=np.array(self.layout.names()),
            )
        }


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
