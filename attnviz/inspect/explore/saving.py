"""What is kept of a view: the command that gives it again, a file, an interactive page."""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.files import check_path, save, text_file
from attnviz.draw.labels import cut, visible
from attnviz.draw.page.data import LARGEST_CHANGE, Page, largest_changes, with_difference
from attnviz.draw.report import EVERY, report_files
from attnviz.draw.terminal import terminal_block
from attnviz.draw.theme import Theme
from attnviz.errors import UsageError
from attnviz.inspect.explore.session import Frame, model_name, two_models
from attnviz.inspect.explore.view import View, Written
from attnviz.inspect.generate.run import Ending, WrittenRun, write_run_lines
from attnviz.inspect.heads.look import WITHOUT_WITH, measures, page_capture, with_effects
from attnviz.inspect.heads.report import compare_heads
from attnviz.records import LayerWeights


def command_line(view: View, options: Sequence[str] = (), file: Path | None = None) -> str:
    """Return the ``attnviz heads`` command that shows the same head, to be pasted into a shell.

    file: the file of the text, which the command then names instead. Control characters are escaped
        (``$'…'``).
    """
    words, shown = ["attnviz", "heads", *options, "--head", view.name(view.head)], view.shown
    text, base = shown.text, shown.report.index_base
    if shown.removed:
        words += ["--ablate", ",".join(map(view.name, sorted(shown.removed)))]
    if view.mode != "raw":
        words.append("--no-sink" if view.mode == "no-sink" else "--norm-weighted")
    if base:
        words += ["--index-base", str(base)]
    line = " ".join(map(shell_word, words))
    if "--chat" in options:  # which gives the text
        return line
    if file is not None:
        return f"{line} --file {shell_word(str(file))}"
    if text == "-":  # alone it means standard input
        return f"printf %s - | {line} -"
    return f"{line} {'-- ' if text.startswith('-') else ''}{shell_word(text)}"


def shell_word(word: str) -> str:
    """Return one word quoted for a shell, its control characters escaped."""
    if all(map(_is_plain, word)):
        return shlex.quote(word)
    spelled = ""
    for character in word:
        escapes = (f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))
        kept = f"\\{character}" if character in "\\'" else character
        spelled += kept if _is_plain(character) else "".join(escapes)
    return f"$'{spelled}'"


def _is_plain(character: str) -> bool:
    return character == " " or unicodedata.category(character)[0] not in "CZ"


_LONGEST = 40
_MODES = {"raw": "raw", "no-sink": "sinkless", "value-weighted": "value"}


def explored_document(view: View) -> doc.Document:
    """Return the documents of all sides as one, with a page that opens at the view."""
    documents = [compare_heads([frame.report]).document() for frame, _ in _sides(view)]
    names, page = [name for _, name in _sides(view)], _page(view)
    groups = [group for each in documents for group in each.groups]
    whole = documents[0]._replace(groups=groups, page=lambda: page)
    if len(names) == 1:
        return whole
    changed = [f"{page.captures[2].heads[each.head].name}: {each.says}" for each in page.look[:1]]
    finding = "; largest change in ".join([" next to ".join(names), *changed])
    return whole._replace(finding=f"{finding}.")


def _page(view: View) -> Page:
    """Return the page: one side, or both and their difference where they have one."""
    sides, effects = _sides(view), view.effects
    captures = [page_capture(frame.report, name) for frame, name in sides]
    if view.mode == "value-weighted":
        for at, (frame, _) in enumerate(sides):
            norms = [frame.norms[head.layer][head.head] for head in captures[at].heads]
            captures[at] = replace(captures[at], norms=np.stack(norms))
    known = measures(captures[0].heads)
    if effects is not None and not sides[0][0].removed:
        unit = "nats/token" if effects.metric == "loss_delta" else ""
        captures[0], measure = with_effects(captures[0], effects.values, unit)
        known.append(measure)
    if view.comparable:
        between = "B − A" if view.other is not None else WITHOUT_WITH
        captures = [*with_difference(captures[0], captures[1], between)]
        known.append(LARGEST_CHANGE)
    at = {"a": 0, "b": 1, "difference": 2}[view.side]
    if len(captures) > 1 and view.other is None and view.side != "difference":
        at = 1 - at  # the whole model stands first
    link = f"{view.shown.report.name(*view.head)}&capture={at}&q={view.query}&k={view.key}"
    link += f"&mode={_MODES[view.mode]}" if view.side != "difference" else ""
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


ENDINGS = (*EVERY.split(), ".npz")
"""The endings of the files that a view can be saved as, the same as for ``attnviz heads``."""


def save_view(path: Path, view: View, theme: Theme, width: int) -> None:
    """Save the shown head, or the whole generation, to a file in the format of its ending.

    A page has all heads, of both sides and of their difference, and opens at the view.

    Raises UsageError for an unknown ending and for a difference, which only a page can hold,
    LoadError if the system refuses.
    """
    if view.written is not None and view.written.at:
        if path.suffix.lower() != ".jsonl":
            raise UsageError("what was written is saved as .jsonl; Esc, then s saves the prompt")
        run = _run_of(view, view.written)
        save(path, {".jsonl": text_file(partial(write_run_lines, run))})
        return
    check_path(path, ENDINGS)
    page = path.suffix.lower() == ".html"
    if view.side == "difference" and view.against is not None and not page:
        raise UsageError("a difference is not saved, but as .html: press d for one side")
    report, (layer, head) = view.shown.report, view.head
    record = replace(view.record, layers=(LayerWeights(layer, (head,), view.weights[None]),))
    chosen = replace(
        report,
        record=record,
        heads=(report.scores(layer, head),),
        notable=(view.head,),
        selected=True,
        ablated=tuple(sorted(view.shown.removed)),
        sink=view.mode != "no-sink",
        norm_weighted=view.mode == "value-weighted",
    )
    seen, plain = compare_heads([chosen]), Theme(theme.palette, colour=False, ascii=theme.ascii)
    document = partial(explored_document, view) if page else seen.document

    def screen() -> str:
        return terminal_block(seen.document(), plain, width).plain

    save(path, report_files(seen, document, theme.palette, screen))


def _run_of(view: View, written: Written) -> WrittenRun:
    """Return the generation so far as the record that ``attnviz generate`` saves."""
    report, steps, sampling = view.frame.report, written.steps, written.sampling
    ended: Ending = "end" if steps[-1].ended else "tokens"
    if not steps[-1].ended and len(steps) < sampling.tokens:
        ended = "interrupted" if written.running else "context"
    known = report.record.layers
    return WrittenRun(
        report.record.model,
        report.record.kind,
        text=view.frame.text,
        source=None,
        begun=report.record.queries,
        prompt=known if all(np.isfinite(each.weights).all() for each in known) else (),
        sampling=sampling,
        removed=tuple(sorted(view.frame.removed)),
        steps=steps,
        ending=ended,
        index_base=report.index_base,
        known=view.frame.known,
    )
