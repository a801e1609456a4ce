"""What standard error shows while files come in: bars on a terminal, else a line a file."""

import pytest

from attnviz.cli.progress import _Lines, loading, scanning
from attnviz.progress import UNWATCHED, current_watch

from ..terminals import console, printed

HOSTILE = "model\x1b[2J[red].safetensors"


def test_built_in_models_and_quiet_commands_show_nothing():
    for model, quiet in (("tiny", False), ("mha", False), ("some/model", True)):
        shown = console(terminal=True, quiet=quiet)
        with loading(model, shown) as report:
            assert report is None
        assert printed(shown) == ""


def test_a_line_a_file_in_a_pipe():
    shown = console(terminal=False)
    with loading("some/model", shown) as report:
        for done in (0, 700_000, 1_400_000):
            report("config.json", done, None)
            report(HOSTILE, done, 1_400_000)
    assert printed(shown).splitlines() == [
        "downloading config.json",
        "downloading model␛[2J[red].safetensors (1.4 MB)",
    ]


def test_bars_on_a_terminal():
    shown = console(terminal=True)
    with loading("some/[bold]model\x1b[2J", shown) as report:
        report(HOSTILE, 0, 1_400_000)
        report(HOSTILE, 700_000, 1_400_000)
    text = printed(shown)
    assert "opening some/[bold]model␛[2J" in text
    assert "model␛[2J[red].safetensors" in text
    assert "0.7/1.4 MB" in text
    assert "? bytes" not in text  # opening has nothing to count
    assert text.endswith("\x1b[2K")  # the last lines are wiped


def test_what_goes_wrong_inside_passes_through():
    shown = console(terminal=True)

    def fail():
        with loading("some/model", shown):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert "\x1b[?25h" in printed(shown)  # the cursor is back


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_terminal_says_what_is_done():
    shown = console(terminal=True)
    with scanning("ablating heads", shown) as watch:
        watch.begin("ablating 24 heads × 10 texts")
        assert "ablating 24 heads × 10 texts" in printed(shown)
        watch(0.5)
    assert printed(shown).endswith("\x1b[2K")  # the line is wiped


def test_a_pipe_gets_a_line_every_ten_seconds():
    clock, shown = Clock(), console(terminal=False)
    watch = _Lines("ablating heads", shown, clock)
    watch.begin("ablating 24 heads × 10 texts")
    for share in (0.1, 0.2, 0.3, 0.4):
        clock.now += 6
        watch(share)
    assert printed(shown).splitlines() == [
        "ablating 24 heads × 10 texts: 20% done, about 48 s left",
        "ablating 24 heads × 10 texts: 40% done, about 36 s left",
    ]


def test_nobody_pays_for_results_that_are_not_shown():
    def fail():
        raise AssertionError

    with scanning("ablating heads", console(terminal=True, quiet=True)) as watch:
        watch.found(fail)
        watch(0.5)
    with scanning("ablating heads", console(terminal=False)) as watch:
        watch.found(fail)
    UNWATCHED.found(fail)


def test_a_terminal_shows_the_latest_results_under_the_bar_and_wipes_them():
    shown = console(terminal=True)
    with scanning("ablating heads", shown) as watch:
        for text in range(20):
            watch.found(lambda text=text: f"text {text}: L1H2 +0.5 \x1b[31m")
        watch(0.5)
        shown.file.truncate(0)
        watch(0)
        lines = [line for line in printed(shown).splitlines() if "text " in line]
        assert [line.split(":")[0].split("text ")[1] for line in lines] == [
            str(text) for text in range(12, 20)
        ]
        assert not any("\x1b[31m" in line for line in lines)
    assert printed(shown).endswith("\x1b[2K")


def test_what_takes_a_while_is_mentioned_wherever_the_run_is_shown():
    for terminal in (False, True):
        shown = console(terminal=terminal)
        with scanning("reading", shown) as watch:
            assert current_watch() is watch
            current_watch().aside("compiling the kernel for this card, once")
        assert current_watch() is UNWATCHED
        assert "compiling the kernel for this card, once" in printed(shown)
