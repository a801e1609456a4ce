"""What people read of ``attnviz why``: the finding, the prediction and its sum, what it needs."""

from __future__ import annotations

import math

from attnviz.draw import document as doc
from attnviz.draw.labels import cut, running_pieces, token_label
from attnviz.draw.numbers import NumberScale, counted, listed
from attnviz.draw.provenance import UNLIKELY, fits_two_lines, probability
from attnviz.draw.signed import ranked_table
from attnviz.engine.likely import START_END
from attnviz.inspect.why.report import ExplainedPrompt, HeadEffect, InputEffects, WhyReport
from attnviz.inspect.why.written import (
    every_part,
    explained_logit,
    head_grid,
    neuron_parts,
    neuron_words,
    ranking_table,
    rankings,
    text_parts,
    write_maps,
)
from attnviz.measures.bootstrap import LEAST_TEXTS
from attnviz.prompts.naming import (
    LONGEST_TOKEN,
    is_piece,
    logits,
    next_word,
    placed,
    prompt_document,
    quoted,
)
from attnviz.records import Tokens

_LONGEST = 100
_LONGEST_ANSWER = 30
_LEAST_ROWS = 3  # the fewest rows of a table on a first screen
_MOST_MAPS = 8  # the most maps on a first screen


def document(report: WhyReport) -> doc.Document:
    """Return the document of a report of ``why``."""
    first, inputs = report.first, report.inputs
    tokens, size = first.given.predicted, _size(report)
    drawn = bool(report.controlled) or report.many
    question = f"at {placed(tokens, first.attribution.position)}"
    if first.asked:
        question = f"asked for {question}"
    elif first.attribution.span is None:
        question = f"the top prediction {question}"
    groups = [doc.Group(_predictions(report)), doc.Group([doc.Facts(_sum_words(report))])]
    if inputs is not None:
        groups.append(doc.Group([_input_table(report, inputs)]))
    if report.neurons is not None:
        groups.append(doc.Group(neuron_parts(report, report.neurons)))
    if report.tallies and report.effects:
        groups += [
            doc.Group([head_grid(report)]),
            doc.Group(rankings(report), spaced=True),
            doc.Group(text_parts(report)),
            doc.Group(write_maps(report)),
        ]
    heading = [counted(len(report.effects), "head"), "direct logit attribution", size]
    return prompt_document(
        report,
        report.model,
        first.given,
        tokens,
        command="why",
        name=f"direct logit attribution in {report.model.name}",
        facts=[size, *[f"seed {report.seed}"] * drawn],
        question=[explained_logit(report), _answers(report) if report.many else question],
        groups=groups,
        caveats=_caveats(report),
        full=[doc.Group([every_part(report)], full=True)] if report.tallies else [],
        measured=_measured(report),
        hints=_hints(report),
        heading=heading if inputs is None else ["what the prediction needs", size],
        finding=_answered(report),
        first=lambda columns, lines: _first(report),
        many=report.many,
    )


def _answered(report: WhyReport) -> str:
    if report.inputs is not None:
        return _needed(report, report.inputs)
    if report.neurons is not None:
        return neuron_words(report, report.neurons, _predicted(report))
    return _finding(report)


def _hints(report: WhyReport) -> list[str]:
    if not report.tallies or not report.effects:
        return []
    first, hints = report.first, list[str]()
    plain = report.inputs is None and report.neurons is None and not report.many
    if plain and not report.shown and abs(report.part("mlp")) > abs(report.part("head")):
        most = max(report.layers, key=lambda layer: abs(report.part("mlp", layer)))
        hints.append(f"--ffn L{most + report.index_base}: its neurons")
    if report.inputs is None and not report.shown and (best := report.best) is not None:
        hints.append(f"--head {report.name(best.head).split()[0]}: what it writes")
    if report.shown:
        name = report.name(report.shown[0]).split()[0]
        hints.append(f"attnviz link --head {name}: why there")
    if first.foil is None and not report.many:
        top = [token for token, _ in first.attribution.top if token != first.attribution.answer]
        words = [first.words[token].strip() for token in top]
        hints += [f"--foil {word}: compare with it" for word in words if word.isalpha()][:1]
    if not report.many and report.inputs is None:
        hints += ["--inputs", *["--texts FILE"] * (not first.given.text.joined)]
    return [*hints, "--explain"]


