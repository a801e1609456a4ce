"""Opens a page in the browser of the person at the terminal, where there is one."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from pathlib import Path

from attnviz.errors import LoadError, UsageError


def require_display() -> None:
    """Raise UsageError over ssh without a display, where a browser would open elsewhere."""
    remote = os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY")
    shown = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if remote and (not shown or sys.platform == "darwin"):
        raise UsageError(
            "--open: this is a remote terminal without a display; write the page with "
            "--save page.html, and open it where you sit"
        )


def temporary_page() -> Path:
    """Return the path of a new file for a page, which stays when attnviz ends."""
    number, path = tempfile.mkstemp(prefix="attnviz-", suffix=".html")
    os.close(number)
    return Path(path)


def open_page(path: Path) -> None:
    """Open a page; raise LoadError, with its path, if no browser can."""
    if not webbrowser.open(path.resolve().as_uri()):
        raise LoadError(f"no browser was found: open {path} yourself")
