"""Words of a report on a model: the finding, what the model is, what a reader must not believe."""

from __future__ import annotations

from attnviz.count.params.counting.cost import CostReport
from attnviz.count.params.parts import layer_kind
from attnviz.count.params.words import bytes_text, dtype_words, layer_span, title_words
from attnviz.count.params.words import short as short_count
from attnviz.draw.numbers import counted, listed
from attnviz.draw.provenance import fits_two_lines, shape_words
from attnviz.inspect.head.words import Line
from attnviz.inspect.interventions.ablate.words import answer as ablation_answer
from attnviz.inspect.interventions.ablate.words import caveats as ablation_caveats
from attnviz.inspect.interventions.ablate.words import without_words
from attnviz.inspect.interventions.shown import incomplete
from attnviz.inspect.patterns.tables import found_labels
from attnviz.inspect.report.records import ModelReport
from attnviz.measures.registry import label_named
from attnviz.records import SINKS

_NAMED = 3


def finding(report: ModelReport) -> str:
    """Return the finding: how many heads have a label and which matters most, in two lines."""
    lead = _lead(report)
    if report.model.weights == "random":
        return (
            f"{lead}Random weights: no head has a label, and differences between heads are noise."
        )
    said = ""
    for others in (2, 1, 0):
        for named in (_NAMED, 2, 1, 0):
            sentences = [_labels(report, named), _losses(report, others)]
            said = lead + " ".join(each for each in sentences if each)
            if fits_two_lines(said):
                return said
    return said


def _lead(report: ModelReport) -> str:
    ablation = report.ablation
    if ablation is not None and not ablation.complete:
        return incomplete(len(ablation.texts), ablation.texts_wanted, "text", "ablations")
    return "" if report.complete else "Incomplete. "


def _labels(report: ModelReport, named: int) -> str:
    scored = report.scored
    if scored is None:
        return ""
    found = [name for name in found_labels(scored) if name not in SINKS]
    counts = {name: len(scored.labelled(name)) for name in found}
    total, heads = sum(counts.values()), counted(len(scored.heads), "head")
    if not total:
        return f"None of {heads} has a label: no score is clearly above chance."
    words = [f"{counts[name]} {label_named(name).said}" for name in found[:named]]
    more = ", …" if len(found) > named and words else ""
    kinds = f" ({', '.join(words)}{more})" if words else ""
    resting = sum(len(scored.labelled(name)) for name in SINKS if name in scored.labels)
    sinks = f", {resting} more {'is a sink' if resting == 1 else 'are sinks'}" if resting else ""
    have = "has" if total == 1 else "have"
    return f"{total} of {heads} {have} a label{kinds}{sinks}."


def _losses(report: ModelReport, others: int) -> str:
    ablation = report.ablation
    if ablation is None or not ablation.effects:
        return ""
    if not ablation.ranked_by.signed:  # never below zero, so that no test compares it with zero
        return ablation_answer(ablation)
    ranked = ablation.ranking(2 * len(ablation.effects))
    best = ranked.matter[:1]
    first = [effect for effect in best if effect.shown(ablation.metric).significant]
    if not first and not ablation.complete:  # the other texts may show which head matters
        return ""
    clear = [
        effect
        for effect in (*ranked.matter, *ranked.harm)
        if effect.shown(ablation.metric).significant
    ]
    if not clear:
        bounded = any(effect.shown(ablation.metric).interval for effect in ablation.effects)
        few = "" if bounded else f" {counted(len(ablation.texts), 'text')}: too few."
        return f"No head clearly matters.{few}"
    if not first:
        largest = max(clear, key=lambda effect: abs(effect.value(ablation.metric)))
        return f"{without_words(ablation, largest)}, the most that is clear."
    names = [ablation.name(effect.variant) for effect in ranked.matter[1 : 1 + others]]
    then = f", then without {listed(names)}" if names else ""
    return f"{without_words(ablation, first[0])}, the most{then}."


