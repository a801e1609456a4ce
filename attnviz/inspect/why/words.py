"""Words about a decomposed logit: how to repeat it, the finding, how to read it."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.draw.document import Explanation, Facts, Part, Quote, Words
from attnviz.draw.labels import cut, numbered, token_label, token_labels
from attnviz.draw.numbers import counted, listed
from attnviz.draw.page.running_text import running_pieces
from attnviz.draw.provenance import (
    UNLIKELY,
    fits_two_lines,
    known_text,
    model_words,
    named,
    probability,
)
from attnviz.engine.attribution.parts import HeadKey
from attnviz.inspect.why.records import ExplainedPrompt, HeadEffect, WhyReport
from attnviz.measures.bootstrap import LEAST_TEXTS
from attnviz.measures.registry import label_named
from attnviz.measures.words import text_of, word_ranges, word_text, words_of_tokens
from attnviz.records import Input, ModelInfo, Tokens

_LONGEST_TOKEN = 14
_LONGEST_ANSWER = 30
_NAMED = 3
"""The most heads that the finding names."""

_ANSWERS = 5
"""The most answers that are named if each prompt has its own."""

_LITTLE = 0.1
"""The least share of the logit that a head must write to be named in a sentence."""

_MAIN_SOURCE = 0.25
"""The least share of a head's contribution that its largest source must have to be named."""

_ALL_OF_IT = 0.05
"""The share of a head's contribution that its largest source may lack to count as all of it."""


# Words of the tables too ---------------------------------------------------------------------


def quoted(text: str) -> str:
    """Return a token in quotes, cut if it is long."""
    return f"“{cut(token_label(text), _LONGEST_TOKEN)}”"


def placed(tokens: Tokens, place: int, quotes: bool = True) -> str:
    """Return a token and its index as a string, such as ``“Tom” (4)``; of a piece the whole word.

    place: the index of the token. quotes: put it in quotes.
    """
    word = words_of_tokens(tokens)[place]
    label = token_label(word_text(tokens, word)) if word[1:] else token_labels(tokens)[place]
    label = cut(label, _LONGEST_TOKEN)
    return numbered(f"“{label}”" if quotes else label, place)


def next_word(tokens: Tokens, position: int, piece: str) -> str:
    """Return the token predicted behind a position in quotes, and whether it may be a piece.

    tokens: of the prompt. piece: the text of the predicted token.

    A token that ends a word is ``“sail·or”``. One that begins a longer word of the text is ``piece
    “sail”``: which word the model goes on to write is not known.
    """
    last, words = len(tokens) - 1, words_of_tokens(tokens)
    if position == last and not tokens.special[last]:
        there = tokens.texts[words[last].start :]
        longer = Tokens((0,) * (len(there) + 1), (*there, piece), (False,) * (len(there) + 1))
        if any(text.startswith(" ") for text in there) and not word_ranges(longer)[1:]:
            return f"“{cut(f'{token_label(text_of(there))}·{piece}', _LONGEST_TOKEN)}”"
    begins = (words[at][1:] and words[at].start == at for at in range(len(words)))
    is_piece = any(text == piece and more for text, more in zip(tokens.texts, begins, strict=True))
    return f"{'piece ' * is_piece}{quoted(piece)}"


def logits(value: float) -> str:
    """Return a contribution in logits as a string, such as ``+3.59``; small ones get two digits."""
    return f"{value:+.2f}" if abs(value) >= 0.01 or not value else f"{value:+.1g}"


def label_of(report: WhyReport, head: HeadKey) -> str:
    """Return the head's label and its score; empty without a label."""
    label = report.labels.get(head)
    return "" if label is None else known_text(label)


def explained_logit(report: WhyReport) -> str:
    """Return the name of the explained logit, such as ``the logit of “Tom”``."""
    first = report.first
    if first.found.span is not None:
        return f"the logit of the answer's {first.answer}"
    if len({(each.answer, each.foil) for each in report.prompts}) > 1:
        pairs = any(each.foil is not None for each in report.prompts)
        return "the answer's logit" + (" less the other token's" if pairs else "")
    if first.foil is not None:
        return f"logits {quoted(first.answer)} - {quoted(first.foil)}"
    return f"the logit of {quoted(first.answer)}"