# The prediction ------------------------------------------------------------------------------


def _prediction_line(report: WhyReport) -> doc.Facts:
    if report.many:
        return doc.Facts([(_answers(report), False)])
    first = report.first
    words = [f"{name} {probability(value)}" for name, value in _likeliest(first, LONGEST_TOKEN)]
    tokens, position = first.given.predicted, first.attribution.position
    at = f"at {placed(tokens, position)} " if position != len(tokens) - 1 else ""
    lead = "answer: " if first.attribution.span is not None else f"{at}top tokens: "
    return doc.Facts([(f"{lead}{words[0]}", True), *((word, False) for word in words[1:])])


def _likeliest(prompt: ExplainedPrompt, longest: int) -> list[tuple[str, float]]:
    """Return the likeliest tokens or labels, or both ends of the answer, with probabilities."""
    span, top = prompt.attribution.span, prompt.attribution.top
    if span is None:
        return [(cut(token_label(prompt.words[id]), longest), value) for id, value in top]
    ends = zip(START_END, span[:2], span[2:], strict=True)
    tokens = prompt.given.predicted
    return [(f"{name} {placed(tokens, at, quotes=False)}", value) for name, at, value in ends]


def _predictions(report: WhyReport) -> list[doc.Part]:
    if report.many:
        return []
    first = report.first
    title = f"Most likely at {placed(first.given.predicted, first.attribution.position)}"
    if first.attribution.span is not None:
        title = "Likeliest answer"
    return [
        doc.table(
            _likeliest(first, _LONGEST),
            doc.ColumnOf("", lambda likely: likely[0], right=False),
            doc.ColumnOf("p", lambda likely: probability(likely[1])),
            row=lambda likely: {"bar": (likely[1], 1.0)},
            title=[(title, True)],
        )
    ]


def _first(report: WhyReport) -> doc.Ways:
    """Return the ways to show words, grid, ranking, and a write map or the text of one head."""
    words = doc.Group([_prediction_line(report), doc.Facts(_sum_words(report))])
    shown = report.tallies and report.effects
    if not shown:
        needed = report.inputs and _input_table(report, report.inputs)
        return doc.Ways([[doc.Group([needed]) if needed else words]])
    grid, table = head_grid(report, scaled=False), ranking_table(report, _LEAST_ROWS)
    if report.neurons is not None:
        facts, block = neuron_parts(report, report.neurons)
        return doc.Ways([
            [doc.Group([facts]), doc.Group([block._replace(least=0)]), doc.Group([grid])],
            [doc.Group([facts]), doc.Group([block])],
        ])  # fmt: skip
    if report.inputs is not None:
        needed = _input_table(report, report.inputs)
        return doc.Ways([
            [doc.beside(needed, [grid, table])],
            [doc.beside(needed, grid)],
            [doc.Group([needed])],
        ])  # fmt: skip
    ranked, last = doc.Group([table], yields=1), doc.Group([table], yields=2)
    maps = [  # without titles and colour bar, and ever fewer of them
        part._replace(maps=part.maps[:count], title=(), scale=None, hidden=len(part.maps) - count)
        for part in write_maps(report)
        for count in range(min(len(part.maps), _MOST_MAPS), 0, -1)
    ]
    text = text_parts(report, brief=True)
    return doc.Ways([
        *([doc.beside([words, grid, some], table)] for some in maps),
        *([words, doc.beside(grid, some), ranked] for some in maps),
        *([words, doc.Group([some]), doc.Group([grid], yields=1), last] for some in maps),
        [doc.beside([words, grid, *text], table)],
        [doc.beside(grid, [words, *text]), doc.Group([table])],
        [doc.beside(grid, words), doc.Group([table])],
        [doc.beside(grid, [words, *text])],
        [words, doc.Group([grid]), ranked, doc.Group(text, yields=2)],
    ])  # fmt: skip


# The finding ---------------------------------------------------------------------------------

