"""The sentences of ``attnviz patch``: provenance, finding, caveats, explanation."""

from __future__ import annotations

from attnviz.draw.document import Explanation, Facts, Part, Words
from attnviz.draw.labels import token_label
from attnviz.draw.numbers import counted, whole_percent
from attnviz.draw.provenance import fits_two_lines, model_words
from attnviz.engine.patching import SITES
from attnviz.inspect.interventions.patch.records import (
    METRICS,
    AskedToken,
    PatchEffect,
    PatchReport,
    TokenEffects,
)
from attnviz.inspect.interventions.shown import incomplete
from attnviz.measures.bootstrap import LEAST_TEXTS
from attnviz.records import Tokens

_AT = {"all": "", "last": " at the last token", "changed": " at the tokens that differ"}

_NAMED = 2
"""The most heads that the finding names."""

_MOST = 0.5
"""The share from which a token carries most of the difference."""


def heading(report: PatchReport) -> Words:
    """Return the heading in one line: the model, the patched values and the number of pairs."""
    tokens = counted(len(report.pairs[0].tokens.corrupt), "token")
    pairs = report.source if report.source.endswith("built-in pairs") else pair_count(report)
    parts = [_patched(report), _amount(report), pairs if report.pairs_wanted > 1 else tokens]
    return [(report.model.name, True), *((part, False) for part in parts)]


def pair_count(report: PatchReport) -> str:
    """Return the number of measured prompt pairs as a string."""
    return counted(len(report.pairs), "pair")


def _patched(report: PatchReport) -> str:
    arrow = "clean → corrupt" if report.direction == "denoise" else "corrupt → clean"
    at = " by token" if report.by_token is not None and report.whole_layers else _AT[report.at]
    return f"{SITES[report.what].words}{at}, {arrow}"


def _amount(report: PatchReport) -> str:
    return counted(len(report.effects), _unit(report))


def _unit(report: PatchReport) -> str:
    return "layer" if report.whole_layers else "key/value head" if report.group > 1 else "head"


# The finding ---------------------------------------------------------------------------------


def finding(report: PatchReport) -> str:
    """Return the main result in one sentence that claims no more than the pairs can support."""
    lead = ""
    if not report.complete:
        lead = incomplete(len(report.pairs), report.pairs_wanted, "pair", "patches")
    if report.model.weights == "random":
        lead += "Random weights: "
        return lead + _of_random(report)
    return lead + _finding(report)


def _of_random(report: PatchReport) -> str:
    if not report.ratio:
        return f"nothing carries a difference: {report.why}."
    if report.ranks and not any(effect.carries for effect in report.effects):
        return "nothing carries more than its control."
    return "what carries the difference here tells nothing of a trained model."


def _finding(report: PatchReport) -> str:
    if not report.ratio:
        return f"{report.why[0].upper()}{report.why[1:]}: no shares."
    return _answer(report) + " One pair." * (len(report.pairs) == 1)


def _answer(report: PatchReport) -> str:
    carried = METRICS[report.metric].carried
    lead = ""
    if report.metric != "kl" and report.clean_metric < report.corrupt_metric:
        lead += "The clean prompt favours the answer less than the corrupt one does. "
    if 1 < len(report.pairs) < LEAST_TEXTS:
        lead += f"{len(report.pairs)} pairs are too few for intervals. "
    if report.method == "gradient":
        best = [f"{report.names(e)} {whole_percent(e.gradient)}" for e in report.ranking(_NAMED)]
        return f"{lead}Largest estimates: {' and '.join(best)}; nothing was patched."
    if report.together is not None:
        total = sum(_alone(report, report.together))
        names, share = report.names(report.together), whole_percent(report.together.share.value)
        return (
            f"{lead}{names} together carry {share} of {carried}; "
            f"singly they add up to {whole_percent(total)}."
        )
    tokens = report.by_token
    if report.what == "residual" and tokens is not None and tokens.predicts in tokens.tokens:
        return lead + _moves(report, tokens)
    named = [each for each in report.ranking(len(report.effects)) if report.shown(each) > 0]
    based = [each for each in named if each.share.base_rate is not None]
    if report.ranks or based:
        named = [each for each in named if each.carries] if report.ranks else based
        named = [each for each in named if not each.share.value <= (each.share.base_rate or 0.0)]
        if not named:
            beyond = f"carries more of {carried} than its control, an unrelated prompt"
            return f"{lead}None of {_amount(report)} {beyond}."
    if not named:
        return f"{lead}No {_unit(report)} that was patched carries any of {carried}."
    first, *others = named[:_NAMED]
    place = SITES[report.what].lead + report.names(first)
    said = f"{place} carries {whole_percent(first.share.value)} of {carried} between the prompts"
    if first.share.value > 1:
        said = _overshoot(report, first, place)
    if tokens is not None:
        return f"{lead}{said}{_at_token(report, first)}."
    said += _base(first, True)
    more = [f", {report.names(e)} {whole_percent(e.share.value)}{_base(e)}" for e in others]
    (most, *_) = report.ranking(1)
    if most.share.value < 0 and not report.ranks:
        more = [f"; {report.names(most)} opposes it ({whole_percent(most.share.value)})"]
    whole = f"{lead}{said}{''.join(more)}."
    return whole if first.share.value <= 1 or fits_two_lines(whole) else f"{lead}{said}."