def _size(report: WhyReport) -> str:
    if report.many:
        return counted(len(report.prompts), "prompt")
    return counted(len(report.first.given.predicted), "token")


def heading(report: WhyReport) -> Words:
    """Return one line: the model, the number of heads, the method and the size of the sample."""
    heads = counted(len(report.effects), "head")
    words: tuple[str, ...] = (heads, "direct logit attribution", _size(report))
    if report.inputs is not None:
        words = ("what the prediction needs", _size(report))
    return [*named(report.model), *((word, False) for word in words)]


# The finding ---------------------------------------------------------------------------------


def finding(report: WhyReport) -> str:
    """Return the main result in a sentence that claims no more than the prompts can support."""
    if not report.tallies:
        return (
            f"The parts sum to {report.sum:.6g}, the model's own value is {report.logit:.6g}: they "
            "do not tally, so no head is ranked."
        )
    best, prompts = report.best, counted(len(report.prompts), "prompt")
    if best is None:
        return "The model has no attention head whose part could be ranked."
    most = report.ordered[0]
    name, value = report.name(most.head), logits(most.value)
    largest = f"the largest head, {name}, writes {value}"
    if report.model.weights == "random":
        return (
            "Random weights: no head stands out, contributions are arbitrary; "
            f"{largest} of {report.logit:.2f}."
        )
    little = not report.shown and not best.clear and abs(best.value) < _LITTLE * abs(report.logit)
    if not report.many:
        return _of_one(report, best, most, little)
    if little:
        whole = f"{explained_logit(report)} ({report.logit:.2f})"
        return f"{prompts}: {_together(report)} of {whole}; {largest}."
    larger = f"; largest {name} {value}" if report.shown and most is not best else ""
    return f"{prompts}: {_writes(report, best)}{_base(report, best)}{larger}."


def _of_one(report: WhyReport, best: HeadEffect, most: HeadEffect, little: bool) -> str:
    """Return the finding on one prompt: its prediction, then the head that contributes most.

    best: the head to name. most: the head with the largest effect. little: whether ``best``
        contributes less than a tenth of the logit, so that it is not worth naming.
    """
    lead, whole = _predicted(report), f"{report.logit:.2f} logits"
    if little:
        largest = f"the largest head, {report.name(most.head)}, writes {logits(most.value)}"
        said = _together(report)
        return f"{lead} {said[0].upper()}{said[1:]} of its {whole}; {largest}. One prompt."
    label = report.labels.get(best.head)
    called = "" if label is None else f" ({label_named(str(label.name)).said})"
    extent = "most against it:" if best.value < 0 else "the most:"
    verb = "writes" if most is not best else f"writes {extent}"
    said = f"{lead} {report.name(best.head)}{called} {verb} {logits(best.value)} of {whole}"
    source = report.first.source(best.head)
    if source is not None and (abs(source.contribution) >= _MAIN_SOURCE * abs(best.value)):
        all_of_it = source.contribution / best.value >= 1 - _ALL_OF_IT
        amount = "" if all_of_it else f"{logits(source.contribution)} of it "
        said += f", {amount}read from {placed(report.first.keys(best.head), source.place)}"
    unclear = ", no clear difference" if report.tested and not best.clear else ""
    for end in (_one_base(report, best) + unclear, unclear):
        shown = f"{said}. One prompt{end}."
        if fits_two_lines(shown):
            break
    return shown


def _together(report: WhyReport) -> str:
    """Return a clause on what all heads and all MLPs write, where no head writes a tenth."""
    heads, feed_forward = (logits(report.part(kind)) for kind in ("head", "mlp"))
    return f"all heads together write {heads} and the MLPs {feed_forward}"


def _predicted(report: WhyReport) -> str:
    """Return the likeliest next token and its probability, and the answer if it is another."""
    first = report.first
    found, tokens = first.found, first.given.predicted
    if found.labels:
        return _labelled(report)
    at = f" after {placed(tokens, found.position)}" if found.position != len(tokens) - 1 else ""
    token, value = found.top[0]
    word = next_word(tokens, found.position, first.words[token])
    unlikely = ", no likely word" * (value < UNLIKELY)
    said = f"Next{at}: {word} {probability(value)}{unlikely}."
    if first.foil is not None:
        return f"{said} {quoted(first.answer)} over {quoted(first.foil)}:"
    return said if first.predicts_answer else f"{said} For {quoted(first.answer)}:"


