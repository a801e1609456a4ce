"""The document of ``attnviz patch``: prompts, grid, ranking, heads together, single tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.document import Explanation, Facts, Part, Words
from attnviz.draw.grid import full_width
from attnviz.draw.labels import token_label, token_labels
from attnviz.draw.numbers import NumberScale, counted, whole_percent
from attnviz.draw.provenance import advised, fits_two_lines, known_text, model_words, notes_group
from attnviz.draw.signed import one_line, signed_grid, signed_scale
from attnviz.engine.patching import SITES
from attnviz.inspect.interventions.patch.report import (
    METRICS,
    AskedToken,
    PatchEffect,
    PatchReport,
    TokenEffects,
)
from attnviz.inspect.interventions.shown import (
    base_rates,
    effect_grid,
    effect_table,
    incomplete,
    label_column,
    number,
)
from attnviz.measures.bootstrap import LEAST_TEXTS
from attnviz.measures.labels import label_look
from attnviz.records import Tokens

_GAP = 3
_PROMPTS, _TABLE = 34, 87
"""The columns that the prompts, and the ranking, take next to the grid."""

_LEAST_ROWS = 3
_AROUND_TOKENS = 10
"""The lines of a first screen that are not for the grid of tokens."""


def document(report: PatchReport) -> doc.Document:
    """Return the document of a report, with its first screen."""
    tokens = report.pairs[0].tokens.clean
    every = _ranking_table(report, report.ranking(len(report.effects)), "Every patch")
    largest = "Largest effects" if report.ratio else "Largest changes"
    groups = [
        doc.Group(_about(report)),
        notes_group((*report.model.notes, *report.notes), tokens),
        doc.Group([_prompts(report), _runs(report)]),
        doc.Group([_head_grid(report)]),
        doc.Group([_ranking_table(report, report.ranking(), largest)]),
        doc.Group(_together(report)),
        doc.Group(token_grid(report)),
        doc.Group([doc.Say(text) for text in _caveats(report)]),
        doc.Group([every], full=True),
    ]
    return doc.Document(
        name=f"patched activations of {report.model.name}",
        title=" ".join(report.text.split()),
        groups=groups,
        explain=_explanation(report),
        hints=doc.next_steps(_hints(report)),
        heading=_heading(report),
        quoted=report.text if report.pairs_wanted == 1 else "",
        finding=finding(report),
        first=advised(partial(first_groups, report), tokens),
    )


def _hints(report: PatchReport) -> list[str]:
    """Return the options to try next on the command line."""
    hints = []
    if report.source.endswith("built-in pairs"):
        hints.append('"CLEAN" "CORRUPT" your own')
    elif len(report.pairs) == 1:
        hints.append("--pairs FILE for intervals")
    carrying = [report.names(effect) for effect in report.ranking(2)]
    if len(carrying) == 2 and report.together is None and not report.whole_layers:
        hints.append(f"--together {','.join(carrying)}")
    if len(report.pairs) == 1 and report.by_token is None:
        hints.append("--by-token")
    hints.append("--explain")
    return hints


# The prompts ---------------------------------------------------------------------------------


def _prompts(report: PatchReport, lines: int = 0) -> doc.Maps:
    """Return both prompts of the first pair, with the tokens highlighted that differ."""
    pair, maps = report.pairs[0], []
    both, differ = pair.tokens, pair.tokens.changed
    many = ", pair 1" * (len(report.pairs) > 1)
    short = "Δlogit" if report.metric == "logit_diff" else METRICS[report.metric].short
    words = (_quoted(pair.answer), "" if pair.foil is None else _quoted(pair.foil))
    for name, tokens, changed, sign, value, word in (
        ("clean", both.clean, differ[0], 1.0, pair.clean_metric, words[0]),
        ("corrupt", both.corrupt, differ[1], -1.0, pair.corrupt_metric, words[1]),
    ):
        marks = np.zeros((1, len(tokens)))
        marks[0, list(changed)] = sign
        kept = [at for at, special in enumerate(tokens.special) if not special]
        metric = f"{short} {value:+.2f}"
        asks = [(f"{'answer' if sign > 0 else 'foil'} {word}", False)] if word else []
        title: doc.Words = [(name + many, True), *asks, (metric, False)]
        maps.append(
            doc.Map(name, marks[:, kept], Tokens.bare((0,)), tokens.taken(kept), title, limit=1.0)
        )
    return doc.Maps(maps, texts=True, lines=lines or 4, scale=None)


# The grid ------------------------------------------------------------------------------------


def _head_grid(report: PatchReport, scaled: bool = True) -> doc.HeadGrid:
    """Return a grid of the effects of single patches."""
    found = {effect.places[0]: report.mean(effect) for effect in report.effects}
    scale = NumberScale.over(one.value for one in found.values())
    grid = effect_grid(
        found,
        scale,
        _grid_title(report, brief=not scaled),
        report.column,
        base=report.index_base,
        blank=found,
        bar=_bar(report, scale) if scaled else None,
    )
    labels = {report.name(place): label_look(label) for place, label in report.labels.items()}
    return grid.with_known(labels, "effect of the patch")


def _bar(report: PatchReport, scale: NumberScale) -> doc.Scale:
    unit = "effect" if report.ratio else METRICS[report.metric].unit
    return signed_scale(scale, unit, "effect" if report.ratio else "Δ")


def token_grid(report: PatchReport, most: int = 0) -> list[doc.Part]:
    """Return a grid of patches of single tokens: a row for each token, a column for each head.

    The columns are layers where whole layers are patched. most: the number of rows, those with the
    largest effects; 0 for all.
    """
    found = report.by_token
    if found is None:
        return []
    sizes = np.nan_to_num(np.abs(found.values)).max(axis=1)
    order = np.argsort(-sizes, kind="stable")[: most or len(sizes)]
    rows = sorted(order.tolist())
    labels = token_labels(report.base)
    scale = NumberScale.over(found.values.ravel().tolist())
    grid = signed_grid(
        [f"{labels[found.tokens[row]]} ({found.tokens[row]})" for row in rows],
        [report.name(place) for place in found.places],
        {
            (at, column): float(value)
            for at, row in enumerate(rows)
            for column, value in enumerate(found.values[row])
            if math.isfinite(value)
        },
        scale,
    )
    title = [(_token_title(report), True)]
    left = len(sizes) - len(rows)
    if left:
        rest = np.delete(sizes, rows).max()
        title.append((f"{counted(left, 'other token')}: at most {rest:.2g}", False))
    return [grid._replace(title=title, scale=None if most else _bar(report, scale))]


# The ranking ---------------------------------------------------------------------------------


def _ranking_table(report: PatchReport, shown: Sequence[PatchEffect], title: str = "") -> doc.Table:
    """Return a table with a row for each patch: effect, interval, base rate, label and others."""
    scale = NumberScale.over([report.shown(effect) for effect in report.effects])
    name = "effect" if report.ratio else _change_words(report)
    if report.method == "gradient":
        name = "estimate"
    columns: list[doc.ColumnOf[PatchEffect]] = [
        doc.ColumnOf(name + scale.times, lambda effect: number(report.shown(effect), scale)),
        base_rates("control", report.mean, scale),
        label_column(
            report.labels, lambda e: e.places[0] if len(e.places) == 1 else None, known_text
        ),
    ]
    if report.method == "both":
        columns.append(doc.ColumnOf("gradient", lambda effect: number(effect.gradient, scale)))
    columns.append(doc.ColumnOf("q", lambda effect: _small(effect.q)))
    if report.method != "gradient":
        columns.append(doc.ColumnOf("patched", lambda effect: f"{effect.metric:+.2f}"))
    return effect_table(title, shown, *columns, scale=scale, name=report.names, mean=report.mean)


def _small(value: float) -> str:
    if math.isnan(value):
        return ""
    return "< .001" if value < 0.001 else f"{value:.3f}"[1:] if value < 1 else "1"


def _together(report: PatchReport) -> list[doc.Part]:
    """Return a table with the effect of the heads patched together; an empty one without them."""
    joint = report.together
    if joint is None:
        return []
    table = _ranking_table(report, [joint], "Patched together")
    return [table, doc.Facts([(_joint_words(report, joint), False)])]


# The first screen ----------------------------------------------------------------------------


def first_groups(report: PatchReport, columns: int, lines: int) -> list[doc.Group]:
    """Return the first screen: metric, prompts, grid and ranking.

    columns, lines: the available width in characters and lines. The prompts or the ranking stand
        next to the grid if they fit.
    """
    grid = _head_grid(report, scaled=False)
    table = _ranking_table(report, report.ranking(len(report.effects)))._replace(least=_LEAST_ROWS)
    joint = _together(report)[1:]
    top, ranked = doc.Group([_runs(report), *_base_rate(report), *joint]), doc.Group([table])
    marked = _prompts(report, 2)
    if report.by_token is not None:
        followed = token_grid(report, max(lines - _AROUND_TOKENS, _LEAST_ROWS))
        below = [] if report.whole_layers else [ranked._replace(yields=2)]
        return [top, doc.Group([marked], yields=1), doc.Group(followed), *below]
    wide = full_width(grid)
    if wide + _GAP + _TABLE <= columns:
        grid = one_line(grid, columns - _TABLE - _GAP)
        both = doc.Group([table, grid], beside=doc.Beside(_TABLE, _GAP, yields=True))
        return [top, doc.Group([marked], yields=1), both]
    if wide + _GAP + _PROMPTS <= columns:
        beside = doc.Beside(_PROMPTS, _GAP, yields=True)
        grid = one_line(grid, columns - _PROMPTS - _GAP)
        return [top, doc.Group([doc.Group([marked]), grid], beside=beside), ranked]
    return [top, doc.Group([marked], yields=1), doc.Group([grid]), ranked._replace(yields=2)]


_AT = {"all": "", "last": " at the last token", "changed": " at the tokens that differ"}

_NAMED = 2
"""The most heads that the finding names."""

_MOST = 0.5
"""The share from which a token carries most of the difference."""


def _heading(report: PatchReport) -> Words:
    """Return the heading in one line: the model, the patched values and the number of pairs."""
    tokens = counted(len(report.pairs[0].tokens.corrupt), "token")
    pairs = report.source if report.source.endswith("built-in pairs") else _pair_count(report)
    parts = [_patched(report), _amount(report), pairs if report.pairs_wanted > 1 else tokens]
    return [(report.model.name, True), *((part, False) for part in parts)]


def _pair_count(report: PatchReport) -> str:
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
        if not report.ratio:
            return f"{lead}nothing carries a difference: {report.why}."
        if report.ranks and not any(effect.carries for effect in report.effects):
            return f"{lead}nothing carries more than its control."
        return f"{lead}what carries the difference here tells nothing of a trained model."
    if not report.ratio:
        return f"{lead}{report.why[0].upper()}{report.why[1:]}: no shares."
    return lead + _answer(report) + " One pair." * (len(report.pairs) == 1)


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
    """Return a clause on a patch that carries more than the difference between the prompts."""
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
    return f", at {_token_name(report, found.tokens[at])} alone {whole_percent(float(column[at]))}"


def _moves(report: PatchReport, found: TokenEffects) -> str:
    """Return a sentence on the first layer whose predicting token has half of the difference."""
    values = found.values[found.tokens.index(found.predicts)].tolist()
    reached = next((at for at, value in enumerate(values) if value >= _MOST), None)
    name = f"{_token_name(report, found.predicts)}, which predicts,"
    if reached is None:
        return f"In no layer does {name} carry half of the difference."
    layer = report.name(found.places[reached])
    carried = f"{whole_percent(values[reached])} of {METRICS[report.metric].carried}"
    return f"On entering {layer}, {name} carries {carried}."


def _token_name(report: PatchReport, token: int) -> str:
    """Return a token of the base run's prompt and its position, as a string. token: its index."""
    return f"“{token_label(report.base.texts[token])}” ({token})"


