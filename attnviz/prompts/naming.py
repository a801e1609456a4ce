"""Names what a question about a prompt is about, and makes the document around its own parts."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.draw import document as doc
from attnviz.draw.labels import cut, fit, numbered, token_label, token_labels, width, word_label
from attnviz.draw.provenance import advised, model_words, named, notes_group
from attnviz.errors import UnsupportedError
from attnviz.measures.words import text_of, word_ranges, word_text, words_of_tokens
from attnviz.records import Input, ModelInfo, Provenance, Tokens

LONGEST_TOKEN = 14  # the most characters of a token in a sentence or a table
_LONGEST = 100  # the most columns of a line of the caveats


def quoted(text: str) -> str:
    """Return a token in quotes, cut if it is long."""
    return f"“{cut(token_label(text), LONGEST_TOKEN)}”"


def placed(tokens: Tokens, position: int, quotes: bool = True, piece: bool = False) -> str:
    """Return a token, or the word that it is a piece of, with its index: ``“Tom” (4)``.

    piece: True names the token within its word, as in ``“ed” in “warned” (5)``.
    """
    word, own = words_of_tokens(tokens)[position], token_labels(tokens)[position]
    label = cut(token_label(word_text(tokens, word)) if word[1:] else own, LONGEST_TOKEN)
    name = numbered(f"“{label}”" if quotes else label, word.start)
    split = piece and own.strip("␣ ") not in ("", label)
    return f"“{cut(own, LONGEST_TOKEN)}” in {name}" if split else name


def quoted_word(tokens: Tokens, word: range) -> str:
    """Return a word, a range of tokens, in quotes; with an index if the text has it twice."""
    text, others = word_text(tokens, word), word_ranges(tokens)
    again = any(word_text(tokens, other) == text for other in others if other != word)
    label = word_label([text or tokens.texts[word.start]])
    label = f"“{label if width(label) <= LONGEST_TOKEN else fit(label, LONGEST_TOKEN)}”"
    return numbered(label, word.start) if again else label


def next_word(tokens: Tokens, position: int, piece: str, rest: str | None = None) -> str:
    """Return the word that is predicted after a position, in quotes; white space by its name.

    tokens: of the prompt. piece: the text of the predicted token. rest: what the model itself goes
    on to write of that word, None if that is not known.

    A token that goes on with the word before it is ``“sail·or”``. If the rest is not known, one
    that begins a longer word of the text is ``piece “sail”``.
    """
    whole, last, words = piece + (rest or ""), len(tokens) - 1, words_of_tokens(tokens)
    if not piece.strip():  # the word that follows white space is a further prediction
        kinds = {"a line break": "\n\r", "a tab": "\t", "a space": " "}
        return next((name for name, signs in kinds.items() if {*signs} & {*piece}), quoted(piece))
    if text_of([whole]).startswith("\ufffd") or (rest is None and "\ufffd" in text_of([whole])):
        return f"the byte {token_label(piece)}"
    if position == last and not tokens.special[last]:
        begun = tokens.texts[words[last].start :]
        both = Tokens((0,) * (len(begun) + 1), (*begun, piece), (False,) * (len(begun) + 1))
        if any(text.startswith(" ") for text in begun) and not word_ranges(both)[1:]:
            return f"“{cut(f'{token_label(text_of(begun))}·{whole}', LONGEST_TOKEN)}”"
    if rest is not None:
        return quoted(text_of([whole]))
    begins = (words[at][1:] and words[at].start == at for at in range(len(words)))
    longer = any(text == piece and more for text, more in zip(tokens.texts, begins, strict=True))
    return f"{'piece ' * longer}{quoted(piece)}"


def is_piece(piece: str, rest: str | None) -> bool:
    """Return whether a predicted token is the first piece of a word that is known as a whole."""
    return bool(rest and piece.strip()) and not text_of([piece + (rest or "")]).startswith("\ufffd")


def logits(value: float) -> str:
    """Return a contribution in logits as a string, such as ``+3.59``; small ones get two digits."""
    return f"{value:+.2f}" if abs(value) >= 0.01 or not value else f"{value:+.1g}"


def nats(value: float) -> str:
    """Return a difference of scores in nats as a string, such as ``+8.46``."""
    return f"{value:+.2f}" if abs(value) >= 0.005 else "0.00"


def not_summed(model: ModelInfo, to: str, apart: float, unknown: str) -> UnsupportedError:
    """Return the error for parts that do not sum ``to`` it, so that something is ``unknown``."""
    return UnsupportedError(
        f"the parts of {model.name!r} do not sum to {to} (apart by {apart:.2g}): {unknown} not "
        "known; attnviz ablate measures heads in another way"
    )


def prompt_document(
    report: Provenance,
    model: ModelInfo,
    given: Input,
    tokens: Tokens,
    *,
    command: str,
    name: str,
    facts: Sequence[str],
    question: Sequence[str] = (),
    groups: Sequence[doc.Group],
    caveats: Sequence[str],
    full: Sequence[doc.Group] = (),
    measured: str,
    hints: Sequence[str],
    heading: Sequence[str],
    finding: str,
    first: doc.First,
    many: bool = False,
) -> doc.Document:
    """Return the document of a report on prompts, with the facts that are needed to repeat the run.

    given: the first prompt as the model reads it. tokens: those of its texts that are shown.
    command: of the question. facts: about the run, behind the model. question: what is asked.
    groups: the question's own. full: those at the end, for pages alone. measured: what the numbers
        were measured on, for the glossary. heading: words behind the model in the first line.
    many: whether the prompt is one of several. The others are those of ``Document``.
    """
    prompt = doc.Quote("prompt", report.text, lead=8)
    if many:
        prompt = doc.Quote("prompts", f"the first: {report.text}", lead=8)
    shown = model if given.target is None else model.of("decoder")
    about: list[doc.Part] = [
        doc.Facts([*model_words(shown), *((fact, False) for fact in facts)]),
        prompt,
        *([doc.Facts([(report.source, False)], lead=8)] if report.source else []),
    ]
    if given.target is not None:
        about.append(doc.Quote("target", "".join(given.target.texts), lead=8))
    if question:
        about.append(doc.Facts([(words, False) for words in question]))
    return doc.Document(
        name=name,
        title=" ".join(report.text.split()),
        groups=[
            doc.Group(about),
            notes_group((*model.notes, *report.notes), tokens),
            *groups,
            doc.Group([doc.Say(text, _LONGEST) for text in caveats]),
            *full,
        ],
        explain=doc.Explanation(command, f"measured in one pass over {measured}."),
        hints=doc.next_steps(hints),
        heading=[*named(model), *((word, False) for word in heading)],
        quoted="" if many else report.text,
        finding=finding,
        first=advised(first, tokens),
    )
