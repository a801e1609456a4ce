"""The text on a terminal while it is written: its last lines, and what the head attends to."""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from attnviz.draw import document as doc
from attnviz.draw.blocks import Block, stack
from attnviz.draw.coloured_text import pieces_of, rows_of, text_block
from attnviz.draw.labels import token_label, token_labels
from attnviz.draw.provenance import probability, share
from attnviz.draw.terminal import part_block
from attnviz.draw.theme import Theme
from attnviz.engine.head_run import Head
from attnviz.inspect.generate.generate import Advance
from attnviz.inspect.generate.report import WrittenRun
from attnviz.inspect.generate.screen import texts
from attnviz.records import Tokens

_SOURCES = 3
_LINES = 12
_PAUSE = 0.1  # the least seconds between two pictures
_BYTES, _END = re.compile("<0x([0-9A-F]{2})>"), re.compile("(?:<0x[0-9A-F]{2}>)*$")
_LONGEST_CHARACTER = 4  # the most bytes of a character in UTF-8


@contextmanager
def shown_live(console: Console, theme: Theme, head: Head) -> Iterator[Advance]:
    """Draw a generation on the terminal after each step; the picture is removed at the end.

    Yields the function to call after each step. console, theme: where and in which colours. head:
    the (layer, head) whose attention weights colour the text. Pictures are not drawn too often.
    """
    drawn = -_PAUSE
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def advance(share: float, run: Callable[[], WrittenRun]) -> None:
            nonlocal drawn
            if time.monotonic() - drawn >= _PAUSE:
                block = picture(run(), head, theme, console.width, console.height)
                live.update(block, refresh=True)
                drawn = time.monotonic()

        yield advance


def picture(run: WrittenRun, head: Head, theme: Theme, max_width: int, lines: int) -> Block:
    """Return the end of the text in at most ``lines`` lines, each token coloured by its weight.

    head: the (layer, head) of the attention weights. theme: the colours. max_width: the available
        width in characters.
    """
    words = [(run.name(head), True), (f"{len(run.steps)} of {run.sampling.tokens} tokens", False)]
    rows = max(min(lines - 4, _LINES) // (1 if theme.colour else 2), 1)
    shown = texts(run, head, whole=True).maps[0]
    if run.kind != "cross":
        whole = range(len(run.tokens) - unfinished(run.tokens))
        shown = shown._replace(weights=shown.weights[:, whole], keys=shown.keys.taken(whole))
    drawn = rows_of(pieces_of(shown, theme, max_width - 4), max_width - 4)
    first = drawn[-rows][0].first if len(drawn) > rows else 0
    tail = shown.keys.taken(range(first, len(shown.keys)))
    shown = shown._replace(weights=shown.weights[:, first:], keys=tail)
    top = part_block(doc.Facts(words), theme, max_width)
    below = part_block(doc.Facts(_sources(run, head), tone="faint"), theme, max_width)
    return stack([top, text_block(shown, theme, max_width, 10**6), below], gap=0)


def unfinished(tokens: Tokens) -> int:
    """Return how many tokens at the end form only the beginning of a character."""
    end = _END.search("".join(tokens.texts[-_LONGEST_CHARACTER:]))
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(bytes(int(number, 16) for number in _BYTES.findall(end[0] if end else "")))
    pending, count = len(decoder.getstate()[0]), 0
    while pending > 0:
        count += 1
        pending -= len(_BYTES.findall(tokens.texts[-count]))
    return count


def _sources(run: WrittenRun, head: Head) -> doc.Words:
    """Return the last token and the tokens that it attended to, such as ``“mat” ← “cat” .53``."""
    labels, step, last = token_labels(run.keys), run.steps[-1], len(run.steps) - 1
    asking, sources = token_labels(run.queries)[step.place], run.sources(head, last, _SOURCES)
    attended = [f"“{labels[at]}” {share(weight)}" for at, weight in sources]
    attended.append(f"sink {share(run.sink_weight(head, last))}")
    words: list[tuple[str, bool | doc.Tone]] = [
        (f"“{token_label(step.text)}” {probability(step.probability)}", "strong"),
        (f"“{asking}” attended to {attended[0]}", False),
    ]
    return [*words, *((word, False) for word in attended[1:])]