def _alone(report: PatchReport, joint: PatchEffect) -> list[float]:
    single = {effect.places[0]: report.shown(effect) for effect in report.effects}
    return [single[place] for place in joint.places]


# Provenance ----------------------------------------------------------------------------------


def _about(report: PatchReport) -> list[Part]:
    """Return the facts that a reader needs to repeat the run: model, prompt pairs, patches."""
    kind = [] if report.kind == "self" else [f"{report.kind} attention"]
    facts = [*kind, _pair_count(report), *[report.source] * bool(report.source)]
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


def _runs(report: PatchReport) -> Facts:
    """Return the metric of both runs without a patch, of several pairs the mean."""
    metric, pair = METRICS[report.metric], report.pairs[0]
    name = metric.name
    if len(report.pairs) == 1 and report.metric != "kl":
        name = name.replace("answer", _quoted(pair.answer))
        name = name.replace("foil", _quoted(pair.foil)) if pair.foil is not None else name
        name = f"{metric.short} = {name}"
    elif pair.foil is not None:
        name = f"{metric.short} of answer and foil (wrong token)"
    numbers = f"clean {report.clean_metric:+.2f}, corrupt {report.corrupt_metric:+.2f}"
    return Facts([(f"{name}: {numbers}", False)])


def _base_rate(report: PatchReport) -> list[Part]:
    """Return a line that describes the unrelated baseline; empty if there is none."""
    if report.metric == "kl" and report.method != "gradient":
        return [Facts([("no control with --metric kl: logit_diff and log_prob have one", False)])]
    if not report.control or not report.ratio or report.by_token is not None:
        return []
    side = "clean" if report.direction == "denoise" else "corrupt"
    control = report.control.partition(",")[0].replace("source", f"{side} prompt")
    return [Facts([(f"control: the same patch with {control}", False)])]


