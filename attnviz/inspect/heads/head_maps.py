"""The maps of attention heads as a Python value: to print, to choose from, to save."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from attnviz.draw.document import Document
from attnviz.draw.labels import visible
from attnviz.draw.numbers import counted
from attnviz.draw.palette import PALETTES
from attnviz.draw.report import Report
from attnviz.engine.selection import choose_heads
from attnviz.errors import UsageError
from attnviz.inspect.heads.look import heads_page
from attnviz.inspect.heads.report import HeadsReport, HeadsView, compare_heads, only
from attnviz.options import spelled_head
from attnviz.records import HeadScores, HeadsRecord

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.files import Writer

HeadChoice: TypeAlias = str | int | tuple[int, int]
"""A head as on the command line (``L2H5``, ``2.*``, ``0-3.1,4``), the number of a head in every
layer, or (layer, head)."""

_NAMED = 4


def chosen_heads(
    report: HeadsRecord, heads: Sequence[HeadChoice], layer: str | int | None
) -> frozenset[tuple[int, int]]:
    """Return the chosen (layer, head) that the report has, or all its heads if none is chosen.

    heads, layer: the choices as typed, such as ``L1H2`` and ``0-3``; None for any layer.

    Raises UsageError if a choice is not valid, or the report has none of the chosen heads.
    """
    info = report.record.model
    here = frozenset((at, head) for at, head, _ in report.record)
    layers = None if layer is None else str(layer)
    named = choose_heads(layers, [*map(spelled_head, heads)], info.layers, info.heads, 0)
    if named is None:
        return here
    chosen = here & {(at, head) for at, kept in named.items() for head in kept}
    if not chosen:
        names = ", ".join(report.name(*head) for head in sorted(here)[:_NAMED])
        more = ", …" if len(here) > _NAMED else ""
        raise UsageError(f"none of the chosen heads was kept: here are {names}{more}")
    return chosen


def one_head(report: HeadsRecord, head: HeadChoice) -> tuple[int, int]:
    """Return the (layer, head) of the one head that ``head`` names, such as ``L1H2``.

    Raises UsageError if it names none or several.
    """
    chosen = chosen_heads(report, (head,), None)
    if len(chosen) != 1:
        raise UsageError(
            f"{head!r} names {len(chosen)} heads: name one, such as "
            f"{report.name(*min(chosen))}, or take .heads({head!r})"
        )
    return next(iter(chosen))


@dataclass(frozen=True, eq=False, repr=False)
class HeadMaps(Report):
    """The attention weights of some heads over one text, as ``attnviz heads`` shows them.

    ``print`` draws them in plain characters, ``rich.print`` in colour, a notebook as the page that
    ``save("maps.html")`` writes. ``maps["L1H0"]`` is one head's attention weights,
    ``maps.heads("1.*")`` the maps of some heads; iterating gives each (layer, head).

    report: the weights and every head's scores; indices start at 0.
    look: what is shown; see ``view``. explained: whether a glossary for newcomers is added.
    limit: the weight with the last colour. If it is not 1, the drawings show each weight's share
        of it; the numbers stay as they are.
    palette, ascii: see ``view``. opened: the head that the page shows first.
    """

    report: HeadsRecord
    look: HeadsView = field(default_factory=HeadsView)
    limit: float = 1.0
    palette: str = "viridis"
    ascii: bool = False
    opened: str = ""
    explained: bool = False

    @property
    def text(self) -> str:
        """Return the text that the maps belong to; empty for an array without one."""
        return self.report.text

    @property
    def target(self) -> str | None:
        """Return the decoder's text, or None."""
        return self.report.target

    @property
    def tokens(self) -> tuple[str, ...]:
        """Return the tokens of the queries."""
        return self.report.record.queries.texts

    @property
    def key_tokens(self) -> tuple[str, ...]:
        """Return the tokens of the keys; in self-attention the same as ``tokens``."""
        return self.report.record.keys.texts

    @property
    def weights(self) -> Mapping[tuple[int, int], NDArray[np.floating]]:
        """Return the attention weights (query, key) of each head, by (layer, head)."""
        return MappingProxyType(
            {(layer, head): weights for layer, head, weights in self.report.record}
        )

    def __getitem__(self, head: HeadChoice) -> NDArray[np.floating]:
        """Return the attention weights (query, key) of one head.

        head: such as ``"L1H2"``, ``"1.2"`` or ``(1, 2)``. Raises UsageError if it does not name
            exactly one head.
        """
        return self.report.weights(*one_head(self.report, head))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter([(layer, head) for layer, head, _ in self.report.record])

    def __len__(self) -> int:
        return len(self.report.heads)

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> NDArray[np.floating]:
        """Return all attention weights as one array (head, query, key), layer by layer.

        dtype, copy: as NumPy's protocol has them; copy=False raises ValueError.
        """
        if copy is False:
            raise ValueError("the weights of several layers are not one array without a copy")
        stacked = np.stack([weights for _, _, weights in self.report.record])
        return stacked if dtype is None else stacked.astype(dtype)

    def scores(self, head: HeadChoice) -> HeadScores:
        """Return the label and scores of one head.

        head: as in ``maps[head]``. Raises UsageError if it does not name exactly one head.
        """
        return self.report.scores(*one_head(self.report, head))

    def heads(self, *head: HeadChoice, layer: str | int | None = None) -> HeadMaps:
        """Return the maps of the chosen heads alone, each drawn in full.

        head: one choice or several, which add up; without any, all heads. layer: such as ``2`` or
        ``"0-3"``.

        Raises UsageError if a choice is not valid, or names no head of these maps.
        """
        return replace(self, report=only(self.report, chosen_heads(self.report, head, layer)))

    def view(
        self,
        *,
        values: bool = False,
        top: int | None = None,
        explain: bool = False,
        palette: str = "viridis",
        ascii: bool = False,
    ) -> HeadMaps:
        """Return the same maps drawn in another way.

        values: True writes the weights into the cells. top: instead of maps, list this many
            strongest token pairs of each head. explain: True adds a glossary for newcomers.
            palette: ``viridis``, ``magma``, ``blues`` or ``grey``. ascii: True draws with ASCII
            only.

        Raises UsageError for another palette, and if ``top`` is below 1.
        """
        if palette not in PALETTES:
            raise UsageError(f"no palette {palette!r}: expected one of {', '.join(PALETTES)}")
        if top is not None and top < 1:
            raise UsageError(f"expected at least one pair of each head, got top={top}")
        look = HeadsView(values=values, top=top)
        return replace(self, look=look, palette=palette, ascii=ascii, explained=explain)

    def show(self, head: HeadChoice) -> HeadMaps:
        """Return the same maps, whose page opens at one head, in a notebook or when it is saved.

        Raises UsageError if the choice names no head of these maps, or several.
        """
        return replace(self, opened=self.report.name(*one_head(self.report, head)))

    def __repr__(self) -> str:
        info, record = self.report.record.model, self.report.record
        names = [self.report.name(layer, head) for layer, head in self]
        heads = ", ".join(names) if len(names) <= _NAMED else f"{len(names)} heads"
        tokens = counted(len(record.queries), "token")
        if record.kind == "cross":
            tokens = f"{len(record.queries)} queries, {len(record.keys)} keys"
        return f"<HeadMaps of {visible(info.name)}: {heads}, {tokens}>"

    def data(self) -> dict[str, Any]:
        """Return the JSON object that ``attnviz heads --json`` prints."""
        return self._comparison.data()

    def write_json(self, stream: SupportsWrite[str]) -> None:
        """Write the JSON object of ``data`` to a stream, head by head."""
        self._comparison.write_json(stream)

    def rows(self) -> Iterator[Iterable[object]]:
        """Yield the rows of the CSV table: the header, then one for each head, query and key."""
        return self._comparison.rows()

    def arrays(self) -> Mapping[str, Writer]:
        """Return the functions that write the weights to a file, by the file's ending.

        The endings are .csv and .npz.
        """
        return self._comparison.arrays()

    @property
    def _comparison(self) -> HeadsReport:
        named = self.text or self.report.record.model.name
        return compare_heads([replace(self.report, text=named)])

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        """Return the whole document; its attention weights are shares of ``limit``.

        explain: True adds a glossary. hints: True adds what to try next on the command line.
        """
        report, given = self.report, ""
        if self.limit != 1.0:
            record, given = report.record, f"share of {self.limit:.3g}"
            layers = [replace(kept, weights=kept.weights / self.limit) for kept in record.layers]
            report = replace(report, record=replace(record, layers=tuple(layers)))
        drawn = replace(compare_heads([report]), view=self.look)
        page = partial(heads_page, drawn, [[]], given, self.opened)
        shown = drawn.document(explain=self.explained)
        return shown._replace(page=page)