def _overshoot(report: PatchReport, first: PatchEffect, place: str) -> str:
    """Return a clause on a patch that carries more than the difference between the prompts.

    first: the effect of the patch. place: what was patched.
    """
    metric, share = METRICS[report.metric], whole_percent(first.share.value)
    if len(report.pairs) > 1:
        return f"{place} overshoots: it carries {share} of {metric.carried} between the prompts"
    runs = report.corrupt_metric, report.clean_metric
    start, end = runs if report.direction == "denoise" else runs[::-1]
    what = metric.name if report.metric == "log_prob" else metric.carried
    return (
        f"{place} overshoots: patching it moves {what} from {start:+.2f} past "
        f"{end:+.2f} to {first.metric:+.2f} ({share} of the way)"
    )


def _base(effect: PatchEffect, named: bool = False) -> str:
    """Return the share that the control of a patch carries, in brackets. named: describe it too."""
    base = effect.share.base_rate
    control = "patched from an unrelated prompt " if named else ""
    return "" if base is None else f" ({control}{whole_percent(base)})"


def _at_token(report: PatchReport, best: PatchEffect) -> str:
    """Return the end of a sentence: the effect of the strongest patch at its strongest token."""
    found = report.by_token
    if found is None or best.places[0] not in found.places:
        return _base(best, True)
    column = found.values[:, found.places.index(best.places[0])]
    at = int(abs(column).argmax())
    return f", at {token_name(report, found.tokens[at])} alone {whole_percent(float(column[at]))}"


def _moves(report: PatchReport, found: TokenEffects) -> str:
    """Return a sentence on the first layer whose predicting token has half of the difference.

    found: the effects by token and layer.
    """
    values = found.values[found.tokens.index(found.predicts)].tolist()
    reached = next((at for at, value in enumerate(values) if value >= _MOST), None)
    name = f"{token_name(report, found.predicts)}, which predicts,"
    if reached is None:
        return f"In no layer does {name} carry half of the difference."
    layer = report.name(found.places[reached])
    carried = f"{whole_percent(values[reached])} of {METRICS[report.metric].carried}"
    return f"On entering {layer}, {name} carries {carried}."


def token_name(report: PatchReport, token: int) -> str:
    """Return a token of the base run's prompt and its position, as a string. token: its index."""
    return f"“{token_label(base_tokens(report).texts[token])}” ({token})"


def base_tokens(report: PatchReport) -> Tokens:
    """Return the prompt of the first pair's base run, which the patches change."""
    pair = report.pairs[0].tokens
    return pair.clean if report.direction == "noise" else pair.corrupt


def _alone(report: PatchReport, joint: PatchEffect) -> list[float]:
    single = {effect.places[0]: report.shown(effect) for effect in report.effects}
    return [single[place] for place in joint.places]


# Provenance ----------------------------------------------------------------------------------


def about(report: PatchReport) -> list[Part]:
    """Return the facts that a reader needs to repeat the run: model, prompt pairs, patches."""
    kind = [] if report.kind == "self" else [f"{report.kind} attention"]
    facts = [*kind, pair_count(report), *[report.source] * bool(report.source)]
    facts += [f"seed {report.seed}"]
    methods = {
        "exact": "exact",
        "gradient": "first-order estimate by gradient (attribution patching)",
        "both": "exact, beside the first-order estimate",
    }
    return [
        Facts([*model_words(report.model), *((fact, False) for fact in facts)]),
        Facts(
            [(_patched(report), False), (_amount(report), False), (methods[report.method], False)]
        ),
    ]


