"""One study over prompts, or pairs of them: read, encoded, measured, and controlled.

A prompt that is typed alone is asked what the options say; each row of a file may have its own
question. Copies are left out, since they are no new evidence. The tokens of a pair of prompts
correspond to each other, and its control is an unrelated prompt in the place of one of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from attnviz.draw.labels import token_labels, visible
from attnviz.engine.attribution.on_numpy import NumpyAttributor
from attnviz.engine.attribution.parts import Attributor
from attnviz.engine.capture import Choice, encoded, written_targets
from attnviz.engine.known_labels import by_label, known_labels
from attnviz.engine.patching import Direction, Pair
from attnviz.engine.selection import choose_heads
from attnviz.errors import UnsupportedError, UsageError
from attnviz.measures.bootstrap import copies_note
from attnviz.measures.words import find_in, word_ranges
from attnviz.models.model import FinishedText, Model, TwoStackModel
from attnviz.models.stack_model import StackModel
from attnviz.options import RegionOptions
from attnviz.progress import Advance
from attnviz.prompts.request import LogitRequest, PromptRequest, Prompts
from attnviz.records import HeadKey, HeadLabel, Input, Tokens
from attnviz.regions import RegionReader, both_texts, chat_or_text, finished, region_reader
from attnviz.texts import Texts, read_rows, read_text, read_texts_file

_ROWS = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")
"""The endings of files whose prompts may each have their own question."""

_LONGEST_WORD = 8  # the most tokens that a model writes to complete a word
Request = TypeVar("Request", bound=PromptRequest)
Given = TypeVar("Given")
Question = TypeVar("Question")
Step = TypeVar("Step")
Made = TypeVar("Made")


class Prompt(NamedTuple):
    """One prompt with the question about it, as typed.

    own: the values of options of the question, by name, that stand in place of the request's.
    name: of the prompt in messages; empty if a person typed it.
    """

    text: str
    own: Mapping[str, str | None] = {}
    name: str = ""


def read_prompts(
    command: str,
    request: PromptRequest,
    text: str | None = None,
    file: Path | None = None,
    texts: Path | Texts | None = None,
    column: str | None = None,
) -> tuple[list[Prompt], str]:
    """Return the prompts, and a description of their source, which is empty if a person typed them.

    command: for messages. request: has the chat, and the options for prompts without their own.
    text, file, texts: the one that was given. column: that of the prompts in a table; None for
        ``prompt``.
    Raises UsageError and LoadError as ``read_text``, ``read_texts_file`` and ``read_rows``.
    """
    text = chat_or_text(request, text, file)
    if texts is None:
        source = "standard input" if text == "-" else ""
        prompt = Prompt(read_text(text, file, command))
        return [prompt], source if file is None else visible(str(file))
    if text is not None or file is not None:
        raise UsageError("expected one source of prompts: give PROMPT, --file or --texts, not two")
    if isinstance(texts, Path) and texts.suffix.lower() in _ROWS:
        rows = read_rows(texts, "--texts", ("prompt",), request.own, column)
        usual = {name: getattr(request, name) for name in request.own}
        return [
            Prompt(
                row["prompt"],
                {name: row.get(name) or value for name, value in usual.items()},
                f"{rows.source} line {line}",
            )
            for row, line in zip(rows.rows, rows.lines, strict=True)
        ], rows.source
    many = texts if isinstance(texts, Texts) else read_texts_file(texts, "--texts", column)
    return [
        Prompt(text, name=many.name(at) if many.lines else "") for at, text in enumerate(many.texts)
    ], many.source


def splits_logits(model: StackModel) -> bool:
    """Return True if NumPy can split this model's logits into contributions of its parts."""
    return NumpyAttributor.of(model) is not None


Encoded = tuple[Input, tuple[str, ...]]
"""The tokens of a prompt, with those of the decoder's text, and notes on them."""


def encode_asked(model: Model, text: str, request: LogitRequest) -> Encoded:
    """Return a prompt whose next token is asked for; UsageError for a target of one stack."""
    choice = Choice(target=request.target, truncate=request.truncate)
    reader = region_reader(model, text, RegionOptions(second=request.second))
    tokens = encoded(model, text, request.truncate, None if reader is None else reader.encode)
    targets = written_targets(model, [tokens], choice)
    if request.target is not None and not targets:
        raise no_decoder(model)
    notes = () if reader is None else reader.notes(tokens)
    if text.endswith("\n") and not isinstance(text, FinishedText):
        notes = (*notes, "the prompt ends with a line feed: predicted is what follows that")
    return Input(tokens, *targets[:1]), notes


