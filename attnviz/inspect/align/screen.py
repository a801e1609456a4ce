"""The document of ``align``: sets of heads, every head alone, the curve, and the words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted
from attnviz.draw.provenance import model_words, named
from attnviz.inspect.align.report import AlignReport, HeadErrors, HeadSet

_NAMED = 6  # the most heads that a table names
_SHOWN = 200  # the most words of a table; files have all


class _Scale(NamedTuple):
    """How errors are told. factor, digits: of a number. noun: of an example."""

    title: str
    unit: str
    factor: float
    digits: int
    noun: str

    def write(self, error: float, sign: str = "") -> str:
        return f"{error * self.factor:{sign}.{self.digits}f}"


_TIMES = _Scale("error of word beginnings in ms", "ms", 1000, 0, "clip")
_LINKS = _Scale("alignment error rate in %", "%", 100, 1, "pair")


def _scale(report: AlignReport) -> _Scale:
    return _LINKS if report.frame is None else _TIMES


def _by(name: str) -> str:
    return f"the {name}" if name in ("published list", "diagonal") else name


def _rows(report: AlignReport) -> str:
    return f"the steps that {report.recipe.removesuffix('s')} a word"


def document(report: AlignReport) -> doc.Document:
    """Return the document: how well sets of heads and each head align words."""
    held, noun = len(report.held), _scale(report).noun
    examples = f"{held} of {held + len(report.choosing)} {noun}s held out"
    words = counted(len(report.words), "word")
    recipe = f"recipe of {report.recipe}" if report.frame else f"rows: {_rows(report)}"
    about = [*model_words(report.model), (examples, False), (words, False), (recipe, False)]
    tables = (_grid(report), _curve(report), _ranking(report), _words(report))
    hints = ["--save heads.json", "--recipe transformers", "--explain"]
    return doc.Document(
        f"alignment heads of {report.model.name}",
        f"Alignment heads of {report.model.name}",
        [
            doc.Group([doc.Facts(about)]),
            *[doc.Group(list(map(doc.Note, report.notes)))] * bool(report.notes),
            doc.Group(_sets(report)),
            *(doc.Group([table]) for table in tables),
        ],
        doc.Explanation("align", f"measured on {examples}, {words}."),
        doc.next_steps(hints if report.frame else hints[::2], tone="faint"),
        heading=[*named(report.model), (examples, False), (words, False)],
        finding=_finding(report),
        first=partial(_first, report),
    )


def _finding(report: AlignReport) -> str:
    scale = _scale(report)
    verb = "times" if report.frame else "links"
    if report.model.weights == "random" or report.model.untrained:
        return f"The weights are untrained: no set of heads {verb} words, and none is recommended."
    chosen = report.sets[0]
    others = [other for other in report.sets[1:] if not other.name.startswith("chosen")]
    heads = counted(len(chosen.heads), "chosen head")
    told = ", ".join(f"by {_by(other.name)} {scale.write(other.error)}" for other in others)
    claim = f"Alignment error rate {scale.write(chosen.error)}% by {heads} ({_rows(report)})"
    if report.frame:
        claim = f"Words begin {scale.write(chosen.error)} ms off by {heads}"
    sentence = f"{claim}, on {counted(len(report.held), f'held-out {scale.noun}')}; {told}."
    if chosen.error >= others[-1].error:
        return f"{sentence} No heads {verb[:-1]} these words better than {_by(others[-1].name)}."
    rival = next((other for other in others if other.name == "published list"), None)
    rival = rival if report.frame else min(others, key=lambda other: other.error)
    if rival is None:
        return sentence
    if chosen.error > rival.error:
        return f"{sentence} Keep {_by(rival.name)}."
    if rival.apart is None or rival.apart[1] >= 0:
        return f"{sentence} Better than {_by(rival.name)} by no more than chance."
    return f"{sentence} Better than {_by(rival.name)} beyond chance."


def _names(report: AlignReport, heads: Sequence[tuple[int, int]]) -> str:
    names = [report.head_name(*head) for head in sorted(heads)[:_NAMED]]
    more = f" and {len(heads) - _NAMED} more" if len(heads) > _NAMED else ""
    return " ".join(names) + more


def _sets(report: AlignReport) -> tuple[doc.Table, doc.Facts]:
    """Return the table of sets, and the chosen heads as ``generation_config`` takes them."""
    scale, most = _scale(report), max(heads.error for heads in report.sets)

    def span(interval: tuple[float, float] | None, sign: str = "") -> str:
        return "–" if interval is None else " to ".join(scale.write(end, sign) for end in interval)

    if report.frame:
        further: list[doc.ColumnOf[HeadSet]] = [
            doc.ColumnOf("median", lambda row: scale.write(row.further["median"]), keep=7),
            doc.ColumnOf("over 200 ms", lambda row: f"{row.further['late']:.0%}", keep=6),
        ]
    else:
        further = [
            doc.ColumnOf("precision", lambda row: scale.write(row.further["precision"]), keep=6),
            doc.ColumnOf("recall", lambda row: scale.write(row.further["recall"]), keep=7),
            doc.ColumnOf("row", lambda row: row.reading, right=False, keep=8),
        ]
    columns: list[doc.ColumnOf[HeadSet]] = [
        doc.ColumnOf("set", lambda row: row.name, right=False),
        doc.ColumnOf("error", lambda row: scale.write(row.error)),
        doc.ColumnOf("95% CI", lambda row: span(row.interval), keep=5),
        doc.ColumnOf("chosen less", lambda row: span(row.apart, "+"), keep=4),
        *further,
        doc.ColumnOf("heads", lambda row: _names(report, row.heads), right=False, keep=3),
    ]
    table = doc.table(
        report.sets,
        *columns,
        row=lambda row: {"bar": (row.error, most), "tone": "plain"},
        title=[("Sets of heads", True), (f"{scale.title}, held-out {scale.noun}s", False)],
    )
    return table, doc.Facts([(f"alignment_heads = {report.alignment_heads}", False)])


def _ranking(report: AlignReport) -> doc.Table:
    """Return every head alone, the least error where heads were chosen first."""
    scale = _scale(report)
    ranked = sorted(report.heads, key=lambda head: head.choosing)
    most = max(head.choosing for head in ranked)
    return doc.table(
        ranked,
        doc.ColumnOf[HeadErrors](
            "head", lambda head: report.head_name(head.layer, head.head), right=False
        ),
        doc.ColumnOf("choosing", lambda head: scale.write(head.choosing)),
        doc.ColumnOf("held out", lambda head: scale.write(head.held)),
        row=lambda head: {"bar": (head.choosing, most), "tone": "plain"},
        title=[("Each head alone", True), (scale.title, False)],
        least=6,
    )


def _words(report: AlignReport) -> doc.Table:
    columns: list[doc.ColumnOf[Any]] = [doc.ColumnOf("word", lambda word: word.word, right=False)]
    if report.frame:
        columns += [
            doc.ColumnOf("start", lambda word: f"{word.start:.2f}"),
            doc.ColumnOf("by heads", lambda word: f"{word.by_heads:.2f}"),
            doc.ColumnOf("end", lambda word: f"{word.end:.2f}"),
            doc.ColumnOf("by heads", lambda word: f"{word.end_by_heads:.2f}"),
            doc.ColumnOf("off in ms", lambda word: f"{(word.by_heads - word.start) * 1000:+.0f}"),
            doc.ColumnOf("clip", lambda word: word.clip, right=False),
        ]
    else:
        columns += [
            doc.ColumnOf("by heads", lambda word: word.by_heads, right=False),
            doc.ColumnOf("gold", lambda word: word.gold or "–", right=False),
            doc.ColumnOf("link", lambda word: word.link, right=False),
            doc.ColumnOf("line", lambda word: word.pair),
        ]
    title = [("Words", True), (f"held-out {_scale(report).noun}s", False)]
    title += [("seconds", False)] if report.frame else []
    count = len(report.words)
    title += [(f"the first {_SHOWN} of {count:,}", False)] if count > _SHOWN else []
    return doc.table(report.words[:_SHOWN], *columns, title=title, least=4)


def _grid(report: AlignReport) -> doc.HeadGrid:
    """Return the held-out error of each head alone, and which are chosen or published."""
    scale = _scale(report)
    least, most = (choose(head.held for head in report.heads) for choose in (min, max))
    cells = {}
    for head in report.heads:
        key = head.layer, head.head
        near = (most - head.held) / (most - least) if most > least else 0.0
        letter = "c" * (key in report.sets[0].heads) + "p" * (key in report.published)
        cells[key] = doc.Cell(
            near,
            doc.Tint(round(255 * near)),
            text=scale.write(head.held).partition(".")[0],
            letter=letter,
            tip=f"{report.head_name(*key)}: {scale.write(head.held)} {scale.unit}",
            values={"error": head.held},
        )
    legend = [doc.Key(None, "chosen", "c")]
    legend += [doc.Key(None, "published", "p")] if report.published else []
    title = [("Each head alone", True), (f"held-out {scale.title}", False)]
    return doc.head_grid(cells, report.index_base, title=title, key=legend)


def _curve(report: AlignReport) -> doc.Plot:
    scale = _scale(report)
    levels = [
        doc.Level(control.error * scale.factor, control.name)
        for control in report.sets[1:]
        if control.name in ("published list", "all of the last half")
    ]
    lines = [
        doc.Curve(
            name,
            [
                (at + 1.0, getattr(step, half) * scale.factor)
                for at, step in enumerate(report.steps)
            ],
        )
        for name, half in (("where chosen", "choosing"), ("held out", "held"))
    ]
    title = [("Error by number of heads", True), (scale.title, False)]
    ends = (1.0, float(max(len(report.steps), 2)))
    return doc.Plot(title, lines, across="heads", ends=ends, levels=levels, rows=10)


def _first(report: AlignReport, columns: int, lines: int) -> Sequence[doc.Group]:
    sets = doc.Group(_sets(report))
    grid, curve = doc.Group([_grid(report)], yields=1), doc.Group([_curve(report)], yields=2)
    words = doc.Group([_words(report)], yields=3)
    if columns < 100:
        return [sets, grid, curve, words]
    return [sets, doc.beside(_grid(report), _curve(report)), words]
