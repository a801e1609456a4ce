"""The document of ``attnviz retrieve``: the finding, the grid of heads, the ranking."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from attnviz.count.params.params import SHORT_RECENT, SHORT_SINK
from attnviz.draw import document as doc
from attnviz.draw.numbers import NumberScale, counted, listed, percent
from attnviz.draw.palette import STEPS
from attnviz.draw.provenance import fits_two_lines, model_words, named, share
from attnviz.inspect.retrieve.haystacks import DEPTHS
from attnviz.inspect.retrieve.report import (
    RECENT,
    SINK,
    STREAMS,
    HeadRetrieval,
    LossChange,
    RetrieveReport,
)
from attnviz.measures.bootstrap import LEAST_TEXTS
from attnviz.models.memory import byte_text

_NAMED = 3  # the most heads that the finding names


def document(report: RetrieveReport) -> doc.Document:
    """Return the document: scores of all heads, the best one by length and depth, the ranking."""
    info = report.model
    lengths = listed([f"{length:,}" for length in report.lengths])
    size = f"{counted(report.haystacks, 'haystack')} of {lengths} tokens"
    facts = [size, counted(report.questions, "question")]
    facts.append(f"{percent(report.predicted, whole=True)} of answer tokens predicted")
    facts += ["asked in a chat"] * report.chat
    source = report.source
    if report.texts is not None:
        source = f"{counted(report.texts, 'text')}{f' of {source}' if source else ''}"
    about = [(fact, False) for fact in (*facts, f"hidden in {source}")]
    text = ["--haystack FILE"] * (report.texts is None)
    further = ["--needle 'CUE|ANSWER'", *text, "--lengths 1k,4k", "--save heads.tsv"]
    names = f"retrieval heads of {info.name}", f"Retrieval heads of {info.name}"
    if not report.heads:  # of a shard without a text
        words = [*about[:1], *[(note, False) for note in report.notes]]
        groups = [doc.Group([doc.Facts(model_words(info))]), doc.Group([doc.Facts(words)])]
        return doc.Document(*names, groups, finding="No haystack was measured.")
    return doc.Document(
        *names,
        [
            doc.Group([doc.Facts([*model_words(info), (f"seed {report.seed}", False)])]),
            doc.Group([doc.Facts(about)]),
            doc.Group([doc.Note(note) for note in (*info.notes, *report.notes)]),
            doc.Group([_grid(report)]),
            doc.Group([_depths(report)]),
            doc.Group([_table(report, report.top)]),
            doc.Group([_table(report, len(report.heads))], full=True),
            doc.Group([doc.Say(text) for text in _more(report)]),
        ],
        doc.Explanation("retrieve", f"measured on {size}, seed {report.seed}."),
        doc.next_steps((*further, "--explain"), tone="faint"),
        heading=[*named(info), *((fact, False) for fact in facts)],
        finding=_finding(report),
        first=partial(_first, report),
    )


def _finding(report: RetrieveReport) -> str:
    best, without, random = report.heads[0], report.without, report.random
    shown = report.named or (best,)
    unasked, shuffled = (max(getattr(head, of) for head in shown) for of in ("unasked", "shuffled"))
    chance = f"(not asked for {share(unasked)}, words shuffled {share(shuffled)})"
    if not report.named:
        few = report.haystacks < LEAST_TEXTS
        lead = "Too few haystacks to name a head" if few else "No head fetches the needle"
        score = f"{share(best.score)} by {report.head_name(best.place)} {chance}"
        return f"{lead}: the highest score of {len(report.heads)} is {score}."
    names = [f"{report.head_name(head.place)} {share(head.score)}" for head in shown]
    verb, them = ("fetch", "them") if len(shown) > 1 else ("fetches", "it")
    fetches = f"{_listed(names)} {verb} the needle"
    if without is None:
        return f"{fetches} {chance}."
    if {head.place for head in shown} != set(report.ablated):
        them = _listed([*map(report.head_name, report.ablated)])
    heads, words = counted(len(report.ablated), "random head"), ""
    for bases, ends in ((f" {chance}", True), ("", True), ("", False)):
        words = f"{fetches}{bases}; without {them} the answer's loss {_change(without)}"
        if random is not None:
            low, high = random.ci_low, random.ci_high
            unclear = low is not None and high is not None and low <= 0 <= high
            words += (
                f", but not clearly without {heads}"
                if unclear
                else f", without {heads} it {_change(random, ends)}"
            )
        if fits_two_lines(f"{words}."):
            break
    return f"{words}."


def _listed(names: Sequence[str]) -> str:
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return listed([*names[:_NAMED], *more])


def _change(change: LossChange, whole: bool = True) -> str:
    words = f"{'rises' if change.value > 0 else 'falls'} by {abs(change.value):.2f}"
    words += " nats" * whole
    if not whole or change.ci_low is None or change.ci_high is None:
        return words
    return f"{words} ({change.ci_low:+.2f} to {change.ci_high:+.2f})"


def _more(report: RetrieveReport) -> list[str]:
    count, heads = sum(head.streams for head in report.heads), counted(len(report.heads), "head")
    words = [
        f"Streaming: {count} of {heads} keep {STREAMS:.0%} of their weight on the first {SINK} and "
        f"the last {RECENT} tokens."
    ]
    if report.caches:
        sizes = [
            f"{own.tokens:,} tokens would take {byte_text(own.short)}, not {byte_text(own.whole)}"
            for own in report.caches
        ]
        words.append(
            f"Cache: if the other heads kept only the first {SHORT_SINK} and last {SHORT_RECENT}, "
            f"{listed(sizes)} ({report.caches[0].dtype})."
        )
    return words


def _first(report: RetrieveReport, columns: int, lines: int) -> Sequence[doc.Group]:
    grids = [_grid(report)._replace(scale=None), _depths(report)]
    both = doc.Group(grids, beside=doc.Beside(0))
    table = _table(report, len(report.heads))._replace(least=min(3, len(report.heads)))
    return [both, doc.Group([table]), doc.Group([*map(doc.Say, _more(report))], yields=1)]


def _grid(report: RetrieveReport) -> doc.HeadGrid:
    cells = {
        head.place: _cell(head.score, report.head_name(head.place), _label(head))
        for head in report.heads
    }
    legend = doc.WEIGHTS._replace(words="score", after="colour: √score")
    return doc.head_grid(cells, report.index_base, title=[("Retrieval score", True)], scale=legend)


def _cell(value: float, name: str, label: str = "") -> doc.Cell:
    root, text = value**0.5, share(value)
    tint, tip = doc.Tint(round(root * (STEPS - 1))), f"{name}: {text}"
    return doc.Cell(root, tint, text, tip=tip, values={"score": value}, label=label)


def _label(head: HeadRetrieval) -> str:
    return "retrieval" if head.retrieves else "streaming" if head.streams else ""


def _depths(report: RetrieveReport) -> doc.HeadGrid:
    name = report.head_name(report.heads[0].place)
    rows = [f"{length:,} tokens" for length in report.lengths]
    cells = {
        (report.lengths.index(length), depth): _cell(value, f"{name}, {length:,} tokens, {depth}")
        for (length, depth), value in report.cells.items()
    }
    title: doc.Words = [(f"{name} by length and depth", True)]
    return doc.HeadGrid(rows, [f"{depth:.0%}" for depth in DEPTHS], cells, title)


def _table(report: RetrieveReport, most: int) -> doc.Table:
    shown = sorted(report.heads[:most], key=lambda head: not head.retrieves)
    scale = NumberScale.over(head.written for head in shown if head.written is not None)

    def interval(head: HeadRetrieval) -> str:
        low, high = head.ci_low, head.ci_high
        return "" if low is None or high is None else f"{share(low)}–{share(high)}"

    columns: tuple[doc.ColumnOf[HeadRetrieval], ...] = (
        doc.ColumnOf("", lambda head: report.head_name(head.place), right=False),
        doc.ColumnOf("score", lambda head: share(head.score)),
        doc.ColumnOf("95% CI", interval),
        doc.ColumnOf("unasked", lambda head: share(head.unasked)),
        doc.ColumnOf("shuffled", lambda head: share(head.shuffled)),
        doc.ColumnOf(
            f"writes{scale.times}",
            lambda head: "" if head.written is None else scale.text(head.written),
        ),
        doc.ColumnOf("near", lambda head: share(head.near)),
        doc.ColumnOf("", _label, right=False, tone="faint"),
    )
    return doc.table(
        shown,
        *(column for column in columns if any(map(column.write, shown))),
        row=lambda head: {"bar": (head.score, 1.0), "tone": "plain" if head.retrieves else "faint"},
        title=[("Ranking", True)],
        ranked=True,
    )
