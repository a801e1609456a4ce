"""What ``attnviz explore`` sends to a terminal a key, and how soon its first frame is there.

Under a pty of 120 × 40 in 256 colours: a text of 96 tokens over the bundled model, at once and
with cells of one token each; and a map of random scores, the worst that can be. The first frame
against ``import torch``, and how long a key waits while a scan runs. Run it as ``python -m pytest
tests/benchmarks/bench_explore.py -s``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pexpect
import pytest

from attnviz.models.bundled import Bundled

pytestmark = pytest.mark.benchmark

TOKENS = 96
STEP, HEAD = 1_200, 40_000
"""Bytes that a step of the cursor and another head may take."""

STORY = (
    "Buck did not read the newspapers, or he would have known that trouble was brewing, not alone "
    "for himself, but for every tide-water dog, strong of muscle and with warm, long hair, from "
    "Puget Sound to San Diego. Because men, groping in the Arctic darkness, had found a yellow "
    "metal, and because steamship and transportation companies were booming the find, thousands "
    "of men were rushing into the Northland. "
)
PROGRAM = "from attnviz.cli.main import main; main()"


def text_of(tokens: int) -> str:
    """The beginning of the story that has so many tokens."""
    model, text = Bundled(), STORY * (1 + tokens // 90)
    while len(model.encode(text)) > tokens:
        text = text[:-1]
    return text


def opened(*arguments: str) -> pexpect.spawn:
    env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "", "PYTHONDONTWRITEBYTECODE": ""}
    child = pexpect.spawn(
        sys.executable,
        ["-c", PROGRAM, "explore", *arguments],
        env=env,
        dimensions=(40, 120),
        timeout=60,
    )
    child.expect(b"tokens")
    sent(child, b"")
    return child


def sent(child: pexpect.spawn, keys: bytes, quiet: float = 0.5) -> int:
    """Bytes that are written after some keys, until nothing more comes."""
    child.send(keys)
    count, end = 0, time.monotonic() + 20
    while time.monotonic() < end:
        try:
            count += len(child.read_nonblocking(1 << 20, timeout=quiet))
        except pexpect.TIMEOUT:
            if count or not keys:
                break
        except pexpect.EOF:
            break
    return count


@pytest.mark.parametrize("zoom", [b"", b"+"], ids=["whole", "a token a cell"])
def test_bytes(zoom: bytes, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(text_of(TOKENS))
    child = opened("--file", str(tmp_path / "text.txt"))
    if zoom:
        sent(child, zoom)
    steps = [sent(child, key) for key in (*[b"h"] * 6, *[b"k"] * 8, *[b"j"] * 4, *[b"l"] * 4)]
    heads = [sent(child, b">") for _ in range(6)]
    child.send(b"q")
    child.close(force=True)
    print(f"\nstep: median {median(steps):,.0f}, most {max(steps):,} bytes {steps}")
    print(f"head: median {median(heads):,.0f}, most {max(heads):,} bytes")
    assert median(steps) <= STEP
    assert max(heads) <= HEAD


def first_frame() -> float:
    start = time.perf_counter()
    child = pexpect.spawn(
        sys.executable,
        ["-c", PROGRAM, "explore"],
        env={**os.environ, "TERM": "xterm-256color", "PYTHONDONTWRITEBYTECODE": ""},
        dimensions=(40, 120),
        timeout=60,
    )
    child.expect(b"strongest links")
    took = time.perf_counter() - start
    child.send(b"q")
    child.close(force=True)
    return took


def imported() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - start


def test_the_first_frame() -> None:
    first_frame(), imported()  # the caches
    ours, theirs = zip(*((first_frame(), imported()) for _ in range(5)), strict=True)
    print(f"\nfirst frame {min(ours):.2f} s, import torch {min(theirs):.2f} s")
    print(f"ratio {min(ours) / min(theirs):.2f}")
    assert min(ours) <= 0.5 * min(theirs)


def test_a_key_while_a_scan_runs(tmp_path: Path) -> None:
    """The time to the answer of a key, alone and beside a scan of all heads over a long text."""
    (tmp_path / "text.txt").write_text(text_of(240))
    child = opened("--file", str(tmp_path / "text.txt"))

    def answered() -> float:
        start = time.perf_counter()
        child.send(b"h")
        child.read_nonblocking(1 << 20, timeout=10)
        took = time.perf_counter() - start
        sent(child, b"", quiet=0.1)
        return took

    alone = median(answered() for _ in range(9))
    child.send(b"x")
    beside = median(answered() for _ in range(9))
    child.send(b"q")
    child.close(force=True)
    print(f"\na key: {1000 * alone:.0f} ms alone, {1000 * beside:.0f} ms beside a scan")
    print(f"ratio {beside / alone:.1f}")
