"""Makes the report of ``link``: chooses head, query and key, splits the lead, runs the controls.

The control keeps the tokens of query and key, the first token and special tokens, and replaces all
others by random words: what a part adds because of the words around is gone, what it adds at this
place whatever the words is still there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

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
from attnviz.engine.known_labels import known_labels
from attnviz.engine.selection import single_head
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.link.choice import LinkChoice, most_telling, tokens_of
from attnviz.inspect.link.report import LinkedPrompt, LinkReport, part_leads
from attnviz.inspect.link.request import LinkRequest
from attnviz.measures.bootstrap import copies_note, few_note
from attnviz.measures.words import find_in
from attnviz.models.model import Model, Vocabulary
from attnviz.models.resolve import LoadOptions, load, reckoned_tokens
from attnviz.progress import Advance
from attnviz.prompts import control_count, named_error, typed_prompts
from attnviz.records import SINKS, AttentionRecord, HeadLabel, Input, Kind, Tokens
from attnviz.regions import chat_or_text, finished
from attnviz.texts import Texts

_POOL = 2000
"""How many tokens of the vocabulary are looked at for words of the controls."""

_BATCH = 512
"""The most tokens of control prompts that run together: more at once are no faster."""

_SINK = 0.9
"""The weight from which on the first token is taken for the key that is explained."""


class LinkPrompt(NamedTuple):
    """One prompt with the link that is asked about, as typed.

    query, key, than: words or indices, None for the defaults. place: the prompt's name in messages.
    """

    text: str
    query: str | None
    key: str | None
    than: str | None
    place: str = ""


def read_prompts(
    request: LinkRequest,
    text: str | None = None,
    file: Path | None = None,
    texts: Path | Texts | None = None,
    column: str | None = None,
) -> tuple[list[LinkPrompt], str]:
    """Return the prompts with their questions, and their source; see ``typed_prompts``."""
    usual = {"query": request.query, "key": request.key, "than": request.than}
    text = chat_or_text(request, text, file)
    read, source = typed_prompts("link", usual, text=text, file=file, texts=texts, column=column)
    return [LinkPrompt._make((text, *asked, place)) for text, asked, place in read], source


def open_model(
    name: str, options: LoadOptions, prompts: Sequence[LinkPrompt], request: LinkRequest
) -> Model:
    """Load a model with the faster of NumPy and torch. prompts: their length decides."""
    runs = 2 + control_count(request.controls, len(prompts))
    tokens = runs * sum(reckoned_tokens(prompt.text) for prompt in prompts)
    return load(name, replace(options, tokens=tokens))


def link(
    model: Model,
    prompts: Sequence[LinkPrompt],
    request: LinkRequest,
    *,
    source: str = "",
    advance: Advance = lambda share: None,
) -> LinkReport:
    """Split a head's attention to one key of each prompt by who wrote the query and the key.

    prompts: with the link that is asked about in each. source: where they come from, or "" if they
        were typed. advance: is called with the share that is done.
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
    prompts = [
        prompt._replace(text=finished(model, prompt.text, answering=False)) for prompt in prompts
    ]
    inputs = [_encoded(model, prompt, choice, kind == "decoder") for prompt in prompts]
    unique = {
        (given.ids, *prompt[1:4]): (prompt, given)
        for prompt, given in zip(prompts, inputs, strict=True)
    }
    pairs = list(unique.values())
    known = None if request.no_known_labels else known_labels(model, kind)
    labels = {} if known is None else known.named()
    head, splitter = _head_of(request, model), backend_of(model).open_splitter(kind, inputs[0])
    found: list[LinkedPrompt] = []
    chosen: LinkChoice | None = None
    wanted = control_count(request.controls, len(pairs))
    for number, (prompt, given) in enumerate(pairs):
        try:
            record = _captured(model, kind, given, head)
            if head is None and len(pairs) == 1 and prompt[1:4] == (None, None, None):
                chosen = most_telling(record, labels)
            asked = _asked(record, prompt, head, labels, chosen)
        except UsageError as error:
            raise named_error(prompt.place, error) from error
        head = asked.head[1:]
        split = splitter.split(given, asked)
        if not split.tallies:
            found, pairs = [], pairs[number : number + 1]
        base = []
        controls = _controls(
            model.vocabulary(), given, asked, wanted * split.tallies, (request.seed, number)
        )
        together = max(1, _BATCH // len(given.queries(kind)))
        for first in range(0, len(controls), together):
            leads = splitter.leads(controls[first : first + together], asked, split)
            base += [part_leads(split, asked, sides) for sides in zip(*leads, strict=True)]
            advance((number + len(base) / wanted) / len(pairs))
        rows = np.array(base).reshape(len(base), len(part_leads(split, asked)))
        found.append(LinkedPrompt(prompt.text, given, asked, split, rows))
        if found[0].found.parts != split.parts:
            raise UnsupportedError("the parts of the model differ from prompt to prompt")
        if not split.tallies:
            break
        advance((number + 1) / len(pairs))
    return LinkReport(
        model=model.info,
        prompts=tuple(found),
        chosen=chosen,
        label=labels.get(found[0].asked.head[1:]),
        text=found[0].text,
        source=source,
        seed=request.seed,
        index_base=request.index_base,
        notes=(
            *model.notes_for(inputs[0].text),
            *copies_note(len(prompts) - len(unique), len(prompts), "prompts"),
            *few_note(len(found), "prompts"),
        ),
    )


# The link ------------------------------------------------------------------------------------


def _encoded(model: Model, prompt: LinkPrompt, choice: Choice, has_target: bool) -> Input:
    tokens = encoded(model, prompt.text, choice.truncate)
    targets = written_targets(model, [tokens], choice) if has_target else ()
    return Input(tokens, *targets[:1])


def _head_of(request: LinkRequest, model: Model) -> tuple[int, int] | None:
    """Return the (layer, head) of ``--head``; None without it."""
    if request.head is None:
        return None
    return single_head(request.head, model.info.layers, model.info.heads, request.index_base)


def _captured(
    model: Model, kind: Kind, given: Input, head: tuple[int, int] | None
) -> AttentionRecord:
    """Return the attention over a prompt of one (layer, head), or of all heads."""
    heads = 1 if head is not None else model.info.layers * model.info.heads
    queries, keys = given.queries(kind), given.keys(kind)
    require_maps(heads, len(queries), len(keys), "name one with --head, or shorten the text")
    chosen = None if head is None else {head[0]: [head[1]]}
    return capture(model, given.text, kind=kind, target=given.target, heads=chosen)


def _asked(
    record: AttentionRecord,
    prompt: LinkPrompt,
    head: tuple[int, int] | None,
    labels: Mapping[tuple[int, int], HeadLabel],
    chosen: LinkChoice | None,
) -> AskedLink:
    """Return the link that a prompt asks about, with the defaults for what it leaves out.

    record: the attention over the prompt. head: (layer, head), None to choose it. labels: of heads
        that are known to do something. chosen: the link to take, if there is one.
    """
    queries, keys = record.queries, record.keys
    weights = {
        (layer.layer, number): each
        for layer in record.layers
        for number, each in zip(layer.heads, layer.weights, strict=True)
    }
    key = None if prompt.key is None else _place(keys, prompt.key, "--key")
    link = None if chosen is None else chosen.link
    if link is not None:
        head = link.layer, link.head
        query, key = tokens_of(link, weights[head])
    else:
        query = _last(queries) if prompt.query is None else _place(queries, prompt.query, "--query")
    rows = {place: each[query] for place, each in weights.items()}
    if head is None:
        head = _strongest(rows, labels, key, keys)
    elif head not in rows:
        raise UsageError(f"no head {head[1]} in layer {head[0]}: choose another with --head")
    seen = _seen(record, head[0], query)
    if len(seen) < LEAST_KEYS:
        raise UsageError(
            f"the query at {query} sees one key alone: choose a later one with --query"
        )
    if key is None:
        key = _key(rows[head], keys)
    than = None if prompt.than is None else _place(keys, prompt.than, "--than")
    if key == than:
        raise UsageError("--than is the key itself: choose another token to compare it with")
    for name, place in (("--key", key), ("--than", than)):
        if place is not None and place not in seen:
            raise UsageError(
                f"{name}: the query at {query} does not see the token at {place}, choose one from "
                f"{seen[0]} to {seen[-1]}"
            )
    return AskedLink((record.kind, *head), query, key, than)


def _seen(record: AttentionRecord, layer: int, query: int) -> list[int]:
    """Return the indices of the keys that a query of a layer sees."""
    mask = next(each.mask for each in record.layers if each.layer == layer)
    keys = range(len(record.keys))
    if mask is not None:
        return [key for key in keys if mask[query, key]]
    return [key for key in keys if not record.causal or key <= query]


def _place(tokens: Tokens, typed: str, name: str) -> int:
    """Return the token that a person means: an index, or the last token of a word."""
    word = find_in(tokens, typed)
    if word is None:
        raise UsageError(
            f"{name}: no token {typed!r} in the prompt: give a word of it, WORD:2 for its second "
            f"place, or an index from 0 to {len(tokens) - 1}"
        )
    return word.span.stop - 1


def _last(tokens: Tokens) -> int:
    """Return the index of the last token that the tokenizer did not add."""
    own = [at for at, special in enumerate(tokens.special) if not special]
    return own[-1] if own else len(tokens) - 1


def _key(row: np.ndarray, keys: Tokens) -> int:
    """Return the key with the most weight; of first and added tokens one that has nearly all."""
    if row.max() > _SINK:
        return int(row.argmax())
    plain = np.array([at > 0 and not special for at, special in enumerate(keys.special)])
    return int(np.where(plain, row, -1).argmax()) if plain.any() else int(row.argmax())


def _strongest(
    rows: Mapping[tuple[int, int], np.ndarray],
    labels: Mapping[tuple[int, int], HeadLabel],
    key: int | None,
    keys: Tokens,
) -> tuple[int, int]:
    """Return the head that attends most to a key, of those with a label if there are any.

    key: its index; None for each head's own.
    """
    plain = np.array([at > 0 and not special for at, special in enumerate(keys.special)])
    weights = {
        head: float(row[key] if key is not None else (row * plain).max())
        for head, row in rows.items()
    }
    known = [head for head in rows if head in labels and labels[head].name not in SINKS]
    return max(known or rows, key=lambda head: weights[head])


# The base rate -------------------------------------------------------------------------------


def _controls(
    vocabulary: Vocabulary, given: Input, asked: AskedLink, wanted: int, seed: tuple[int, int]
) -> list[Input]:
    """Return control prompts: other words in all places but those of the link.

    The first token, added tokens, and the key that is compared with stay too. wanted: how many.
    seed: of the draws.
    """
    if not wanted:
        return []
    tokens = given.queries(asked.head[0])
    kept = {0, asked.query, asked.key, *([] if asked.than is None else [asked.than])}
    free = [at for at, special in enumerate(tokens.special) if at not in kept and not special]
    generator = np.random.default_rng(seed)
    pool, found = _words(vocabulary, generator), []
    for _ in range(wanted):
        ids = np.array(tokens.ids)
        ids[free] = generator.choice(pool, len(free))
        other = replace(tokens, ids=tuple(ids.tolist()))
        found.append(replace(given, target=other) if given.target is not None else Input(other))
    return found


def _words(vocabulary: Vocabulary, generator: np.random.Generator) -> Sequence[int]:
    """Return ids of tokens that begin a word, of letters alone; any plain ones if these are few."""
    tried = generator.permutation(vocabulary.plain)[:_POOL].tolist()
    letters = [
        (token, text.startswith(" "))
        for token, text in zip(tried, vocabulary.texts(tried), strict=True)
        if text.strip().isalpha()
    ]
    begin = [token for token, begins in letters if begins]
    return begin or [token for token, _ in letters] or tried
