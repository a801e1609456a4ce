"""The README's picture is what the command draws today."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
COMMAND = Path(sys.executable).with_name("attnviz")
SENTENCE = "When Mary and John went to the shop, John gave a drink to Mary."


def texts(svg: str) -> list[str]:
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg)


def test_the_picture_says_what_the_screen_says(tmp_path: Path) -> None:
    """Colours may differ by the last bit of a weight between machines; words may not.

    Renew it with: python tests/pictures/terminal.py tests/pictures/heads.svg 100 attnviz heads
    "When Mary …" --quiet
    """
    drawn = tmp_path / "heads.svg"
    command = [str(COMMAND), "heads", SENTENCE, "--quiet"]
    subprocess.run(
        [sys.executable, str(HERE / "terminal.py"), str(drawn), "100", *command], check=True
    )
    kept = (HERE / "heads.svg").read_text(encoding="utf-8")
    assert texts(drawn.read_text(encoding="utf-8")) == texts(kept)
    assert kept.count("<rect") > 1000
    assert "href" not in kept
