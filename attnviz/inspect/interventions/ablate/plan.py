"""The plan of a run of ``ablate``: texts, their tokens and the ablations, all checked first.

An ablation may hide edges of the attention, from one word to another, in place of removing heads:
attention knockout of Geva et al. 2023, "Dissecting Recall of Factual Associations in
Auto-Regressive Language Models", section 4. The score of an edge becomes −inf before the softmax,
which runs over the other keys of its query. The control hides as many random edges of the same
distance; for an edge to a picture that of other words, and for one to a patch other patches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np

from attnviz.draw.labels import numbered, token_labels, word_label
from attnviz.draw.numbers import counted
from attnviz.draw.signed import Place
from attnviz.engine.backend import backend_of
from attnviz.engine.capture import Choice, attention_kind, encoded, written_targets
from attnviz.engine.effects import ScanOptions, Variant
from attnviz.engine.known_labels import by_label
from attnviz.engine.scan.run import inputs_of, open_scan
from attnviz.engine.scan.scan import Scan
from attnviz.engine.selection import choose_heads
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.interventions.ablate.request import FED, AblateRequest, read_edges
from attnviz.measures.bootstrap import copies_note
from attnviz.measures.words import find_in, word_ranges
from attnviz.models.model import Model, NumpyModel, model_identity
from attnviz.models.own import OwnAttention
from attnviz.models.stack_model import StackModel
from attnviz.progress import Advance
from attnviz.prompts.study import joining
from attnviz.records import Input, Kind, ModelInfo, Tokens
from attnviz.regions import both_texts, finished
from attnviz.resume import digest
from attnviz.texts import Texts, answer_and_foil, encode_texts, texts_of

Pairs = tuple[tuple[int, int], ...]  # positions (query, key) of tokens
EDGE_DRAWS = 8  # the most times that random edges are drawn for the control
PICTURE = "picture"  # the end of an edge that stands for all tokens of the pictures of a prompt

Moved = Literal["both", "query", "key"]
"""What the random edges of a control have elsewhere: both ends, or one."""

CONTROLS: Mapping[Moved, tuple[str, str]] = {
    "both": ("", "random edges"),
    "query": ("from ", "other words"),
    "key": ("to ", "other patches"),
}
"""The preposition and the noun for the random edges of a control."""


class Edge(NamedTuple):
    """An edge between two words of the text: each token of the query word, each of the key word.

    query, key: the words, safe for a terminal; a key may be a picture or a patch. pairs: the
        (query, key) positions that are visible to the model.
    """

    query: str
    key: str
    pairs: Pairs
    moved: Moved = "both"

    @property
    def name(self) -> str:
        """Return the name of the edge, such as ``it → cat``."""
        return f"{self.query} → {self.key}"


@dataclass(frozen=True)
class EdgeAxes:
    """The tokens between which edges run."""

    queries: Tokens
    keys: Tokens
    causal: bool

    def seen(self, query: int) -> range:
        """Return the positions of the keys that a query sees."""
        return range(query + 1) if self.causal else range(len(self.keys))

    def blind(self, pairs: Collection[tuple[int, int]]) -> int | None:
        """Return a query that would see no key if ``pairs`` were hidden; None if there is none."""
        hidden: dict[int, set[int]] = {}
        for query, key in pairs:
            hidden.setdefault(query, set()).add(key)
        left = (query for query, keys in hidden.items() if len(keys) == len(self.seen(query)))
        return next(left, None)

    def edge(self, query: str, key: str) -> Edge:
        """Return the edge between two words of the text; UsageError if there is none to hide."""
        asks, asked = self._end(self.queries, query, "query"), self._end(self.keys, key, "key")
        pairs = tuple((at, to) for at in asks for to in asked if to in self.seen(at))
        if not pairs:
            raise UsageError(
                f"--edge: {query!r} (token {asks[0]}) comes before {key!r} (token "
                f"{asked[0]}), and a causal query sees no later key; write the later word "
                "first, or WORD:2 for a word's second occurrence"
            )
        moved: Moved = "both"
        layout = self.keys.layout
        if layout is not None and layout.kinds[asked[0]] != "text":
            moved = "query" if len(asked) > 1 else "key"
        return Edge(_name(self.queries, asks), _name(self.keys, asked), pairs, moved)

    def edges(self, typed: str) -> tuple[Edge, ...]:
        """Return the edges of ``it→cat,it→mat``, each once; UsageError if one cannot be hidden."""
        edges = tuple(dict.fromkeys(self.edge(*words) for words in read_edges(typed)))
        blind = self.blind(set(chain.from_iterable(edge.pairs for edge in edges)))
        if blind is not None:
            word = token_labels(self.queries)[blind]
            raise UsageError(
                f"--edge: {word!r} (token {blind}) sees no other key: nothing would be left, "
                "choose another edge"
            )
        return edges

    def random(self, edges: Sequence[Edge], seed: int) -> tuple[Pairs, ...]:
        """Return up to ``EDGE_DRAWS`` draws of random edges; none if an edge has no other."""
        taken = set(chain.from_iterable(edge.pairs for edge in edges))
        choices = [self._moved(edge, taken) for edge in edges]
        if not all(choices):
            return ()
        generator, draws = np.random.default_rng(seed), dict[Pairs, None]()
        for _ in range(8 * EDGE_DRAWS):
            places = (moved[generator.integers(len(moved))] for moved in choices)
            pairs = tuple(sorted(chain.from_iterable(places)))
            if len(set(pairs)) == len(pairs) and self.blind(pairs) is None:
                draws[pairs] = None
        return tuple(draws)[:EDGE_DRAWS]

    def _moved(self, edge: Edge, taken: Collection[tuple[int, int]]) -> list[Pairs]:
        """Return the edge at all other places of the text. taken: positions that are not used."""
        size, ends = max(len(self.queries), len(self.keys)), []
        for tokens, other in ((self.queries, "key"), (self.keys, "query")):
            kinds = ("",) * len(tokens) if tokens.layout is None else tokens.layout.kinds
            ends.append((tokens.special, kinds, edge.moved != other))

        def fits(end: int, old: int, new: int) -> bool:
            special, kinds, moves = ends[end]
            inside = 0 <= new < len(special)
            return not moves or (inside and not special[new] and kinds[new] == kinds[old])

        def allowed(old: tuple[int, int], new: tuple[int, int]) -> bool:
            both = all(fits(end, old[end], new[end]) for end in (0, 1))
            return both and new not in taken and new[1] in self.seen(new[0])

        shifted = (
            tuple((q + by * ends[0][2], k + by * ends[1][2]) for q, k in edge.pairs)
            for by in range(-size, size)
        )
        return [
            moved
            for moved in shifted
            if all(map(allowed, edge.pairs, moved)) and self.blind(moved) is None
        ]

    def _end(self, tokens: Tokens, typed: str, axis: str) -> Sequence[int]:
        """Return the positions of a word of the text, or of its pictures."""
        layout = tokens.layout
        if layout is not None and typed.strip() == PICTURE:
            return tuple(layout.of_kind("patch", "cls", "newline").tolist())
        word = find_in(tokens, typed)
        if word is None:
            pictures = "an image by --image FILE, " * (typed.strip() == PICTURE)
            if layout is not None:
                sizes = dict.fromkeys(f"{grid.rows} × {grid.columns}" for grid in layout.grids)
                patches = f"ROW,COLUMN from 0 of {' or '.join(sizes)} patches"
                pictures = f"{PICTURE}, {patches}, "
            raise UsageError(
                f"--edge: no {axis} {typed!r} in the text: give {pictures}a word of it, WORD:2 for "
                f"its second occurrence, or an index from 0 to {len(tokens) - 1}"
            )
        return word.span


def _name(tokens: Tokens, word: Sequence[int]) -> str:
    """Return a word of an edge, with the index of its first token if the text has it twice."""
    if len(word) > 1 and not isinstance(word, range):
        return PICTURE
    labels = token_labels(tokens)
    name = labels[word[0]] if len(word) == 1 else word_label([tokens.texts[at] for at in word])
    words = [word_label([tokens.texts[at] for at in own]) for own in word_ranges(tokens)]
    return numbered(name, word[0]) if words.count(name) > 1 else name


# The plan ---------------------------------------------------------------------------------------


_DRAWS = 4  # the number of other texts that stand in for each text if ``--draws`` is not given
_BARE = re.compile(r"[-\d,\s*]+")


@dataclass(frozen=True)
class AblationPlan:
    """Everything that a scan of ablations needs, checked before the first pass.

    kind: the attention whose heads are ablated. written: the measured texts, as they were given.
    references: the texts that replacement values come from; empty if the replacement is zero.
    reference_words: their description; None for zero.
    pair: answer and foil as (id, text), or None. answer: the text of the answer, or of the label
        whose loss counts.
    edges: those that are hidden in the heads, in place of removing these. draws: random edges for
        the control, one draw after the other.
    """

    model: Model
    request: AblateRequest
    kind: Kind
    written: tuple[str, ...]
    inputs: tuple[Input, ...]
    references: tuple[Input, ...]
    reference_words: str | None
    variants: tuple[Variant, ...]
    pair: tuple[tuple[int, str], tuple[int, str]] | None
    answer: str | None
    options: ScanOptions
    notes: tuple[str, ...] = ()
    edges: tuple[Edge, ...] = ()
    draws: tuple[Pairs, ...] = ()

    @property
    def info(self) -> ModelInfo:
        """Return the model's facts with the backend that measures: torch for gradients only."""
        info = self.model.info
        return replace(info, backend="torch") if self.request.how == "gradient" else info

    def cost(self, text: int) -> float:
        """Return the cost of one ablation over a text, in units of progress. text: its index."""
        tokens = len(self.inputs[text].text)
        hidden = self.info.architecture.endswith("MaskedLM")  # each word is hidden in its turn
        return float(tokens * (1 + hidden * tokens))

    def scan(self) -> Scan:
        """Return what ablates the heads over the texts; UnsupportedError if none can be removed."""
        return open_scan(
            self.model, self.inputs, self.options, kind=self.kind, references=self.references
        )

    def gradients(
        self, advance: Advance, texts: Sequence[int], enough: Callable[[], bool] = lambda: False
    ) -> dict[Place, float]:
        """Return the gradient importance of each (layer, head) to ablate, as means over the texts.

        enough: called after each text; True skips the texts after it. Raises UsageError for a model
            without a loss.
        """
        if isinstance(self.model, OwnAttention):
            raise UsageError(
                f"{self.model.info.name!r} predicts no words: without a loss there is no gradient; "
                "choose --method exact"
            )
        from attnviz.engine.scan.on_torch import gradient_importance  # torch only where needed

        wanted = {head for variant in self.variants for head in variant.heads}
        gradients = gradient_importance(
            backend_of(self.model).open_patchable(self.kind, self.inputs[0]),
            [self.inputs[text] for text in texts],
            on_progress=lambda done, total: advance(done / total),
            enough=enough,
        )
        return {head: score for head, score in gradients.items() if head in wanted}

    def identity(self) -> Mapping[str, Any]:
        """Return all facts that the results depend on, for comparison with a resume file."""
        options = self.options
        heads = [variant.heads for variant in self.variants]
        return {
            **model_identity(self.model),
            "texts": _digest(self.inputs),
            "kind": self.kind,
            "removals": f"{len(heads)} ({digest(heads)})",
            **({"unit": self.request.unit} if self.request.unit in FED else {}),
            "mode": options.mode,
            "reference": _digest(self.references),
            "draws": options.draws,
            "seed": options.seed,
            "positions": options.positions,
            "answer_and_foil": list(options.pair) if options.pair else None,
            **({} if options.label is None else {"label": options.label}),
            **({"edges": [*map(list, self.variants[0].edges)]} if self.edges else {}),
            "token_losses": options.token_losses,
            "method": self.request.how,
        }


