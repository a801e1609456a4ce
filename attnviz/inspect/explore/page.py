"""The interactive page of what ``attnviz explore`` shows: every head of one side, or of both."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.labels import cut, visible
from attnviz.draw.page.data import Page, PageCapture
from attnviz.draw.page.difference import LARGEST_CHANGE, largest_changes, with_difference
from attnviz.inspect.explore.session import Frame, model_name, two_models
from attnviz.inspect.explore.view import View
from attnviz.inspect.heads.look import WITHOUT_WITH, measures, page_capture, with_effects
from attnviz.inspect.heads.report import compare_heads

_LONGEST = 40
_MODES = {"raw": "raw", "no-sink": "sinkless", "value-weighted": "value"}


def explored_document(view: View) -> doc.Document:
    """Return the documents of all sides as one, with a page that opens at the view."""
    documents = [compare_heads([frame.report]).document() for frame, _ in _sides(view)]
    names, page = [name for _, name in _sides(view)], explored_page(view)
    groups = [group for each in documents for group in each.groups]
    whole = documents[0]._replace(groups=groups, page=lambda: page)
    if len(names) == 1:
        return whole
    changed = [f"{page.captures[2].heads[each.head].name}: {each.says}" for each in page.look[:1]]
    finding = "; largest change in ".join([" next to ".join(names), *changed])
    return whole._replace(finding=f"{finding}.")


def explored_page(view: View) -> Page:
    """Return the page: one side, or both and their difference where they have one."""
    sides, scene, effects = _sides(view), view.scene, view.effects
    captures = [_capture(view, frame, name) for frame, name in sides]
    known = measures(captures[0].heads)
    if effects is not None and not sides[0][0].removed:
        unit = "nats a token" if effects.metric == "loss_delta" else ""
        captures[0], measure = with_effects(captures[0], effects.values, unit)
        known.append(measure)
    if view.comparable:
        between = "B − A" if view.other is not None else WITHOUT_WITH
        captures = [*with_difference(captures[0], captures[1], between)]
        known.append(LARGEST_CHANGE)
    at = {"a": 0, "b": 1, "difference": 2}[scene.side]
    if len(captures) > 1 and view.other is None and scene.side != "difference":
        at = 1 - at  # the whole model stands first
    link = f"{view.shown.report.name(*scene.head)}&capture={at}&q={scene.query}&k={scene.key}"
    link += f"&mode={_MODES[scene.mode]}" if scene.side != "difference" else ""
    look = [*largest_changes(captures)]
    return Page(view.record.model.name, captures, known, look, link=f"{link}&lock")


def _sides(view: View) -> list[tuple[Frame, str]]:
    """Return each side and its name; the whole model stands before the one without heads."""
    frame, against = view.frame, view.against
    if against is None:
        return [(frame, "")]
    if view.other is None:
        return [(against, "every head"), (frame, _without(frame))]
    models = two_models(frame, against)
    sides = []
    for letter, each in (("A", frame), ("B", against)):
        name = model_name(each.report.record.model) if models else each.text
        without = f", {_without(each)}" if each.removed else ""
        sides.append((each, f"{letter} {cut(visible(name), _LONGEST)}{without}"))
    return sides


def _without(frame: Frame) -> str:
    return f"without {', '.join(frame.report.name(*head) for head in sorted(frame.removed))}"


def _capture(view: View, frame: Frame, name: str) -> PageCapture:
    capture = page_capture(frame.report, name)
    if view.scene.mode != "value-weighted":
        return capture
    norms = [frame.norms[head.layer][head.head] for head in capture.heads]
    return replace(capture, norms=np.stack(norms))