_NAMED = 3  # the most heads, or words, that a finding names
_ANSWERS = 5  # the most answers that are named if each prompt has its own
_LITTLE = 0.1  # the least share of the logit that a head must write to be named in a sentence
_USUAL = 0.5  # share of a head's effect from which on its control says: not specific
_MAIN_SOURCE = 0.25  # least share of a head's effect with which its largest source is named
_ALL_OF_IT = 0.05  # share that the largest source may lack to count as all of the effect


def _finding(report: WhyReport) -> str:
    """Return the main result in a sentence that claims no more than the prompts can support."""
    if not report.tallies:
        return (
            f"The parts sum to {report.sum:.6g}, the model's own value is {report.logit:.6g}: they "
            "do not tally, so no head is ranked."
        )
    best = report.best
    if best is None:
        return "The model has no attention head whose part could be ranked."
    most = report.ordered[0]
    name, value = report.name(most.head), logits(most.value)
    whole = f"the {'logit' if report.first.foil is None else 'difference'} of {report.logit:.2f}"
    largest = f"the largest contribution of a head is {value}"
    if report.model.weights == "random":
        return (
            "Random weights: no head stands out, contributions are arbitrary; "
            f"{largest} to {whole}, from {name}."
        )
    small = abs(best.value) < _LITTLE * abs(report.logit) and not (report.many and best.clear)
    usual = best.base is not None and best.base * best.value >= _USUAL * best.value**2
    first = report.first
    unlikely = not report.many and first.predicts_answer and first.attribution.top[0][1] < UNLIKELY
    if not report.shown and (small or unlikely or (usual and not report.many)):
        heads, feed_forward = (logits(report.part(kind)) for kind in ("head", "mlp"))
        if not report.many:
            claim = _of_none(report, most, whole, usual=usual and not small)
            return f"{_predicted(report)} {claim}."
        together = f"heads contribute {heads} and MLPs {feed_forward} to {explained_logit(report)}"
        return f"{_size(report)}: {together} ({report.logit:.2f}); {largest}, from {name}."
    if not report.many:
        return _of_one(report, best, most, whole)
    larger = f"; largest {name} {value}" if report.shown and most is not best else ""
    ends = "" if best.interval is None else " [{}, {}]".format(*map(logits, best.interval))
    written = f"{logits(best.value)}{ends} to {explained_logit(report)} (mean {report.logit:.2f})"
    return f"{_size(report)}: {_called(report, best)} adds {written}{_base(report, best)}{larger}."


def _called(report: WhyReport, effect: HeadEffect) -> str:
    label = report.labels.get(effect.head)
    return report.name(effect.head) + ("" if label is None else f" ({label.said})")


def _of_one(report: WhyReport, best: HeadEffect, most: HeadEffect, whole: str) -> str:
    """Return the finding on one prompt: its prediction, then ``best``, or the largest effect."""
    verb = "adds"
    if most is best:
        verb = "works against it most:" if best.value < 0 else "adds the most of any head:"
    claim = f"{_predicted(report)} {_called(report, best)} {verb} {logits(best.value)}"
    claim += f" to {whole}{_read(report, best)}"
    unclear = ", no clear difference" if report.tested and not best.clear else ""
    if best.base is not None:
        base = f"; {logits(best.base)} when {quoted(report.first.answer)} is replaced (control)"
        if not fits_two_lines(f"{claim}{base}{unclear}."):
            base = f"; control {logits(best.base)}"
    else:
        absent = f": {quoted(report.first.answer)} is not in the prompt" * _lacks_answer(report)
        base = "" if report.first.attribution.labels else f"; no control{absent}"
    full = f"{claim}{base}{unclear}."
    return full if fits_two_lines(full) else f"{claim}{unclear}."


