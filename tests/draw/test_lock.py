"""Two processes do not write the same thing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from attnviz.draw.whole_file import directory_lock
from attnviz.errors import UsageError

TRY = """
import sys
from pathlib import Path
from attnviz.draw.whole_file import directory_lock
with directory_lock(Path(sys.argv[1])):
    print("got it")
"""


def another_process(directory):
    return subprocess.run(
        [sys.executable, "-c", TRY, str(directory)], capture_output=True, text=True, timeout=60
    )


@pytest.mark.skipif(sys.platform == "win32", reason="opens no directories")
def test_a_directory_is_held_against_other_processes_until_it_is_left(tmp_path):
    with directory_lock(tmp_path):
        refused = another_process(tmp_path)
        with pytest.raises(UsageError, match="another run is writing"), directory_lock(tmp_path):
            pytest.fail("held twice")
    assert "another run is writing" in refused.stderr
    assert another_process(tmp_path).stdout == "got it\n"
