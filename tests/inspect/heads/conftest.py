"""Screens of reports, and texts of strangers."""

import dataclasses

import pytest

from attnviz.draw.terminal import terminal_block
from attnviz.draw.theme import Theme
from attnviz.inspect.heads.report import HeadsReport, HeadsView, compare_heads
from attnviz.records import HeadsRecord

from ...command_line import json_of

HOSTILE = (
    *("</svg><script>alert(1)</script>", "\x1b[31mred\x1b]0;title\x07", "\u202eevil\u202c"),
    *('say "hi", it\'s', "line\nbreak\r\n\ttab", "nul\x00", "<", "&amp;", "$x^2$", "=1+1"),
    *("]]>-->", "\x9bC1\u2028\ufffe"),
)
document = json_of("heads", runner="redrawn")


def screen(reports, view=None, theme=None, width=80, height=45, **shown):
    """The screen of one report, of several side by side, or of a comparison that is made.

    shown: ``explain`` and ``hints`` of ``Report.document``.
    """
    if not isinstance(reports, HeadsReport):
        reports = compare_heads([reports] if isinstance(reports, HeadsRecord) else reports)
    document = dataclasses.replace(reports, view=view or HeadsView()).document(**shown)
    means = dataclasses.replace(theme or Theme(colour=False), lines=height)
    return terminal_block(document, means, width)


@pytest.fixture(scope="session")
def hostile():
    return HOSTILE