def _of_none(report: WhyReport, most: HeadEffect, whole: str, *, usual: bool) -> str:
    """Return that no head writes much of one prediction, or, if usual, more than its control."""
    value, likeliest = logits(most.value), report.first.attribution.top[0][1]
    begin, called = _predicted(report), _called(report, most)
    if usual or (likeliest < UNLIKELY and report.first.predicts_answer):
        claim = f"The largest contribution of a head is {value} to {whole}, from {called}"
        base = "" if most.base is None else logits(most.base)
        controls = f"; with another word there it is {base}" * bool(base), f"; control {base}"
        ways = [f"{claim}{control}" for control in (*controls[: 1 + bool(base)], "")]
        return next((way for way in ways if fits_two_lines(f"{begin} {way}.")), claim)
    heads, mlps = (logits(report.part(kind)) for kind in ("head", "mlp"))
    source, keys = report.first.source(most.head), report.first.keys(most.head)
    plain = source is not None and source.key and not keys.special[source.key]
    at = _read(report, most) if plain else ""
    claim = f"No single head dominates: MLPs contribute {mlps} to {whole}, all heads {heads}"
    largest = f"{claim}; the largest from one head is {value}, from {called}"
    short = f"{claim}; the largest is {value}, from {report.name(most.head)}"
    ways = [f"{largest}{at}", largest]
    return next((way for way in ways if fits_two_lines(f"{begin} {way}.")), short)


def _read(report: WhyReport, effect: HeadEffect) -> str:
    """Return from which token a head read what it writes, if most of it comes from there."""
    source, of_it = report.first.source(effect.head), ""
    if source is None or abs(source.contribution) < _MAIN_SOURCE * abs(effect.value):
        return ""
    if source.contribution / effect.value < 1 - _ALL_OF_IT:
        of_it = f"{logits(source.contribution)} of it "
    return f", {of_it}read from {placed(report.first.keys(effect.head), source.key)}"


def _predicted(report: WhyReport) -> str:
    """Return the likeliest token or label with its probability, and the answer if it is another."""
    first, attribution = report.first, report.first.attribution
    tokens, (token, value) = first.given.predicted, attribution.top[0]
    token_name = placed(tokens, attribution.position)
    if attribution.span is not None:
        likely = f"(p = {probability(value)})"
        return f"{_answer(first)} {first.answer.capitalize()} at {token_name} {likely}:"
    if attribution.labels:
        claim = f"abel at {token_name}: {quoted(first.words[token])} (p = {probability(value)})"
        claim = f"Likeliest l{claim} by its own sigmoid." if attribution.several else f"L{claim}."
    else:
        at = f" after {token_name}" if attribution.position != len(tokens) - 1 else ""
        piece, p = first.words[token], f"p = {probability(value)}"
        rest = None if value < UNLIKELY else first.rest
        word = next_word(tokens, attribution.position, piece, rest)
        of_it = f" for its first piece {quoted(piece)}" * is_piece(piece, rest)
        claim = f"Next{at}: {word} ({p}{of_it})."
        if value < UNLIKELY:
            claim = f"No clear prediction{at}: {word} is likeliest ({p})."
    if first.foil is not None:
        return f"{claim} {quoted(first.answer)} over {quoted(first.foil)}:"
    return claim if first.predicts_answer else f"{claim} For {quoted(first.answer)}:"


def _answer(prompt: ExplainedPrompt) -> str:
    """Return the answer that a question-answering model gives, as a sentence with its tokens."""
    assert prompt.attribution.span is not None
    start, end = prompt.attribution.span[:2]
    pieces = running_pieces(prompt.given.predicted, prompt.text)[start : end + 1]
    answer = cut(token_label("".join(pieces).strip()), _LONGEST_ANSWER)
    return f"Answer: “{answer}” ({start if start == end else f'{start}–{end}'})."


def _lacks_answer(report: WhyReport) -> bool:
    """Return whether no prompt or target has the answer, be it with or without a blank."""
    return not any(
        prompt.answer.strip()
        in map(str.strip, prompt.given.text.texts + prompt.given.predicted.texts)
        for prompt in report.prompts
    )


def _base(report: WhyReport, best: HeadEffect) -> str:
    """Return how the best head over many prompts compares with its control, after its effect."""
    if len(report.prompts) < LEAST_TEXTS:
        return "; too few prompts for intervals"
    if best.base is None:
        absent = ", those exact tokens are not in the prompts" * _lacks_answer(report)
        return f"; no control{absent}"
    known = len(report.controlled)
    few = f" over {known} of them" if known < len(report.prompts) else ""
    control = f", control {logits(best.base)}{few}"
    if not report.tested:
        return f"{control}; a test needs {LEAST_TEXTS}"
    if not best.clear:
        verdict = "not clear" if report.shown else "no head stands out"
        return f"{control}; {verdict} from its control"
    clear = [effect for effect in report.ordered if effect.clear and effect is not best]
    names = [report.name(effect.head) for effect in clear[:_NAMED]]
    if not names:
        return f"{control}; no other head stands out from its control"
    return f"{control}; {listed(names)} stand{'s' * (not names[1:])} out from theirs too"


