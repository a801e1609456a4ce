"""Makes the report of ``lens``: encodes the question, reads the stream after each block."""

from __future__ import annotations

from attnviz.engine.attribution.parts import AskedLogit
from attnviz.engine.backend import backend_of
from attnviz.inspect.lens.report import LensReport
from attnviz.inspect.lens.request import LensRequest
from attnviz.models.model import Model, require_number
from attnviz.models.work import Work, about_tokens
from attnviz.prompts.naming import not_summed
from attnviz.prompts.study import (
    Prompt,
    encode_asked,
    place_in,
    rest_of_word,
    shown_heads,
    splits_logits,
    study_of,
)
from attnviz.texts import answer_and_foil, words_of


def work(text: str, request: LensRequest) -> Work:
    """Return the planned work over a text, from which the loader chooses NumPy or torch."""
    return Work(about_tokens(text), logits=True, fits=splits_logits)


def lens(model: Model, text: str, request: LensRequest, *, source: str = "") -> LensReport:
    """Measure what the model would predict after each block, and what each head writes there.

    source: a description of where the text comes from, or "" if it was typed.
    Raises UsageError if position, token or heads do not fit the model, UnsupportedError if the
    stream between its blocks cannot be read, or if its parts do not add up to its logits.
    """
    study = study_of(model, [Prompt(text)], request, encode_asked)
    (prompt,) = study.prompts
    given = prompt.given
    attributor = backend_of(model).open_attributor(given)
    answer, _ = answer_and_foil(model, request.answer, None, attributor.labels)
    position = place_in(given.predicted, request.position, "--position")
    asked = AskedLogit(position, None if answer is None else answer[0], None, ())
    reading = attributor.lens(given, asked)
    require_number("logit", reading.blocks[-1].probability, model.info)
    if not reading.tallies:
        raise not_summed(model.info, "its logits", reading.apart, "what its heads write is")
    heads = shown_heads(model, [written.head for written in reading.heads], request)
    ids = {word for block in reading.blocks for word, _ in block.top} | {reading.answer}
    ids |= {word for head in reading.heads for word, _ in (*head.raises, *head.lowers)}
    return LensReport(
        model=model.info,
        text=prompt.text,
        source=source,
        given=given,
        reading=reading,
        words=(
            words_of(model, attributor.labels, sorted(ids))
            if reading.end is None
            else {at: given.text.texts[at] for at in sorted(ids)}
        ),
        classes=tuple(attributor.labels),
        asked=answer is not None,
        rest=rest_of_word(model, attributor, given, reading.position, reading.answer)
        if answer is None
        else None,
        chosen=heads.chosen,
        kinds=heads.kinds,
        labels=heads.labels,
        index_base=request.index_base,
        notes=(*study.notes, *reading.notes),
    )
