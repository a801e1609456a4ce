"""Shows which GPUs can hold a model, how much text they hold, and what bounds their speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnviz.count.params.cards import CardFit
from attnviz.count.params.cost import BuiltCount, CostReport
from attnviz.count.params.report import Case
from attnviz.count.params.wording import beyond, bytes_text, count
from attnviz.draw import document as doc

_MOST_NAMED = 4
_MOST_CASES = 6
_KEEPS = {
    "fits": 9,
    "free": 8,
    "max batch": 7,
    "max tokens": 7,
    "tok/s ≤": 8,
    "each ≤": 6,
    "bound by": 4,
    "at max batch ≤": 2,
    "prefill ≥": 3,
    "pass ≥": 8,
    "memory": 1,
}
_WORDS = ("fits", "bound by")
"""The columns without numbers."""


def card_finding(cases: Sequence[Case]) -> str:
    """Return a sentence: which GPUs hold the model; for several cases, how many hold each."""
    cost, gpus = cases[0].counts, cases[0].gpus
    assert cost is not None
    if len(cases) == 1:
        return (_of_one(gpus[0]) if len(gpus) == 1 else _of_several(gpus)) + beyond(cost)
    kept, joint = (cases, " · ") if len(cases) <= _MOST_CASES else ([cases[0], cases[-1]], " … ")
    if len(gpus) == 1:
        verdicts = [f"{_name(case)} {_verdict(case.gpus[0])}" for case in kept]
        return f"On {gpus[0].card.name}: {joint.join(verdicts)}."
    held = [f"{_name(case)} {sum(fit.fits for fit in case.gpus)}" for case in kept]
    return f"Cards that hold it, of {len(gpus)}: {joint.join(held)}."


def _name(case: Case) -> str:
    return " ".join(case.values) or case.name


def _of_one(fit: CardFit) -> str:
    need, speed = f"needs {bytes_text(fit.need.total)} of {bytes_text(fit.card.memory)}", ""
    if not fit.fits:
        by_size = f"; {count(fit.cards)} such cards have the room" if fit.cards else ""
        return f"Does not fit on one {fit.card.name}: {need}{by_size}."
    if fit.decode is not None:
        each = f" ({_rate(fit.decode.each)} each)" if fit.decode.batch > 1 else ""
        speed = f"; at most {_rate(fit.decode.tokens_per_second)} tokens/s{each}"
    return f"Fits on {fit.card.name}: {need}{speed}."


def _of_several(gpus: Sequence[CardFit]) -> str:
    need, holding = f"Needs {bytes_text(gpus[0].need.total)}", [fit for fit in gpus if fit.fits]
    if len(gpus) <= _MOST_NAMED:
        return f"{need}: {' · '.join(f'{fit.card.name} {_verdict(fit)}' for fit in gpus)}."
    if not holding:
        return f"{need}: none of {len(gpus)} cards holds it alone."
    which = f"the smallest {min(holding, key=lambda fit: fit.card.memory).card.name}"
    fastest = max(holding, key=lambda fit: fit.decode.each if fit.decode is not None else 0)
    which += f", the fastest {fastest.card.name}" if fastest.decode is not None else ""
    many = "all" if len(holding) == len(gpus) else f"{len(holding)} of"
    return f"{need}: {many} {len(gpus)} cards hold it, {which}."


def _verdict(fit: CardFit) -> str:
    """Return ✓ if the model fits on a GPU, else ✗ and how many such GPUs could hold it."""
    return "✓" if fit.fits else f"✗ {count(fit.cards)}×" if fit.cards else "✗"


def _rate(number: float) -> str:
    """Return a number of tokens per second as a string of about three digits."""
    return count(round(number)) if number >= 100 else f"{number:.3g}"


def card_table(cases: Sequence[Case], options: Sequence[str], every: bool) -> doc.Table:
    """Return a table with a row for each GPU, or for each case and GPU.

    options: the compared options. every: True if all GPUs were asked for; then those that hold the
        model come first, and among the others the largest.
    """
    names = options or ([""] if len(cases) > 1 else [])
    fits = [
        ((*(case.values or [case.name] * len(names)), fit.card.name), _cells(fit, case.counts), fit)
        for case in cases
        if case.counts is not None
        for fit in (_ordered(case.gpus) if every else case.gpus)
    ]
    titles = [title for title in _KEEPS if any(cells.get(title) for _, cells, _ in fits)]
    columns = [doc.Column(name, right=bool(options)) for name in names]
    columns += [
        doc.Column("card", right=False),
        *(doc.Column(title, title not in _WORDS, keep=_KEEPS[title]) for title in titles),
    ]
    rows = [
        doc.Row(
            [*named, *(cells.get(title, "") for title in titles)],
            tones={len(named): "good" if fit.fits else "bad"},
        )
        for named, cells, fit in fits
    ]
    return doc.Table(columns, rows, lead=len(names) + 1, least=3)


def _ordered(gpus: Sequence[CardFit]) -> Sequence[CardFit]:
    return [fit for fit in gpus if fit.fits] + [fit for fit in reversed(gpus) if not fit.fits]


def _cells(fit: CardFit, cost: CostReport | BuiltCount) -> dict[str, str]:
    """Return the cells of a GPU's row by column title; a column without any text is left out."""
    decode, full = fit.decode, fit.full
    causal = isinstance(cost, CostReport) and cost.spec.main.causal
    none = "–" if causal else ""
    return {
        "fits": _verdict(fit),
        "free": ("-" if not fit.fits else "") + bytes_text(abs(fit.free)),
        "max batch": _most(fit.batch),
        "max tokens": _most(fit.context),
        "tok/s ≤": none if decode is None else _rate(decode.tokens_per_second),
        "each ≤": "" if cost.batch == 1 else none if decode is None else _rate(decode.each),
        "bound by": "" if decode is None else decode.bound,
        "at max batch ≤": none if full is None else _rate(full.tokens_per_second),
        "prefill ≥" if causal else "pass ≥": _seconds(fit.prefill) if fit.fits else none,
        "memory": bytes_text(fit.card.memory),
    }


