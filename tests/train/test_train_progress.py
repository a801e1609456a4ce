"""What standard error shows while a model learns, and how speed and time left are told."""

from __future__ import annotations

import io
from dataclasses import dataclass, field

import pytest
from rich.console import Console

from attnviz.train.records import CurvePoint
from attnviz.train.show import Pace, telling, training, words


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


@dataclass
class Run:
    trainer: Trainer = field(default_factory=Trainer)


def console(terminal: bool, quiet: bool = False) -> Console:
    return Console(
        file=io.StringIO(),
        width=100,
        force_terminal=terminal,
        quiet=quiet,
        markup=False,
        emoji=False,
        _environ={"TERM": "xterm"},
    )


def printed(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


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
    shown, run = console(terminal=False), Run()
    with training(run, shown) as report:  # type: ignore[arg-type]
        for tokens, valid in ((10, 5.5), (20, None), (30, 5.0)):
            run.trainer.tokens, run.trainer.used = tokens, tokens / 100
            run.trainer.points.append(point(tokens, 6.0, valid))
            report(run.trainer.points[-1])
            report(None)
    first, second = printed(shown).splitlines()
    assert first.startswith(" 10% text: loss 6.00, validation 5.50")
    assert second.startswith(" 30% text: loss 6.00, validation 5.00, ")
    assert "tokens/s" in second
    assert second.endswith("left")


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_shows_nothing(terminal: bool) -> None:
    shown = console(terminal, quiet=True)
    with training(Run(), shown) as report:  # type: ignore[arg-type]
        report(point(10, 1.0, 1.0))
    assert printed(shown) == ""


def test_a_bar_on_a_terminal_that_is_gone_at_the_end() -> None:
    shown, run = console(terminal=True), Run()
    with training(run, shown) as report:  # type: ignore[arg-type]
        run.trainer.tokens, run.trainer.used = 10, 0.5
        run.trainer.points.append(point(10, 6.0, 5.5))
        report(run.trainer.points[-1])
    text = printed(shown)
    assert "text: loss 6.00, validation 5.50" in text
    assert text.endswith("\x1b[2K")


def test_what_has_no_room_is_left_out_part_by_part() -> None:
    run = Run()
    run.trainer.points.append(point(10, 6.0, 5.5))
    pace = Pace(Clock())
    whole = "text: loss 6.00, validation 5.50"
    assert words(run, pace, 32) == whole  # type: ignore[arg-type]
    assert words(run, pace, 31) == "loss 6.00, validation 5.50"  # type: ignore[arg-type]
    assert words(run, pace, 20) == "validation 5.50"  # type: ignore[arg-type]
    assert words(run, pace, 9) == ""  # type: ignore[arg-type]
    run.trainer.phase = "a\x1b[31m\nb"
    assert words(run, pace).startswith("a␛[31m⏎b: loss")  # type: ignore[arg-type]


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
