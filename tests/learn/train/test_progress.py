"""What standard error shows while a model learns, and a run that is stopped at its very end."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
import torch
from rich.console import Console

from attnviz.cli import watcher
from attnviz.cli.options import Output
from attnviz.cli.outlet import Outlet
from attnviz.cli.watcher import TerminalWatcher
from attnviz.draw.document import Curve, Plot
from attnviz.learn.train.progress import Pace, Watcher
from attnviz.learn.train.recipe import DecoderShape, Phase, Recipe, TrainingBudget
from attnviz.learn.train.report import CurvePoint
from attnviz.learn.train.texts import Corpus
from attnviz.learn.train.train import TrainingRun, finish_saved, words

from ...terminals import console, printed


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Trainer:
    """What progress asks of a trainer."""

    tokens: int = 0
    used: float = 0.0
    phase: str = "text"
    points: list[CurvePoint] = field(default_factory=list)


def point(tokens: int, loss: float, valid: float | None) -> CurvePoint:
    return CurvePoint(tokens // 10, tokens, 1.0, 1e-3, loss, valid, "text")


def test_speed_and_time_left_follow_what_happened_lately() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.words == []
    pace.add(0, 0.0)
    assert pace.words == ["0% done"]
    clock.now = 10
    pace.add(1000, 0.1)
    assert pace.words == ["100 tokens/s", "10% done", "about 2 min left"]
    for step in range(1, 31):  # ten times as fast from here on
        clock.now = 10 + step
        pace.add(1000 + 1000 * step, 0.1 + 0.01 * step)
    assert pace.words == ["1,000 tokens/s", "40% done", "about 60 s left"]


PLOT = Plot((("Loss", True),), [Curve("training", [(0.0, 6.0), (10.0, 5.5)])], "tokens read")


def on(shown: Console) -> TerminalWatcher:
    """One whose notices go to ``shown``."""
    made = Outlet(Output(), None)
    vars(made)["notices"] = shown
    return TerminalWatcher(made)


@pytest.mark.parametrize("plot", [PLOT, None])
def test_curves_on_a_terminal_that_are_gone_at_the_end(
    plot: Plot | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "_BETWEEN", 0.0)
    shown = console(terminal=True)
    with on(shown).watching(lambda: "text: loss 6.00", lambda: plot) as watch:
        watch(False)
    text = printed(shown)
    assert "text: loss 6.00" in text
    assert ("training" in text) == (plot is not None)
    assert text.endswith("\x1b[2K")


def test_how_far_it_is_in_words() -> None:
    clock, trainer = Clock(), Trainer()
    pace = Pace(clock)
    assert words(trainer, pace) == "text: "  # type: ignore[arg-type]
    pace.add(0, 0.0)
    trainer.points.append(point(10, 6.0, 5.5))
    clock.now = 10
    pace.add(1000, 0.25)
    assert words(trainer, pace) == (  # type: ignore[arg-type]
        "text: loss 6.00, validation 5.50, 100 tokens/s, 25% done, about 30 s left"
    )
    trainer.phase = "a\x1b[31m\nb"
    assert words(trainer, pace).startswith("a␛[31m⏎b: loss")  # type: ignore[arg-type]


@pytest.mark.parametrize("terminal", [True, False])
def test_what_takes_long_is_said(terminal: bool) -> None:
    shown = console(terminal)
    with on(shown).telling("reading [b]"):
        pass
    assert "reading [b]" in printed(shown)
    assert printed(shown).endswith("\x1b[2K" if terminal else "reading [b]\n")
    silent = console(terminal, quiet=True)
    with on(silent).telling("reading"):
        pass
    assert printed(silent) == ""


SMALL = DecoderShape(layers=1, heads=2, kv_heads=2, head_dim=4, d_model=8, d_ff=12, context=16)
TEXT = "the cat sat on the mat while the dog sat on the log\n" * 40


class Asked:
    """A run that is asked to end while it measures."""

    def finish(self) -> None:
        signal.raise_signal(self.number)

    def __init__(self, number: signal.Signals) -> None:
        self.number = number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_end_is_no_failure(number: signal.Signals) -> None:
    run = cast("TrainingRun", Asked(number))
    assert finish_saved(run, Watcher()) is None


def test_what_was_not_measured_is_measured_when_it_is_resumed(tmp_path: Path) -> None:
    corpus = Corpus(("a.txt",), (TEXT,), "0" * 12)
    phase = Phase(length=8, batch=2, period=(2, 3))
    recipe = Recipe(vocabulary=262, model=SMALL, phase=(phase,), budget=TrainingBudget(tokens=64))
    device = torch.device("cpu")
    run = TrainingRun(corpus, corpus, recipe, tmp_path, device)
    list(run.trainer.steps())
    run.save_state()
    resumed = TrainingRun(corpus, corpus, recipe, tmp_path, device, resume=True)
    assert not list(resumed.trainer.steps())
    result = finish_saved(resumed, Watcher())
    assert result is not None
    assert result.finished
    assert (tmp_path / "README.md").exists()
