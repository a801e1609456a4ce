"""The report of ``heads`` on a text with pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.report import Report, fields_of
from attnviz.draw.values import model_facts, npz_file, shortest
from attnviz.records import Floats, ModelInfo, Tokens
from attnviz.token_layout import TokenLayout

if TYPE_CHECKING:
    from attnviz.draw.files import Writer


_DRAWS = 19  # more than all of so many random draws: by chance once in twenty
_SHARES = ("picture", "sinks", "entropy", "chance", "bottom", "locates")


@dataclass(frozen=True, eq=False)
class HeadOnWords:
    """What one head of the decoder does with a word.

    row: (token,) the attention weights of the word. general: (token,) those of the last token of a
        general prompt about the same pictures, on the tokens of the pictures; 0 elsewhere.
    picture: the share of the row on the pictures' tokens. sinks: the part of it that lies on sinks.
    entropy: the spatial entropy in nats of the row on the shown grid; chance: the smallest of the
        same map in random orders of its patches; NaN for heads that were not compared.
    bottom: the share of the row on the bottom row of the shown grid.
    locates: whether it is one of the localisation heads.
    """

    layer: int
    head: int
    row: Floats
    general: Floats
    picture: float
    sinks: float
    entropy: float = float("nan")
    chance: float = float("nan")
    bottom: float = 0.0
    locates: bool = False


@dataclass(frozen=True, repr=False)
class PictureTextReport(Report):
    """Where the heads of a vision-language model look from a word, on pictures and in the text.

    model: its facts. text: the prompt, as typed. names: of the pictures. written: what the model
    wrote. tokens: of the prompt and of what was written, with their layout. query: the index of the
    token that looks. grid: the index of the grid that is shown.
    heads: all heads, or the chosen ones (``selected``), in the order of the layers.
    sinks: by layer the indices of tokens whose states have a massive activation. words: by the
    index of a token of the text, the share of its row on the pictures, in the mean of all heads.
    control: the general prompt. notes: on how pictures and prompt were read.
    """

    model: ModelInfo
    text: str
    names: tuple[str, ...]
    written: str
    tokens: Tokens
    query: int
    grid: int
    heads: tuple[HeadOnWords, ...]
    sinks: Mapping[int, tuple[int, ...]]
    words: Mapping[int, float]
    control: str
    notes: tuple[str, ...] = ()
    index_base: int = 0
    selected: bool = False

    command = "heads"
    lists = ("heads",)

    @property
    def layout(self) -> TokenLayout:
        """Return where the tokens stand."""
        assert self.tokens.layout is not None
        return self.tokens.layout

    @cached_property
    def patches(self) -> NDArray[np.intp]:
        """Return the indices of the tokens of pictures that the word sees."""
        own = self.layout.of_kind("patch", "cls", "newline")
        return own[own <= self.query] if len(own) else own

    @property
    def uniform(self) -> float:
        """Return the share of the pictures under uniform attention to all tokens before."""
        return len(self.patches) / (self.query + 1)

    @property
    def locating(self) -> tuple[HeadOnWords, ...]:
        """Return the localisation heads, those with the least spatial entropy first."""
        order = sorted(self.heads, key=lambda head: head.entropy)
        return tuple(head for head in order if head.locates)

    def sinks_of(self, head: HeadOnWords) -> list[int]:
        """Return the sinks among the pictures' tokens in a head's layer."""
        return [at for at in self.sinks.get(head.layer, ()) if at in set(self.patches.tolist())]

    @cached_property
    def sinks_by_chance(self) -> float:
        """Return the heads' mean share on random tokens, the most of ``_DRAWS`` draws."""
        draw, shares = np.random.default_rng(0), np.zeros(_DRAWS)
        for head in self.heads:
            count = len(self.sinks_of(head))
            for at in range(_DRAWS if count else 0):
                shares[at] += head.row[draw.choice(self.patches, count, replace=False)].sum()
        return float(shares.max()) / len(self.heads)

    def without_sinks(self, head: HeadOnWords) -> Floats:
        """Return a head's row (token,) with nothing on the sinks of its layer."""
        row = head.row.copy()
        row[self.sinks_of(head)] = 0.0
        return row

    def head_name(self, head: HeadOnWords) -> str:
        """Return the name of a head, such as ``L2H5``."""
        return f"L{head.layer + self.index_base}H{head.head + self.index_base}"

    def data(self) -> dict[str, Any]:
        """Return the JSON object that ``--json`` prints; rows are by token."""
        layout = self.layout
        sizes = [picture.shape[1::-1] for picture in layout.pictures]
        named = zip(self.names, sizes, strict=True)
        return {
            "schema": "attnviz.picture-text/1",
            "model": model_facts(self.model),
            **fields_of(self, ("text", "written")),
            "pictures": [{"name": name, "width": w, "height": h} for name, (w, h) in named],
            "grids": [grid._asdict() for grid in layout.grids],
            "tokens": self.tokens.texts,
            "kinds": layout.kinds,
            **fields_of(self, ("query", "uniform", "control", "sinks_by_chance")),
            "sinks": {str(layer + self.index_base): at for layer, at in self.sinks.items()},
            "words": [{"token": at, "picture": share} for at, share in self.words.items()],
            "notes": self.notes,
            "heads": [self._facts(head) for head in self.heads],
        }

    def _facts(self, head: HeadOnWords) -> dict[str, Any]:
        return {
            "head": self.head_name(head),
            **fields_of(head, _SHARES[:2]),
            "text": 1.0 - head.picture,
            **fields_of(head, _SHARES[2:]),
            "row": shortest(head.row.astype(np.float32)),
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the CSV header, then a row for each head: its shares and its label."""
        names = ("layer", "head", *_SHARES)
        yield names
        for head in self.heads:
            yield tuple(getattr(head, name) for name in names)

    def arrays(self) -> Mapping[str, Writer]:
        """Return the function that writes all rows (head, token) to a file of NumPy arrays."""
        return {
            ".npz": npz_file(
                rows=np.stack([head.row for head in self.heads]),
                general=np.stack([head.general for head in self.heads]),
                heads=np.array([(head.layer, head.head) for head in self.heads]),
                grid=self.layout.grid,
                row=self.layout.row,
                column=self.layout.column,
            )
        }
