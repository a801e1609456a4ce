"""The screen of ``attnviz explore``: its panes, its keys, and what they change.

What is seen is one ``View``; a key makes another one and the panes draw what differs. Whatever may
take long runs in a thread: only the answer to what was asked last is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, TypeVar

from rich.segment import Segment
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.worker import get_current_worker

from attnviz.draw.blocks import BOLD, DIM, Line
from attnviz.draw.labels import width
from attnviz.draw.theme import Theme
from attnviz.errors import AttnvizError
from attnviz.explore import facts, grid, map
from attnviz.explore.facts import View
from attnviz.explore.pane import Pane
from attnviz.explore.scene import Scene
from attnviz.explore.session import MODES, Frame, Session

Found = TypeVar("Found")

_GAP = 3
_TALL = 36
"""Lines of a terminal from which there is room for more than the least."""