# What it is ----------------------------------------------------------------------------------


def model_lines(report: ModelReport) -> list[Line]:
    """Return lines (name, words) on the model: its sizes, attention, tokenizer and number type."""
    info, cost = report.model, cost_of(report)
    lines: dict[str, list[str]] = {"shape": [info.architecture]}
    if cost is None:
        lines["shape"].append(shape_words(info))
        built = report.counted.counted.built if report.counted is not None else None
        if built is not None:
            lines["size"] = [
                f"{short_count(built.total)} parameters",
                bytes_text(built.weight_bytes),
            ]
    else:
        lines["shape"] += title_words(cost)[1:-1]
        lines["size"] = _size(cost)
        lines["layers"] = _kinds(cost)
    numbers = "" if cost is None else f", stored as {dtype_words(cost)}"
    lines["runs"] = [f"{info.dtype}{numbers}", *_tokens(report)]
    return [*lines.items()]


def cost_of(report: ModelReport) -> CostReport | None:
    """Return the model's parameters and cache; None if its architecture cannot be counted."""
    cases = report.counted.counted.cases if report.counted is not None else ()
    return cases[0].cost if cases else None


def _size(cost: CostReport) -> list[str]:
    words = [
        f"{short_count(cost.parameters.total)} parameters",
        f"{bytes_text(cost.weight_bytes)} of weights",
    ]
    if cost.cache.bytes_per_token:
        words.append(f"{bytes_text(cost.cache.bytes_per_token)} of cache a token")
    return words


def _kinds(cost: CostReport) -> list[str]:
    """Return strings on the attention of each kind of layer, with the layers that have it."""
    found = []
    for stack in cost.parameters.stacks:
        name = f"{stack.spec.name} " if len(cost.parameters.stacks) > 1 else ""
        for group in stack.groups:
            seen = "causal" if stack.spec.causal else "both ways"
            span = layer_span(group)
            many = "s" if group.repeat > 1 else ""
            where = f"layer{many} {span}" if span[0].isdigit() else f"{span} layer{many}"
            found.append(f"{name}{layer_kind(group)} attention, {seen}, in {where}")
    return found


def _tokens(report: ModelReport) -> list[str]:
    words = []
    if report.vocabulary is not None:
        words.append(f"{report.vocabulary:,} plain tokens")
    if report.context is not None:
        words.append(f"texts up to {report.context:,}")
    return words


# What a reader must not believe --------------------------------------------------------------


def caveats(report: ModelReport) -> list[str]:
    """Return the caveats: the limits of the numbers, the parts left out, the missing parts."""
    found = []
    if report.scored is not None:
        found.append(
            "labels: what a head attends to on the probes of attnviz patterns; a label does not "
            "say that the head matters."
        )
    if report.ablation is not None:
        found += ablation_caveats(report.ablation)
        found.append(
            f"texts: {report.source or counted(len(report.ablation.texts), 'text')}; other texts "
            "may need other heads (--texts FILE)."
        )
    found += [f"{name} not measured: {reason}." for name, reason in report.missing.items()]
    return found


def left_out(report: ModelReport) -> str:
    """Return in words how many heads the budget left out, or an empty string."""
    ablation = report.ablation
    if ablation is None or ablation.method != "budget":
        return ""
    rest = len(ablation.gradients) - len(ablation.effects)
    return f"budget: {counted(rest, 'head')} of {len(ablation.gradients):,} not ablated"


def measured(report: ModelReport) -> str:
    """Return a sentence on the data that each part of the report was measured on."""
    said = ["the shape counted"]
    if report.scored is not None:
        said.append("labels on the probes of attnviz patterns")
    if report.ablation is not None:
        texts = report.ablation.texts
        tokens = counted(sum(map(len, texts)), "token")
        said.append(f"loss over {counted(len(texts), 'text')} ({tokens})")
    return f"measured in this run: {', '.join(said)}; seed {report.seed}."