def answer_words(prompt: ExplainedPrompt) -> str:
    """Return the answer that a question-answering model gives, as a sentence with its tokens."""
    found, tokens = prompt.found, prompt.given.predicted
    assert found.span is not None
    start, end = found.span[:2]
    pieces = running_pieces(tokens, prompt.text)[start : end + 1]
    said = cut(token_label("".join(pieces).strip()), _LONGEST_ANSWER)
    return f"Answer: “{said}” ({start if start == end else f'{start}–{end}'})."


def _labelled(report: WhyReport) -> str:
    """Return a classifier's likeliest label with its probability, and an answer that is another."""
    first = report.first
    token, value = first.found.top[0]
    at = placed(first.given.predicted, first.found.position)
    if first.found.span is not None:
        return f"{answer_words(first)} {first.answer.capitalize()} at {at} {probability(value)}:"
    said = f"Label at {at}: {quoted(first.words[token])} {probability(value)}."
    if first.found.several:
        said = f"Likeliest l{said[1:-1]} by its own sigmoid."
    if first.foil is not None:
        return f"{said} {quoted(first.answer)} over {quoted(first.foil)}:"
    return said if first.predicts_answer else f"{said} For {quoted(first.answer)}:"


def _writes(report: WhyReport, best: HeadEffect) -> str:
    """Return a clause on the best head's contribution over many prompts, with its interval."""
    ends = ""
    if best.interval is not None:
        ends = " [{}, {}]".format(*map(logits, best.interval))
    label = report.labels.get(best.head)
    called = "" if label is None else f" ({label_named(str(label.name)).said})"
    return (
        f"{report.name(best.head)}{called} writes {logits(best.value)}{ends} of "
        f"{explained_logit(report)} (mean {report.logit:.2f})"
    )


def _one_base(report: WhyReport, best: HeadEffect) -> str:
    """Return the end of a sentence: the head's effect if another word replaces the answer."""
    if best.base is None:
        if report.first.found.labels:
            return ""
        return ", no control" + ("" if _has_answer(report) else ": that exact token is not in it")
    answer = quoted(report.first.answer)
    return f"; {logits(best.base)} with another word for {answer}"


def _has_answer(report: WhyReport) -> bool:
    """Return whether the token of the answer stands in one of the prompts or in its target."""
    return any(
        each.found.answer in (*each.given.ids, *each.given.predicted.ids) for each in report.prompts
    )


def _base(report: WhyReport, best: HeadEffect) -> str:
    if len(report.prompts) < LEAST_TEXTS:
        return "; too few prompts for intervals"
    if best.base is None:
        why = "" if _has_answer(report) else ", those exact tokens are not in the prompts"
        return f"; no control{why}"
    known = len(report.controlled)
    few = f" over {known} of them" if known < len(report.prompts) else ""
    said = f", control {logits(best.base)}{few}"
    if not report.tested:
        return f"{said}; a test needs {LEAST_TEXTS}"
    if not best.clear:
        verdict = "not clear" if report.shown else "no head stands out"
        return f"{said}; {verdict} from its control"
    clear = sorted(
        (effect for effect in report.effects if effect.clear and effect is not best),
        key=lambda effect: -abs(effect.value),
    )
    names = [report.name(effect.head) for effect in clear[:_NAMED]]
    if not names:
        return f"{said}; no other head stands out from its control"
    return f"{said}; {listed(names)} stand{'s' * (not names[1:])} out from theirs too"


def answers(report: WhyReport) -> str:
    """Return how many answers of many prompts the model predicts, or the answers it chose."""
    right = sum(each.predicts_answer for each in report.prompts)
    if any(each.asked for each in report.prompts):
        return f"the answer is the top prediction of {right} of {len(report.prompts)} prompts"
    words = list(dict.fromkeys(token_label(each.answer) for each in report.prompts))
    named = [cut(word, _LONGEST_TOKEN) for word in words[:_ANSWERS]]
    named += [f"{len(words) - _ANSWERS} more"] if len(words) > _ANSWERS else []
    return f"each prompt's top prediction: {', '.join(named)}"


# Provenance ----------------------------------------------------------------------------------


