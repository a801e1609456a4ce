"""The document of ``attnviz lens``: predictions block by block, and heads decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from attnviz.draw import document as doc
from attnviz.draw.labels import cut, token_label
from attnviz.draw.maps import signed_tint
from attnviz.draw.numbers import NumberScale, counted, listed
from attnviz.draw.provenance import UNLIKELY, fits_two_lines, known_text, label_title, probability
from attnviz.engine.attribution.parts import BlockReading
from attnviz.inspect.lens.report import FAR, LensReport
from attnviz.prompts.naming import (
    LONGEST_TOKEN,
    is_piece,
    logits,
    next_word,
    placed,
    prompt_document,
    quoted,
)

_FEW, _MANY = 3, 5  # likely words of a row, in little room and in much
_WIDE, _WIDEST = 110, 180  # columns for rows of many words, for two tables side by side
_LEAST_HEADS = 3

_CLEAR = 1.0  # the least logits that a head must add to the answer to be named in the finding


def document(report: LensReport) -> doc.Document:
    """Return the document of a report of ``lens``."""
    reading, tokens = report.reading, report.given.predicted
    at, size = placed(tokens, reading.position), counted(len(tokens), "token")
    question = "asked for" if report.asked else "the top prediction"
    followed = f"{quoted(report.answer)}, {question} at {at}"
    if reading.end is not None:
        followed = f"the {report.kind} of the answer at {at}"
    return prompt_document(
        report,
        report.model,
        report.given,
        tokens,
        command="lens",
        name=f"logit lens of {report.model.name}",
        facts=[size],
        question=[followed],
        groups=[
            doc.Group([block_table(report, reading.blocks, _MANY)]),
            doc.Group([head_table(report, _FEW, _FEW - 1)]),
        ],
        caveats=_caveats(report),
        measured=size,
        hints=_hints(report),
        heading=[
            "logit lens",
            counted(len(reading.blocks) - 1, "block"),
            f"{'at' if report.classes else 'after'} {at}",
        ],
        finding=_finding(report),
        first=partial(_first, report),
    )


def _hints(report: LensReport) -> list[str]:
    hints = ["--position WORD"] * (not report.classes)
    hints = ["--answer end"] if report.reading.end == 0 else hints
    if not report.chosen and report.ordered:
        hints.append(f"--head {report.name(report.ordered[0].head).split()[0]}")
    return [*hints, "--explain"]


def _finding(report: LensReport) -> str:
    """Return from where on the answer stays the top prediction, with its probability there."""
    reading, end, entry = report.reading, report.end, report.entry
    kind = "token" if report.kind == "word" else report.kind
    whole = _quoted(report, reading.answer)
    if not report.classes:
        rest = None if end.probability < UNLIKELY else report.rest
        whole = next_word(report.given.predicted, reading.position, report.answer, rest)
        whole += f" (first piece {quoted(report.answer)})" * is_piece(report.answer, rest)
    begin = f"{whole[0].upper()}{whole[1:]}"
    if report.model.weights == "random":
        return (
            f"Random weights: where a prediction forms is arbitrary; {whole} has p = "
            f"{probability(end.probability)} at the end."
        )
    if entry is None:
        best = min(reading.blocks, key=lambda block: block.rank)
        where = "in the" if best.block is None else "after"
        after = f"{where} {report.block_name(best.block)}"
        top = f"top {kind} {_quoted(report, end.top[0][0])}, p = {probability(end.top[0][1])}"
        better = f"; its best rank is {best.rank:,}, {after}" * (best.rank < end.rank)
        rank = f"ranks {_ordinal(end.rank)} at the end (p = {probability(end.probability)}; {top})"
        return f"{begin} {rank}{better}."
    entered, last = reading.blocks[entry], f"p = {probability(end.probability)}"
    if end.probability < UNLIKELY and report.kind == "word":
        every = "at every layer" if not entry else f"from {report.block_name(entered.block)} on"
        return f"No clear prediction: {whole} is the top token {every}, but {last} at the end."
    if not entry:
        return f"{begin} ({last}) is the top {kind} from the embedding on."
    before, name = reading.blocks[entry - 1], report.block_name(entered.block)
    where = "in the embedding" if before.block is None else f"at {report.block_name(before.block)}"
    leader, led = before.top[0]
    names = [report.block_name(at.block) for at in reading.blocks[:entry] if at.rank == 1][:3]
    after = f", after leading at {listed(names).replace('emb', 'the emb')}" * bool(names)
    only = "again" if names else "only"
    if entered is not end:
        there = f"p = {probability(entered.probability)} there, {probability(end.probability)} at"
        claim = f"{whole} is the top {kind} from {name} on ({there} the end)"
        near = reading.blocks[report.far]
        if report.far > entry and entered.probability < UNLIKELY:
            first = f"{report.block_name(near.block)} on (p = {probability(near.probability)})"
            claim += f"; the lens is close to the output only from {first}"
        else:
            claim += f"; {where} it ranks {_ordinal(before.rank)}{after}"
    elif led >= UNLIKELY and report.far < entry:
        leads = f"{_quoted(report, leader)} leads {where} (p = {probability(led)})"
        claim = f"{leads}; {whole} overtakes it {only} at {name} ({last}){after}"
    else:
        claim = f"{whole} is the top {kind} {only} at the end, {name} ({last}); {where} it ranks "
        claim += _ordinal(before.rank) + after
    written = [head for head in report.shown if head.head[1] == entered.block]
    most = max(written, key=lambda head: head.answer, default=None)
    if most is not None and most.answer >= _CLEAR:
        known = f" ({label.said})" if (label := report.labels.get(most.head)) else ""
        adds = f"{report.name(most.head)}{known} adds {logits(most.answer)} logits"
        more = f"{claim}. In {name}, {adds}"
        claim = more if fits_two_lines(f"{more}.") else claim
    return f"{claim[0].upper()}{claim[1:]}."


def _quoted(report: LensReport, word: int) -> str:
    """Return a word in quotes; a token of the context with its index."""
    if report.reading.end is not None:
        return placed(report.given.predicted, word)
    text = report.words[word]
    return quoted(text) if text.strip() else next_word(report.given.predicted, 0, text)


def _ordinal(rank: int) -> str:
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{rank:,}{'th' if rank % 100 in (11, 12, 13) else ends.get(rank % 10, 'th')}"


def block_table(report: LensReport, blocks: Sequence[BlockReading], words: int) -> doc.Table:
    """Return a table of readings, each with at most ``words`` likely words."""
    end, every = report.end, report.reading.blocks
    entry, hidden = None if report.entry is None else every[report.entry], len(every) - len(blocks)

    def nats(value: float) -> str:  # in four or five characters, such as ``.0045`` or ``20.5``
        if value >= 1:
            return f"{value:.1f}"
        return f"{value:.3f}"[1:] if value >= 0.0005 else f"{max(value, 0.0):.0e}"

    return doc.table(
        blocks,
        doc.ColumnOf(
            "after block",
            lambda block: report.block_name(block.block) + " (final)" * (block is end),
            right=False,
        ),
        doc.ColumnOf(
            f"p(“{_word(report, report.reading.answer)}”)",
            lambda block: probability(block.probability),
        ),
        doc.ColumnOf("rank", lambda block: f"{block.rank:,}"),
        doc.ColumnOf("KL to final", lambda block: "0" if block is end else nats(block.kl)),
        doc.ColumnOf(
            "most likely",
            lambda block: _listed(report, block.top[:words], probability),
            right=False,
            cuts=True,
        ),
        row=lambda block: {
            "tone": "faint" if block.kl > FAR else "strong" if block is entry else "plain"
        },
        more=f"{hidden} more: --full" if hidden else "",
    )


def head_table(report: LensReport, raises: int, lowers: int) -> doc.Table:
    """Return what heads write, the largest first, with the most words raised and lowered."""
    scale = NumberScale.over(head.answer for head in report.ordered)
    labels = report.labels
    answer = f"“{_word(report, report.reading.answer)}”{scale.times}"
    return doc.table(
        report.ordered,
        doc.ColumnOf("", lambda head: report.name(head.head), right=False, tone="strong"),
        doc.ColumnOf(answer, lambda head: scale.text(head.answer)),
        doc.ColumnOf(
            label_title(labels.values()),
            lambda head: known_text(labels[head.head]) if head.head in labels else "",
            right=False,
        ),
        doc.ColumnOf(
            "raises",
            lambda head: _listed(report, head.raises[:raises], logits),
            right=False,
            cuts=True,
        ),
        doc.ColumnOf(
            "lowers",
            lambda head: _listed(report, head.lowers[:lowers], logits),
            right=False,
            cuts=True,
        ),
        row=lambda head: {
            "bar": (head.answer, scale.limit),
            "tint": signed_tint(head.answer, scale.limit),
        },
        title=[("What each head writes", True), ("centred logits", False)],
        least=_LEAST_HEADS,
    )


def _listed(
    report: LensReport, words: Sequence[tuple[int, float]], write: Callable[[float], str]
) -> str:
    return " · ".join(f"{_word(report, word)} {write(value)}" for word, value in words)


def _word(report: LensReport, token: int) -> str:
    if report.reading.end is not None:
        return placed(report.given.predicted, token, quotes=False)
    return cut(token_label(report.words[token]), LONGEST_TOKEN)


def _caveats(report: LensReport) -> list[str]:
    caveats = [
        "lens: the residual stream after a block, decoded with the model's own final norm "
        "and unembedding as if the later blocks were left out. After the last block that is the "
        "model's prediction; before that the model has not made one, and the lens may mislead."
    ]
    if report.far:
        caveats.append(_far(report))
    written = (
        "what each writes at this token, unembedded with the final norm's scale, minus its mean "
        "over the vocabulary; the difference between two tokens matches attnviz why."
    )
    if report.reading.end is not None:
        written = (
            f"what each adds to a token's logit as the {report.kind} of the answer, read with the "
            "norms' scales at the end, less its mean over the context."
        )
    sums = f"The parts sum to each token's logit (error at most {report.reading.apart:.1g})."
    return [*caveats, f"heads: {written} {sums}"]


def _far(report: LensReport) -> str:
    name = report.block_name(report.reading.blocks[report.far].block)
    return f"KL exceeds {FAR:g} nat before {name}: predictions there may be misleading."


def _first(report: LensReport, columns: int, lines: int) -> list[doc.Group]:
    """Return the first screen; of many blocks those around the entry are kept, and the last."""
    beside = columns >= _WIDEST
    words = _MANY if columns >= _WIDE and not beside else _FEW
    notes = [doc.Note(_far(report))] if report.far else []
    heads = head_table(report, *((_FEW, _FEW - 1) if columns >= _WIDE else (_FEW - 1, 1)))
    left = lines - len(notes) - 3 - (0 if beside else _LEAST_HEADS + 3)
    shown = doc.Group([block_table(report, _kept(report, max(left, 3)), words), *notes])
    if not beside:
        return [shown, doc.Group([heads], yields=1)]
    return [doc.beside(shown, heads)]


def _kept(report: LensReport, most: int) -> Sequence[BlockReading]:
    """Return at most ``most`` readings: those around the entry, the last, others evenly spaced."""
    blocks = report.reading.blocks
    if len(blocks) <= most:
        return blocks
    last = len(blocks) - 1
    entry = last if report.entry is None else report.entry
    order = [last, entry, max(entry - 1, 0), 0]
    step = 2 ** max(last.bit_length() - 1, 0)
    while step:
        order += range(0, last, step)
        step //= 2
    return [blocks[at] for at in sorted(list(dict.fromkeys(order))[:most])]
