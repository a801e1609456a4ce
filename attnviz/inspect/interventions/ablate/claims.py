"""The sentences of ``attnviz ablate``: what its numbers allow to say, and what they do not."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from attnviz.draw.document import Explanation, Facts, Part, Quote, Words
from attnviz.draw.numbers import counted, listed, percent
from attnviz.draw.provenance import fits_two_lines, model_words, named, p_value, share
from attnviz.engine.likely import START_END
from attnviz.inspect.interventions.ablate.plan import CONTROLS, Moved
from attnviz.inspect.interventions.ablate.report import AblationReport, Effect
from attnviz.inspect.interventions.ablate.request import UNITS
from attnviz.inspect.interventions.study import Mean, incomplete
from attnviz.measures.bootstrap import CHANCE, LEAST_TEXTS
from attnviz.measures.words import word_ranges
from attnviz.prompts.naming import quoted_word

_AS_MUCH = 0.8  # the share of a head's effect from which a random direction is said to do as much
_NAMED = 3  # the most heads that the finding names

_ROUNDING = 1e-6  # the change below which it may be the rounding of 32-bit numbers
_NEAR, _MOST_TIED = 0.9, 3
"""From which share of the largest effect another is nearly as large, and how many are named."""


def heading(report: AblationReport) -> Words:
    """Return the heading in one line: the model, the ablation and the texts."""
    heads = report.model.heads_of_layers
    by_head = report.unit in ("head", "kv-head")
    shape = counted(sum(heads.values()), "head") if by_head else counted(len(heads), "layer")
    parts = [shape, _scan_facts(report)[0], _size(report)]
    if (loss := report.baseline.get("loss")) is not None:
        parts.append(f"{_loss_name(report)} {loss:.3f}{report.loss_unit.removesuffix('/token')}")
    return [*named(report.model), *((part, False) for part in parts)]


def _size(report: AblationReport) -> str:
    size = counted(report.token_count, "token")
    if report.targets:
        size += f" and {sum(map(len, report.targets)):,} of the target"
    many = report.texts_wanted != 1
    return f"{counted(report.text_count, noun(report))}, {size}" if many else size


def noun(report: AblationReport) -> str:
    """Return the word for what was read: ``text`` or ``image``."""
    layout = report.texts[0].layout if report.texts else None
    return "text" if layout is None or "text" in layout.kinds else "image"


def finding(report: AblationReport) -> str:
    """Return the main result in one sentence that claims no more than the texts can support."""
    if report.complete:
        return answer(report)
    lead = incomplete(report.text_count, report.texts_wanted, noun(report), "ablations")
    return lead + answer(report)


def answer(report: AblationReport) -> str:
    """Return the finding, without the remark on an interrupted scan."""
    if not report.text_count:
        return f"No {noun(report)} was measured."
    if report.model.weights == "random":
        return "Random weights: differences are noise, not a ranking."
    if report.ranks:
        return _ranking_words(report)
    single = "batch" if report.own_loss else noun(report)
    end = f" Based on one {single}." * (report.text_count == 1)
    if report.edges:
        return _edge_words(report) + end
    if not report.effects:
        names = listed([report.head_name(head) for head in report.by_gradient[:_NAMED]])
        return f"Largest gradients: {names}; an estimate, nothing was ablated.{end}"
    if math.isnan(report.baseline.get("loss", 0.0)):
        return "The loss is not a number (NaN) even with all heads: nothing can be ranked."
    if report.text_count > 1:
        end = f" {report.text_count} {noun(report)}s are too few for a ranking."
    tried, unit = len(report.effects), UNITS[report.unit]
    best = (report.ranking(1).matter or tuple(report.effects[:1]))[0]
    words = without_words(report, best, _called(report, best), most=tried > 1)
    if tried > 1 and abs(best.value(report.metric)) < _ROUNDING:
        return f"None of {counted(tried, unit)} changes {report.ranked_by.label}.{end}"
    if math.isnan(report.chance):
        option = "--image" if noun(report) == "image" else "--texts"
        few = f"One {noun(report)} is too few to rank {unit}s"
        needs = f"{words}. {few}: give {LEAST_TEXTS} or more ({option})."
        alone = report.text_count == 1 and len(report.singles) > 1 and not report.ranked_by.signed
        tied = _tied(report, best)
        shown = [needs] * (alone and not (report.own_loss or tied)) + [f"{words}{tied}.{end}"]
        return next(filter(fits_two_lines, shown), f"{words}.{end}")
    clear, one = report.chance < CHANCE, f"one {single}" if report.text_count == 1 else ""
    p, end = f"p = {p_value(report.chance)}", "" if one else end
    within = f"; {', '.join(filter(None, (p, one)))}"
    if not clear:
        basis = "; ".join(filter(None, (f"{p}, threshold {share(CHANCE)}", one)))
        within = f", but not significantly ({basis})"
    hurt, tied = _most_hurt(report, best), _tied(report, best)
    brief = re.sub(r" \([^()]* → [^()]*\)", "", words)  # the losses, which the screen has as well
    tails = ((words, hurt, tied), (words, "", tied), (brief, "", tied), (words, hurt, ""))
    order = "{0}{2}{1}{3}." if clear else "{0}{1}{2}{3}."
    shown = [order.format(claim, within, near, far) + end for claim, near, far in tails]
    return next(filter(fits_two_lines, shown), f"{words}{within}.{end}")


def _tied(report: AblationReport, best: Effect) -> str:
    """Return which ablations change nearly as much as the largest; empty if none does."""
    size = best.value(report.metric)
    others = [e for e in report.ranking(len(report.effects)).matter if e is not best]
    near = [effect for effect in others if size and effect.value(report.metric) / size >= _NEAR]
    names = listed([report.missing(effect.variant) for effect in near])
    names = names if len(near) <= _MOST_TIED else f"{len(near)} others"
    return f"; {names} come{'s' * (len(near) == 1)} close" * bool(near)


def _called(report: AblationReport, effect: Effect) -> str:
    name, seen = report.missing(effect.variant), report.patterns
    for scores in () if seen is None or report.unit != "head" else seen.heads:
        if scores.place == effect.head and scores.label.is_known and scores.label.is_finding:
            return f"{name} ({scores.label.said})"
    return name


def _most_hurt(report: AblationReport, effect: Effect) -> str:
    """Return at which word of one text the loss rises most without a head, if it does."""
    rises = effect.shown(report.metric).value > 0
    if not rises or len(effect.token_losses) != 1 or report.metric != "loss_delta":
        return ""
    changes = np.nan_to_num(np.asarray(effect.token_losses[0], float))
    tokens = (report.targets or report.texts)[0]
    sums = [float(changes[word.start : word.stop].sum()) for word in word_ranges(tokens)]
    word = word_ranges(tokens)[sums.index(max(sums))]
    return f", most of all at {quoted_word(tokens, word)} ({max(sums):+.1f} nats)"


def _edge_words(report: AblationReport) -> str:
    effect, others = report.leading, report.random_edges
    words = without_words(report, effect)
    if abs(effect.value(report.metric)) < _ROUNDING:
        return f"{words}."
    if not others:
        lacks = "; the text has no other edge of this distance to compare with"
        return f"{words}{lacks * (not report.edge_draws)}."
    size, tried = abs(effect.value(report.metric)), len(others)
    beaten = sum(abs(change) < size for change in others)
    preposition, edges, distance = _random_edges(report)
    drawn = f"draws of {edges}" if len(report.edges) > 1 else edges
    count = f"all {tried}" if beaten == tried else f"{beaten} of {tried}"
    verdict = f"more than {preposition}{count} {drawn}"
    if 2 * beaten <= tried:
        verdict = f"no more than {preposition}{edges}"
    elif tried == len(report.edges) == 1:
        only = edges.removesuffix("es" if edges.endswith("ches") else "s")
        verdict = f"more than {preposition}the only {only}"
    whole = f"{words}, {verdict}{distance}."
    return whole if fits_two_lines(f"{whole} Based on one text.") else f"{words}, {verdict}."


def _random_edges(report: AblationReport) -> tuple[str, str, str]:
    """Return the words before, for and after the random edges that were hidden as a control."""
    moves = {edge.moved for edge in report.edges}
    moved: Moved = moves.pop() if len(moves) == 1 else "both"
    return *CONTROLS[moved], " of the same distance" * (moved == "both")


def without_words(
    report: AblationReport, effect: Effect, called: str = "", *, most: bool = False
) -> str:
    """Return a clause on the effect of an ablation: the change, the value before and after.

    called: the name of what is ablated. most: True says that no other ablation changes as much.
    """
    name, value = called or report.missing(effect.variant), effect.shown(report.metric).value
    ablating = f"{'Hiding' if report.edges else 'Ablating'} {name}"
    before = {"loss_delta": "loss", "logit_diff": "logit_diff"}.get(report.metric, "")
    at = report.baseline.get(before)
    if at is None or not math.isfinite(value):
        changed = f"the output{' most' * most}"
        if report.metric == "output_mse":
            return f"{ablating} changes {changed} ({_mean_square(report, effect)})"
        return f"{ablating} changes {changed}: {effect_words(report, effect)}"
    measured, unit = _measured(report)
    if abs(value) < _ROUNDING:
        return f"{ablating} leaves {measured} at {at:.3f}{unit}"
    of = "" if ablates_every(report) else f" of these {len(report.singles)}"
    moves = f"{ablating} {'raises' if value > 0 else 'lowers'} {measured}{f' most{of},' * most} by"
    return f"{moves} {_three_digits(abs(value), False)}{unit} ({at:.3f} → {at + value:.3f})"


def loss_over(report: AblationReport) -> str:
    """Return on how many texts and tokens the loss was measured, as words."""
    tokens = counted(report.token_count, "token")
    return f"loss over {counted(report.text_count, noun(report))} ({tokens})"


def unclear_words(report: AblationReport, effect: Effect) -> str:
    """Return a clause on an ablated head whose effect may be zero, with its interval."""
    measured, unit = _measured(report)
    value = _three_digits(effect.shown(report.metric).value, report.ranked_by.signed)
    ends = interval_words(report, effect)
    return f"Ablating it does not clearly change {measured} ({value}{unit}, 95% CI {ends})"


def _measured(report: AblationReport) -> tuple[str, str]:
    if report.metric == "loss_delta":
        return f"the {_loss_name(report)}", report.loss_unit
    return (
        ("the logit difference", " logits") if report.metric == "logit_diff" else ("the output", "")
    )


def _ranking_words(report: AblationReport) -> str:
    metric, tried, unit = report.ranked_by, len(report.effects), UNITS[report.unit]
    if tried == 1:
        (effect,) = report.effects
        unclear = ", which includes 0" if effect.shown(report.metric).unclear else ""
        words = without_words(report, effect)
        return f"{words}, 95% CI {interval_words(report, effect)}{unclear}."
    order = report.ranking(tried)
    if not metric.signed:
        moved = "The output changes most" if report.metric == "output_mse" else ""
        return f"{moved or f'{metric.title} is largest'} without {_largest(report, order.matter)}."
    units = f"{len(report.singles) or tried} {unit}s"
    clear = [effect for effect in order.matter if effect.shown(report.metric).significant]
    named = clear[:_NAMED]
    if not named and not order.harm:
        return f"No significant effect among {units}."
    matter = f"No {unit} clearly matters"
    if named:
        most = order.matter[: len(named)] == tuple(named)
        more = [report.name(effect.variant) for effect in named[1:]]
        then = f", {'followed by' if most else 'as clearly do'} {listed(more)}" * bool(more)
        matter = without_words(report, named[0], most=most) + then
    if order.harm:
        names = listed([report.name(effect.variant) for effect in order.harm[:_NAMED]])
        less = "the loss falls" if report.metric == "loss_delta" else "the logit difference grows"
        return f"{matter}; {less} without {names}."
    none = f"no {unit}" if ablates_every(report) else f"none of these {len(report.singles)}"
    return f"{matter}; {none} is clearly harmful."


def _largest(report: AblationReport, order: Sequence[Effect]) -> str:
    first, by_output = order[:_NAMED], report.metric == "output_mse"
    leader, *others = (report.name(effect.variant) for effect in first)
    amount = effect_words(report, first[0]).removeprefix(f"{report.ranked_by.label} ")
    amount = _mean_square(report, first[0]) if by_output else amount
    names = f"{leader} ({amount})" + (f", then {listed(others)}" if others else "")
    means = [effect.means[report.metric] for effect in first]
    if any(mean.base_rate is None or mean.base_rate < _AS_MUCH * mean.value for mean in means):
        return names
    much = "much" if by_output else "large"
    return f"{names}, but as {much} for random vectors of equal norm"


def _mean_square(report: AblationReport, effect: Effect) -> str:
    value, own = effect.shown("output_mse").value, report.baseline.get("output_square")
    words = f"MSE {_three_digits(value, False)}"
    return f"{words}, {percent(value / own)} of its mean square" if own else words


def effect_words(report: AblationReport, effect: Effect) -> str:
    """Return an effect as a string, such as ``+0.441 nats/token`` or ``KL 0.31 nats/token``."""
    metric = report.ranked_by
    value = _three_digits(effect.shown(report.metric).value, metric.signed)
    words = f"{value}{' ' * (not metric.percent)}{metric.unit}".rstrip()
    return words if report.metric == "loss_delta" else f"{metric.label} {words}"


def interval_words(report: AblationReport, effect: Effect) -> str:
    """Return the interval of an effect, such as ``[+0.154, +0.502]``; empty if it has none."""
    ends, signed = effect.shown(report.metric).interval, report.ranked_by.signed
    return f"[{', '.join(_three_digits(end, signed) for end in ends)}]" if ends else ""


def _three_digits(value: float, signed: bool) -> str:
    """Return a number as a string with three digits, such as ``+0.470``; zero has no sign."""
    return f"{value or 0.0:{'+' * (signed and value != 0)}#.3g}".rstrip(".")


# Provenance ----------------------------------------------------------------------------------


def about(report: AblationReport) -> list[Part]:
    """Return the facts that a reader needs to repeat the run: model, texts, ablation, baseline."""
    many, source = report.texts_wanted != 1, report.source
    drawn = report.mode == "resample" or report.text_count > 1 or bool(report.edges)
    facts = [
        *[f"{report.kind} attention"] * (report.kind != "self"),
        _size(report),
        *[f"seed {report.seed}"] * (drawn or report.model.seed is not None),
    ]
    parts: list[Part] = [
        Facts([*model_words(report.model.of(report.kind)), *((fact, False) for fact in facts)])
    ]
    if report.text or not report.own_loss:
        first = f"the first: {report.text}" if many else report.text
        name = f"{noun(report)}s" if many else noun(report)
        parts.append(Quote(name, first, lead=max(7, len(name) + 2)))
    if report.target is not None:
        parts.append(Quote("target", report.target))
    if source:
        if many and not source.startswith(f"{report.texts_wanted} "):
            source = f"{counted(report.texts_wanted, 'text')} from {source}"
        parts.append(Facts([(source, False)], lead=7))
    return [*parts, Facts([(fact, False) for fact in _scan_facts(report)])]


def _scan_facts(report: AblationReport) -> list[str]:
    every = "all " * (len(report.singles) > 1 and ablates_every(report))
    single = f"{every}{counted(len(report.singles), UNITS[report.unit])} measured"
    facts = {
        "exact": [_ablation(report), single if report.singles else "heads ablated together"],
        "budget": [_ablation(report), f"gradient pre-ranking, top {len(report.effects)} measured"],
        "gradient": ["first-order estimate by gradient", "no head is ablated"],
    }[report.method]
    if report.positions == "last":
        facts.append("last prediction of each text only")
    loss, name = report.baseline.get("loss"), _loss_name(report)
    if loss is not None:
        facts.append(f"{name} {loss:.3f}{report.loss_unit} with all heads")
        facts += ["each word masked in turn"] * (name == "pseudo-loss")
    if report.answer is not None and report.foil is not None:
        asked = f'answer "{report.answer}" against foil "{report.foil}"'
        before = report.baseline.get("logit_diff")
        facts.append(asked if before is None else f"{asked}: {before:+.3f} logits")
    elif report.classes:
        asked = "predicted with all heads" if report.answer is None else f'"{report.answer}"'
        facts.append(f"{'answer' if report.classes == START_END else 'label'}: {asked}")
    return facts


def _loss_name(report: AblationReport) -> str:
    """Return the name of the loss: of labels, or a pseudo-loss if each word is masked in turn."""
    if report.classes:
        return "answer loss" if report.classes == START_END else "label loss"
    if report.own_loss:
        return "loss"
    seen = report.patterns
    both_ways = seen is not None and not seen.record.causal and not report.targets
    masked = both_ways and report.texts[0].layout is None  # a picture's patches see each other
    masked = masked or (seen is None and "MaskedLM" in report.model.architecture)
    return "pseudo-loss" if masked else "loss"


def ablates_every(report: AblationReport) -> bool:
    """Return whether every head of the model (or every other unit) was ablated alone."""
    info = report.model
    in_a_layer = {"head": info.heads, "kv-head": info.kv_heads}.get(report.unit, 1)
    return len(report.singles) == in_a_layer * len(info.heads_of_layers)


def _ablation(report: AblationReport) -> str:
    if report.edges:
        return f"{', '.join(edge.name for edge in report.edges)} hidden"
    reference = f" over {report.reference}" if report.reference else ""
    draws = f", up to {counted(report.draws, 'draw')}" * (report.mode == "resample")
    return f"{report.mode} ablation{reference}{draws}"


def map_title(report: AblationReport, brief: bool = False) -> str:
    """Return the title of the grid: ``Loss increase when one head is ablated (Δ nats/token)``."""
    metric = report.ranked_by
    if report.method == "gradient":
        return "First-order importance of each head (gradient estimate)"
    if brief:
        return f"{metric.label}, {metric.unit.removesuffix('/token')}".removesuffix(", ")
    unit = f" ({'Δ ' * (report.metric == 'loss_delta')}{metric.unit})" if metric.unit else ""
    ablated = f"one {UNITS[report.unit]} is ablated"
    if report.edges:
        hidden = "edges are" if len(report.edges) > 1 else "edge is"
        ablated = f"the {hidden} hidden in one {UNITS[report.unit]}"
    title = f"{metric.title} when {ablated}{unit}"
    return f"{title}, where measured" if report.method == "budget" else title


def ranking_titles(report: AblationReport) -> tuple[str, str]:
    """Return two titles: of the table of heads that matter, and of that of heads that do harm."""
    title = report.ranked_by.title
    if len(report.singles) == 1:
        return f"{title} without it", ""
    if not report.ranks:
        only = f"this {noun(report)}" if report.text_count == 1 else f"these {noun(report)}s"
        random = report.model.weights == "random" and report.text_count != 1
        return f"Largest changes, {'random weights' if random else f'{only} only'}", ""
    if report.metric == "logit_diff":
        return "The logit difference falls most without", "The logit difference grows without"
    if report.metric == "loss_delta":
        return "Loss increases most without", "Loss decreases without"
    return f"{title} is largest without", ""


def caveats(report: AblationReport) -> list[str]:
    """Return the caveats: sentences on the limits of the numbers."""
    effects, metric, tried = report.effects, report.metric, len(report.effects)
    lost = sum(not math.isfinite(e.means.get(metric, Mean(0.0)).value) for e in effects)
    first = [*effects[0].means.values()] if effects else []
    untested = not math.isnan(report.chance) and report.model.weights != "random"
    one_text = report.text_count == 1 and len(report.singles) > 1 and not report.edges
    sentences = {
        f"no numbers: {counted(lost, 'ablation')} overflowed and stay blank"
        f"{report.model.overflow_advice}.": lost,
        "estimate: the gradient is a first-order estimate of a small change of a head, not what "
        "its ablation costs; --method exact measures that.": report.method == "gradient",
        f"measured: {tried} of {counted(len(report.gradients), 'head')}, those that the gradient "
        "ranks highest.": report.method == "budget",
        f"rank correlation of gradient and exact, {tried} ablations: "
        f"{report.rank_correlation or 0.0:+.2f}; the gradient is "
        "approximate.": report.rank_correlation is not None,
        f"interval: 95%, bootstrap-t over {counted(report.text_count, noun(report))}, 2,000 draws; "
        "paired differences to the model with all heads.": any(mean.interval for mean in first),
        f"correction: {tried} ablations are tried, and {0.05 * tried:.1f} intervals would exclude "
        "0 by chance alone. Named first, or called harmful, is only what is significant among "
        "all: bootstrap-t over the texts, largest |t|, p at most .05.": tried > 1
        and any(mean.adjusted is not None for mean in first),
        "chance: in each draw the Δ loss of every token gets a random sign, and the largest "
        f"change of {counted(tried, 'ablation')} is taken. An effect at a single token cannot be "
        "significant here; --texts FILE tests whether it generalises.": untested,
        "edge: the score of the attention from the first word to the second becomes -inf, and the "
        "softmax runs over the other keys; nothing else is changed.": report.edges,
        "one text: a change of the output is above zero for every head, so this text alone has no "
        f"control. --texts FILE with {LEAST_TEXTS} or more has intervals over texts, and a random "
        "direction of equal norm ablated instead of each head.": one_text
        and not report.ranked_by.signed,
        f"control: {control_words(report)}.": any(
            effect.shown(metric).base_rate is not None for effect in effects
        ),
    }
    return [sentence for sentence, holds in sentences.items() if holds]


def control_words(report: AblationReport) -> str:
    """Return a clause on what the random baseline does instead of ablating a head."""
    if report.edges:
        draws = counted(report.edge_draws, "draw")
        preposition, edges, distance = _random_edges(report)
        drawn = f"random edges {preposition}{edges}" if preposition else edges
        return f"{drawn}{distance} hidden instead, mean of {draws}"
    return f"subtracts a random vector of equal norm instead of the {UNITS[report.unit]}'s output"


def explanation(report: AblationReport) -> Explanation:
    """Return the glossary, with a description of the texts that the effects were measured on."""
    many, tokens = report.texts_wanted != 1, counted(report.token_count, "token")
    texts = counted(report.text_count, noun(report)) if many else f"this {noun(report)} alone"
    seed = f", seed {report.seed}" * many
    return Explanation(
        "ablate",
        f"measured over {texts} ({tokens}{seed}); each number is the difference to the model "
        "with all heads.",
    )
