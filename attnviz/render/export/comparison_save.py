"""``attnviz heads --save FILE`` where runs are compared: each head's maps side by side."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

from attnviz.records import HeadsComparison
from attnviz.render.comparison import compared_heads
from attnviz.render.export.comparison_data import (
    write_comparison_csv,
    write_comparison_json,
    write_comparison_npz,
    write_comparison_safetensors,
)
from attnviz.render.export.drawing import flow
from attnviz.render.export.drawing_plot import write_drawing_png
from attnviz.render.export.legend_figure import legend_drawing
from attnviz.render.export.map_figure import matrix_drawing
from attnviz.render.export.save import check_save_path
from attnviz.render.export.sections import Page, Section, page_drawing, page_html
from attnviz.render.export.svg import safe, svg_document
from attnviz.render.export.whole_file import whole_file
from attnviz.render.export.words import head_name, head_words, text_lines
from attnviz.render.facts import model_parts, share, size_words
from attnviz.render.kind_words import variant_names
from attnviz.render.theme import Theme

__all__ = ["comparison_page", "save_comparison"]

_ROOM = 1400.0
_GAP = 32
_READING = (
    "A row is the token that looks (query), a column the token looked at (key); what a mask hides "
    "stays blank."
)
_MOVED = " Moved: the share of attention on other keys than in the first map."


def comparison_page(
    comparison: HeadsComparison, text: str, target: str | None, palette: str
) -> Page:
    """A section a head, its maps side by side; the heads that the screen shows in full."""
    shared, names = variant_names([report.record for report in comparison.reports])
    sections = [Section("", "", (legend_drawing(),))]
    for place in compared_heads(comparison):
        maps = []
        for index in comparison.kept_by(*place):
            report, moved = comparison.reports[index], comparison.moved[index]
            words = head_words(report.scores(*place))
            if moved is not None:
                words += f" · moved {share(moved[place])}"
            maps.append(
                matrix_drawing(
                    (" · ".join(names[index]), words),
                    report.weights(*place),
                    (report.record.queries, report.record.keys),
                    report.record.causal,
                    palette,
                    report.index_base,
                )
            )
        heading = head_name(comparison.first, comparison.first.scores(*place))
        sections.append(Section(heading, "", (flow(heading, maps, _ROOM, _GAP),)))
    title, *lines = text_lines(text, target)
    facts = [*lines, *_facts(comparison, shared, names)]
    return Page(f"attention heads of {comparison.first.record.model.name}", title, facts, sections)


def _facts(comparison: HeadsComparison, shared: list[str], names: list[list[str]]) -> list[str]:
    """Provenance, what stands side by side, notes, and how a map is read."""
    info = comparison.first.record.model
    parts = [words for words, _ in model_parts(info, Theme())]
    seed = "no seed used" if info.seed is None else f"seed {info.seed}"
    beside = [
        f"{' and '.join(name)} ({size_words(report.record)})"
        for report, name in zip(comparison.reports, names, strict=True)
    ]
    return [
        " · ".join([*parts, *shared, seed]),
        f"side by side: {' · '.join(beside)}",
        *info.notes,
        _READING + (_MOVED if any(moved is not None for moved in comparison.moved) else ""),
    ]


def _table(comparison: HeadsComparison) -> Iterator[str]:
    """The scores of every kept head in every run."""
    _, names = variant_names([report.record for report in comparison.reports])
    titles = ("head", "attention", "trait", "score", "even spread", "entropy", "moved")
    words = {"head", "attention", "trait"}

    def row(kind: str, cells: tuple[str, ...]) -> str:
        pairs = zip(titles, cells, strict=True)
        opened = (
            (f'{kind} class="word"' if title in words else kind, cell) for title, cell in pairs
        )
        drawn = "".join(f"<{opening}>{safe(cell)}</{kind}>" for opening, cell in opened)
        return f"<tr>{drawn}</tr>"

    yield '<h2>Scores</h2>\n<div class="scroll"><table>'
    yield f"<thead>{row('th', titles)}</thead><tbody>"
    for first in comparison.first.heads:
        place = first.layer, first.head
        for index in comparison.kept_by(*place):
            report, moved = comparison.reports[index], comparison.moved[index]
            scores = report.scores(*place)
            entropy = scores.scores["entropy"]
            numbers = (
                scores.trait.score,
                scores.trait.base_rate,
                entropy,
                None if moved is None else moved[place],
            )
            shown = ("–" if number is None else f"{number:.3f}" for number in numbers)
            cells = (head_name(report, scores), " · ".join(names[index]), scores.trait.name, *shown)
            yield row("td", cells)
    yield "</tbody>\n</table></div>"


def save_comparison(
    comparison: HeadsComparison,
    path: Path,
    *,
    text: str,
    target: str | None,
    palette: str,
    screen_text: str,
) -> None:
    """Write a comparison whole or not at all, in the formats of ``save``.

    ``screen_text`` is what a ``.txt`` holds. Raises what ``check_save_path`` raises, and LoadError
    where the system refuses on the way.
    """
    check_save_path(path)
    ending = path.suffix.lower()
    with whole_file(path) as stream:
        if ending == ".npz":
            write_comparison_npz(comparison, text, target, stream)
        elif ending == ".safetensors":
            write_comparison_safetensors(comparison, text, target, stream)
        elif ending in (".json", ".csv", ".txt"):
            _write_text(comparison, ending, text, target, screen_text, stream)
        else:
            _write_page(comparison, ending, text, target, palette, stream)


def _write_text(
    comparison: HeadsComparison,
    ending: str,
    text: str,
    target: str | None,
    screen_text: str,
    stream: BinaryIO,
) -> None:
    out = codecs.getwriter("utf-8")(stream, "backslashreplace")
    if ending == ".json":
        write_comparison_json(comparison, text, target, out)
    elif ending == ".csv":
        write_comparison_csv(comparison, out)
    else:
        out.write(screen_text)


def _write_page(
    comparison: HeadsComparison,
    ending: str,
    text: str,
    target: str | None,
    palette: str,
    stream: BinaryIO,
) -> None:
    page = comparison_page(comparison, text, target, palette)
    out = codecs.getwriter("utf-8")(stream, "backslashreplace")
    if ending == ".html":
        pieces = page_html(page, palette, [*_table(comparison)])
        out.writelines(f"{piece}\n" for piece in pieces)
    elif ending == ".svg":
        out.write(svg_document(page_drawing(page), palette))
    else:
        form: Literal["png", "pdf"] = "pdf" if ending == ".pdf" else "png"
        write_drawing_png(page_drawing(page), palette, stream, form)
