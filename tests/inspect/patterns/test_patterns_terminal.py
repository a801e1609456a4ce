"""``attnviz patterns`` as a process: in a terminal, in a pipe, their imports."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pyte
import pytest

from attnviz.measures.registry import LABELS
from attnviz.models.bundled import Bundled

from ...terminals import in_fresh_process, rows

LAYERS, HEADS = Bundled().info.layers, Bundled().info.heads
SENTENCE = "When Mary and John went out, John gave a book to Mary."
_HEAVY = ("torch", "transformers", "huggingface_hub", "matplotlib")

Shown = Callable[..., pyte.Screen]


@pytest.fixture
def screen(screen: Shown) -> Shown:
    """The screen that a finished run leaves on a tall terminal."""
    return partial(screen, rows=300)


def grid_of(screen: pyte.Screen) -> dict[tuple[int, int], pyte.screens.Char]:
    """By (layer, head), the first letter of each cell of the bundled model's grid."""
    lines = rows(screen)
    names = [f"H{head}" for head in range(HEADS)]
    top = next(place for place, line in enumerate(lines) if line.split()[-HEADS:] == names)
    starts = [lines[top].rindex(name) for name in names]
    cells = {}
    for layer in range(LAYERS):
        assert f"L{layer}" in lines[top + 1 + layer][: starts[0]].split()
        for head, start in enumerate(starts):
            line = screen.buffer[top + 1 + layer]
            cells[layer, head] = next(
                line[column] for column in range(start - 1, start + 7) if line[column].data.strip()
            )
    return cells


@pytest.mark.parametrize("columns", [80, 200])
def test_cells_have_the_name_and_the_colour_of_their_label(
    screen: Shown, program: Sequence[str], environment: Mapping[str, str], columns: int
) -> None:
    shown = screen("patterns", SENTENCE, columns=columns)
    done = subprocess.run(
        [*program, "patterns", SENTENCE, "--json"], env=environment, capture_output=True, check=True
    )
    heads = {(head["layer"], head["head"]): head for head in json.loads(done.stdout)["heads"]}
    grounds: dict[str, set[str]] = {}
    for place, cell in grid_of(shown).items():
        label = heads[place]["label"]
        assert cell.data == ("·" if label is None else LABELS[label].short[0])
        assert (cell.bg == "default") == (label is None)
        if label is not None:
            grounds.setdefault(label, set()).add(cell.bg)
    assert len(grounds) > 1
    colours = [colour for found in grounds.values() for colour in found]
    assert len(set(colours)) == len(colours)  # no two labels share one
    assert max(map(len, rows(shown))) <= columns


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colour_names_and_glyphs_tell(screen: Shown, env: dict[str, str]) -> None:
    shown = screen("patterns", **env)
    used = [cell for line in shown.buffer.values() for cell in line.values()]
    assert all(cell.bg == "default" and cell.fg == "default" for cell in used)
    text = "\n".join(rows(shown))
    assert "▀" not in text
    assert {"░", "█"} <= set(text)


@pytest.mark.parametrize("arguments", [("--watch", "previous"), ("--explain", "--stats")])
def test_nothing_wraps(screen: Shown, arguments: tuple[str, ...]) -> None:
    """A line that ran over the right edge would leave a row more than the stream has lines."""
    options = ("patterns", SENTENCE, *arguments)
    narrow = screen(*options, columns=61)
    wider = screen(*options, "--width", "61", columns=99)
    assert rows(narrow) == rows(wider)


def test_a_pipe_gets_plain_text(program: Sequence[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        [*program, "patterns", SENTENCE], env=environment, capture_output=True, check=True
    )
    assert b"\x1b" not in done.stdout
    assert done.stderr == b""
    assert max(map(len, done.stdout.decode().splitlines())) <= 80


@pytest.mark.parametrize(
    "arguments",
    [
        ("patterns",),
        ("patterns", SENTENCE, "--watch", "induction", "--explain"),
        ("patterns", SENTENCE, "--control", "random-weights", "--json"),
        ("patterns", SENTENCE, *(f"--save=x{end}" for end in (".json", ".csv", ".svg", ".html"))),
    ],
    ids=["probes", "watch", "control", "save"],
)
def test_the_bundled_model_needs_no_torch(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code = "from attnviz.cli.boundary import run; run()"
    out, err = in_fresh_process(code, _HEAVY, *arguments, "--quiet", folder=tmp_path)
    assert out
    assert err == ""
