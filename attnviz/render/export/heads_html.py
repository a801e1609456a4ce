"""``--save FILE.html``: the report as one page that loads nothing, light or dark as one reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnviz.records import HeadScores, HeadsReport
from attnviz.render.export.legend_figure import legend_drawing
from attnviz.render.export.map_figure import map_drawing
from attnviz.render.export.overview_figure import overview_drawing, pooling_words
from attnviz.render.export.svg import STYLE, safe, svg_element
from attnviz.render.export.words import mapped_heads, run_lines, text_lines

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["PAGE_POLICY", "PAGE_STYLE", "write_heads_html"]

PAGE_STYLE = """
:root { color-scheme: light dark; }
body { margin: 2rem auto; padding: 0 1.5rem; max-width: 90rem; background: #ffffff; color: #1f2328;
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans", "Noto Sans CJK KR",
  "DejaVu Sans", sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2rem 0 .6rem; }
p { margin: .15rem 0; color: #667080; overflow-wrap: anywhere; }
a { color: inherit; }
.scroll { overflow-x: auto; }
.maps { display: flex; flex-wrap: wrap; gap: 2rem; }
.maps > div { max-width: 100%; overflow-x: auto; }
svg { display: block; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #d0d5dc;
  white-space: nowrap; }
th { position: sticky; top: 0; background: #ffffff; font-weight: 600; }
th.word, td.word { text-align: left; }
@media (prefers-color-scheme: dark) {
  body { background: #12161c; color: #e8ebf0; }
  p { color: #98a2b0; }
  th { background: #12161c; }
  th, td { border-color: #39414c; }
}
"""
"""What every page of attnviz looks like."""

PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""A second lock: even a token that got past the escaping could load and run nothing."""


def _cell(content: str, kind: str = "td", word: bool = False) -> str:
    opening = f'{kind} class="word"' if word else kind
    return f"<{opening}>{content}</{kind}>"


def _score_row(report: HeadsReport, scores: HeadScores, linked: bool) -> str:
    """One head's line in the table of scores."""
    name = report.name(scores.layer, scores.head)
    group = report.record.model.group(scores.head)
    cells = [_cell(f'<a href="#{name}">{name}</a>' if linked else name, word=True)]
    if report.record.model.group(0) is not None:
        cells.append(_cell("" if group is None else str(group + report.index_base)))
    cells += [
        _cell(safe(scores.trait.name), word=True),
        _cell(f"{scores.trait.score:.3f}"),
        _cell(f"{scores.trait.base_rate:.3f}"),
    ]
    values = scores.scores.values()
    cells += [_cell("–" if value is None else f"{value:.3f}") for value in values]
    return f"<tr>{''.join(cells)}</tr>"


def _table(report: HeadsReport) -> Iterator[str]:
    """Every score of every kept head; a dash where the text cannot show it."""
    names = ["head", "trait", "score", "even spread"]
    if report.record.model.group(0) is not None:
        names.insert(1, "key/value head")
    names += [name.replace("_", " ") for name in report.heads[0].scores]
    heads = [_cell(safe(name), "th", name in ("head", "trait")) for name in names]
    mapped = {(scores.layer, scores.head) for scores in mapped_heads(report)}
    yield f'<h2>Scores</h2>\n<div class="scroll"><table>\n<thead><tr>{"".join(heads)}</tr></thead>'
    yield "<tbody>"
    for scores in report.heads:
        yield _score_row(report, scores, (scores.layer, scores.head) in mapped)
    yield "</tbody>\n</table></div>"


def _figures(report: HeadsReport, palette: str) -> Iterator[str]:
    yield svg_element(legend_drawing(), palette)
    if not report.selected:
        yield "<h2>All heads</h2>"
        if pooling := pooling_words(report):
            yield f"<p>{safe(pooling)}</p>"
        yield f'<div class="scroll">{svg_element(overview_drawing(report), palette)}</div>'
        yield "<h2>The most telling heads</h2>"
    yield '<div class="maps">'
    for scores in mapped_heads(report):
        drawn = svg_element(map_drawing(report, scores, palette), palette)
        yield f'<div id="{report.name(scores.layer, scores.head)}">{drawn}</div>'
    yield "</div>"


def _page(report: HeadsReport, text: str, target: str | None, palette: str) -> Iterator[str]:
    title, *lines = [*text_lines(text, target), *run_lines(report)]
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>'
    yield f'<meta http-equiv="Content-Security-Policy" content="{PAGE_POLICY}"/>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
    yield f"<title>attention heads of {safe(report.record.model.name)}</title>"
    yield f"<style>{PAGE_STYLE}{STYLE}</style>\n</head>\n<body>\n<h1>{safe(title)}</h1>"
    for line in lines:
        yield f"<p>{safe(line)}</p>"
    yield from _figures(report, palette)
    yield from _table(report)
    yield "</body>\n</html>"


def write_heads_html(
    report: HeadsReport, text: str, target: str | None, palette: str, stream: SupportsWrite[str]
) -> None:
    """Write the figures of the SVG, each on its own, and a table of every head's scores."""
    for piece in _page(report, text, target, palette):
        stream.write(piece + "\n")
