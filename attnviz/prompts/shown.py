"""The document of a question about prompts: what all of them show around their own parts."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.draw import document as doc
from attnviz.draw.provenance import advised, model_words, named, notes_group
from attnviz.records import Input, ModelInfo, Provenance, Tokens

_LONGEST = 100


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
