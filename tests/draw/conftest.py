"""Reports of made-up weights, and a terminal that reads back what was drawn on it.

Golden screens lie in ``golden/`` beside their tests; after a wanted change of the drawing, write
them anew with ``ATTNVIZ_GOLDEN=write pytest tests/render`` and look at the difference.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyte
import pytest
from rich.cells import cell_len
from rich.console import Console

from attnviz.analysis.traits import head_scores, telling_heads
from attnviz.records import (
    AttentionRecord,
    HeadsReport,
    Kind,
    LayerWeights,
    ModelInfo,
    Tokens,
)
from attnviz.render.blocks import Block
from attnviz.render.palette import colour_table, to_hex

SENTENCE = ("<s>", " The", " cat", " saw", " the", " cat", ".")


def tokens_of(texts: Sequence[str]) -> Tokens:
    numbers = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return Tokens(
        tuple(numbers[text] for text in texts), tuple(texts), tuple(t == "<s>" for t in texts)
    )


def random_maps(heads: int, queries: int, keys: int, causal: bool, seed: int) -> np.ndarray:
    """Weights (head, query, key) between nothing and everything."""
    raw = np.random.default_rng(seed).dirichlet(np.full(keys, 0.3), size=(heads, queries)) + 1e-4
    weights = np.tril(raw) if causal else raw
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def make_report(
    texts: Sequence[str] = SENTENCE,
    *,
    keys: Sequence[str] | None = None,
    heads: Sequence[int] = (3, 3),
    weights: Sequence[np.ndarray] | None = None,
    causal: bool = True,
    kind: Kind = "self",
    kv_heads: int | None = None,
    selected: bool = False,
    index_base: int = 0,
    sorted_by: str | None = None,
    name: str = "made",
    notes: tuple[str, ...] = (),
    revision: str | None = "0123456789abcdef",
) -> HeadsReport:
    """A report; ``heads`` counts the heads of each layer, ``weights`` gives each layer's maps."""
    queries = tokens_of(texts)
    key_tokens = queries if keys is None else tokens_of(keys)
    causal = causal and keys is None and len(texts) > 1
    if weights is None:
        weights = [
            random_maps(count, len(queries), len(key_tokens), causal, seed)
            for seed, count in enumerate(heads)
        ]
    layers = tuple(
        LayerWeights(at, tuple(range(len(maps))), maps) for at, maps in enumerate(weights)
    )
    most = max(len(maps) for maps in weights)
    info = ModelInfo(
        name, revision, "None", "float32", len(layers), most, kv_heads or most, 8, notes=notes
    )
    record = AttentionRecord(info, kind, causal, queries, key_tokens, layers)
    scores = head_scores(record)
    if sorted_by is not None:
        scores = tuple(sorted(scores, key=lambda entry: entry.scores[sorted_by] or 0.0))
    return HeadsReport(record, scores, telling_heads(scores, 3), selected, index_base, sorted_by)


@dataclass(frozen=True)
class Terminal:
    """What a terminal shows after a block was printed on it, cell by cell."""

    rows: list[list[pyte.screens.Char]]
    steps: dict[str, set[int]]

    def text(self, y: int) -> str:
        return "".join(cell.data for cell in self.rows[y]).rstrip()

    def find(self, text: str) -> tuple[int, int]:
        """The row and column at which ``text`` starts."""
        for y in range(len(self.rows)):
            if text in self.text(y):
                return y, cell_len(self.text(y).partition(text)[0])
        raise AssertionError(f"{text!r} is not on the screen")

    def cell(self, y: int, x: int) -> tuple[set[int] | None, set[int] | None]:
        """The steps of the palette that the upper and the lower half show; None is blank."""
        cell = self.rows[y][x]
        back = None if cell.bg == "default" else self.steps[cell.bg]
        if cell.data == "▀":
            return self.steps[cell.fg], back
        if cell.data == "▄":
            return back, self.steps[cell.fg]
        return back, back


@pytest.fixture(scope="session")
def look() -> Callable[..., Terminal]:
    """Prints a block on a truecolor terminal and reads the screen back."""

    def show(block: Block, columns: int, palette: str = "viridis") -> Terminal:
        stream = io.StringIO()
        console = Console(
            file=stream, force_terminal=True, color_system="truecolor", width=columns, height=9
        )
        console.print(block, end="", soft_wrap=True)
        screen = pyte.Screen(columns, len(block.lines) + 1)
        screen.set_mode(pyte.modes.LNM)
        pyte.Stream(screen).feed(stream.getvalue())
        rows = [[screen.buffer[y][x] for x in range(columns)] for y in range(len(block.lines))]
        steps: dict[str, set[int]] = {}
        for step, colour in enumerate(colour_table(palette)):
            steps.setdefault(to_hex(colour)[1:], set()).add(step)
        return Terminal(rows, steps)

    return show


@pytest.fixture(scope="session")
def reports() -> Callable[..., HeadsReport]:
    """Makes reports of made-up weights."""
    return make_report


@pytest.fixture(scope="session")
def step_of() -> Callable[[float], int]:
    """A weight's step, from the sentence in the legend: colour is the square root."""
    return lambda weight: round(float(weight) ** 0.5 * 255)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a screen with ``golden/NAME.txt`` beside the test; see above."""
    folder = request.path.parent / "golden"

    def check(name: str, screen: str) -> None:
        path = folder / f"{name}.txt"
        if os.environ.get("ATTNVIZ_GOLDEN") == "write":
            path.write_text(screen, encoding="utf-8")
        assert screen == path.read_text(encoding="utf-8")

    return check