def _digest(inputs: Sequence[Input]) -> str:
    """Return the number of texts, those of a decoder included, and a hash of their token ids."""
    ids = [given.text.ids for given in inputs]
    ids += [given.target.ids for given in inputs if given.target is not None]
    return f"{len(ids)} ({digest(ids)})"


def plan_of(model: Model, texts: Texts, request: AblateRequest) -> AblationPlan:
    """Return the plan of a request, ready to run; UsageError for what does not fit the model."""
    asked, edge = request.answer is not None, request.edge
    written = tuple(finished(model, text, answering=asked) for text in texts.texts)
    texts, kind = texts._replace(texts=written), attention_kind(model, Choice(kind=request.kind))
    _refuse(model, len(written), request)
    request = replace(request, head=by_label(model, kind, request.head, request.index_base))
    tokens, joined = _tokens_of(model, texts, request)
    references, words = _references(model, texts, tokens, request)
    choice = Choice(kind=request.kind, target=request.target, truncate=request.truncate)
    inputs, stand_ins = (
        inputs_of(some, written_targets(model, some, choice)) for some in (tokens, references)
    )
    kept = sorted({text.ids: at for at, text in reversed([*enumerate(tokens)])}.values())
    copies = copies_note(len(tokens) - len(kept), len(tokens), "texts")
    notes = (*model.notes_for(max(tokens, key=len)), *joined, *texts.notes, *copies)
    if request.mode == "resample":
        able, left_out = _with_partners(inputs, stand_ins, kind)
        kept = sorted({*kept} & {*able})
        notes += left_out
    stack = model if isinstance(model, StackModel) else None
    heads, labels, predicts = None, tuple[str, ...](), stack is not None and stack.has_head
    causal = stack is not None and stack.causal
    if not isinstance(model, NumpyModel):  # all of its layers have; to ask would bring torch
        scan = open_scan(model, inputs[:1], ScanOptions(labels=True), kind=kind)
        heads, labels, predicts = scan.heads, tuple(scan.labels), scan.predicts
        causal = causal if stack is not None else scan.causal
        if request.by_token:
            scan.require_token_losses()
    if asked and not predicts:
        raise UsageError(
            f"--answer: {model.info.name!r} predicts no token and no single label; leave "
            "--answer and --foil out to measure how its output changes"
        )
    answer, foil = answer_and_foil(model, request.answer, request.foil, labels)
    if answer is not None and foil is None and not labels:
        raise UsageError("a logit difference needs both --answer and --foil: add --foil")
    pair = None if answer is None or foil is None else (answer, foil)
    if heads is not None and len(heads) < model.info.layers and kind == "self":
        left = "the others have none to remove"
        if request.unit == "ffn":
            left = "the feed-forward blocks of the others are not measured"
        notes += (f"{len(heads)} of {model.info.layers} layers have attention heads: {left}",)
    inputs, variants = [inputs[at] for at in kept], choose_ablations(request, model.info, heads)
    edges, draws = tuple[Edge, ...](), tuple[Pairs, ...]()
    if edge is not None:
        causal = kind == "decoder" or (kind == "self" and causal)
        axes = EdgeAxes(inputs[0].queries(kind), inputs[0].keys(kind), causal)
        edges = axes.edges(edge)
        draws = axes.random(edges, request.seed)
        hidden = tuple(sorted({*chain.from_iterable(own.pairs for own in edges)}))
        variants = tuple(replace(variant, edges=hidden) for variant in variants)
    one_label = labels and answer is not None and foil is None
    return AblationPlan(
        model=model,
        request=request,
        kind=kind,
        written=tuple(both_texts(written[at], request.second) for at in kept),
        inputs=tuple(inputs),
        references=tuple(stand_ins),
        reference_words=words,
        variants=variants,
        pair=pair,
        answer=None if answer is None else answer[1],
        options=ScanOptions(
            mode=request.mode,
            positions=request.positions,
            pair=(pair[0][0], pair[1][0]) if pair else None,
            draws=(request.draws or _DRAWS) if request.mode == "resample" else 1,
            seed=request.seed,
            token_losses=request.by_token or len(kept) == 1,
            max_memory=request.memory,
            labels=True,
            label=answer[0] if one_label and answer is not None else None,
        ),
        notes=notes,
        edges=edges,
        draws=draws,
    )