def _quoted(word: AskedToken) -> str:
    """Return a token in quotes."""
    return f"“{token_label(word.text)}”"


def _grid_title(report: PatchReport, brief: bool = False) -> str:
    """Return the title of the grid of all patches. brief: for a first screen."""
    metric = METRICS[report.metric]
    if report.method == "gradient":
        return "Estimated effect" + " of patching each head (gradient)" * (not brief)
    if not report.ratio:
        return _change_words(report) if brief else f"Change of {metric.name} by each patch"
    if brief:
        return "effect"
    each = "layer" if report.whole_layers else "head"
    return f"Effect of patching each {each}: share of {metric.carried} (1 = all of it)"


def _change_words(report: PatchReport) -> str:
    """Return the heading of changes of the metric, such as ``Δ logit difference, logits``."""
    metric = METRICS[report.metric]
    return f"Δ {metric.short}, {metric.unit}"


def _token_title(report: PatchReport) -> str:
    """Return the title of the grid of single tokens."""
    share = "effect" if report.ratio else _change_words(report)
    what = SITES[report.what].words
    return f"{what[0].upper()}{what[1:]} patched at one token alone ({share})"


def _joint_words(report: PatchReport, joint: PatchEffect) -> str:
    """Return the effect of heads patched together, and the sum of their effects, as a string."""
    total, found = sum(_alone(report, joint)), report.shown(joint)
    if not report.ratio:
        unit = METRICS[report.metric].unit
        return f"together {found:+.3f} {unit}, sum of single patches {total:+.3f}"
    carried, singles, between = map(whole_percent, (found, total, found - total))
    return f"together {carried}, sum of single patches {singles}, interactions {between}"


def _caveats(report: PatchReport) -> list[str]:
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
            f"interval: 95%, bootstrap-t over {_pair_count(report)}, 2,000 draws, of the ratio of "
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


def _explanation(report: PatchReport) -> Explanation:
    """Return the glossary, with the data that the effects were measured on."""
    seed = f", base rates drawn from seed {report.seed}" if report.control else ""
    return Explanation("patch", f"measured over {_pair_count(report)}{seed}.")
