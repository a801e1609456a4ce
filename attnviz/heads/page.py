"""The heads of one run as a page: every head small, the most telling ones in full, every score."""

from __future__ import annotations

from attnviz.draw.legend_figure import legend_drawing
from attnviz.draw.map_figure import map_drawing
from attnviz.draw.page import Page, Section, Table
from attnviz.draw.words import mapped_heads, run_lines, text_lines
from attnviz.heads.overview_figure import overview_drawing, pooling_words
from attnviz.records import HeadScores, HeadsReport

__all__ = ["heads_page"]


def heads_page(report: HeadsReport, text: str, target: str | None, palette: str) -> Page:
    """Provenance, the overview (unless heads were chosen), full maps and the table of scores."""
    title, *lines = text_lines(text, target)
    mapped = mapped_heads(report)
    maps = tuple(map_drawing(report, scores, palette) for scores in mapped)
    anchors = tuple(report.name(scores.layer, scores.head) for scores in mapped)
    sections = [Section("", "", (legend_drawing(),))]
    if not report.selected:
        overview = overview_drawing(report)
        sections.append(Section("All heads", pooling_words(report), (overview,)))
    heading = "" if report.selected else "The most telling heads"
    sections.append(Section(heading, "", maps, beside=True, anchors=anchors))
    name = f"attention heads of {report.record.model.name}"
    return Page(name, title, [*lines, *run_lines(report)], sections, [_table(report)])


def _table(report: HeadsReport) -> Table:
    """Every score of every kept head; a dash where the text cannot show it."""
    grouped = report.record.model.group(0) is not None
    titles = ["head", *(["key/value head"] if grouped else []), "trait", "score", "even spread"]
    titles += [name.replace("_", " ") for name in report.heads[0].scores]
    rows = [_scores(report, scores) for scores in report.heads]
    return Table("Scores", titles, rows, ("head", "trait"))


def _scores(report: HeadsReport, scores: HeadScores) -> list[str]:
    group, trait = report.record.model.group(scores.head), scores.trait
    cells = [report.name(scores.layer, scores.head)]
    cells += [] if group is None else [str(group + report.index_base)]
    cells += [trait.name, f"{trait.score:.3f}", f"{trait.base_rate:.3f}"]
    return cells + ["–" if value is None else f"{value:.3f}" for value in scores.scores.values()]