def _refuse(model: Model, texts: int, request: AblateRequest) -> None:
    two_stacks, name = "decoder" in model.kinds, repr(model.info.name)
    if request.edge is not None and texts > 1:
        raise UsageError("--edge names words of one text: give one, without --texts")
    if request.edge is not None and isinstance(model, OwnAttention):
        raise UnsupportedError(
            f"{name} is attention alone: there is no prediction that a hidden edge could change; "
            "choose a language model"
        )
    if request.unit in FED and isinstance(model, OwnAttention):
        raise UnsupportedError(
            f"{name} is attention alone, without a feed-forward block: choose --unit attention"
        )
    if request.target is not None and (not two_stacks or texts > 1):
        why = "has one stack and writes none" if not two_stacks else "is to read several texts"
        raise UsageError(f"--target is the text of one decoder: {name} {why}")


def _tokens_of(
    model: Model, texts: Texts, request: AblateRequest
) -> tuple[tuple[Tokens, ...], tuple[str, ...]]:
    least = 1 if "decoder" in model.kinds or isinstance(model, OwnAttention) else 2
    tokens = encode_texts(model, texts, request.truncate, least)
    if request.second is None:
        return tokens, ()
    if len(texts.texts) > 1:
        raise UsageError("--and joins a text to one other: leave out --texts, or --and")
    reader = joining(model, texts.texts[0], request.second)
    both = encoded(model, texts.texts[0], request.truncate, reader.encode)
    return (both,), reader.notes(both)


