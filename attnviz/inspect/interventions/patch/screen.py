"""The document of ``attnviz patch``: prompts, grid, ranking, heads together, single tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.document import Facts, Part
from attnviz.draw.grid import full_width
from attnviz.draw.labels import token_label, token_labels
from attnviz.draw.numbers import NumberScale, counted, whole_percent
from attnviz.draw.provenance import (
    advised,
    fits_two_lines,
    known_text,
    model_words,
    named,
    notes_group,
)
from attnviz.draw.signed import one_line, signed_grid, signed_scale
from attnviz.engine.patching import SITES
from attnviz.inspect.interventions.patch.report import (
    METRICS,
    AskedToken,
    PatchEffect,
    PatchReport,
    TokenEffects,
)
from attnviz.inspect.interventions.study import (
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
_PROMPTS, _TABLE = 34, 87  # the columns that the prompts, and the ranking, take next to the grid
_LINES = 3  # the lines of a picture for each line of a prompt
_LEAST_ROWS = 3
_AROUND_TOKENS = 10  # the lines of a first screen that are not for the grid of tokens
_AT = {"all": "", "last": " at the last token", "changed": " at the tokens that differ"}
_METHODS = {
    "exact": "exact",
    "gradient": "first-order estimate by gradient (attribution patching)",
    "both": "exact, beside the first-order estimate",
}


def document(report: PatchReport) -> doc.Document:
    """Return the document of a report: a brief form for the terminal, and the whole."""
    tokens, seed = report.pairs[0].tokens, f", controls drawn from seed {report.seed}"
    every = _ranking_table(report, report.ranking(len(report.effects)), "Every patch")
    largest = "Largest effects" if report.ratio else "Largest changes"
    pairs = report.source if report.source.endswith("built-in pairs") else _pair_count(report)
    size = pairs if report.pairs_wanted > 1 else counted(len(tokens.corrupt), "token")
    heading = [_patched(report), counted(len(report.effects), _unit(report)), size]
    return doc.Document(
        name=f"patched activations of {report.model.name}",
        title=" ".join(report.text.split()),
        groups=[
            doc.Group(_about(report)),
            notes_group((*report.model.notes, *report.notes), tokens.clean),
            doc.Group([_prompts(report), _runs(report)]),
            doc.Group([_head_grid(report)]),
            doc.Group([_ranking_table(report, report.ranking(), largest)]),
            doc.Group(_together(report)),
            doc.Group(token_grid(report)),
            doc.Group([doc.Say(text) for text in _caveats(report)]),
            doc.Group([every], full=True),
        ],
        explain=doc.Explanation(
            "patch", f"measured over {_pair_count(report)}{seed * bool(report.control)}."
        ),
        hints=doc.next_steps(_hints(report)),
        heading=[*named(report.model), *((part, False) for part in heading)],
        quoted=report.text if report.pairs_wanted == 1 else "",
        finding=finding(report),
        first=advised(partial(_first, report), tokens.clean),
    )


def _hints(report: PatchReport) -> list[str]:
    single, hints = len(report.pairs) == 1, list[str]()
    if report.source.endswith("built-in pairs"):
        hints.append('"CLEAN" "CORRUPT": your own')
    elif single:
        hints.append("--pairs FILE: many pairs, with intervals")
    strongest = [report.names(effect) for effect in report.ranking(2)]
    if len(strongest) == 2 and report.together is None and not report.whole_layers:
        hints.append(f"--together {','.join(strongest)}")
    return [*hints, *["--by-token"] * (single and report.by_token is None), "--explain"]


def _first(report: PatchReport, columns: int, lines: int) -> list[doc.Group]:
    grid = _head_grid(report, scaled=False)
    table = _ranking_table(report, report.ranking(len(report.effects)))._replace(least=_LEAST_ROWS)
    top = doc.Group([_runs(report), *_base_rate(report), *_together(report)[1:]])
    prompts, ranked = _prompts(report, 2), doc.Group([table], yields=2)
    above = [top, doc.Group([prompts], yields=1)]
    if report.by_token is not None:
        tokens = token_grid(report, max(lines - _AROUND_TOKENS, _LEAST_ROWS))
        return [*above, doc.Group(tokens), *[ranked] * (not report.whole_layers)]
    left = columns - full_width(grid) - _GAP
    if left >= _TABLE:
        return [top, doc.beside(table, [one_line(grid, columns - _TABLE - _GAP), prompts])]
    if left >= _PROMPTS:
        grid, beside = one_line(grid, columns - _PROMPTS - _GAP), doc.Beside(_PROMPTS, yields=True)
        both = doc.Group([doc.Group([prompts]), grid], beside=beside)
        return [top, both, ranked._replace(yields=0)]
    return [*above, doc.Group([grid]), ranked]


# Prompts, grids and rankings -----------------------------------------------------------------


def _prompts(report: PatchReport, lines: int = 4) -> doc.Maps | doc.Pictures:
    pair, maps, pictures = report.pairs[0], [], []
    many = ", pair 1" * (len(report.pairs) > 1)
    short = "logit diff" if report.metric == "logit_diff" else METRICS[report.metric].short
    clean, corrupt = pair.tokens.changed
    for name, tokens, changed, sign, value, word in (
        ("clean", pair.tokens.clean, clean, 1.0, pair.clean_metric, pair.answer),
        ("corrupt", pair.tokens.corrupt, corrupt, -1.0, pair.corrupt_metric, pair.foil),
    ):
        marks = np.zeros((1, len(tokens)))
        marks[0, list(changed)] = sign
        kept = [at for at, special in enumerate(tokens.special) if not special]
        asks = f"{'answer' if sign > 0 else 'foil'} {_quoted(word)}" if word is not None else ""
        title: doc.Words = [
            (name + many, True), *[(asks, False)] * bool(asks), (f"{short} {value:+.2f}", False)
        ]  # fmt: skip
        maps.append(
            doc.Map(name, marks[:, kept], Tokens.bare((0,)), tokens.taken(kept), title, limit=1.0)
        )
        if tokens.layout is not None:
            words = f"The image of the {name} prompt."
            pictures += [
                doc.Picture(own, words=title, alternative=words) for own in tokens.layout.pictures
            ]
    if pictures:
        return doc.Pictures(pictures, lines=_LINES * lines)
    return doc.Maps(maps, texts=True, lines=lines, scale=None)


def _head_grid(report: PatchReport, scaled: bool = True) -> doc.HeadGrid:
    """Return a grid of the effects of single patches. scaled: with a colour bar."""
    means = {effect.places[0]: report.mean(effect) for effect in report.effects}
    scale = NumberScale.over(mean.value for mean in means.values())
    grid = effect_grid(
        means,
        scale,
        _grid_title(report, brief=not scaled),
        report.column,
        base=report.index_base,
        blank=means,
        bar=_bar(report, scale) if scaled else None,
    )
    labels = {report.name(head): label_look(label) for head, label in report.labels.items()}
    return grid.with_known(labels, "effect of the patch")


def _bar(report: PatchReport, scale: NumberScale) -> doc.Scale:
    names = ("effect", "effect") if report.ratio else (METRICS[report.metric].unit,)
    return signed_scale(scale, *names)


def token_grid(report: PatchReport, most: int = 0) -> list[doc.Part]:
    """Return a grid of patches of single tokens: a row for each token, a column for each head.

    The columns are layers where whole layers are patched. most: the number of rows, those with the
    largest effects; 0 for all.
    """
    effects = report.by_token
    if effects is None:
        return []
    sizes = np.nan_to_num(np.abs(effects.values)).max(axis=1)
    order = np.argsort(-sizes, kind="stable")[: most or len(sizes)]
    rows, labels = sorted(order.tolist()), token_labels(report.base)
    scale = NumberScale.over(effects.values.ravel().tolist())
    grid = signed_grid(
        [f"{labels[effects.tokens[row]]} ({effects.tokens[row]})" for row in rows],
        [*map(report.name, effects.places)],
        {
            (at, column): float(value)
            for at, row in enumerate(rows)
            for column, value in enumerate(effects.values[row])
            if math.isfinite(value)
        },
        scale,
    )
    words = SITES[report.what].words
    share = "effect" if report.ratio else _change_words(report)
    title = [(f"{words[0].upper()}{words[1:]} patched at one token alone ({share})", True)]
    if left := len(sizes) - len(rows):
        rest = np.delete(sizes, rows).max()
        title.append((f"{counted(left, 'other token')}: at most {rest:.2g}", False))
    return [grid._replace(title=title, scale=None if most else _bar(report, scale))]


def _ranking_table(report: PatchReport, shown: Sequence[PatchEffect], title: str = "") -> doc.Table:
    scale = NumberScale.over([report.shown(effect) for effect in report.effects])
    name = "effect" if report.ratio else _change_words(report)
    if report.method == "gradient":
        name = "estimate"

    def q(effect: PatchEffect) -> str:
        if math.isnan(effect.q):
            return ""
        return "< .001" if effect.q < 0.001 else f"{effect.q:.3f}"[1:] if effect.q < 1 else "1"

    columns: list[doc.ColumnOf[PatchEffect]] = [
        doc.ColumnOf(name + scale.times, lambda effect: number(report.shown(effect), scale)),
        base_rates("control", report.mean, scale),
        label_column(
            report.labels, lambda e: e.places[0] if len(e.places) == 1 else None, known_text
        ),
    ]
    if report.method == "both":
        columns.append(doc.ColumnOf("gradient", lambda effect: number(effect.gradient, scale)))
    columns.append(doc.ColumnOf("q", q))
    if report.method != "gradient":
        columns.append(doc.ColumnOf("after patch", lambda effect: f"{effect.metric:+.2f}"))
    return effect_table(title, shown, *columns, scale=scale, name=report.names, mean=report.mean)


def _together(report: PatchReport) -> list[doc.Part]:
    joint = report.together
    if joint is None:
        return []
    total, change = _sum_of_singles(report, joint), report.shown(joint)
    unit = METRICS[report.metric].unit
    words = f"together {change:+.3f} {unit}, sum of single patches {total:+.3f}"
    if report.ratio:
        carried, singles, between = map(whole_percent, (change, total, change - total))
        words = f"together {carried}, sum of single patches {singles}, interactions {between}"
    return [_ranking_table(report, [joint], "Patched together"), Facts([(words, False)])]


def _sum_of_singles(report: PatchReport, joint: PatchEffect) -> float:
    single = {effect.places[0]: report.shown(effect) for effect in report.effects}
    return sum(single[head] for head in joint.places)


# The finding ---------------------------------------------------------------------------------

_NAMED = 2  # the most heads that the finding names
_MOST = 0.5  # the share from which a token carries most of the difference


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
        return f"{lead}what carries the difference here says nothing about a trained model."
    if not report.ratio:
        return f"{lead}{report.why[0].upper()}{report.why[1:]}: no shares."
    if report.metric != "kl" and report.clean_metric < report.corrupt_metric:
        lead += "The clean prompt favours the answer less than the corrupt one does. "
    if 1 < len(report.pairs) < LEAST_TEXTS:
        lead += f"{len(report.pairs)} pairs are too few for intervals. "
    return lead + _answer(report) + " Based on one pair." * (len(report.pairs) == 1)


def _answer(report: PatchReport) -> str:
    carried, tokens, joint = METRICS[report.metric].carried, report.by_token, report.together
    if report.method == "gradient":
        best = [f"{report.names(e)} {whole_percent(e.gradient)}" for e in report.ranking(_NAMED)]
        return f"Largest estimates: {' and '.join(best)}; nothing was patched."
    if joint is not None:
        total = whole_percent(_sum_of_singles(report, joint))
        return (
            f"{report.names(joint)} together carry {whole_percent(joint.share.value)} of "
            f"{carried}; singly they add up to {total}."
        )
    if report.what == "residual" and tokens is not None and tokens.predicts in tokens.tokens:
        return _moves(report, tokens)
    order = report.ranking(len(report.effects))
    named = [effect for effect in order if report.shown(effect) > 0]
    based = [effect for effect in named if effect.share.base_rate is not None]
    if report.ranks or based:
        named = [effect for effect in named if effect.carries] if report.ranks else based
        named = [e for e in named if not e.share.value <= (e.share.base_rate or 0.0)]
        if not named:
            units = counted(len(report.effects), _unit(report))
            return f"None of {units} carries more of {carried} than its control."
    if not named:
        return f"No {_unit(report)} that was patched carries any of {carried}."
    first, *others = named[:_NAMED]
    name, share = SITES[report.what].lead + report.names(first), first.share.value
    words = f"{name} carries {whole_percent(share)} of {carried}"
    if report.metric != "kl":
        verb = "recovers" if report.direction == "denoise" else "removes"
        lead = SITES[report.what].lead
        patched = lead[:1].lower() + lead[1:] + report.names(first)
        words = f"Patching {patched} {verb} {whole_percent(share)} of {carried}"
    if share > 1:
        words = _overshoot(report, first, name)
    if tokens is not None and first.places[0] in tokens.places:
        column = tokens.values[:, tokens.places.index(first.places[0])]
        at = int(abs(column).argmax())
        token = _token_name(report, tokens.tokens[at])
        return f"{words}, at {token} alone {whole_percent(float(column[at]))}."
    words += _base(first, True)
    if tokens is not None:
        return f"{words}."
    more = [f", {report.names(e)} {whole_percent(e.share.value)}{_base(e)}" for e in others]
    if order[0].share.value < 0 and not report.ranks:
        opposed = whole_percent(order[0].share.value)
        more = [f"; {report.names(order[0])} opposes it ({opposed})"]
    whole = f"{words}{''.join(more)}."
    return whole if share <= 1 or fits_two_lines(whole) else f"{words}."


def _overshoot(report: PatchReport, first: PatchEffect, name: str) -> str:
    metric, share = METRICS[report.metric], whole_percent(first.share.value)
    if len(report.pairs) > 1:
        return f"{name} overshoots: it carries {share} of {metric.carried}"
    start, end = report.corrupt_metric, report.clean_metric
    if report.direction == "noise":
        start, end = end, start
    moved = metric.name if report.metric == "log_prob" else metric.carried
    way = f"from {start:+.2f} past {end:+.2f} to {first.metric:+.2f}"
    return f"{name} overshoots: patching it moves {moved} {way} ({share} of the way)"


def _base(effect: PatchEffect, named: bool = False) -> str:
    base = effect.share.base_rate
    return "" if base is None else f" ({'control: ' * named}{whole_percent(base)})"


def _moves(report: PatchReport, effects: TokenEffects) -> str:
    """Return a sentence on the first layer whose predicting token has half of the difference."""
    shares = effects.values[effects.tokens.index(effects.predicts)].tolist()
    reached = next((at for at, share in enumerate(shares) if share >= _MOST), None)
    name = f"{_token_name(report, effects.predicts)}, which predicts,"
    if reached is None:
        return f"In no layer does {name} carry half of the difference."
    carried = f"{whole_percent(shares[reached])} of {METRICS[report.metric].carried}"
    return f"On entering {report.name(effects.places[reached])}, {name} carries {carried}."


def _token_name(report: PatchReport, token: int) -> str:
    return f"“{token_label(report.base.texts[token])}” ({token})"


# Facts and caveats ---------------------------------------------------------------------------


def _pair_count(report: PatchReport) -> str:
    return counted(len(report.pairs), "pair")


def _patched(report: PatchReport) -> str:
    arrow = "clean → corrupt" if report.direction == "denoise" else "corrupt → clean"
    at = " by token" if report.by_token is not None and report.whole_layers else _AT[report.at]
    return f"{SITES[report.what].words}{at}, {arrow}"


def _unit(report: PatchReport) -> str:
    return "layer" if report.whole_layers else "key/value head" if report.group > 1 else "head"


def _about(report: PatchReport) -> list[Part]:
    kind = [] if report.kind == "self" else [f"{report.kind} attention"]
    facts = [*kind, _pair_count(report), *[report.source] * bool(report.source)]
    facts.append(f"seed {report.seed}")
    done = [_patched(report), counted(len(report.effects), _unit(report)), _METHODS[report.method]]
    return [
        Facts([*model_words(report.model.of(report.kind)), *((fact, False) for fact in facts)]),
        Facts([(fact, False) for fact in done]),
    ]


def _runs(report: PatchReport) -> Facts:
    metric, pair = METRICS[report.metric], report.pairs[0]
    name = metric.name
    if len(report.pairs) == 1 and report.metric != "kl":
        name = name.replace("answer", _quoted(pair.answer))
        name = name.replace("foil", _quoted(pair.foil)) if pair.foil is not None else name
        name = f"{metric.short} = {name}"
    elif pair.foil is not None:
        name = f"{metric.short}, answer - foil (wrong token)"
    numbers = f"clean {report.clean_metric:+.2f}, corrupt {report.corrupt_metric:+.2f}"
    return Facts([(f"{name}: {numbers}", False)])


def _base_rate(report: PatchReport) -> list[Part]:
    """Return a line that describes the unrelated baseline; empty if there is none."""
    words = "no control with --metric kl: logit_diff and log_prob have one"
    if report.metric != "kl" or report.method == "gradient":
        if not report.control or not report.ratio or report.by_token is not None:
            return []
        side = "clean" if report.direction == "denoise" else "corrupt"
        control = report.control.partition(",")[0]
        other = "corrupt" if side == "clean" else "clean"
        where = f"in the {side} prompt wherever it differs from the {other} one"
        control = control.replace("where the source differs", where)
        control = control.replace("source", f"{side} prompt")
        words = f"control: the same patch, with {control}"
    return [Facts([(words, False)])]


def _quoted(word: AskedToken) -> str:
    return f"“{token_label(word.text)}”"


def _grid_title(report: PatchReport, brief: bool) -> str:
    metric = METRICS[report.metric]
    if report.method == "gradient":
        return "Estimated effect" + " of patching each head (gradient)" * (not brief)
    if not report.ratio:
        return _change_words(report) if brief else f"Change of {metric.name} by each patch"
    unit = "layer" if report.whole_layers else "head"
    whole = f"Effect of patching each {unit}: share of {metric.carried} (1 = all of it)"
    return "effect" if brief else whole


def _change_words(report: PatchReport) -> str:
    metric = METRICS[report.metric]
    return f"Δ {metric.short}, {metric.unit}"


def _caveats(report: PatchReport) -> list[str]:
    tried, rank = len(report.effects), report.rank_correlation
    sentences = {
        f"no shares: {report.why}; a share of so little would be noise, and the changes of the "
        "metric are shown.": not report.ratio,
        f"control: the same patch with {report.control}; what it does too is not about the right "
        "prompt.": report.control and report.ratio,
        f"interval: 95%, bootstrap-t over {_pair_count(report)}, 2,000 draws, of the ratio of "
        "means.": report.ranks,
        f"named first: what is above its control with p at most .05 among all {tried}, by "
        "bootstrap-t over the pairs, largest |t|.": report.ranks,
        "q: Benjamini & Hochberg, over the patches, of the p of effect − control by sign flips of "
        "the pairs.": report.fdr,
        f"rank correlation of gradient and exact effects: {rank or 0.0:+.2f}.": rank is not None,
        f"shared: {report.group} query heads read each key/value head, and are patched together "
        "with it.": report.group > 1,
        "single patches contain interactions: effects need not add up to 1, and a head that "
        "another one can replace may show none; --together patches several at once.": tried > 1
        and report.method != "gradient",
    }
    return [sentence for sentence, holds in sentences.items() if holds]
