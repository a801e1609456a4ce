"""Killed or interrupted at any moment, a scan loses nothing that it has finished."""

import signal
import subprocess
import time

import pytest

from ....terminals import POSIX

COUNT = 32


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    lines = [
        f"Text {n}: Mary saw John, and John saw {'Mary ' * (1 + n % 3)}\n" for n in range(COUNT)
    ]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def pieces(path):
    """Whole lines behind the first."""
    return max(path.read_bytes().count(b"\n") - 1, 0) if path.exists() else 0


def wait_for(condition, process):
    for _ in range(6000):
        if condition():
            return
        assert process.poll() is None, "the scan ended before it could be stopped"
        time.sleep(0.005)
    raise AssertionError("the scan did not get there")


@POSIX
def test_ctrl_c_shows_what_is_done(program, environment, texts, tmp_path):
    path = tmp_path / "scan.jsonl"
    process = subprocess.Popen(
        [*program, "ablate", "--texts", str(texts), "--resume", str(path), "--width", "100"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_for(lambda: pieces(path) >= 4, process)
    process.send_signal(signal.SIGINT)
    out, err = (stream.decode() for stream in process.communicate(timeout=600))
    assert process.returncode == 130
    assert "Incomplete, " in out
    assert f"of {COUNT} texts" in out
    assert err.endswith("attnviz: interrupted\n")
    assert pieces(path) >= 4
