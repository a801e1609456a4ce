"""Compares cases: values of an option of one architecture, models, and the GPUs that hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from attnviz.count.params.cost import BuiltCount, CostReport
from attnviz.count.params.parts import Case
from attnviz.count.params.specs import ModelSpec, total
from attnviz.count.params.wording import beyond, bytes_text, count, factor, operations, short
from attnviz.draw import document as doc

if TYPE_CHECKING:  # most runs name no card
    from attnviz.count.params.cards import CardFit

MARK = "*"
"""Marks the heading of a column whose numbers differ, for readers without colour or bold."""

_MOST_TOLD = 3


class Metric(NamedTuple):
    """One quantity, such as the bytes of the cache, by which cases are compared.

    key: its name in JSON. title: its name above a column and in a sentence.
    number: returns it for the counts of a case; None if a case has none. text: returns it as text.
    always: whether a ``BuiltCount`` has it too.
    """

    key: str
    title: str
    number: Callable[[Any], int | None]
    text: Callable[[int], str]
    always: bool = False

    def value(self, case: Case) -> int | None:
        """Return the number of a case, or None."""
        if self.key == "context":
            return case.fit.tokens if case.fit else None
        counts = case.counts if self.always else case.cost
        return None if counts is None else self.number(counts)

    def changes(self, cases: Sequence[Case]) -> bool:
        """Return True if the quantity differs between the cases that could be counted."""
        return len({self.value(case) for case in cases if case.counts is not None}) > 1

    def cell(self, case: Case) -> str:
        """Return the number of a case as text, a dash if there is none."""
        value = self.value(case)
        if self.key == "context" and case.fit is not None:
            return _most(value)
        return self.text(value) if value else "–"


def _most(number: int | None) -> str:
    return "any" if number is None else count(number) if number else "none"


def _forward(cost: CostReport) -> int:
    forward = cost.spec.common.layer.feed_forward
    return 0 if forward is None else total(forward.terms)


def _per_token(count: CostReport | BuiltCount) -> int | None:
    return None if count.cache is None else count.cache.bytes_per_token


_METRICS = (
    Metric("head_dim", "head_dim", lambda a: a.spec.attention.head_dim, count),
    Metric("attention", "attention", lambda a: total(a.spec.attention.terms), count),
    Metric("ffn", "MLP", _forward, count),
    Metric("total", "total", lambda a: a.total, count, always=True),
    Metric("active", "active", lambda a: a.spec.active, count),
    Metric("weights", "weights", lambda a: a.weight_bytes, bytes_text, always=True),
    Metric("cache_per_token", "cache/token", _per_token, bytes_text, always=True),
    Metric("cache", "cache", lambda a: a.cache and a.cache.bytes, bytes_text, always=True),
    Metric("flops", "FLOPs", lambda a: a.flops.total_visible, operations),
    Metric("scores", "attention FLOPs", lambda a: a.flops.attention_scores_visible, operations),
    Metric("maps", "attention weights", lambda a: a.maps.bytes, bytes_text),
    Metric("context", "fits tokens", lambda a: None, count),
)
"""All metrics, in the order of the columns."""


def telling_metrics(cases: Sequence[Case]) -> tuple[Metric, ...]:
    """Return the metrics that some case has and that do not merely repeat another metric."""
    costs = [case.cost for case in cases if case.cost is not None]
    left_out = set()
    if costs and all(cost.spec.attention_only for cost in costs):
        left_out = {"total", "ffn", "active"}
    elif all(cost.spec.active == cost.total for cost in costs):
        left_out = {"active"}
    return tuple(m for m in _METRICS if m.key not in left_out and any(map(m.value, cases)))


def compared_table(
    options: Sequence[str], cases: Sequence[Case], metrics: Sequence[Metric], brief: bool = False
) -> doc.Table:
    """Return a table with a row for each case, and a column for each compared option and metric.

    brief: True for a small terminal: headings of metrics that differ are not marked, columns that
    do not fit are left out rather than put below, and rows are left out if there are few lines.
    """
    columns = [doc.Column(option, tone="strong") for option in options]
    for index, metric in enumerate(metrics):
        if metric.changes(cases):
            title = metric.title + f" {MARK}" * (not brief)
            columns.append(doc.Column(title, tone="strong", keep=8 - index % 8 if brief else 9))
        else:
            kept = metric.key in ("attention", "total")
            columns.append(doc.Column(metric.title, tone="faint", keep=9 if kept else 4))
    rows = [
        doc.Row(
            [*case.values, *(metric.cell(case) for metric in metrics)],
            tone="faint" if case.refusal else "plain",
            below=[f"not possible: {case.refusal}"] if case.refusal else (),
        )
        for case in cases
    ]
    return doc.Table(columns, rows, lead=len(options), least=3 * brief)


def change_finding(options: Sequence[str], cases: Sequence[Case], metrics: Sequence[Metric]) -> str:
    """Return a sentence on what changes most from the first to the last value of each option."""
    sentences = []
    for option, index, along in _along(options, cases):
        first, last = along[0], along[-1]
        moved = {}
        for metric in metrics:
            before, after = metric.value(first), metric.value(last)
            if before and after and before != after:
                moved[metric.title] = (max(before, after) / min(before, after), before, after)
        titles: dict[str, str] = {}
        for title in sorted(moved, key=lambda title: -moved[title][0]):
            titles.setdefault(factor(moved[title][2], moved[title][1]), title)
        most = [f"{title} {by}" for by, title in titles.items()][:_MOST_TOLD]
        change = ", ".join(most) or "none of this changes"
        sentences.append(f"{option} {first.values[index]} → {last.values[index]}: {change}")
    return "; ".join(sentences) + "." if sentences else ""


def _along(
    options: Sequence[str], cases: Sequence[Case]
) -> Iterator[tuple[str, int, Sequence[Case]]]:
    """Yield for each option its name, its index, and the cases that differ only in it."""
    counted = [case for case in cases if case.counts is not None]
    start = counted[0].values
    for index, option in enumerate(options):
        others = [at for at in range(len(options)) if at != index]
        along = [case for case in counted if all(case.values[at] == start[at] for at in others)]
        if len(along) > 1:
            yield option, index, along


def change_reasons(options: Sequence[str], cases: Sequence[Case]) -> list[str]:
    """Return sentences that explain why the metrics change with the options."""
    return [
        reason
        for option, _, along in _along(options, cases)
        for reason in _why(option, [case.cost for case in along if case.cost is not None])
    ]


def _why(option: str, costs: Sequence[CostReport]) -> Iterator[str]:
    specs = [cost.spec.attention for cost in costs]
    grows = len({total(spec.terms) for spec in specs}) > 1
    whole = all(spec.heads * spec.head_dim == spec.d_model for spec in specs)
    if option == "heads" and not grows and whole:
        cuts = [f"{count(spec.heads)} × {count(spec.head_dim)}" for spec in (specs[0], specs[-1])]
        yield (
            "The count does not depend on the number of heads: head_dim = d_model / heads, so "
            f"{' = '.join(cuts)} = {count(specs[0].d_model)} columns, the same matrices cut "
            "differently."
        )
    elif option == "heads" and len({spec.head_dim for spec in specs}) == 1:
        yield (
            "The count grows with the number of heads: head_dim is fixed at "
            f"{count(specs[0].head_dim)}, so each head brings columns of its own."
        )
    elif option == "heads" and grows:
        yield (
            "The count changes with key and value alone: they have kv_heads × head_dim columns, "
            "and head_dim is d_model / heads."
        )
    elif option == "kv-heads" and grows:
        rest = "query and output keep their size" if whole else "query and output stay"
        yield (
            f"Fewer key/value heads shrink key and value and the cache; {rest}, every query head "
            "still attends on its own, so attention FLOPs and weights stay."
        )
    elif option == "tokens" and len({cost.tokens for cost in costs}) > 1:
        yield "Longer texts: cache and projections grow as n, attention FLOPs and weights as n²."


# Models side by side --------------------------------------------------------------------------

_Pair = tuple[Case, "CostReport | BuiltCount"]


def _counted(cases: Sequence[Case]) -> list[_Pair]:
    return [(case, case.counts) for case in cases if case.counts is not None]


def model_table(cases: Sequence[Case]) -> doc.Table:
    """Return a table with a row of sizes and counts for each model; a dash where none is known."""
    pairs = _counted(cases)
    most = max(cost.total for _, cost in pairs)

    def size(write: Callable[[ModelSpec], int]) -> Callable[[_Pair], str]:
        return lambda pair: count(write(pair[1].spec)) if isinstance(pair[1], CostReport) else "–"

    def kept(pair: _Pair) -> str:
        return bytes_text(_per_token(pair[1])) if pair[1].cache and pair[1].cache.lines else "–"

    def speed(pair: _Pair) -> str:
        return operations(pair[1].flops.per_token) if isinstance(pair[1], CostReport) else "–"

    def fits(pair: _Pair) -> str:
        return ("yes" if _fits(pair[0]) else "no") if pair[0].fit else ""

    layers = size(lambda spec: sum(stack.depth for stack in spec.stacks))
    columns: list[doc.ColumnOf[_Pair]] = [
        doc.ColumnOf("", lambda pair: pair[0].name, right=False),
        doc.ColumnOf("layers", layers, keep=5),
        doc.ColumnOf("heads", size(lambda spec: spec.attention.heads), keep=4),
        doc.ColumnOf("d_model", size(lambda spec: spec.attention.d_model), keep=4),
        doc.ColumnOf("parameters", lambda pair: short(pair[1].total)),
        doc.ColumnOf("weights", lambda pair: bytes_text(pair[1].weight_bytes), keep=8),
        doc.ColumnOf("cache/token", kept, keep=7),
        doc.ColumnOf("FLOPs/token", speed, keep=3),
        doc.ColumnOf("fits", fits),
    ]
    return doc.table(
        pairs, *columns, row=lambda pair: {"bar": (pair[1].total, most)}, least=3, bars="size"
    )


def _fits(case: Case) -> bool:
    needed = None if case.counts is None else case.counts.needed_bytes
    return case.fit is not None and needed is not None and needed <= case.fit.memory


def size_sentences(cases: Sequence[Case]) -> Iterator[str]:
    """Yield sentences: which models fit the memory, how the largest relates to the smallest."""
    pairs = _counted(cases)
    if (fit := cases[0].fit) is not None:
        names = [case.name for case, _ in pairs if _fits(case)]
        listed = f": {', '.join(names)}" if 0 < len(names) <= _MOST_TOLD else ""
        yield f"{len(names)} of {len(pairs)} fit in {bytes_text(fit.memory)}{listed}."
    small, few = min(pairs, key=lambda pair: pair[1].total)
    large, many = max(pairs, key=lambda pair: pair[1].total)
    if few.total == many.total:
        yield f"All have {count(few.total)} parameters."
        return
    text = f"{large.name} against {small.name}: parameters {factor(many.total, few.total)}"
    before, after = _per_token(few), _per_token(many)
    if before and after:
        text += f", cache/token {factor(after, before)}"
    yield f"{text}."


# GPUs: which can hold a model, how much text they hold, and what bounds their speed -------------

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
_WORDS = ("fits", "bound by")  # the columns without numbers


def card_finding(cases: Sequence[Case]) -> str:
    """Return a sentence: which GPUs hold the model; for several cases, how many hold each."""
    (case, cost), gpus = _counted(cases)[0], cases[0].gpus
    if len(cases) == 1:
        return (_of_one(gpus[0]) if len(gpus) == 1 else _of_several(gpus)) + beyond(cost)
    kept, joint = (cases, " · ") if len(cases) <= _MOST_CASES else ([case, cases[-1]], " … ")
    named = [(" ".join(case.values) or case.name, case.gpus) for case in kept]
    if len(gpus) == 1:
        verdicts = [f"{name} {_verdict(fits[0])}" for name, fits in named]
        return f"On {gpus[0].card.name}: {joint.join(verdicts)}."
    held = [f"{name} {sum(fit.fits for fit in fits)}" for name, fits in named]
    return f"Cards that hold it, of {len(gpus)}: {joint.join(held)}."


def _of_one(fit: CardFit) -> str:
    need, speed = f"needs {bytes_text(fit.need.total)} of {bytes_text(fit.card.memory)}", ""
    if not fit.fits:
        by_size = f"; {count(fit.cards)} such cards have the room" if fit.cards else ""
        return f"Does not fit on one {fit.card.name}: {need}{by_size}."
    if fit.decode is not None:
        single = f" ({_rate(fit.decode.each)} each)" if fit.decode.batch > 1 else ""
        speed = f"; at most {_rate(fit.decode.tokens_per_second)} tokens/s{single}"
    return f"Fits on {fit.card.name}: {need}{speed}."


def _of_several(gpus: Sequence[CardFit]) -> str:
    need, holding = f"Needs {bytes_text(gpus[0].need.total)}", [fit for fit in gpus if fit.fits]
    if len(gpus) <= _MOST_NAMED:
        return f"{need}: {' · '.join(f'{fit.card.name} {_verdict(fit)}' for fit in gpus)}."
    if not holding:
        return f"{need}: none of {len(gpus)} cards holds it alone."
    least = min(fit.card.memory for fit in holding)
    smallest = " and ".join(fit.card.name for fit in holding if fit.card.memory == least)
    which = f"the smallest {smallest}"
    fastest = max(holding, key=lambda fit: fit.decode.each if fit.decode is not None else 0)
    which += f", the fastest {fastest.card.name}" if fastest.decode is not None else ""
    many = "all" if len(holding) == len(gpus) else f"{len(holding)} of"
    return f"{need}: {many} {len(gpus)} cards hold it, {which}."


def _verdict(fit: CardFit) -> str:
    return "✓" if fit.fits else f"✗ {count(fit.cards)}×" if fit.cards else "✗"


def _rate(number: float) -> str:
    """Return a number of tokens per second as a string of about three digits."""
    return count(round(number)) if number >= 100 else f"{number:.3g}"


def card_table(cases: Sequence[Case], options: Sequence[str], every: bool) -> doc.Table:
    """Return a table with a row for each GPU, or for each case and GPU.

    options: the compared options. every: True if all GPUs were asked for; then those that hold the
        model come first, and among the others the largest.
    """
    names, rows, cells = options or ([""] if len(cases) > 1 else []), [], []
    for case, cost in _counted(cases):
        gpus = case.gpus
        if every:
            left = [fit for fit in reversed(gpus) if not fit.fits]
            gpus = (*(fit for fit in gpus if fit.fits), *left)
        values = case.values or [case.name] * len(names)
        cells += [(values, fit, _cells(fit, cost)) for fit in gpus]
    titles = [title for title in _KEEPS if any(own.get(title) for *_, own in cells)]
    columns = [
        *(doc.Column(name, right=bool(options)) for name in names),
        doc.Column("card", right=False),
        *(doc.Column(title, title not in _WORDS, keep=_KEEPS[title]) for title in titles),
    ]
    for values, fit, own in cells:
        named = [*values, fit.card.name]
        tones: dict[int, doc.Tone] = {len(named): "good" if fit.fits else "bad"}
        rows.append(doc.Row([*named, *(own.get(title, "") for title in titles)], tones=tones))
    return doc.Table(columns, rows, lead=len(names) + 1, least=3)


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


def _seconds(seconds: float | None) -> str:
    """Return a time as a string of three digits: ``464 ms``, ``2.19 s``; empty for None."""
    if seconds is None:
        return ""
    unit, size = next(scale for scale in (("s", 1), ("ms", 1e-3), ("µs", 0)) if seconds >= scale[1])
    return f"{seconds / (size or 1e-6):,.3g} {unit}"


def card_notes(cases: Sequence[Case]) -> Iterator[str]:
    """Yield notes for the table of GPUs: the memory that is needed, and cautions."""
    need, gpus = cases[0].gpus[0].need, cases[0].gpus
    if len(cases) == 1:
        sizes = {name.replace("cache", "KV cache"): getattr(need, name) for name in need._fields}
        del sizes["step"]  # of tokens
        words = [f"{name} {bytes_text(size)}" for name, size in sizes.items() if size]
        yield f"{' + '.join(words)}."
    counts = [cost for _, cost in _counted(cases)]
    built = [count.name for count in counts if isinstance(count, BuiltCount)]
    if len(built) < len(counts):
        split = any(not fit.fits and fit.cards for case in cases for fit in case.gpus)
        by_size = "; ✗ 2×: two such cards have the room" if split else ""
        yield f"Bounds at the vendor's peak rates{by_size}."
    if built:
        names = ", ".join(dict.fromkeys(built))
        yield f"Of {names} activations, logits and speed are not counted."
    limits = {cost.limit for cost in counts}
    limit = min((limit for limit in limits if limit is not None), default=None)
    if limit is not None and any((fit.context or limit) > limit for fit in gpus):
        ends = f"the model's positions end at {count(limit)}"
        yield f"max tokens: by memory; {'positions may end earlier' if len(limits) > 1 else ends}."
    lacking = [fit.card.name for fit in gpus if "bfloat16" not in fit.card.flops]
    if lacking and any(cost.dtype == "bfloat16" for cost in counts):
        yield f"{', '.join(lacking)}: no bfloat16, taken as float16."