def no_decoder(model: Model) -> UsageError:
    """Return the error for a decoder's text that a model with one stack is given."""
    return UsageError(f"--target is the text of a decoder: {model.info.name!r} has one stack")


def rest_of_word(
    model: Model, attributor: Attributor, given: Input, position: int, token: int
) -> str | None:
    """Return what a model goes on to write of a word, after its first token, by greedy decoding.

    given: the prompt. position: that of the token after which the word is predicted. token: the id
    of the word's first token. None where the word does not end soon, and where nothing can be
    written: labels, masks, a second stack.
    """
    text = given.predicted
    if attributor.labels or given.target is not None or text.special[position]:
        return None
    ids, texts = [*text.ids[: position + 1], token], model.vocabulary().texts
    pieces = [*text.texts[: position + 1], *texts([token])]
    while len(ids) < min(position + _LONGEST_WORD, model.context or math.inf):
        scores = attributor.logits_of_texts([Input.of_ids(ids)], len(ids) - 1)[0]
        ids.append(int(scores.argmax()))
        pieces += texts(ids[-1:])
        tokens = Tokens(tuple(ids), tuple(pieces), (False,) * len(ids))
        if word_ranges(tokens)[-1].start > position + 1:
            return "".join(pieces[position + 2 : -1])
    return None


def place_in(tokens: Tokens, typed: str | None, option: str) -> int | None:
    """Return the index of an option's token, a word's last; None for None, else UsageError."""
    if typed is None:
        return None
    word = find_in(tokens, typed)
    if word is None:
        raise UsageError(
            f"{option}: no token {typed!r} in the prompt: give a word in it, WORD:2 for its "
            f"second occurrence, or an index from 0 to {len(tokens) - 1}"
        )
    return word.span.stop - 1


# The study -----------------------------------------------------------------------------------


class HasName(Protocol):
    """A prompt, or a pair of prompts, with its name in messages; empty if a person typed it."""

    @property
    def name(self) -> str: ...


Asked = TypeVar("Asked", bound=HasName)


def fitting(
    prompts: Sequence[Asked], make: Callable[[int, Asked], Made], nouns: str
) -> tuple[list[Made], tuple[str, ...]]:
    """Return what ``make`` returns for the prompts that fit the model, and a note on the others.

    make: is given the index of a prompt and the prompt; raises UsageError if it does not fit.
    nouns: what the prompts are called.
    Raises UsageError if none fits, and for a prompt that a person typed.
    """
    made, failures = list[Made](), list[str]()
    for index, prompt in enumerate(prompts):
        try:
            made.append(make(index, prompt))
        except UsageError as error:
            if not prompt.name:
                raise
            failures.append(f"{prompt.name}: {error}")
    if not made:
        raise UsageError(f"none of {len(prompts)} {nouns} can be measured; {failures[0]}")
    left = f"{len(failures)} of {len(prompts)} {nouns} left out; {failures[0]}" if failures else ""
    return made, (left,) * bool(left)