def _answers(report: WhyReport) -> str:
    """Return how many answers of many prompts the model predicts, or the answers it chose."""
    right = sum(prompt.predicts_answer for prompt in report.prompts)
    if any(prompt.asked for prompt in report.prompts):
        return f"the answer is the top prediction of {right} of {len(report.prompts)} prompts"
    words = list(dict.fromkeys(token_label(prompt.answer) for prompt in report.prompts))
    names = [cut(word, LONGEST_TOKEN) for word in words[:_ANSWERS]]
    names += [f"{len(words) - _ANSWERS} more"] if len(words) > _ANSWERS else []
    return f"each prompt's top prediction: {', '.join(names)}"


# The words that the prediction needs ---------------------------------------------------------

_MAIN = 0.25  # the least share of the largest effect that a word must have to be named
_ERRORS = 3.0  # how many standard errors an effect must be from zero to be named
_SMALL = 0.01  # least effect, in nats or logits, that is named: less may be rounding


def _needed(report: WhyReport, inputs: InputEffects) -> str:
    """Return which words the prediction needs, and by how much, in a sentence."""
    first, attribution = report.first, report.first.attribution
    tokens, word = first.given.predicted, quoted(first.answer)
    if attribution.span is not None:
        word = f"{first.answer.capitalize()} at {placed(tokens, attribution.position)}"
    elif not attribution.labels:
        word = next_word(tokens, attribution.position, first.answer)
    quantity = "ln p"
    if first.foil is not None:
        quantity = f"{quoted(first.answer)} over {quoted(first.foil)}"
    if report.model.weights == "random":
        return f"Random weights: which words the prediction {word} needs is arbitrary."
    if not inputs.converged:
        return (
            f"Integrated gradients did not converge: after {inputs.steps} steps the shares of the "
            f"words are {inputs.gap:.0%} off their sum, so none is named."
        )
    effects, order = inputs.replaced, inputs.ordered
    least = max(_MAIN * max((effects[at] for at in order), default=0.0), _SMALL)
    clear = [at for at in order if effects[at] >= least and _is_clear(inputs, at)][:_NAMED]
    if inputs.steps == 0 and first.foil is None:
        word += f" {probability(math.exp(inputs.own))}"
    rise = _rise(inputs, tokens, quantity)
    if not clear:
        none = "there is no single word in the prompt without which"
        return f"{word}: {none} {quantity} clearly falls.{rise}"
    names = listed([placed(tokens, at) for at in clear], "and" if inputs.steps else "or")
    falls = listed([_short(effects[at]) for at in clear])
    rest = max((effects[at] for at in order if at not in clear), default=0.0)
    others = f"; no other by more than {_short(max(rest, _SMALL))}" if rest > 0 else ""
    if rest > effects[clear[-1]]:
        others += ", which its error explains"
    if inputs.steps:
        way, verb = "above" if inputs.own >= 0 else "below", "give" if clear[1:] else "gives"
        own = f"{_short(abs(inputs.own))} {way} that of mean words"
        return f"{word}: of {quantity}, {own}, {names} {verb} {falls}.{rise}"
    return f"{word}: with another word for {names}, {quantity} falls by {falls}{others}.{rise}"


def _rise(inputs: InputEffects, tokens: Tokens, quantity: str) -> str:
    """Return a sentence on the word that harms the prediction, if by more than any other helps."""
    at = next(iter(inputs.ordered), None)
    if at is None or inputs.replaced[at] > -_SMALL or not _is_clear(inputs, at):
        return ""
    name, rise = placed(tokens, at), _short(-float(inputs.replaced[at]))
    if inputs.steps:
        return f" {name} gives -{rise}."
    return f" With another word for {name}, {quantity} rises by {rise}."


def _short(value: float) -> str:
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _is_clear(inputs: InputEffects, token: int) -> bool:
    """Return whether the effect of a token is further from zero than its error explains."""
    return bool(inputs.steps) or abs(inputs.replaced[token]) > _ERRORS * inputs.errors[token]