def _references(
    model: Model, texts: Texts, tokens: tuple[Tokens, ...], request: AblateRequest
) -> tuple[tuple[Tokens, ...], str | None]:
    """Return the tokens of the texts that replacement values come from, and a description."""
    mode, reference = request.mode, texts_of(request.reference)
    if mode == "zero":
        return (), None
    if reference is None:
        other = "another of " * (mode == "resample")
        many = f"{other}the {len(tokens)} measured texts"
        return tokens, many if len(texts.texts) > 1 else "the measured text itself"
    others = encode_texts(
        model, reference, request.truncate, 1, f"the reference {reference.source}: "
    )
    return others, f"{counted(len(others), 'text')} of {reference.source}"


def _with_partners(
    inputs: Sequence[Input], references: Sequence[Input], kind: Kind
) -> tuple[Sequence[int], tuple[str, ...]]:
    """Return the indices of texts with a replacement among the references, and a note on others."""
    tokens, others = ([given.queries(kind) for given in some] for some in (inputs, references))
    kept = [
        at
        for at, text in enumerate(tokens)
        if any(len(other) >= len(text) and other.ids != text.ids for other in others)
    ]
    left = len(tokens) - len(kept)
    if not kept or not left:
        return range(len(tokens)), ()
    return kept, (
        f"{left} of {len(tokens)} texts {'was' if left == 1 else 'were'} left out: no other text "
        "is as long, so that none can stand in",
    )


