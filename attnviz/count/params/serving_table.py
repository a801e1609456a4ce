"""Shows which cards hold a model, how much they hold, and what bounds their speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnviz.count.params.cases import Case
from attnviz.count.params.counting.cost import CostReport
from attnviz.count.params.counting.serving import CardFit
from attnviz.count.params.words import beyond, bytes_text, count, counted, run_words
from attnviz.draw.document import Column, Facts, Note, Part, Row, Table

_MOST_NAMED = 4
_MOST_CASES = 6
_YES, _NO = "✓", "✗"
_PARTS = {
    "weights": "as stored, with buffers",
    "cache": "keys and values of all sequences",
    "activations": "of the widest layer, for {step}",
    "logits": "in float32",
    "overhead": "assumed for driver, kernels and allocator: --overhead",
}
"""The parts of what a model needs, and how each is counted."""


def card_finding(cases: Sequence[Case]) -> str:
    """Return which cards hold the model, or for several cases how many cards hold each."""
    served = [case for case in cases if case.cost is not None]
    if len(served) > 1:
        kept = served if len(served) <= _MOST_CASES else [served[0], served[-1]]
        held = [f"{_name(case)} {sum(fit.fits for fit in case.gpus)}" for case in kept]
        joint = " · " if kept is served else " … "
        return f"Cards that hold it, of {len(served[0].gpus)}: {joint.join(held)}."
    cost, gpus = served[0].cost, served[0].gpus
    assert cost is not None
    return (_one(gpus[0]) if len(gpus) == 1 else _of_several(gpus)) + beyond(cost)


def _name(case: Case) -> str:
    return " ".join(case.values) or case.name


def _one(fit: CardFit) -> str:
    need, memory = bytes_text(fit.need.total), bytes_text(fit.card.memory)
    if not fit.fits:
        by_size = f"; {count(fit.cards)} such cards have the room" if fit.cards is not None else ""
        return f"Does not fit on one {fit.card.name}: needs {need} of {memory}{by_size}."
    speed = ""
    if fit.decode is not None:
        each = f" ({_rate(fit.decode.each)} each)" if fit.decode.batch > 1 else ""
        speed = f"; at most {_rate(fit.decode.tokens_per_second)} tokens/s{each}"
    return f"Fits on {fit.card.name}: needs {need} of {memory}{speed}."


def _of_several(gpus: Sequence[CardFit]) -> str:
    need, holding = bytes_text(gpus[0].need.total), [fit for fit in gpus if fit.fits]
    if len(gpus) <= _MOST_NAMED:
        return f"Needs {need}: {' · '.join(f'{fit.card.name} {_verdict(fit)}' for fit in gpus)}."
    if not holding:
        return f"Needs {need}: none of {len(gpus)} cards holds it alone."
    which = f"the smallest {min(holding, key=lambda fit: fit.card.memory).card.name}"
    fastest = max(holding, key=lambda fit: fit.decode.each if fit.decode is not None else 0)
    which += f", the fastest {fastest.card.name}" * (fastest.decode is not None)
    many = "all" if len(holding) == len(gpus) else f"{len(holding)} of"
    return f"Needs {need}: {many} {len(gpus)} cards hold it, {which}."


def _verdict(fit: CardFit) -> str:
    """Return ✓, or ✗ and how many such cards would have the room."""
    if fit.fits:
        return _YES
    return _NO if fit.cards is None else f"{_NO} {count(fit.cards)}×"


def _rate(number: float) -> str:
    """Return tokens a second in about three digits."""
    return count(round(number)) if number >= 100 else f"{number:.3g}"


def card_table(cases: Sequence[Case], options: Sequence[str], every: bool) -> Table:
    """Return a table with a row for each card, or for each case and card.

    options: the compared options. every: whether all cards were asked for; then those that hold the
        model come first, and the nearest first among the others.
    """
    served = [case for case in cases if case.cost is not None]
    writes = any(case.cost.spec.main.causal for case in served if case.cost is not None)
    alone = len(served) == 1
    several = any(case.cost.batch > 1 for case in served if case.cost is not None)
    columns = [
        *(Column(option, tone="strong") for option in options),
        *([] if options or alone else [Column("", right=False)]),
        Column("card", right=False),
        Column("fits", right=False),
        Column("free", keep=8),
        Column("max batch", keep=7),
        Column("max tokens", keep=7),
        *(
            [
                Column("tok/s ≤", tone="strong", keep=8),
                *([Column("each ≤", keep=6)] if several else []),
                Column("bound by", right=False, keep=4, tone="faint"),
                Column("at max batch ≤", keep=2),
            ]
            if writes
            else []
        ),
        Column("prefill ≥" if writes else "pass ≥", keep=3 if writes else 8),
        Column("memory", keep=1, tone="faint"),
    ]
    lead = len(options) if options else int(not alone)
    rows = []
    for case in served:
        named = case.values if options else () if alone else (case.name,)
        for fit in _ordered(case.gpus, every):
            speeds = _speeds(fit, several) if writes else ()
            rows.append(_row((*named, fit.card.name), fit, speeds))
    return Table(columns, rows, lead=lead + 1, least=3)


def _ordered(gpus: Sequence[CardFit], every: bool) -> Sequence[CardFit]:
    """Return the cards that hold the model, the smallest first, then the others, largest first."""
    if not every:
        return gpus
    return [fit for fit in gpus if fit.fits] + [fit for fit in reversed(gpus) if not fit.fits]


def _row(named: Sequence[str], fit: CardFit, speeds: Sequence[str]) -> Row:
    cells = (
        *named,
        _verdict(fit),
        bytes_text(fit.free) if fit.fits else f"−{bytes_text(-fit.free)}",
        _most(fit.batch),
        _most(fit.context),
        *speeds,
        _seconds(fit.prefill) if fit.fits else "–",
        bytes_text(fit.card.memory),
    )
    return Row(cells, tones={len(named): "good" if fit.fits else "bad"})


def _most(number: int | None) -> str:
    return "any" if number is None else count(number) if number else "none"


def _speeds(fit: CardFit, several: bool) -> Sequence[str]:
    """Return the cells of the bounds of decoding. several: whether a case has several sequences."""
    full = "–" if fit.full is None else _rate(fit.full.tokens_per_second)
    if fit.decode is None:
        return ("–", *["–"] * several, "", full)
    each = [_rate(fit.decode.each)] * several
    return (_rate(fit.decode.tokens_per_second), *each, fit.decode.bound, full)


def _seconds(seconds: float) -> str:
    """Return a time in three digits: ``464 ms``, ``2.19 s``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def need_facts(case: Case) -> Facts:
    """Return the parts of what a case needs, in one line."""
    need = case.gpus[0].need
    sizes = {name: getattr(need, name) for name in _PARTS}
    words = [f"{_part(name)} {bytes_text(size)}" for name, size in sizes.items() if size]
    return Facts([(word, False) for word in words], tone="faint")


