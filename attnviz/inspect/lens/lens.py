"""Makes the report of ``lens``: encodes the question, reads the stream after each block."""

from __future__ import annotations

from dataclasses import replace

from attnviz.engine.attribution.parts import AskedLogit
from attnviz.engine.backend import backend_of
from attnviz.errors import UnsupportedError
from attnviz.inspect.lens.report import LensReport
from attnviz.inspect.lens.request import LensRequest
from attnviz.inspect.why.why import (
    chosen_heads,
    encoded_prompt,
    kinds_shown,
    labels_of,
    load_apart,
    position_in,
)
from attnviz.models.model import Model, require_number
from attnviz.models.resolve import LoadOptions, reckoned_tokens
from attnviz.regions import both_texts, finished
from attnviz.texts import answer_and_foil, words_of


def open_model(name: str, options: LoadOptions, text: str) -> Model:
    """Load a model with the faster of NumPy and torch that can read these blocks.

    options: how it is loaded. text: its length decides which is faster.
    """
    return load_apart(name, replace(options, tokens=reckoned_tokens(text), logits=True))


def lens(model: Model, text: str, request: LensRequest, *, source: str = "") -> LensReport:
    """Return what the model would predict after each block, and what each head writes there.

    source: a description of where the text comes from, or "" if it was typed.
    Raises UsageError if position, token or heads do not fit the model, UnsupportedError if the
    stream between its blocks cannot be read, or if its parts do not add up to its logits.
    """
    text = finished(model, text, answering=True)
    given, joined = encoded_prompt(model, text, request, request.truncate)
    backend = backend_of(model)
    attributor = backend.open_attributor(given)
    asked, _ = answer_and_foil(model, request.answer, None, attributor.labels)
    answer = None if asked is None else asked[0]
    place = position_in(given.predicted, request.position)
    found = backend.read_lens(attributor, given, AskedLogit(place, answer, None, ()))
    require_number("logit", found.blocks[-1].probability, model.info)
    if not found.tallies:
        raise UnsupportedError(
            f"the parts of {model.info.name!r} do not sum to its logits (apart by "
            f"{found.apart:.2g}): what its heads write is not known; attnviz ablate measures heads "
            "in another way"
        )
    heads = [each.head for each in found.heads]
    kinds = kinds_shown(model, heads, request.kind)
    chosen = chosen_heads(model, heads, request, kinds, request.index_base)
    ids = {word for each in found.blocks for word, _ in each.top} | {found.answer}
    ids |= {word for each in found.heads for word, _ in (*each.raises, *each.lowers)}
    return LensReport(
        model=model.info,
        text=both_texts(text, request.second),
        source=source,
        given=given,
        found=found,
        words=(
            words_of(model, attributor.labels, sorted(ids))
            if found.end is None
            else {at: given.text.texts[at] for at in sorted(ids)}
        ),
        classes=tuple(attributor.labels),
        asked=answer is not None,
        chosen=chosen,
        kinds=kinds,
        labels={} if request.no_known_labels else labels_of(model, heads),
        index_base=request.index_base,
        notes=(*model.notes_for(given.text), *joined, *found.notes),
    )