def choose_ablations(
    request: AblateRequest, info: ModelInfo, heads: Mapping[int, int] | None = None
) -> tuple[Variant, ...]:
    """Return the requested ablations.

    There is one for each chosen head or other unit, or one for all together. A bare ``--head 3``
    names a head of every layer; these heads are also ablated together.
    heads: the number of heads of each layer that has any; None if all layers have.
    Raises UsageError for a head that the model does not have.
    """
    heads = dict.fromkeys(range(info.layers), info.heads) if heads is None else heads
    chosen = _chosen(request, request.head, info, heads)
    if chosen is None:
        if request.together:
            raise UsageError("--together ablates the chosen heads at once: add --head or --layer")
        chosen = {layer: frozenset(range(count)) for layer, count in heads.items()}
    if request.unit == "ffn" and request.head:
        raise UsageError("--unit ffn takes no heads: choose layers with --layer, not --head")
    if request.unit == "kv-head" and info.heads % info.kv_heads:
        raise UsageError(
            f"--unit kv-head: {info.heads} heads do not share {info.kv_heads} "
            "key/value heads evenly"
        )
    sizes = {"head": 1, "kv-head": max(info.heads // info.kv_heads, 1)}
    size = sizes.get(request.unit, info.heads)
    first = {(at, head // size * size) for at, numbers in chosen.items() for head in numbers}
    units = [tuple((at, head + other) for other in range(size)) for at, head in sorted(first)]
    fed = [(at,) if request.unit in FED else () for at, _ in sorted(first)]
    if request.unit == "ffn":
        units = [()] * len(fed)
    if request.together:
        return (Variant(tuple(chain(*units)), feed_forward=tuple(chain(*fed))),)
    singles = tuple(
        Variant(heads, feed_forward=layers) for heads, layers in zip(units, fed, strict=True)
    )
    if request.edge is not None:
        whole = request.layer is None and not request.head
        joint = Variant(tuple(chain.from_iterable(units)), "every head" if whole else None)
        return (*singles, joint) if len(units) > 1 else singles
    return (*singles, *_across_layers(request, info, heads))


def _chosen(
    request: AblateRequest, typed: Sequence[str], info: ModelInfo, heads: Mapping[int, int]
) -> Mapping[int, frozenset[int]] | None:
    """Return the head numbers, by layer, that ``typed`` names; None if nothing is chosen."""
    layers, base = request.layer, request.index_base
    chosen = choose_heads(layers, typed, info.layers, info.heads, base)
    if chosen is None or layers is not None or not all(map(_BARE.fullmatch, typed)):
        return chosen
    return {layer: some for layer, some in chosen.items() if layer in heads}


def _across_layers(
    request: AblateRequest, info: ModelInfo, heads: Mapping[int, int]
) -> list[Variant]:
    """Return an ablation of all layers at once for each head that was named without a layer."""
    bare = [typed for typed in request.head if _BARE.fullmatch(typed) and "*" not in typed]
    chosen = _chosen(request, bare, info, heads) if bare and request.unit == "head" else None
    if chosen is None or len(chosen) < 2:
        return []
    where = "every layer" if len(chosen) == len(heads) else f"layers {request.layer}"
    return [
        Variant(
            tuple((layer, head) for layer in sorted(chosen)),
            f"head {head + request.index_base} of {where}",
        )
        for head in sorted({*chain.from_iterable(chosen.values())})
    ]
