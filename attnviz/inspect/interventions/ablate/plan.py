"""The plan of a run of ``ablate``: texts, their tokens and the ablations, all checked first."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

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
from attnviz.inspect.interventions.ablate.edges import Edge, EdgeAxes, Pairs
from attnviz.inspect.interventions.ablate.request import FED, AblateRequest
from attnviz.inspect.interventions.pairs import joining
from attnviz.measures.bootstrap import copies_note
from attnviz.models.model import Model, NumpyModel, model_identity
from attnviz.models.own import OwnAttention
from attnviz.models.stack_model import StackModel
from attnviz.progress import Advance
from attnviz.records import Input, Kind, ModelInfo, Tokens
from attnviz.regions import both_texts, finished
from attnviz.resume import digest, texts_digest
from attnviz.texts import Texts, answer_and_foil, encode_texts, texts_of

_DRAWS = 4
"""The number of other texts that stand in for each text if ``--draws`` is not given."""

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
    targets = [given.target for given in inputs if given.target is not None]
    return texts_digest((*(given.text for given in inputs), *targets))


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
    """Raise an error for options that do not fit the model or the number of texts."""
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
    """Return the tokens of the texts, and notes on how a second text was joined."""
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