@dataclass(frozen=True)
class Studied(Generic[Given, Question]):
    """One prompt or pair of prompts of a study, ready to be measured.

    text: as screens show it. given: its tokens. question: what is asked of it; of one prompt the
        request with the prompt's own options. name: in messages.
    """

    text: str
    given: Given
    question: Question
    name: str

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Make the messages of errors about this prompt begin with its name, if it has one."""
        try:
            yield
        except UsageError as error:
            raise UsageError(f"{self.name}: {error}" if self.name else str(error)) from error


StudiedPrompt = Studied[Input, Request]  # one prompt whose question is a request


@dataclass(frozen=True)
class PromptStudy(Generic[Given, Question]):
    """The prompts of a run without copies.

    prompts: at least one. notes: on how they were encoded. copies: a note if some were left out.
    advance: is called with the share of the study that is done.
    """

    prompts: Sequence[Studied[Given, Question]]
    notes: tuple[str, ...]
    copies: tuple[str, ...]
    advance: Advance

    def watched(self, number: int, steps: Sequence[Step]) -> Iterator[Step]:
        """Yield the steps, such as controls, of the prompt with this index; report each as done."""
        for done, step in enumerate(steps, start=1):
            yield step
            self.advance((number + done / len(steps)) / len(self.prompts))
        self.advance((number + 1) / len(self.prompts))


def control_count(wanted: int | None, prompts: int) -> int:
    """Return how many controls a prompt has: ``wanted``, or if None 20, or 5 of several prompts."""
    return (5 if prompts > 1 else 20) if wanted is None else wanted


def study_of(
    model: Model,
    prompts: Sequence[Prompt],
    request: Request,
    encode: Callable[[Model, str, Request], Encoded],
    *,
    answering: bool = True,
    advance: Advance = lambda share: None,
) -> PromptStudy[Input, Request]:
    """Return the study of prompts: each encoded once, with its question.

    encode: returns the tokens of a text. answering: whether a chat ends where its answer begins.
    Raises UsageError for a prompt that the model cannot read.
    """
    kept, notes = dict[object, Studied[Input, Request]](), tuple[str, ...]()
    for prompt in prompts:
        text = finished(model, prompt.text, answering=answering)
        given, notes = encode(model, text, request)
        shown = both_texts(text, getattr(request, "second", None))
        question = replace(request, **prompt.own)
        kept[given.ids, *prompt.own.values()] = Studied(shown, given, question, prompt.name)
    first, *_ = kept.values()
    return PromptStudy(
        prompts=tuple(kept.values()),
        notes=(*model.notes_for(first.given.text), *notes),
        copies=copies_note(len(prompts) - len(kept), len(prompts), "prompts"),
        advance=advance,
    )


class ShownHeads(NamedTuple):
    """The heads that are shown.

    kinds: the attention whose heads are shown. chosen: the heads that ``--layer`` and ``--head``
        name; empty if neither is given. labels: what earlier runs measured, of heads that have one.
    """

    kinds: tuple[str, ...]
    chosen: tuple[HeadKey, ...]
    labels: Mapping[HeadKey, HeadLabel]


def shown_heads(model: Model, heads: Collection[HeadKey], request: LogitRequest) -> ShownHeads:
    """Return the heads of a model that a request shows; UsageError if there is none of them."""
    info, kinds = model.info, tuple(dict.fromkeys(kind for kind, _, _ in heads))
    labels: dict[HeadKey, HeadLabel] = {}
    for kind in kinds:
        known = known_labels(model, kind, ignored=request.no_known_labels)
        for (layer, head), label in known.named().items() if known is not None else ():
            if (kind, layer, head) in heads:
                labels[kind, layer, head] = label
    if request.kind is not None and request.kind not in kinds:
        raise UsageError(f"{info.name!r} has no {request.kind} attention: leave out --kind")
    kinds = kinds if request.kind is None else (request.kind,)
    typed = by_label(model, kinds[0], request.head, request.index_base)
    named = choose_heads(request.layer, typed, info.layers, info.heads, request.index_base)
    if named is None:
        return ShownHeads(kinds, (), labels)
    chosen = tuple(key for key in heads if key[0] in kinds and key[2] in named.get(key[1], ()))
    if not chosen:
        raise UsageError("none of the chosen layers has such a head: choose others with --head")
    return ShownHeads(kinds, chosen, labels)


# Pairs of prompts ------------------------------------------------------------------------------


Align = Literal["start", "end"]
"""The end from which the part in which two prompts differ is aligned."""

_MOST_SHOWN = 4  # the most tokens that a message shows of the part in which two prompts differ


@dataclass(frozen=True)
class TokenPair:
    """A prompt pair as tokens: a clean and a corrupt prompt, and which tokens correspond.

    places: for each token of ``corrupt`` the index in ``clean`` of the corresponding token, −1 for
        none; None if all correspond one by one.
    target: the decoder's tokens so far; None for a model with one stack.
    """

    clean: Tokens
    corrupt: Tokens
    places: tuple[int, ...] | None = None
    target: Tokens | None = None

    @property
    def engine(self) -> Pair:
        """Return the prompt pair in the form that the functions of ``attnviz.engine`` take."""
        inputs = Input(self.clean, self.target), Input(self.corrupt, self.target)
        return Pair(*inputs, self.places)

    @property
    def matches(self) -> tuple[tuple[int, int], ...]:
        """Return the positions (in clean, in corrupt) of tokens that correspond to each other."""
        positions = range(len(self.corrupt)) if self.places is None else self.places
        return tuple((clean, at) for at, clean in enumerate(positions) if clean >= 0)

    @property
    def changed(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the positions of the tokens that differ: in the clean, in the corrupt prompt."""
        clean, corrupt = self.clean.ids, self.corrupt.ids
        same = [(own, other) for own, other in self.matches if clean[own] == corrupt[other]]
        kept, others = {own for own, _ in same}, {other for _, other in same}
        return (
            tuple(at for at in range(len(clean)) if at not in kept),
            tuple(at for at in range(len(corrupt)) if at not in others),
        )


