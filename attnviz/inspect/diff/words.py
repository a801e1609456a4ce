"""The words of ``diff``: the finding, numbers as short texts, the explanation."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attnviz.draw.document import Explanation
from attnviz.draw.labels import short_name
from attnviz.draw.numbers import counted
from attnviz.draw.provenance import shape_words, share
from attnviz.inspect.diff.records import DiffReport, HeadChange, HeadState, Move
from attnviz.measures.bootstrap import LEAST_TEXTS
from attnviz.measures.registry import label_named
from attnviz.records import ModelInfo

MARK = "*"
"""The mark after a number that went up or down significantly."""

_NAMED = 4
"""How many heads of a layer are named."""

_LEAST_SCORE, _LEAST_EFFECT = 0.005, 0.0005
"""The least changes of a score and of a loss increase that are seen when rounded."""

SAME = "A and B have the same weights, texts, dtype and backend"

EXACT = 1e-12
"""Bits below which a divergence is only the rounding error of its formula."""


def heading(report: DiffReport) -> list[tuple[str, bool]]:
    """Return the heading as (string, bold): both models, their sizes, the amount of text."""
    a, b = short_name(report.a.name), short_name(report.b.name)
    both = f"{a}: {report.condition}" if report.condition else f"{a} → {b}"
    random = [("random weights", False)] if report.a.weights == report.b.weights == "random" else []
    kind = [] if report.kind == "self" else [(f"{report.kind} attention", False)]
    size = [(counted(report.texts, "text"), False)] if report.texts else []
    tokens = [(f"{report.tokens:,} tokens", False)] if report.tokens else []
    shape = shape_words(report.a)
    if (report.a.layers, report.a.heads) != (report.b.layers, report.b.heads):
        shape += f" → {report.b.layers} × {report.b.heads}"
    return [(both, True), *random, *kind, (shape, False), *size, *tokens]


# The finding ---------------------------------------------------------------------------------


def finding(report: DiffReport) -> str:
    """Return the finding: in one sentence how many heads changed, and which one most."""
    if report.same:
        return f"{SAME}: nothing was measured."
    total, best = counted(len(report.changes), "head"), report.ranked[0]
    count = sum(change.differs for change in report.changes)
    some = f"All {total}" if count == len(report.changes) > 1 else f"{count} of {total}"
    if report.saved:
        if not count:
            return f"None of {total} changed: the 95% intervals then and now meet."
        return (
            f"{some} changed (95% intervals do not meet), {report.pair_name(best)} most: "
            f"{did_and_does(best)}."
        )
    if best.size <= EXACT:
        return f"Nothing changed: all {total} attend and put out the same."
    if report.texts < LEAST_TEXTS:
        few = f"{counted(report.texts, 'text')}, too few to test a head"
        return f"Largest difference: {_described(report, best)}. {few}."
    if not any(change.differs for change in report.changes):
        return f"None of {total} changed by more than rounding does ({floor_text(report)})."
    return f"{some} changed by more than rounding does, most {_described(report, best)}."


def _described(report: DiffReport, change: HeadChange) -> str:
    """Return a clause on one head: its label in A and in B, and the sizes of its changes."""
    parts = (
        [f"attention {nats(change.js)} nats apart"]
        if change.changed or not change.output > change.js
        else []
    )
    if change.output > change.js:
        parts.append(f"output {amount(change.output)} by cosine distance")
    parts += ["attends as before"] if change.output_changed and not change.changed else []
    did, _, now = did_and_does(change).partition(" → ")
    does = f": {did} → {now}" if now and not did.endswith(f" {now}") else ""
    return f"{report.pair_name(change)}{does} ({', '.join(parts)})"


def earliest(report: DiffReport) -> str:
    """Return a sentence on the changed heads of the first layer that has any; empty without them.

    They come first because later layers depend on them.
    """
    changed = [change for change in report.ranked if change.differs]
    if report.saved or not changed:
        return ""
    layer = min(change.place[0] for change in changed)
    first = [change for change in changed if change.place[0] == layer]
    if len(first) == len(changed) or len(changed) == len(report.changes):
        return ""
    if layer and len(first) == sum(change.place[0] == layer for change in report.changes):
        name = layer + report.index_base
        return f"earliest: all heads of L{name}: theirs, or MLP or output projection of L{name - 1}"
    names = ", ".join(report.pair_name(change) for change in first[:_NAMED])
    more = f" and {len(first) - _NAMED} more" if len(first) > _NAMED else ""
    return f"earliest: {names}{more}; heads of later layers read what it wrote"


# What a head did and does --------------------------------------------------------------------


def did_and_does(change: HeadChange) -> str:
    """Return a head's label in A and in B with scores, such as ``induction .91 → no label``."""
    a, b = change.a, change.b
    if a.label is None and b.label is None:
        if math.isfinite(a.effect) and not a.scores:
            return f"loss increase {a.effect:+.3f} → {b.effect:+.3f}"
        return "no label"
    if a.label == b.label and a.label is not None:
        return f"{_state(a)} → {share(b.score)}{_marked(change, a.label)}"
    return f"{_state(a)} → {_state(b)}"


def _state(state: HeadState) -> str:
    if state.label is None:
        return "no label"
    return f"{label_named(state.label).said} {share(state.score)}"


def _marked(change: HeadChange, name: str) -> str:
    return MARK * any(move.name == name for move in change.moves if _is_reported(move))


