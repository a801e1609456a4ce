"""``attnviz heads --save FILE`` where runs are compared: each head's maps side by side."""

from __future__ import annotations

from functools import partial

from attnviz.draw.files import Writer, page_files, text_file
from attnviz.draw.kind_words import variant_names
from attnviz.draw.legend_figure import legend_drawing
from attnviz.draw.map_figure import matrix_drawing
from attnviz.draw.page import Page, Section, Table
from attnviz.draw.provenance import model_parts, share, size_words
from attnviz.draw.theme import Theme
from attnviz.draw.words import head_name, head_words, text_lines
from attnviz.heads.comparison_data import (
    write_comparison_csv,
    write_comparison_npz,
    write_comparison_safetensors,
)
from attnviz.heads.comparison_screen import compared_heads
from attnviz.records import HeadsComparison

__all__ = ["comparison_files", "comparison_page"]

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
        sections.append(Section(heading, "", tuple(maps), beside=True))
    title, *lines = text_lines(text, target)
    facts = [*lines, *_facts(comparison, shared, names)]
    return Page(
        f"attention heads of {comparison.first.record.model.name}",
        title,
        facts,
        sections,
        [_table(comparison)],
    )


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


def _table(comparison: HeadsComparison) -> Table:
    """The scores of every kept head in every run."""
    _, names = variant_names([report.record for report in comparison.reports])
    titles = ("head", "attention", "trait", "score", "even spread", "entropy", "moved")
    rows = []
    for first in comparison.first.heads:
        place = first.layer, first.head
        for index in comparison.kept_by(*place):
            report, moved = comparison.reports[index], comparison.moved[index]
            scores = report.scores(*place)
            trait, entropy = scores.trait, scores.scores["entropy"]
            numbers = trait.score, trait.base_rate, entropy, None if moved is None else moved[place]
            told = ("–" if number is None else f"{number:.3f}" for number in numbers)
            rows.append((head_name(report, scores), " · ".join(names[index]), trait.name, *told))
    return Table("Scores", titles, rows, ("head", "attention", "trait"))


def comparison_files(
    comparison: HeadsComparison, text: str, target: str | None, palette: str
) -> dict[str, Writer]:
    """What writes a comparison to a file, by the ending of its name: all but JSON and the screen.

    palette: colours the pictures.
    """
    return {
        ".csv": text_file(partial(write_comparison_csv, comparison)),
        ".npz": partial(write_comparison_npz, comparison, text, target),
        ".safetensors": partial(write_comparison_safetensors, comparison, text, target),
        **page_files(partial(comparison_page, comparison, text, target, palette), palette),
    }
