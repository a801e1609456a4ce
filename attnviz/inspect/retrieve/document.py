"""The document of ``attnviz retrieve``: the finding, the grid of heads, the ranking."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from attnviz.count.params.head_cost import SHORT_RECENT, SHORT_SINK
from attnviz.draw import document as doc
from attnviz.draw.numbers import NumberScale, counted, listed, percent
from attnviz.draw.palette import STEPS
from attnviz.draw.provenance import fits_two_lines, model_words, named, share
from attnviz.draw.signed import ranked_table
from attnviz.inspect.retrieve.haystacks import DEPTHS
from attnviz.inspect.retrieve.records import (
    RECENT,
    SINK,
    STREAMS,
    HeadRetrieval,
    LossChange,
    RetrieveReport,
)
from attnviz.measures.bootstrap import LEAST_TEXTS
from attnviz.models.memory import byte_text

_NAMED = 3
"""The most heads that the finding names."""


def retrieve_document(report: RetrieveReport) -> doc.Document:
    """Return the document: scores of all heads, the best one by length and depth, the ranking."""
    info = report.model
    lengths = listed([f"{length:,}" for length in report.lengths])
    size = f"{counted(report.haystacks, 'haystack')} of {lengths} tokens"
    facts = [size, counted(report.questions, "question")]
    facts.append(f"{percent(report.predicted, whole=True)} of answer tokens predicted")
    if report.chat:
        facts.append("asked in a chat")
    one = ["--haystack FILE"] * (report.texts is None)
    further = ["--needle 'CUE|ANSWER'", *one, "--lengths 1k,4k", "--save heads.tsv"]
    about = [(fact, False) for fact in (*facts, f"hidden in {_place(report)}")]
    if not report.heads:  # of a shard without a text
        said = [*about[:1], *[(note, False) for note in report.notes]]
        groups = [doc.Group([doc.Facts([*model_words(info)])]), doc.Group([doc.Facts(said)])]
        return doc.Document(
            f"retrieval heads of {info.name}",
            f"Retrieval heads of {info.name}",
            groups,
            finding="No haystack was measured.",
        )
    return doc.Document(
        f"retrieval heads of {info.name}",
        f"Retrieval heads of {info.name}",
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


def _place(report: RetrieveReport) -> str:
    """Return what the needles are hidden in: a source, or the texts of one."""
    if report.texts is None:
        return report.source
    return f"{counted(report.texts, 'text')}{f' of {report.source}' if report.source else ''}"


def _finding(report: RetrieveReport) -> str:
    """Return the finding: the retrieval heads, their base rates, the loss without them."""
    found, best = report.named, report.heads[0]
    shown = found or (best,)
    bases = [max(getattr(one, name) for one in shown) for name in ("unasked", "shuffled")]
    chance = f"(not asked for {share(bases[0])}, words shuffled {share(bases[1])})"
    if not found:
        few = report.haystacks < LEAST_TEXTS
        lead = "Too few haystacks to name a head" if few else "No head fetches the needle"
        score = f"{share(best.score)} by {report.head_name(best.place)} {chance}"
        return f"{lead}: the highest score of {len(report.heads)} is {score}."
    names = [f"{report.head_name(one.place)} {share(one.score)}" for one in found]
    names = _shortened(names)
    verb, them = ("fetch", "them") if len(found) > 1 else ("fetches", "it")
    fetches = f"{listed(names)} {verb} the needle"
    if report.without is None:
        return f"{fetches} {chance}."
    if {one.place for one in found} != set(report.ablated):
        them = listed(_shortened([report.head_name(place) for place in report.ablated]))
    without = f"; without {them} the answer's loss "
    told = ""
    for bases_said, ends in ((f" {chance}", True), ("", True), ("", False)):
        told = f"{fetches}{bases_said}{without}{_change(report.without)}"
        if report.random is not None:
            heads = counted(len(report.ablated), "random head")
            told += (
                f", but not clearly without {heads}"
                if _is_unclear(report.random)
                else f", without {heads} it {_change(report.random, ends)}"
            )
        if fits_two_lines(f"{told}."):
            break
    return f"{told}."


def _shortened(names: Sequence[str]) -> list[str]:
    """Return the first names and the number of the others."""
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return [*names[:_NAMED], *more]


def _is_unclear(change: LossChange) -> bool:
    """Return True if the interval of a change has zero in it."""
    low, high = change.ci_low, change.ci_high
    return low is not None and high is not None and low <= 0 <= high


def _change(change: LossChange, whole: bool = True) -> str:
    """Return a verb and by how much the loss changes; ``whole`` adds the unit and the interval."""
    said = f"{'rises' if change.value > 0 else 'falls'} by {abs(change.value):.2f}"
    if not whole:
        return said
    if change.ci_low is None or change.ci_high is None:
        return f"{said} nats"
    return f"{said} nats ({change.ci_low:+.2f} to {change.ci_high:+.2f})"


def _more(report: RetrieveReport) -> list[str]:
    """Return sentences on streaming heads, and on the cache that other heads could have."""
    count, heads = sum(one.streams for one in report.heads), counted(len(report.heads), "head")
    told = [
        f"Streaming: {count} of {heads} keep {STREAMS:.0%} of their weight on the first {SINK} and "
        f"the last {RECENT} tokens."
    ]
    if report.caches:
        sizes = [
            f"{one.tokens:,} tokens take {byte_text(one.short)}, not {byte_text(one.whole)}"
            for one in report.caches
        ]
        told.append(
            f"Cache: if the other heads kept the first {SHORT_SINK} and the last {SHORT_RECENT}, "
            f"{listed(sizes)} ({report.caches[0].dtype})."
        )
    return told


def _first(report: RetrieveReport, columns: int, lines: int) -> Sequence[doc.Group]:
    """Return the first screen: the grid next to that of the best head, the ranking, the rest."""
    grids = [_grid(report)._replace(scale=None), _depths(report)]
    both = doc.Group(grids, beside=doc.Beside(0))
    table = _table(report, len(report.heads))._replace(least=min(3, len(report.heads)))
    return [both, doc.Group([table]), doc.Group([*map(doc.Say, _more(report))], yields=1)]


def _cell(value: float, name: str, label: str = "") -> doc.Cell:
    root, text = value**0.5, share(value)
    tint, tip = doc.Tint(round(root * (STEPS - 1))), f"{name}: {text}"
    return doc.Cell(root, tint, text, tip=tip, values={"score": value}, label=label)


def _grid(report: RetrieveReport) -> doc.HeadGrid:
    layers, heads = (sorted({one.place[axis] for one in report.heads}) for axis in (0, 1))
    cells = {
        (layers.index(one.layer), heads.index(one.head)): _cell(
            one.score, report.head_name(one.place), _label(one)
        )
        for one in report.heads
    }
    rows = [f"L{layer + report.index_base}" for layer in layers]
    columns = [f"H{head + report.index_base}" for head in heads]
    legend = doc.WEIGHTS._replace(words="score", after="colour: √score")
    return doc.HeadGrid(rows, columns, cells, [("Retrieval score", True)], (), legend)


def _label(one: HeadRetrieval) -> str:
    return "retrieval" if one.retrieves else "streaming" if one.streams else ""


def _depths(report: RetrieveReport) -> doc.HeadGrid:
    """Return the grid of the best head: its score by the length and the depth of the needle."""
    name = report.head_name(report.heads[0].place)
    rows, columns = (
        [f"{length:,} tokens" for length in report.lengths],
        [f"{d:.0%}" for d in DEPTHS],
    )
    cells = {
        (report.lengths.index(length), depth): _cell(value, f"{name}, {length:,} tokens, {depth}")
        for (length, depth), value in report.cells.items()
    }
    return doc.HeadGrid(rows, columns, cells, [(f"{name} by length and depth", True)])


def _table(report: RetrieveReport, most: int) -> doc.Table:
    """Return the ranking: a row for each head, faint if it is no retrieval head."""
    shown = report.heads[:most]
    write = NumberScale.over(one.written for one in shown if one.written is not None)
    ends = [(one.ci_low, one.ci_high) for one in shown]
    return ranked_table(
        "Ranking",
        [report.head_name(one.place) for one in shown],
        [one.score for one in shown],
        NumberScale(1.0, signed=False),
        [
            ("score", [share(one.score) for one in shown]),
            (
                "95%",
                [
                    f"{share(a)}–{share(b)}" if a is not None and b is not None else ""
                    for a, b in ends
                ],
            ),
            ("unasked", [share(one.unasked) for one in shown]),
            ("shuffled", [share(one.shuffled) for one in shown]),
            (
                f"writes{write.times}",
                ["" if one.written is None else write.text(one.written) for one in shown],
            ),
            ("near", [share(one.near) for one in shown]),
            (doc.Column("", right=False, tone="faint"), [_label(one) for one in shown]),
        ],
        grey=[not one.retrieves for one in shown],
    )
