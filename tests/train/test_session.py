"""What standard error shows while a model learns, and a run that is stopped at its very end."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
import torch
from rich.console import Console

from attnviz.train.recipe import Budget, Phase, Recipe, Shape
from attnviz.train.records import CurvePoint
from attnviz.train.run import TrainingRun
from attnviz.train.session import Pace, finished, telling, training, words
from attnviz.train.texts import Corpus

from ..conftest import console, printed


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
    assert pace.tokens_per_second is None
    assert pace.seconds_left is None
    pace.add(0, 0.0)
    clock.now = 10
    pace.add(1000, 0.1)
    assert pace.tokens_per_second == pytest.approx(100)
    assert pace.seconds_left == pytest.approx(90)
    for step in range(1, 31):  # ten times as fast from here on
        clock.now = 10 + step
        pace.add(1000 + 1000 * step, 0.1 + 0.01 * step)
    assert pace.tokens_per_second == pytest.approx(1000, rel=0.05)
    assert pace.seconds_left == pytest.approx(60, rel=0.05)


def test_a_line_at_each_validation_in_a_pipe() -> None:
    shown, trainer = console(terminal=False), Trainer()
    with training(trainer, shown) as tell:  # type: ignore[arg-type]
        for tokens, valid in ((10, 5.5), (20, None), (30, 5.0)):
            trainer.tokens, trainer.used = tokens, tokens / 100
            trainer.points.append(point(tokens, 6.0, valid))
            tell(trainer.points[-1])
            tell(None)
    first, second = printed(shown).splitlines()
    assert first.startswith(" 10% text: loss 6.00, validation 5.50")
    assert second.startswith(" 30% text: loss 6.00, validation 5.00, ")
    assert "tokens/s" in second
    assert second.endswith("left")


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_shows_nothing(terminal: bool) -> None:
    shown = console(terminal, quiet=True)
    with training(Trainer(), shown) as tell:  # type: ignore[arg-type]
        tell(point(10, 1.0, 1.0))
    assert printed(shown) == ""


def test_a_bar_on_a_terminal_that_is_gone_at_the_end() -> None:
    shown, trainer = console(terminal=True), Trainer()
    with training(trainer, shown) as tell:  # type: ignore[arg-type]
        trainer.tokens, trainer.used = 10, 0.5
        trainer.points.append(point(10, 6.0, 5.5))
        tell(trainer.points[-1])
    text = printed(shown)
    assert "text: loss 6.00, validation 5.50" in text
    assert text.endswith("\x1b[2K")


def test_what_has_no_room_is_left_out_part_by_part() -> None:
    trainer = Trainer()
    trainer.points.append(point(10, 6.0, 5.5))
    pace = Pace(Clock())
    whole = "text: loss 6.00, validation 5.50"
    assert words(trainer, pace, 32) == whole  # type: ignore[arg-type]
    assert words(trainer, pace, 31) == "loss 6.00, validation 5.50"  # type: ignore[arg-type]
    assert words(trainer, pace, 20) == "validation 5.50"  # type: ignore[arg-type]
    assert words(trainer, pace, 9) == ""  # type: ignore[arg-type]
    trainer.phase = "a\x1b[31m\nb"
    assert words(trainer, pace).startswith("a␛[31m⏎b: loss")  # type: ignore[arg-type]


@pytest.mark.parametrize("terminal", [True, False])
def test_what_takes_long_is_said(terminal: bool) -> None:
    shown = console(terminal)
    with telling("reading [b]", shown):
        pass
    assert "reading [b]" in printed(shown)
    assert printed(shown).endswith("\x1b[2K" if terminal else "reading [b]\n")
    silent = console(terminal, quiet=True)
    with telling("reading", silent):
        pass
    assert printed(silent) == ""


SMALL = Shape(layers=1, heads=2, kv_heads=2, head_dim=4, d_model=8, d_ff=12, context=16)
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
    assert finished(run, Console(quiet=True)) is None


def test_what_was_not_measured_is_measured_when_it_is_resumed(tmp_path: Path) -> None:
    corpus = Corpus(("a.txt",), (TEXT,), "0" * 12)
    phase = Phase(length=8, batch=2, period=(2, 3))
    recipe = Recipe(vocabulary=262, model=SMALL, phases=(phase,), budget=Budget(tokens=64))
    device = torch.device("cpu")
    run = TrainingRun(corpus, corpus, recipe, tmp_path, device)
    list(run.trainer.steps())
    run.save_state()
    resumed = TrainingRun(corpus, corpus, recipe, tmp_path, device, resume=True)
    assert not list(resumed.trainer.steps())
    result = finished(resumed, Console(quiet=True))
    assert result is not None
    assert result.finished
    assert (tmp_path / "README.md").exists()