def encode_pair(
    model: Model, prompts: Prompts, align: Align | None, target: Tokens | None
) -> TokenPair:
    """Tokenize a prompt pair, and determine which tokens correspond.

    align: whether prompts of unequal length are aligned at the start or end of the tokens that
        differ; None if they must be equally long. target: the decoder's tokens so far. Raises
        UsageError for prompts that are equal or too long, and for unequal lengths without
        ``align``, UnsupportedError if the model cannot join two texts.
    """
    encode = model.encode
    if prompts.second is not None:
        encode = joining(model, prompts.clean, prompts.second).encode
    clean, corrupt = encode(prompts.clean), encode(prompts.corrupt)
    for tokens in (clean, corrupt):
        if model.context is not None and len(tokens) > model.context:
            raise UsageError(
                f"a prompt has {len(tokens):,} tokens, {model.info.name!r} takes at most "
                f"{model.context:,}: shorten it"
            )
    if clean.layout is not None and corrupt.layout is not None:
        grids = [tokens.grids for tokens in (clean.layout, corrupt.layout)]
        if len({tuple(grid[1:3] for grid in own) for own in grids}) > 1:
            sizes = " and ".join(f"{grid.rows} x {grid.columns}" for grid, *_ in grids)
            raise UsageError(f"the images have {sizes} patches: give two of one shape")
    if clean.ids == corrupt.ids:
        raise UsageError("the two prompts have the same tokens: there is no difference to carry")
    if len(clean) == len(corrupt):
        return TokenPair(clean, corrupt, target=target)
    begin, end = _shared(clean, corrupt)
    if align is None:
        raise UsageError(
            f"the prompts have {len(clean)} and {len(corrupt)} tokens, expected the same number; "
            f"they differ in {_against(clean, corrupt, begin, end)}: choose words with the same "
            "number of tokens, or add --align start"
        )
    if not end:
        raise UsageError(
            "--align needs a last token that both prompts share, these end in "
            + _against(clean, corrupt, begin, end)
        )
    if target is not None:
        raise UsageError("--align is for models of one stack: choose prompts of equal length")
    return TokenPair(clean, corrupt, _places(len(clean), len(corrupt), begin, end, align))


def joining(model: Model, text: str, second: str) -> RegionReader:
    """Return a reader that tokenizes ``text``, or another text, joined with ``second``.

    Raises UnsupportedError for a model in NumPy that tells two texts apart, since words that are
    masked or replaced there are no longer these two texts, and for one that cannot join texts.
    """
    if isinstance(model, StackModel) and model.stack.has_segments:
        raise UnsupportedError(
            f"{model.info.name!r} has embeddings for two texts, which torch reads: add --backend "
            "torch"
        )
    reader = region_reader(model, text, RegionOptions(second=second))
    assert reader is not None
    return reader


def _shared(clean: Tokens, corrupt: Tokens) -> tuple[int, int]:
    """Return how many tokens both prompts share at their start, and how many at their end."""
    least = min(len(clean), len(corrupt))
    begin = 0
    while begin < least and clean.ids[begin] == corrupt.ids[begin]:
        begin += 1
    end = 0
    while end < least - begin and clean.ids[-1 - end] == corrupt.ids[-1 - end]:
        end += 1
    return begin, end


def _places(clean: int, corrupt: int, begin: int, end: int, align: Align) -> tuple[int, ...]:
    """Return the index in ``clean`` of each token of ``corrupt``, −1 for none."""
    within, others = clean - begin - end, corrupt - begin - end
    both, first = min(within, others), align == "start"
    start, spare = begin if first else clean - end - both, [-1] * (others - both)
    middle = [*range(start, start + both)]
    return (
        *range(begin),
        *(middle + spare if first else spare + middle),
        *range(clean - end, clean),
    )