def need_table(case: Case) -> Table:
    """Return a table of what a case needs, with a line for each part."""
    need = case.gpus[0].need
    columns = [Column("needs", right=False), Column("", tone="strong")]
    rows = [
        Row((_part(name), bytes_text(size), note.format(step=counted(need.step, "token"))))
        for name, note in _PARTS.items()
        if (size := getattr(need, name))
    ]
    rows.append(Row(("total", bytes_text(need.total), ""), tone="strong", ruled=True))
    return Table([*columns, Column("", right=False, tone="faint", wraps=True)], rows)


def _part(name: str) -> str:
    return "KV cache" if name == "cache" else name


def card_notes(cases: Sequence[Case]) -> list[Part]:
    """Return the sentences that must stand next to the table."""
    served = [case for case in cases if case.cost is not None]
    parts: list[Part] = [need_facts(served[0])] if len(served) == 1 else []
    several = any(not fit.fits and fit.cards for case in served for fit in case.gpus)
    by_size = f"; {_NO} 2×: two such cards have the room" * several
    return [
        *parts,
        *map(Note, (f"Bounds at the vendor's peak rates{by_size}.", *_cautions(served))),
    ]


def _cautions(cases: Sequence[Case]) -> Iterator[str]:
    limits = {case.cost.spec.main.max_positions for case in cases if case.cost is not None}
    limit = limits.pop() if len(limits) == 1 else None
    if limit is not None and any((fit.context or limit) > limit for fit in cases[0].gpus):
        yield f"max tokens: by memory; the model's positions end at {count(limit)}."
    if any(case.cost.dtype == "bfloat16" for case in cases if case.cost is not None):
        lacking = [fit.card for fit in cases[0].gpus if "bfloat16" not in fit.card.flops]
        if lacking:
            names = ", ".join(card.name for card in lacking)
            yield f"{names}: no bfloat16, taken as float16."


def card_explanation(cost: CostReport, fit: CardFit) -> tuple[str, ...]:
    """Return how the table of cards is counted, in plain words."""
    need = fit.need
    return (
        f"cards: {run_words(cost)} need weights, KV cache, activations, logits and overhead; a "
        "card fits if its memory, as its driver reports it to a program, is at least their sum. A "
        "vendor's 80 GB are 80 GiB = 85.9 GB of 10⁹ bytes, less what the driver and ECC take.",
        "max batch, max tokens: the most sequences of this length, and the most tokens of each of "
        "these sequences, that still fit; one more does not.",
        f"activations: one layer's numbers for the {counted(need.step, 'token')} that pass at once "
        "(--chunk; at least one of each sequence), in a program that keeps one layer at a time and "
        "no attention weights.",
        "tok/s ≤, each ≤: a step writes a token for each sequence. It reads the weights once and "
        "the cache once, and computes its operations: the longer of bytes / bandwidth and "
        "operations / rate is the least time. Of experts it reads those that even routing would "
        "use. Kernels, launches and sampling take longer, so real programs stay below.",
        "prefill ≥: operations of all prompts / rate, in the dtype of the weights or a wider one, "
        "without sparsity.",
    )
