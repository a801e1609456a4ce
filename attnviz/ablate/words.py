"""What is said of a scan: how to repeat it, what its numbers cannot say, how to read them."""

from __future__ import annotations

import math

from attnviz.ablate.records import AblationReport, scale_of
from attnviz.draw.document import Facts, Part, Quote
from attnviz.draw.provenance import counted, model_words
from attnviz.engine.effects import METRICS

_UNITS = {"head": "head", "kv-head": "key/value head", "layer": "layer"}


def about(report: AblationReport) -> list[Part]:
    """Which model, texts, ablation and baseline: what a reader needs to repeat the run."""
    size = counted(sum(map(len, report.texts)), "token")
    if report.targets:
        size += f" and {sum(map(len, report.targets)):,} of the target"
    if len(report.texts) != 1:
        size = f"{counted(len(report.texts), 'text')}, {size}"
    kind = [] if report.kind == "self" else [f"{report.kind} attention"]
    facts = [(fact, False) for fact in (*kind, size, f"seed {report.seed}")]
    many = report.texts_wanted != 1
    parts: list[Part] = [
        Facts([*model_words(report.model), *facts]),
        Quote("texts" if many else "text", f"the first: {report.text}" if many else report.text),
    ]
    if report.target is not None:
        parts.append(Quote("target", report.target))
    if report.source:
        lead = f"{counted(report.texts_wanted, 'text')} from " if many else ""
        parts.append(Facts([(lead + report.source, False)], lead=7))
    return [*parts, Facts([(fact, False) for fact in _scan_facts(report)])]


def _scan_facts(report: AblationReport) -> list[str]:
    facts = {
        "exact": [_ablation(report), "exact"],
        "budget": [_ablation(report), "ranked by gradient, the top measured exactly"],
        "gradient": ["estimated by gradient, no head is removed"],
    }[report.method]
    if report.positions == "last":
        facts.append("last prediction of each text only")
    loss = report.baseline.get("loss")
    if loss is not None:
        seen = report.patterns
        masked = seen is not None and not seen.record.causal and not report.targets
        name = "pseudo-loss" if masked else "loss"  # where attention looks both ways
        facts.append(f"{name} {loss:.3f} nats per token with every head")
        facts += ["each word masked in turn"] * masked
    if report.answer is not None and report.foil is not None:
        asked = f'answer "{report.answer}" against foil "{report.foil}"'
        before = report.baseline.get("logit_diff")
        facts.append(asked if before is None else f"{asked}: {before:+.3f} logits")
    return facts


def _ablation(report: AblationReport) -> str:
    unit = _UNITS[report.unit]
    if report.mode == "zero":
        return f"each {unit} set to zero"
    if report.mode == "mean":
        return f"each {unit} set to its mean over all positions of {report.reference}"
    reference = f" over {report.reference}" if report.reference else ""
    drawn = counted(report.draws, "draw")
    return f"each {unit} exchanged for its output{reference}, up to {drawn}"


def map_title(report: AblationReport) -> str:
    """Above the map."""
    if report.method == "gradient":
        return "First-order importance of each head: size of the loss's derivative by its gate"
    title = f"What is lost when one {_UNITS[report.unit]} is removed: {report.ranked_by.label}"
    return f"{title}, where it was measured" if report.method == "budget" else title


def ranking_titles(report: AblationReport) -> tuple[str, str]:
    """Above those that matter, and above those that harm."""
    units = f"{_UNITS[report.unit]}s"
    if len(report.singles) == 1:
        return "What is lost without it", "What is lost without it"
    if report.metric == "logit_diff":
        return f"The {units} that speak most for the answer", f"The {units} that speak for the foil"
    if report.metric == "loss_delta":
        return (
            f"The {units} that matter most",
            f"The {units} that do harm: without them the loss falls",
        )
    return f"The {units} whose removal changes most, by {report.ranked_by.label}", ""


def caveats(report: AblationReport) -> list[str]:
    """Sentences on what the numbers cannot say."""
    found = []
    if not report.complete:
        done, wanted = len(report.texts), report.texts_wanted
        share = f"{done} of {counted(wanted, 'text')}" if wanted > 1 else "a part of the removals"
        found.append(f"incomplete: cut off after {share}; the numbers are those of what is done.")
    values = [effect.values.get(report.metric, 0.0) for effect in report.effects]
    lost = sum(not math.isfinite(value) for value in values)
    if lost:
        found.append(
            f"no numbers: {counted(lost, 'removal')} overflowed and stay blank"
            f"{report.model.overflow_advice}."
        )
    if report.method == "gradient":
        found.append(
            "hint: gradient importance is a first-order estimate of what a small change of a head "
            "would do, not what its removal costs; --method exact measures that."
        )
    if report.method == "budget":
        found.append(
            f"measured: {len(report.effects)} of {counted(len(report.gradients), 'head')}, those "
            "that the gradient ranks highest."
        )
    if report.rank_correlation is not None:
        found.append(
            f"rank correlation of gradient and exact, {len(report.effects)} removals: "
            f"{report.rank_correlation:+.2f}; the gradient is a first-order hint, not the answer."
        )
    if report.effects and report.effects[0].intervals:
        found.append(
            f"interval: 95 %, bootstrap-t over {counted(len(report.texts), 'text')}, 2,000 draws; "
            "paired, so that what texts differ in cancels."
        )
    if report.control:
        found.append(
            "random: what it costs to remove a random direction of equal norm instead of the head."
        )
    return found


def explanation(report: AblationReport) -> list[str]:
    """How to read the map and the ranking, with this report's own strongest head."""
    metric = report.ranked_by
    said = [
        "How to read this: a head is removed, the model reads the same text again, and what "
        "becomes worse is what the head was for. Every number is a difference to the model with "
        "every head.",
        f"{metric.label}: {metric.meaning}.",
    ]
    if report.metric == "loss_delta":
        said.append(
            "nats per token: the loss is how surprised the model is by each next token. +0.69 "
            "nats means that tokens have become half as likely, on average."
        )
    for best in report.ranking(1).matter:
        scale = scale_of(report.singles, report.metric)
        value = f"{scale.text(best.shown(report.metric))}{scale.times} {metric.unit}".rstrip()
        said.append(f"here: {report.name(best.variant)} matters most, {value}.")
    if report.labels:
        said.append(
            "pattern: what the head does over the text with nothing removed, and its score from 0 "
            "to 1, as attnviz heads names it."
        )
    said += [
        *(f"{METRICS[name].label}: {METRICS[name].meaning}." for name in report.metrics_aside()),
        "A head that costs nothing alone may still matter: another head can stand in for it. "
        "--together removes several at once. And what a text does not need, it cannot show: "
        "many texts (--texts) tell chance from rule.",
    ]
    if report.mode == "zero":
        said.append(
            "zero: an output of zero is one that the model has never met; --mode mean puts the "
            "head's mean in its place, which is kinder."
        )
    return said
