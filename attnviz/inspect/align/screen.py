"""The document of ``align``: sets of heads, every head alone, the curve, and the words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted
from attnviz.draw.provenance import model_words, named
from attnviz.inspect.align.report import AlignReport, HeadAlone, HeadSet, TimedWord

_NAMED = 6
"""The most heads that a table names."""


def document(report: AlignReport) -> doc.Document:
    """Return the document: how well sets of heads and each head time words."""
    clips = f"{len(report.held)} of {len(report.held) + len(report.choosing)} clips held out"
    words = counted(len(report.words), "word")
    about = [*model_words(report.model), (clips, False), (words, False)]
    about += [(f"recipe of {report.recipe}", False)]
    parts: list[doc.Group] = [doc.Group([doc.Facts(about)])]
    parts += [doc.Group([doc.Note(note) for note in report.notes])] if report.notes else []
    parts += [doc.Group([_sets(report), _listed(report)]), doc.Group([_grid(report)])]
    parts += [doc.Group([_curve(report)]), doc.Group([_ranking(report)])]
    parts += [doc.Group([_words(report)])]
    return doc.Document(
        f"alignment heads of {report.model.name}",
        f"Alignment heads of {report.model.name}",
        parts,
        doc.Explanation("align", f"measured on {clips}, {words}."),
        doc.next_steps(["--save heads.json", "--recipe transformers", "--explain"], tone="faint"),
        heading=[*named(report.model), (clips, False), (words, False)],
        finding=_finding(report),
        first=partial(_first, report),
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f}"


def _finding(report: AlignReport) -> str:
    """Return how well the chosen heads time words, beside each control."""
    if report.model.weights == "random" or report.model.untrained:
        return "The weights are untrained: no set of heads times words, and none is recommended."
    chosen, *others = report.sets
    heads = counted(len(chosen.heads), "chosen head")
    told = [f"{_by(other)} {_ms(other.error)}" for other in others]
    sentence = (
        f"Words begin {_ms(chosen.error)} ms off by {heads}, on {len(report.held)} held-out "
        f"{'clip' if len(report.held) == 1 else 'clips'}; {', '.join(told)}."
    )
    even = next(other for other in others if other.name == "even spacing")
    if chosen.error >= even.error:
        return f"{sentence} No heads time these words better than even spacing."
    listed = next((other for other in others if other.name == "published list"), None)
    if listed is None:
        return sentence
    if chosen.error > listed.error:
        return f"{sentence} Keep the published list."
    if listed.apart is None or listed.apart[1] >= 0:
        return f"{sentence} Better than the published list by no more than chance."
    return f"{sentence} Better than the published list beyond chance."


def _by(other: HeadSet) -> str:
    words = {"published list": "by the published list", "even spacing": "by even spacing"}
    words |= {"all of the last half": "by all of the last half", "random heads": "by random heads"}
    return words[other.name]


# Tables --------------------------------------------------------------------------------------


def _names(report: AlignReport, heads: Sequence[tuple[int, int]]) -> str:
    names = [report.head_name(*head) for head in sorted(heads)[:_NAMED]]
    more = f" and {len(heads) - _NAMED} more" if len(heads) > _NAMED else ""
    return " ".join(names) + more


def _span(interval: tuple[float, float] | None, sign: str = "") -> str:
    if interval is None:
        return "–"
    return " to ".join(f"{end * 1000:{sign}.0f}" for end in interval)


def _sets(report: AlignReport) -> doc.Table:
    """Return the sets of heads with their errors, the chosen first."""
    most = max(one.error for one in report.sets)
    title = [("Sets of heads", True), ("error of word beginnings in ms, held-out clips", False)]
    columns: list[doc.ColumnOf[HeadSet]] = [
        doc.ColumnOf("set", lambda one: one.name, right=False),
        doc.ColumnOf("error", lambda one: _ms(one.error)),
        doc.ColumnOf("95%", lambda one: _span(one.interval), keep=5),
        doc.ColumnOf("chosen less", lambda one: _span(one.apart, "+"), keep=4),
        doc.ColumnOf("median", lambda one: _ms(one.median), keep=7),
        doc.ColumnOf("over 200 ms", lambda one: f"{one.late:.0%}", keep=6),
        doc.ColumnOf("heads", lambda one: _names(report, one.heads), right=False, keep=3),
    ]
    return doc.table(
        report.sets,
        *columns,
        row=lambda one: {"bar": (one.error, most), "tone": "plain"},
        title=title,
    )


def _listed(report: AlignReport) -> doc.Facts:
    """Return the chosen heads as they are written into ``generation_config``."""
    return doc.Facts([(f"alignment_heads = {report.alignment_heads}", False)])


def _ranking(report: AlignReport) -> doc.Table:
    """Return every head alone, the least error where heads were chosen first."""
    ranked = sorted(report.heads, key=lambda head: head.choosing)
    most = max(head.choosing for head in ranked)
    return doc.table(
        ranked,
        doc.ColumnOf[HeadAlone](
            "head", lambda head: report.head_name(head.layer, head.head), right=False
        ),
        doc.ColumnOf("choosing", lambda head: _ms(head.choosing)),
        doc.ColumnOf("held out", lambda head: _ms(head.held)),
        row=lambda head: {"bar": (head.choosing, most), "tone": "plain"},
        title=[("Each head alone", True), ("error in ms", False)],
        least=6,
    )


def _words(report: AlignReport) -> doc.Table:
    """Return each word of the held-out clips, its times beside the truth."""
    columns: list[doc.ColumnOf[TimedWord]] = [
        doc.ColumnOf("word", lambda word: word.word, right=False),
        doc.ColumnOf("start", lambda word: f"{word.start:.2f}"),
        doc.ColumnOf("by heads", lambda word: f"{word.by_heads:.2f}"),
        doc.ColumnOf("end", lambda word: f"{word.end:.2f}"),
        doc.ColumnOf("by heads", lambda word: f"{word.end_by_heads:.2f}"),
        doc.ColumnOf("off in ms", lambda word: f"{(word.by_heads - word.start) * 1000:+.0f}"),
        doc.ColumnOf("clip", lambda word: word.clip, right=False),
    ]
    return doc.table(
        report.words,
        *columns,
        title=[("Words", True), ("seconds, held-out clips", False)],
        least=4,
    )


def _grid(report: AlignReport) -> doc.HeadGrid:
    """Return the held-out error of each head alone, and which are chosen or published."""
    least, most = (choose(head.held for head in report.heads) for choose in (min, max))
    cells = {}
    for head in report.heads:
        place = head.layer, head.head
        near = (most - head.held) / (most - least) if most > least else 0.0
        letter = "c" * (place in report.sets[0].heads) + "p" * (place in report.published)
        cells[place] = doc.Cell(
            near,
            doc.Tint(round(255 * near)),
            text=_ms(head.held),
            letter=letter,
            tip=f"{report.head_name(*place)}: {_ms(head.held)} ms",
            values={"error": head.held},
        )
    key = [doc.Key(None, "chosen", "c")]
    key += [doc.Key(None, "published", "p")] if report.published else []
    title = [("Each head alone", True), ("held-out error in ms", False)]
    return doc.head_grid(cells, report.index_base, title=title, key=key)


def _curve(report: AlignReport) -> doc.Plot:
    """Return the error by the number of heads, on both halves of the clips."""
    levels = [
        doc.Level(one.error * 1000, one.name)
        for one in report.sets[1:]
        if one.name in ("published list", "all of the last half")
    ]
    lines = [
        doc.Curve(
            name,
            [(at + 1.0, getattr(step, half) * 1000) for at, step in enumerate(report.steps)],
        )
        for name, half in (("where chosen", "choosing"), ("held out", "held"))
    ]
    title = [("Error by number of heads", True), ("ms", False)]
    ends = (1.0, float(max(len(report.steps), 2)))
    return doc.Plot(title, lines, across="heads", ends=ends, levels=levels, rows=10)


def _first(report: AlignReport, columns: int, lines: int) -> Sequence[doc.Group]:
    """Return the sets, every head, the curve and words, as far as they fit."""
    sets = doc.Group([_sets(report), _listed(report)])
    grid, curve = doc.Group([_grid(report)], yields=1), doc.Group([_curve(report)], yields=2)
    words = doc.Group([_words(report)], yields=3)
    if columns < 100:
        return [sets, grid, curve, words]
    return [sets, doc.beside(_grid(report), _curve(report)), words]
