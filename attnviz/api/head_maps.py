"""The maps of attention heads as a value of Python: to look at, to choose from, to save."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement

from attnviz.api.python_words import in_python_words
from attnviz.capture.selection import choose_heads
from attnviz.errors import UsageError
from attnviz.records import HeadScores, HeadsReport, LayerWeights
from attnviz.render.blocks import Block
from attnviz.render.labels import visible
from attnviz.render.screen import View, heads_screen
from attnviz.render.theme import Theme

__all__ = ["HeadChoice", "HeadMaps", "spelled"]

HeadChoice: TypeAlias = str | int | tuple[int, int]
"""A head as the command line writes it (``L2H5``, ``2.*``, ``0-3.1,4``), the number of a head of
every layer, or (layer, head)."""

_LEAST_WIDTH = 20
_NAMED = 4
_DATA = {".json", ".csv", ".npz", ".safetensors"}
_BARE = re.compile(r"(^|[\s,])[Hh](?=[\d*-])")


@dataclass(frozen=True, eq=False, repr=False)
class HeadMaps:
    """The attention weights of some heads over one text, as ``attnviz heads`` shows them.

    ``print`` draws them in plain characters, ``rich.print`` in colour, a notebook as the page that
    ``save("maps.html")`` writes. ``maps["L1H0"]`` is one head's weights, ``maps.heads("1.*")``
    the maps of some heads; iterating gives each (layer, head).

    report: the weights and every head's scores; indices start at 0.
    text, target: what was read; target is the decoder's text, or None.
    look: how it is drawn; see ``view``.
    limit: the weight that gets the last colour. Where it is not 1 the drawings show each weight's
        share of it; the numbers stay as they are.
    palette, ascii: see ``view``.
    """

    report: HeadsReport
    text: str
    target: str | None = None
    look: View = field(default_factory=lambda: View(""))
    limit: float = 1.0
    palette: str = "viridis"
    ascii: bool = False

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens that look, one a query."""
        return self.report.record.queries.texts

    @property
    def key_tokens(self) -> tuple[str, ...]:
        """The tokens that are looked at, one a key; in self-attention the same."""
        return self.report.record.keys.texts

    @property
    def weights(self) -> Mapping[tuple[int, int], NDArray[np.floating]]:
        """The weights (query, key) of each head by (layer, head)."""
        return MappingProxyType(
            {(layer, head): weights for layer, head, weights in self.report.record}
        )

    def __getitem__(self, head: HeadChoice) -> NDArray[np.floating]:
        """The weights (query, key) of one head. UsageError where ``head`` is not exactly one."""
        return self.report.weights(*self._one(head))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter([(layer, head) for layer, head, _ in self.report.record])

    def __len__(self) -> int:
        return len(self.report.heads)

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> NDArray[np.floating]:
        """All weights as one array (head, query, key), layer by layer."""
        stacked = np.stack([weights for _, _, weights in self.report.record])
        return stacked if dtype is None else stacked.astype(dtype)

    def scores(self, head: HeadChoice) -> HeadScores:
        """One head's trait and every score. UsageError where ``head`` is not exactly one."""
        return self.report.scores(*self._one(head))

    def heads(self, *head: HeadChoice, layer: str | int | None = None) -> HeadMaps:
        """The maps of the chosen heads alone, each drawn in full.

        head: one choice or several, which add up; all heads where there is none. layer: such as
        ``2`` or ``"0-3"``.

        Raises UsageError for what is no choice, and for heads that are not here.
        """
        chosen = self._chosen(head, layer)
        record = self.report.record
        layers = []
        for kept in record.layers:
            places = [at for at, head in enumerate(kept.heads) if (kept.layer, head) in chosen]
            if places:
                heads = tuple(kept.heads[at] for at in places)
                layers.append(LayerWeights(kept.layer, heads, kept.weights[places]))
        scores = tuple(one for one in self.report.heads if (one.layer, one.head) in chosen)
        report = replace(
            self.report,
            record=replace(record, layers=tuple(layers)),
            heads=scores,
            telling=tuple((one.layer, one.head) for one in scores[: len(self.report.telling)]),
            selected=True,
        )
        return replace(self, report=report)

    def view(
        self,
        *,
        values: bool = False,
        top: int | None = None,
        explain: bool = False,
        palette: str = "viridis",
        ascii: bool = False,
    ) -> HeadMaps:
        """The same maps drawn in another way.

        values: write the weights into the cells. top: instead of maps, each head's so many
        strongest pairs. explain: add a reading for newcomers. palette: ``viridis``, ``magma``,
        ``blues`` or ``grey``. ascii: draw with ASCII only.
        """
        look = View(self.text, self.target, values=values, top=top, explain=explain)
        return replace(self, look=look, palette=palette, ascii=ascii)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file that the ending of its name says, whole or not at all.

        ``.json .csv .npz .safetensors`` hold the weights, ``.svg .html .png .pdf`` figures,
        ``.txt`` the drawing of ``print``.

        Raises UsageError for another ending, LoadError where it cannot be written.
        """
        from attnviz.render.export.save import check_save_path, save

        with in_python_words():
            check_save_path(path)
            ending = Path(path).suffix.lower()
            save(
                self.report if ending in _DATA else self._drawn,
                path,
                text=self._title,
                target=self.target,
                palette=self.palette,
                screen_text=str(self) if ending == ".txt" else "",
            )

    def __repr__(self) -> str:
        info, record = self.report.record.model, self.report.record
        names = [self.report.name(layer, head) for layer, head in self]
        heads = ", ".join(names) if len(names) <= _NAMED else f"{len(names)} heads"
        tokens = f"{len(record.queries)} tokens"
        if record.kind == "cross":
            tokens = f"{len(record.queries)} queries, {len(record.keys)} keys"
        return f"<HeadMaps of {visible(info.name)}: {heads}, {tokens}>"

    def __str__(self) -> str:
        """The drawing in plain characters, as wide as the terminal."""
        console = Console(no_color=True)
        theme = replace(Theme.of(console, self.palette, self.ascii), colour=False)
        return self._screen(theme, console.width, console.height).plain.removesuffix("\n")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        theme = Theme.of(console, self.palette, self.ascii)
        yield self._screen(theme, options.max_width, options.height or console.height)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(_LEAST_WIDTH, options.max_width), options.max_width)

    def _repr_html_(self) -> str:
        """What a notebook shows: the page of ``save("maps.html")`` in a frame of its own."""
        from attnviz.api.notebook import framed_page

        return framed_page(self._drawn, self._title, self.target, self.palette)

    def _screen(self, theme: Theme, width: int, height: int) -> Block:
        look = replace(self.look, text=self.text, target=self.target)
        return heads_screen(self._drawn, look, theme, max(width, _LEAST_WIDTH), height)

    @property
    def _title(self) -> str:
        """What stands above a figure: the text, or the array's name where it came without one."""
        return self.text or self.report.record.model.name

    @property
    def _drawn(self) -> HeadsReport:
        """The report with what the drawings show for weights."""
        if self.limit == 1.0:
            return self.report
        record = self.report.record
        layers = tuple(replace(kept, weights=kept.weights / self.limit) for kept in record.layers)
        return replace(self.report, record=replace(record, layers=layers))

    def _chosen(
        self, heads: tuple[HeadChoice, ...], layer: str | int | None
    ) -> frozenset[tuple[int, int]]:
        """The chosen (layer, head) that are here."""
        info, here = self.report.record.model, frozenset(self)
        layers = None if layer is None else str(layer)
        with in_python_words():
            named = choose_heads(layers, [*map(spelled, heads)], info.layers, info.heads, 0)
        if named is None:
            return here
        chosen = frozenset((at, head) for at, kept in named.items() for head in kept) & here
        if not chosen:
            kept = ", ".join(self.report.name(*head) for head in sorted(here)[:_NAMED])
            more = ", …" if len(here) > _NAMED else ""
            raise UsageError(f"none of the chosen heads was kept: here are {kept}{more}")
        return chosen

    def _one(self, head: HeadChoice) -> tuple[int, int]:
        chosen = self._chosen((head,), None)
        if len(chosen) != 1:
            raise UsageError(
                f"{head!r} names {len(chosen)} heads: name one, such as "
                f"{self.report.name(*min(chosen))}, or take maps.heads({head!r})"
            )
        return next(iter(chosen))


def spelled(choice: Any) -> str:
    """A choice as the command line writes it; ``H3``, an array's head, is a bare 3 there."""
    if isinstance(choice, tuple) and len(choice) == 2:
        return f"L{choice[0]}H{choice[1]}"
    return _BARE.sub(r"\1", str(choice))