def runs(report: PatchReport) -> Facts:
    """Return the metric of both runs without a patch, of several pairs the mean."""
    metric, pair = METRICS[report.metric], report.pairs[0]
    name = metric.name
    if len(report.pairs) == 1 and report.metric != "kl":
        name = name.replace("answer", quoted(pair.answer))
        name = name.replace("foil", quoted(pair.foil)) if pair.foil is not None else name
        name = f"{metric.short} = {name}"
    elif pair.foil is not None:
        name = f"{metric.short} of answer and foil (wrong token)"
    numbers = f"clean {report.clean_metric:+.2f}, corrupt {report.corrupt_metric:+.2f}"
    return Facts([(f"{name}: {numbers}", False)])


def base_rate(report: PatchReport) -> list[Part]:
    """Return a line that describes the unrelated baseline; empty if there is none."""
    if report.metric == "kl" and report.method != "gradient":
        return [Facts([("no control with --metric kl: logit_diff and log_prob have one", False)])]
    if not report.control or not report.ratio or report.by_token is not None:
        return []
    side = "clean" if report.direction == "denoise" else "corrupt"
    control = report.control.partition(",")[0].replace("source", f"{side} prompt")
    return [Facts([(f"control: the same patch with {control}", False)])]


def quoted(word: AskedToken) -> str:
    """Return a token in quotes."""
    return f"“{token_label(word.text)}”"


def grid_title(report: PatchReport, brief: bool = False) -> str:
    """Return the title of the grid of all patches. brief: for a first screen."""
    metric = METRICS[report.metric]
    if report.method == "gradient":
        return "Estimated effect" + " of patching each head (gradient)" * (not brief)
    if not report.ratio:
        return change_words(report) if brief else f"Change of {metric.name} by each patch"
    if brief:
        return "effect"
    each = "layer" if report.whole_layers else "head"
    return f"Effect of patching each {each}: share of {metric.carried} (1 = all of it)"


def change_words(report: PatchReport) -> str:
    """Return the heading of changes of the metric, such as ``Δ logit difference, logits``."""
    metric = METRICS[report.metric]
    return f"Δ {metric.short}, {metric.unit}"


def token_title(report: PatchReport) -> str:
    """Return the title of the grid of single tokens."""
    share = "effect" if report.ratio else change_words(report)
    what = SITES[report.what].words
    return f"{what[0].upper()}{what[1:]} patched at one token alone ({share})"


def joint_words(report: PatchReport, joint: PatchEffect) -> str:
    """Return the effect of heads patched together, and the sum of their effects, as a string.

    joint: the patch of these heads together.
    """
    total, found = sum(_alone(report, joint)), report.shown(joint)
    if not report.ratio:
        unit = METRICS[report.metric].unit
        return f"together {found:+.3f} {unit}, sum of single patches {total:+.3f}"
    carried, singles, between = map(whole_percent, (found, total, found - total))
    return f"together {carried}, sum of single patches {singles}, interactions {between}"


def caveats(report: PatchReport) -> list[str]:
    """Return the caveats: sentences on the limits of the numbers."""
    found = []
    if not report.ratio:
        found.append(
            f"no shares: {report.why}; a share of so little would be noise, and the changes of the "
            "metric are shown."
        )
    if report.control and report.ratio:
        found.append(
            f"control: the same patch with {report.control}; what it does too is not about the "
            "right prompt."
        )
    if report.ranks:
        tried = len(report.effects)
        found.append(
            f"interval: 95%, bootstrap-t over {pair_count(report)}, 2,000 draws, of the ratio of "
            "means."
        )
        found.append(
            f"named first: what is above its control with p at most .05 among all {tried}, by "
            "bootstrap-t over the pairs, largest |t|."
        )
    if report.fdr:
        found.append(
            "q: Benjamini & Hochberg, over the patches, of the p of effect − control by sign "
            "flips of the pairs."
        )
    if report.rank_correlation is not None:
        found.append(
            f"rank correlation of gradient and exact effects: {report.rank_correlation:+.2f}."
        )
    if report.group > 1:
        found.append(
            f"shared: {report.group} query heads read each key/value head, and are patched "
            "together with it."
        )
    if len(report.effects) > 1 and report.method != "gradient":
        found.append(
            "single patches contain interactions: effects need not add up to 1, and a head that "
            "another one can replace may show none; --together patches several at once."
        )
    return found


def explanation(report: PatchReport) -> Explanation:
    """Return the glossary, with the data that the effects were measured on."""
    seed = f", base rates drawn from seed {report.seed}" if report.control else ""
    return Explanation("patch", f"measured over {pair_count(report)}{seed}.")