def about_prompts(
    info: ModelInfo, facts: Sequence[str], given: Input, text: str, *, source: str, many: bool
) -> list[Part]:
    """Return the facts that a reader needs to repeat a run over prompts: model, prompt, source.

    facts: follow the model's. given, text: the first prompt, as the model reads it and as typed.
    """
    parts: list[Part] = [
        Facts([*model_words(info), *((fact, False) for fact in facts)]),
        Quote("prompts" if many else "prompt", f"the first: {text}" if many else text, lead=8),
    ]
    parts += [Facts([(source, False)], lead=8)] if source else []
    if given.target is not None:
        parts.append(Quote("target", "".join(given.target.texts), lead=8))
    return parts


def about(report: WhyReport) -> list[Part]:
    """Return the facts that a reader needs to repeat the run: model, prompt and question."""
    first, drawn = report.first, bool(report.controlled) or report.many
    facts = [_size(report), *[f"seed {report.seed}"] * drawn]
    parts = about_prompts(
        report.model, facts, first.given, first.text, source=report.source, many=report.many
    )
    if report.many:
        question = answers(report)
    else:
        at = placed(first.given.predicted, first.found.position)
        chosen = first.found.span is None
        question = f"{'asked for ' if first.asked else 'the top prediction ' * chosen}at {at}"
    return [*parts, Facts([(explained_logit(report), False), (question, False)])]


def sum_words(report: WhyReport) -> Words:
    """Return the logit as a sum over kinds of parts, and its difference to the model's own."""
    parts = {
        "heads": report.part("head"),
        "MLP": report.part("mlp"),
        "embedding": report.part("embedding"),
        "bias": report.part("bias"),
    }
    said = [f"{name} {logits(value)}" for name, value in parts.items() if value or name != "bias"]
    softcap = report.first.found.softcap
    before = "before the softcap " if softcap is not None else ""
    own = f"logit {before}{report.logit:.3f}"
    return [
        *((word, False) for word in said),
        (f"sum {report.sum:.3f}", True),
        (own, False),
        (f"Δ {report.apart:.4f}", False),
    ]


def caveats(report: WhyReport) -> list[str]:
    """Return the caveats: sentences on what contributions mean, and what they leave out."""
    found = [
        "direct effect: what a head writes into the residual stream, read by the unembedding with "
        "the final norm's scale held at its value in this run. What it does by way of later heads "
        "and MLPs is not in it: attnviz ablate and attnviz patch measure that."
    ]
    softcap = report.first.found.softcap
    if softcap is not None:
        found.append(
            f"softcap: the model squeezes its logits by {softcap:g}·tanh(x / {softcap:g}), here to "
            f"{report.first.found.logit:.4g}; what is taken apart is the value before."
        )
    controlled = report.controlled
    if controlled and report.tallies:
        each = counted(len(controlled[0].base), "control prompt")
        where = f" ({len(controlled)} of the prompts have one)" if report.many else ""
        found.append(
            f"control: the same head's contribution to the same answer, mean over {each} in "
            f"which another token stands where the answer stood before{where}."
        )
    if report.many and len(report.prompts) >= LEAST_TEXTS:
        found.append(
            f"interval: 95%, bootstrap-t over {counted(len(report.prompts), 'prompt')}, 2,000 "
            "draws; significant: the same of the difference to the control, largest |t| of all "
            "heads, p at most .05."
        )
    if any(each.foil is None for each in report.prompts):
        found.append(
            "logits have no zero of their own: a part that raises all of them alike changes no "
            "prediction. --foil TOKEN takes the difference of two, in which such parts cancel."
        )
    return found


def explanation(report: WhyReport) -> Explanation:
    """Return the glossary, with the prompts that contributions and base rates were measured on."""
    size = counted(len(report.prompts), "prompt") if report.many else "this prompt alone"
    base = ""
    if report.controlled:
        each = counted(len(report.controlled[0].base), "control prompt")
        base = f", base rates over {each} each, seed {report.seed}"
    return Explanation("why", f"measured in one pass over {size}{_runs(report)}{base}.")


def _runs(report: WhyReport) -> str:
    """Return how many passes the effects of single words took, as a part of a sentence.

    It is empty if they were not measured.
    """
    inputs = report.inputs
    if inputs is None:
        return ""
    if inputs.steps:
        return f", what it needs in {inputs.steps} steps from the mean embedding"
    return f", what it needs in {inputs.draws + 1} further passes a word"