def _is_reported(move: Move) -> bool:
    """Return whether a change is significant and large enough to be seen when rounded."""
    least = _LEAST_EFFECT if move.name == "loss_delta" else _LEAST_SCORE
    return move.significant and abs(move.change) >= least


def move_words(change: HeadChange) -> str:
    """Return the scores that changed, as a string such as ``induction -.79``; empty if none did."""
    told = (move for move in change.moves if _is_reported(move) and move.name != "loss_delta")
    return ", ".join(
        f"{label_named(move.name).said} {move.change:+.2f}{MARK}".replace("0.", ".")
        for move in told
    )


def effect_words(change: HeadChange) -> str:
    """Return the head's ablation effect in A and in B as a string, such as ``+0.1 → +0.2``."""
    mark = _marked(change, "loss_delta")
    return f"{change.a.effect:+.3f} → {change.b.effect:+.3f}{mark}"


# Numbers -------------------------------------------------------------------------------------


def nats(js: float) -> str:
    """Return a Jensen–Shannon divergence, which is measured in bits, as text in nats."""
    return amount(js * math.log(2))


def amount(value: float) -> str:
    """Return a number ≥ 0 as text: ``.213``, or ``1.9e-05`` if that would round to zero."""
    if math.isnan(value):
        return "n/m"
    if value < EXACT:
        return "0"
    if value >= 0.9995:
        return f"{value:.2f}"
    return f"{value:.1e}" if value < 0.00095 else f"{value:.{4 if value < 0.0995 else 3}f}"[1:]


def prediction_words(report: DiffReport) -> list[str]:
    """Return strings on the predictions: KL, share of equal top tokens, effect of rounding."""
    found, floor = report.predictions, report.floor_predictions
    if found is None:
        return []
    shared = "" if found.outside is None else " over the shared vocabulary"
    words = [
        f"KL {amount(found.kl)} ± {amount(found.kl_error)} nats{shared}",
        f"same prediction {100 * found.same_top:.1f}% ± {100 * found.same_top_error:.1f}%",
    ]
    if floor is not None:
        words.append(f"rounding alone: {amount(floor.kl)}, {100 * floor.same_top:.1f}%")
    return words


def tested(report: DiffReport, *, output: bool) -> str:
    """Return a remark on which heads of a grid are shaded.

    output: whether the grid shows the changes of outputs; else those of attention.
    """
    if report.saved:
        return "shaded: intervals do not meet"
    floor = math.nan if report.floor is None else report.floor[output]
    if report.texts < LEAST_TEXTS or math.isnan(floor):
        return "not tested"
    return f"shaded above {amount(floor) if output else nats(floor)}"


def floor_text(report: DiffReport) -> str:
    """Return the floor, such as ``1.9e-05 nats``."""
    return f"{nats(math.nan if report.floor is None else report.floor.js)} nats"


def floor_words(report: DiffReport) -> str:
    """Return a sentence on the noise floor and how it was measured."""
    if report.floor_words == "given" and report.floor is not None:
        given = f"given as {amount(report.floor.js)} bits"
        return f"noise floor {floor_text(report)} ({given}); outputs are not tested"
    most = f"noise floor {floor_text(report)}: twice the most that rounding moves any head"
    return f"{most} ({report.floor_words})"


def about(report: DiffReport) -> Iterator[tuple[str, str]]:
    """Yield facts (name, words): the compared models, the texts, the rule."""
    yield "A", _model(report.a)
    yield "B", _model(report.b) + (f" ({report.condition})" if report.condition else "")
    if report.texts:
        over = f"{counted(report.texts, 'text')}, {report.tokens:,} tokens"
        source = f" ({report.source})" if report.source else ""
        every = f", one query in {report.stride}" if report.stride > 1 else ""
        yield "over", over + source + every
    if report.floor is not None:
        yield "floor", floor_words(report)
        yield "rule", "changed: the 95% bootstrap interval over texts lies above the floor"
        if any(math.isfinite(change.output) for change in report.changes):
            yield (
                "ranked",
                (
                    "by the larger of JS divergence, as a share of its most, ln 2 nats, and cosine "
                    "distance of the output"
                ),
            )
    elif report.saved:
        yield "rule", "changed: 95% intervals of a saved score and the new one do not meet"
    if report.family:
        yield (
            "signs",
            f"{MARK} is significant among {counted(report.family, 'test')} "
            "(sign flips over texts, Benjamini-Hochberg, 5%)",
        )
    yield from (("pairs", words) for words in pair_words(report))


def pair_words(report: DiffReport) -> list[str]:
    """Return sentences on how heads were paired; empty if one to one by index."""
    left = [
        f"{len(heads)} of {side} without a partner"
        for side, heads in (("A", report.unmatched_a), ("B", report.unmatched_b))
        if heads
    ]
    if report.matched:
        how = f"matched by least divergence: {report.crossed} at another place"
        return ["; ".join([how, *left])]
    return ["heads paired by index; " + "; ".join(left)] if left else []


def _model(info: ModelInfo) -> str:
    revision = f", revision {info.revision[:12]}" if info.revision else ""
    return f"{info.name}{revision}, {info.weights} weights, {info.dtype}, {shape_words(info)}"


def explanation(report: DiffReport) -> Explanation:
    """Return the glossary, with the texts that the models were compared on."""
    if report.saved:
        return Explanation("diff", "scores that A saved are compared with those of B, of today.")
    size = f"{counted(report.texts, 'text')}, {report.tokens:,} tokens"
    return Explanation("diff", f"measured with both models on the same texts: {size}.")
