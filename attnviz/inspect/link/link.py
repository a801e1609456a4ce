"""Makes the report of ``link``: chooses head, query and key, splits the lead, runs the controls.

The control keeps the tokens of query and key, the first token and special tokens, and replaces all
others by random words: what a part adds because of the words around is gone, what it adds at this
place whatever the words is still there.

If nobody names a head, a query or a key, the link is the one that ``heads`` names first, which a
head makes beyond its habits (``measures.word_links``). The strongest link of a text is no news: a
previous-token head gives nearly all its weight to the token before, whatever the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from attnviz.engine.attribution.scores import LEAST_KEYS, AskedLink
from attnviz.engine.backend import backend_of
from attnviz.engine.capture import (
    Choice,
    attention_kind,
    capture,
    encoded,
    require_maps,
    written_targets,
)
from attnviz.engine.known_labels import head_or_label, known_labels
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.link.report import LinkChoice, LinkedPrompt, LinkReport, part_leads
from attnviz.inspect.link.request import LinkRequest
from attnviz.measures.bootstrap import few_note
from attnviz.measures.telling import told
from attnviz.measures.word_links import agreed_links
from attnviz.models.model import Model, Vocabulary
from attnviz.models.work import Work, about_tokens
from attnviz.progress import Advance
from attnviz.prompts.study import Encoded, Prompt, control_count, place_in, study_of
from attnviz.records import SINKS, AttentionRecord, HeadLabel, Input

_POOL = 2000  # how many tokens of the vocabulary are looked at for words of the controls
_BATCH = 512  # the most tokens of control prompts that run together: more at once are no faster
_SINK = 0.9  # the weight from which on the first token is taken for the key that is explained


def work(prompts: Sequence[Prompt], request: LinkRequest) -> Work:
    """Return the planned work over prompts, from which the loader chooses NumPy or torch."""
    runs = 2 + control_count(request.controls, len(prompts))
    return Work(runs * about_tokens(*(prompt.text for prompt in prompts)))


def link(
    model: Model,
    prompts: Sequence[Prompt],
    request: LinkRequest,
    *,
    source: str = "",
    advance: Advance = lambda share: None,
) -> LinkReport:
    """Split a head's attention to one key of each prompt by the parts that wrote query and key.

    prompts: each with the link to explain. source: where they come from, or "" if they were typed.
    advance: is called with the share that is done.
    If the parts do not give the model's own weights, ``tallies`` of the report is False and nothing
    in it is ranked; see its ``require_tally``. Raises UsageError if prompts, tokens or the head do
    not fit the model, UnsupportedError if its queries and keys cannot be followed.
    """
    choice = Choice(kind=request.kind, target=request.target, truncate=request.truncate)
    kind = attention_kind(model, choice)
    if kind == "cross":
        raise UnsupportedError(
            "the keys of cross attention are written by the encoder, which cannot be followed: "
            "choose --kind encoder or decoder"
        )

    def encode(model: Model, text: str, request: LinkRequest) -> Encoded:
        tokens = encoded(model, text, request.truncate)
        targets = written_targets(model, [tokens], choice) if kind == "decoder" else ()
        return Input(tokens, *targets[:1]), ()

    study = study_of(model, prompts, request, encode, answering=False, advance=advance)
    known = known_labels(model, kind, ignored=request.no_known_labels)
    labels, head = {} if known is None else known.named(), None
    if request.head is not None:
        head = head_or_label(model, kind, request.head, request.index_base)
    splitter = backend_of(model).open_splitter(kind, study.prompts[0].given)
    linked, chosen = list[LinkedPrompt](), None
    wanted = control_count(request.controls, len(study.prompts))
    for number, prompt in enumerate(study.prompts):
        given, question = prompt.given, prompt.question
        typed = {question.query, question.key, question.than} != {None}
        with prompt.naming():
            heads = model.info.layers * model.info.heads if head is None else 1
            sizes = len(given.queries(kind)), len(given.keys(kind))
            require_maps(heads, *sizes, "name one with --head, or shorten the text")
            some = None if head is None else {head[0]: [head[1]]}
            record = capture(model, given.text, kind=kind, target=given.target, heads=some)
            if head is None and len(study.prompts) == 1 and not typed:
                chosen = most_telling(record, labels)
            asked = _asked(record, question, head, labels, chosen)
        head = asked.head[1:]
        split = splitter.split(given, asked)
        count = wanted if split.tallies else 0
        controls = _controls(model.vocabulary(), given, asked, count, (request.seed, number))
        size = max(1, _BATCH // sizes[0])
        batches = [controls[first : first + size] for first in range(0, len(controls), size)]
        base = [
            part_leads(split, asked, sides)
            for batch in study.watched(number, batches)
            for sides in zip(*splitter.leads(batch, asked, split), strict=True)
        ]
        rows = np.array(base).reshape(len(base), len(part_leads(split, asked)))
        this = LinkedPrompt(prompt.text, given, asked, split, rows)
        if not split.tallies:
            linked = [this]
            break
        linked.append(this)
        if linked[0].split.parts != split.parts:
            raise UnsupportedError("the parts of the model differ from prompt to prompt")
    first = linked[0]
    return LinkReport(
        model=model.info,
        prompts=tuple(linked),
        chosen=chosen,
        label=labels.get(first.asked.head[1:]),
        labels=labels,
        text=first.text,
        source=source,
        seed=request.seed,
        index_base=request.index_base,
        notes=(*study.notes, *study.copies, *few_note(len(linked), "prompts")),
    )


def most_telling(
    record: AttentionRecord, labels: Mapping[tuple[int, int], HeadLabel]
) -> LinkChoice:
    """Return the link that ``heads`` would name first, and why; without link if none stands out."""
    links = agreed_links(record)
    pairs = None if links is None else links.pairs
    first = next(iter(told(record, links, labels)), None)
    return LinkChoice(pairs) if first is None else LinkChoice(pairs, first.link, first.why)


def _asked(
    record: AttentionRecord,
    question: LinkRequest,
    head: tuple[int, int] | None,
    labels: Mapping[tuple[int, int], HeadLabel],
    chosen: LinkChoice | None,
) -> AskedLink:
    """Return the link that a prompt asks about: ``chosen``, or what is named, with defaults."""
    keys = record.keys
    weights = {(layer, number): matrix for layer, number, matrix in record}
    key = place_in(keys, question.key, "--key")
    if chosen is not None and chosen.link is not None:
        head = chosen.link.layer, chosen.link.head
        asks, asked = chosen.link.query, chosen.link.key
        between = weights[head][asks.start : asks.stop, asked.start : asked.stop]
        above, left = divmod(int(np.nanargmax(between)), len(asked))  # the largest weight
        query, key = asks.start + above, asked.start + left
    elif (position := place_in(record.queries, question.query, "--query")) is not None:
        query = position
    else:
        special = record.queries.special
        own = [at for at in range(len(special)) if not special[at]]  # not added by the tokenizer
        query = own[-1] if own else len(special) - 1
    rows = {of_head: matrix[query] for of_head, matrix in weights.items()}
    # Not the first token, nor those that the tokenizer added.
    plain = np.array([at > 0 and not special for at, special in enumerate(keys.special)])
    if head is None:
        head = _strongest(rows, labels, key, plain)
    elif head not in rows:
        raise UsageError(f"no head {head[1]} in layer {head[0]}: choose another with --head")
    mask = next(weights.mask for weights in record.layers if weights.layer == head[0])
    seen = list(range(query + 1 if record.causal else len(keys)))
    if mask is not None:
        seen = np.flatnonzero(mask[query]).tolist()
    if len(seen) < LEAST_KEYS:
        raise UsageError(
            f"the query at {query} sees one key alone: choose a later one with --query"
        )
    if key is None:
        row = rows[head]
        sinks = row.max() > _SINK or not plain.any()
        key = int((row if sinks else np.where(plain, row, -1)).argmax())
    than = place_in(keys, question.than, "--than")
    if key == than:
        raise UsageError("--than is the key itself: choose another token to compare it with")
    for option, token in (("--key", key), ("--than", than)):
        if token is not None and token not in seen:
            raise UsageError(
                f"{option}: the query at {query} does not see the token at {token}, choose one "
                f"from {seen[0]} to {seen[-1]}"
            )
    return AskedLink((record.kind, *head), query, key, than)


def _strongest(
    rows: Mapping[tuple[int, int], np.ndarray],
    labels: Mapping[tuple[int, int], HeadLabel],
    key: int | None,
    plain: np.ndarray,
) -> tuple[int, int]:
    """Return the head that attends most to a key, or to any plain one, if possible with a label."""
    weights = {
        head: float(row[key] if key is not None else (row * plain).max())
        for head, row in rows.items()
    }
    known = [head for head in rows if head in labels and labels[head].name not in SINKS]
    return max(known or rows, key=lambda head: weights[head])


def _controls(
    vocabulary: Vocabulary, given: Input, asked: AskedLink, wanted: int, seed: tuple[int, int]
) -> list[Input]:
    """Return prompts with other words, except at the link, ``than``, the first and added tokens."""
    if not wanted:
        return []
    tokens = given.queries(asked.head[0])
    kept = {0, asked.query, asked.key, *([] if asked.than is None else [asked.than])}
    free = [at for at, special in enumerate(tokens.special) if at not in kept and not special]
    generator = np.random.default_rng(seed)
    pool, controls = _words(vocabulary, generator), []
    for _ in range(wanted):
        ids = np.array(tokens.ids)
        ids[free] = generator.choice(pool, len(free))
        other = replace(tokens, ids=tuple(ids.tolist()))
        controls.append(Input(other) if given.target is None else replace(given, target=other))
    return controls


def _words(vocabulary: Vocabulary, generator: np.random.Generator) -> Sequence[int]:
    """Return ids of tokens that begin a word, of letters alone; any plain ones if these are few."""
    tried = generator.permutation(vocabulary.plain)[:_POOL].tolist()
    texts = dict(zip(tried, vocabulary.texts(tried), strict=True))
    letters = [token for token in tried if texts[token].strip().isalpha()]
    return [token for token in letters if texts[token].startswith(" ")] or letters or tried