def _against(clean: Tokens, corrupt: Tokens, begin: int, end: int) -> str:
    """Return a string of the tokens that differ, such as ``Tom | . (clean), Ann (corrupt)``."""
    sides = []
    for name, tokens in (("clean", clean), ("corrupt", corrupt)):
        differ = token_labels(tokens)[begin : len(tokens) - end]
        words = " | ".join([*differ[:_MOST_SHOWN], *["…"] * (len(differ) > _MOST_SHOWN)])
        sides.append(f"{words or 'nothing'} ({name})")
    return ", ".join(sides)


StudiedPair = Studied[TokenPair, Prompts]
"""One pair of prompts as tokens; its question is the pair as it was given."""


def pair_study(
    model: Model,
    pairs: Sequence[Prompts],
    align: Align | None = None,
    target: str | None = None,
    *,
    copies: bool = False,
    advance: Advance = lambda share: None,
) -> PromptStudy[TokenPair, Prompts]:
    """Return the study of prompt pairs: each tokenized once, those that do not fit left out.

    copies: whether a pair that is given twice stays twice.
    Raises UsageError if no pair fits the model.
    """
    decoder = None
    if isinstance(model, TwoStackModel) and "decoder" in model.kinds:
        decoder = model.encode_target(target or "")
    elif target is not None:
        raise no_decoder(model)

    def studied(_: int, pair: Prompts) -> StudiedPair:
        tokens = encode_pair(model, pair, align, decoder)
        return Studied(both_texts(pair.clean, pair.second), tokens, pair, pair.name)

    read = [pair.changed(lambda text: finished(model, text, answering=True)) for pair in pairs]
    fit, notes = fitting(read, studied, "pairs")
    last = {(pair.given.clean.ids, pair.given.corrupt.ids): at for at, pair in enumerate(fit)}
    kept = fit if copies else [fit[at] for at in sorted(last.values())]
    left = copies_note(len(fit) - len(kept), len(fit), "pairs")
    return PromptStudy(kept, notes, left, advance)


def control_pairs(
    model: Model, pairs: Sequence[TokenPair], direction: Direction, draws: int, seed: int
) -> tuple[list[tuple[int, TokenPair]], int]:
    """Return an unrelated prompt pair for each pair, or ``draws`` of them for a single one.

    Returns (index of the measured pair, the unrelated pair) of each, and how many have random
    tokens as their source.

    A control is the pair with its source, the clean prompt for ``denoise`` and the corrupt one for
    ``noise``, replaced by that of another pair of equal length that differs at all changed tokens;
    without such a pair, the changed tokens are drawn at random from the vocabulary.
    """
    generator, clean = np.random.default_rng(seed), direction == "denoise"
    sources = [pair.clean if clean else pair.corrupt for pair in pairs]
    controls, drawn = list[tuple[int, TokenPair]](), 0
    for index, (pair, own) in enumerate(zip(pairs, sources, strict=True)):
        others = [sources[other] for other in generator.permutation(len(pairs)) if other != index]
        fit = [
            other
            for other in others
            if pair.places is None and len(other) == len(own)
            if all(own.ids[at] != other.ids[at] for at in pair.changed[0])
        ]
        for number in range(draws if len(pairs) == 1 else 1):
            if number < len(fit):
                source = fit[number]
            else:
                changed, drawn = pair.changed[0 if clean else 1], drawn + 1
                source = _randomised(model, own, changed, generator)
            control = replace(pair, clean=source) if clean else replace(pair, corrupt=source)
            controls.append((index, control))
    return controls, drawn


def _randomised(
    model: Model, own: Tokens, changed: Sequence[int], generator: np.random.Generator
) -> Tokens:
    """Return tokens with random ones at the changed positions, or a picture's patches mixed."""
    if own.layout is not None:
        from attnviz.models.picture_texts import PictureTextModel  # with torch

        assert isinstance(model, PictureTextModel)
        return model.scrambled(own, generator)
    vocabulary = model.vocabulary()
    drawn = generator.choice(vocabulary.plain, len(changed)).tolist()
    ids, texts = list(own.ids), list(own.texts)
    for at, number, text in zip(changed, drawn, vocabulary.texts(drawn), strict=True):
        ids[at], texts[at] = number, text
    return replace(own, ids=tuple(ids), texts=tuple(texts))
