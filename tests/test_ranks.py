"""Which process speaks, and what one process alone may do."""

import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import attnviz
from attnviz import ranks
from attnviz.cli.app import COMMANDS
from attnviz.draw.files import whole_file
from attnviz.errors import UnsupportedError, UsageError


@pytest.fixture
def joined(monkeypatch):
    """This process as the second of two that run a command together."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(ranks, "_together", False)
    ranks.join()
    return monkeypatch


def test_a_process_alone_follows_nobody(monkeypatch):
    monkeypatch.setattr(ranks, "_together", False)
    ranks.join()
    assert (ranks.is_together(), ranks.follows(), ranks.tells_its_end()) == (False, False, True)
    with pytest.raises(UsageError, match="torchrun --nproc-per-node 2 -m attnviz heads"):
        ranks.check_together("heads", {})


def test_the_second_process_writes_no_file(joined, tmp_path):
    with whole_file(tmp_path / "result.json") as stream:
        stream.write(b"{}")
    assert not list(tmp_path.iterdir())
    joined.setenv("RANK", "0")
    with whole_file(tmp_path / "result.json") as stream:
        stream.write(b"{}")
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_before_they_can_ask_the_first_process_speaks(joined):
    waited = []
    joined.setitem(sys.modules, "torch", None)
    joined.setattr(time, "sleep", waited.append)
    assert not ranks.tells_its_end(interrupted=True)
    assert waited == []
    assert ranks.tells_its_end()  # torchrun has not ended it: the first process had no error
    assert waited == [ranks._PATIENCE]
    joined.setenv("RANK", "0")
    assert ranks.tells_its_end(interrupted=True)
    assert ranks.tells_its_end()


def test_of_several_the_first_to_ask_speaks(joined):
    asked = []

    def add(key, number):
        asked.append(key)
        return len(asked)

    store = SimpleNamespace(add=add)
    c10d = SimpleNamespace(_get_default_store=lambda: store)
    distributed = SimpleNamespace(is_initialized=lambda: True, distributed_c10d=c10d)
    joined.setitem(sys.modules, "torch", SimpleNamespace(distributed=distributed))
    assert [ranks.tells_its_end() for _ in range(3)] == [True, False, False]


def test_commands_and_options_of_one_process_say_so(joined):
    for command in ranks.ALONE:
        with pytest.raises(UnsupportedError, match=f"^{command} runs in one process"):
            ranks.check_together(command, {})
    for option in ("resume", "budget"):
        ranks.check_together("ablate", {option: None})
        with pytest.raises(UsageError, match=f"^--{option} is for one process"):
            ranks.check_together("ablate", {option: "5s"})


def test_the_manual_lists_every_command():
    manual = (Path(attnviz.__file__).parent / "docs" / "scale.md").read_text(encoding="utf-8")
    assert set(COMMANDS) >= set(ranks.ALONE)
    alone = next(
        row for row in manual.splitlines() if row.endswith("| not supported, exit code 5 |")
    )
    assert {*re.findall(r"`(\w+)`", alone)} == set(ranks.ALONE)
    for command in set(COMMANDS) - set(ranks.ALONE):
        assert f"`{command}`" in manual, command