def _most(number: int | None) -> str:
    return "any" if number is None else count(number) if number else "none"


def _seconds(seconds: float | None) -> str:
    """Return a time as a string of three digits: ``464 ms``, ``2.19 s``; empty for None."""
    if seconds is None:
        return ""
    unit, size = next(scale for scale in (("s", 1), ("ms", 1e-3), ("µs", 0)) if seconds >= scale[1])
    return f"{seconds / (size or 1e-6):,.3g} {unit}"


def card_notes(cases: Sequence[Case]) -> list[doc.Part]:
    """Return notes for the table of GPUs: the memory that is needed, and cautions."""
    need, gpus = cases[0].gpus[0].need, cases[0].gpus
    sizes = {name.replace("cache", "KV cache"): getattr(need, name) for name in need._fields[1:]}
    words = " + ".join(f"{name} {bytes_text(size)}" for name, size in sizes.items() if size)
    parts: list[doc.Part] = [doc.Note(f"{words}.")] if len(cases) == 1 else []
    split = any(not fit.fits and fit.cards for case in cases for fit in case.gpus)
    by_size = "; ✗ 2×: two such cards have the room" if split else ""
    counts = [case.counts for case in cases if case.counts is not None]
    built = [count.name for count in counts if isinstance(count, BuiltCount)]
    if len(built) < len(counts):
        parts.append(doc.Note(f"Bounds at the vendor's peak rates{by_size}."))
    if built:
        names = ", ".join(dict.fromkeys(built))
        parts.append(doc.Note(f"Of {names} activations, logits and speed are not counted."))
    return [*parts, *map(doc.Note, _cautions(counts, gpus))]


def _cautions(costs: Sequence[CostReport | BuiltCount], gpus: Sequence[CardFit]) -> Iterator[str]:
    limits = {cost.limit for cost in costs}
    limit = min((limit for limit in limits if limit is not None), default=None)
    if limit is not None and any((fit.context or limit) > limit for fit in gpus):
        ends = f"the model's positions end at {count(limit)}"
        yield f"max tokens: by memory; {'positions may end earlier' if len(limits) > 1 else ends}."
    lacking = [fit.card.name for fit in gpus if "bfloat16" not in fit.card.flops]
    if lacking and any(cost.dtype == "bfloat16" for cost in costs):
        yield f"{', '.join(lacking)}: no bfloat16, taken as float16."
