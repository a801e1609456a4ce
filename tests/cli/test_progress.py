"""What standard error shows while files come in: bars on a terminal, else a line a file."""

from __future__ import annotations

import pytest

from attnviz.cli.progress import loading

from ..conftest import console, printed

HOSTILE = "model\x1b[2J[red].safetensors"


@pytest.mark.parametrize("model", ["tiny", "mha"])
def test_built_in_models_show_nothing(model: str) -> None:
    shown = console(terminal=True)
    with loading(model, shown) as report:
        assert report is None
    assert printed(shown) == ""


def test_quiet_shows_nothing() -> None:
    shown = console(terminal=True, quiet=True)
    with loading("some/model", shown) as report:
        assert report is None
    assert printed(shown) == ""


def test_a_line_a_file_in_a_pipe() -> None:
    shown = console(terminal=False)
    with loading("some/model", shown) as report:
        assert report is not None
        for done in (0, 700_000, 1_400_000):
            report("config.json", done, None)
            report(HOSTILE, done, 1_400_000)
    assert printed(shown).splitlines() == [
        "downloading config.json",
        "downloading model␛[2J[red].safetensors (1.4 MB)",
    ]


def test_bars_on_a_terminal() -> None:
    shown = console(terminal=True)
    with loading("some/[bold]model\x1b[2J", shown) as report:
        assert report is not None
        report(HOSTILE, 0, 1_400_000)
        report(HOSTILE, 700_000, 1_400_000)
    text = printed(shown)
    assert "opening some/[bold]model␛[2J" in text
    assert "model␛[2J[red].safetensors" in text
    assert "0.7/1.4 MB" in text
    assert "? bytes" not in text  # opening has nothing to count
    assert text.endswith("\x1b[2K")  # the last lines are wiped


def test_what_goes_wrong_inside_passes_through() -> None:
    shown = console(terminal=True)

    def fail() -> None:
        with loading("some/model", shown):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert "\x1b[?25h" in printed(shown)  # the cursor is back