def _input_table(report: WhyReport, inputs: InputEffects) -> doc.Table:
    """Return a table of the words, the one that the prediction needs most first."""
    tokens, order = report.first.given.predicted, inputs.ordered
    values = [float(inputs.replaced[at]) for at in order]
    scale = NumberScale.over(values)
    names = [placed(tokens, at, quotes=False) for at in order]
    unit = "ln p" if inputs.quantity == "log_probability" else "the logit difference"
    if inputs.steps:
        title: doc.Words = [
            (f"Share in {unit}, integrated gradients", True),
            ("from the mean embedding", False),
            (f"{inputs.steps} steps, gap {inputs.gap:.2%}", False),
        ]
        columns = [("share" + scale.times, list(map(scale.text, values)))]
    else:
        title = [
            (f"What {unit} loses without a word", True),
            (f"replaced by {inputs.draws} others", False),
            ("hidden: no other token attends to it", False),
        ]
        columns = [
            ("replaced" + scale.times, list(map(scale.text, values))),
            ("±SE", [scale.text(float(inputs.errors[at])).lstrip("+") for at in order]),
            ("hidden", [scale.text(float(inputs.hidden[at])) for at in order]),
        ]
    table = ranked_table("", names, values, scale, columns)
    return table._replace(title=title, least=_LEAST_ROWS)


# The sum, and how to read it ------------------------------------------------------------------


def _size(report: WhyReport) -> str:
    if report.many:
        return counted(len(report.prompts), "prompt")
    return counted(len(report.first.given.predicted), "token")


def _sum_words(report: WhyReport) -> doc.Words:
    """Return the logit as a sum over kinds of parts, and its difference to the model's own."""
    parts = {
        "heads": report.part("head"),
        "MLP": report.part("mlp"),
        "embedding": report.part("embedding"),
        "bias": report.part("bias"),
    }
    words = [f"{name} {logits(value)}" for name, value in parts.items() if value or name != "bias"]
    before = "before the softcap " if report.first.attribution.softcap is not None else ""
    return [
        *((word, False) for word in words),
        (f"sum {report.sum:.3f}", True),
        (f"logit {before}{report.logit:.3f}", False),
        (f"error {report.apart:.4f}", False),
    ]


def _caveats(report: WhyReport) -> list[str]:
    caveats = [
        "direct effect: what a head writes into the residual stream, read by the unembedding with "
        "the final norm's scale frozen at its value in this run. Its indirect effects, via later "
        "heads and MLPs, are not included: attnviz ablate and attnviz patch measure those."
    ]
    softcap = report.first.attribution.softcap
    if softcap is not None:
        caveats.append(
            f"softcap: the model squeezes its logits by {softcap:g}·tanh(x / {softcap:g}), here to "
            f"{report.first.attribution.logit:.4g}; what is taken apart is the value before."
        )
    controlled = report.controlled
    if controlled and report.tallies:
        count = counted(len(controlled[0].base), "control prompt")
        where = f" ({len(controlled)} of the prompts have one)" if report.many else ""
        caveats.append(
            f"control: the same head's contribution to the same answer, mean over {count} in "
            f"which another token replaces the answer{where}."
        )
    if report.many and len(report.prompts) >= LEAST_TEXTS:
        caveats.append(
            f"interval: 95%, bootstrap-t over {_size(report)}, 2,000 draws; significant: the same "
            "of the difference to the control, largest |t| of all heads, p at most .05."
        )
    if any(prompt.foil is None for prompt in report.prompts):
        caveats.append(
            "logits are defined only up to an additive constant: a part that raises them all "
            "equally changes no prediction, and cancels in the difference that --foil TOKEN gives."
        )
    return caveats


def _measured(report: WhyReport) -> str:
    measured = _size(report) if report.many else "this prompt alone"
    inputs = report.inputs
    if inputs is not None and inputs.steps:
        measured += f", what it needs in {inputs.steps} steps from the mean embedding"
    elif inputs is not None:
        measured += f", what it needs in {inputs.draws + 1} further passes a word"
    if report.controlled:
        count = counted(len(report.controlled[0].base), "prompt") + " for each" * report.many
        measured += f", control: mean over {count}, seed {report.seed}"
    return measured
