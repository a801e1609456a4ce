"""The maps of any ``nn.Module``: what of its attention is shown, with its layers and tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import nn

from attnviz.draw.numbers import counted
from attnviz.engine.any_module import ModuleCall, ModuleRun, observe_module
from attnviz.engine.capture import no_such_head
from attnviz.engine.observer import no_numbers
from attnviz.engine.selection import choose_heads
from attnviz.errors import UsageError
from attnviz.inspect.heads.head_maps import FEW_HEADS, HeadMaps, TokenLabels, axis_tokens
from attnviz.inspect.heads.heads import heads_report
from attnviz.options import spelled_heads
from attnviz.records import AttentionRecord, Kind, LayerWeights, ModelInfo, Tokens

_NUMBERS = re.compile(r"[\d\s,*-]+")
"""What ``layer`` is as numbers; anything else is the name of a module."""

_NAMED = 6  # up to this many layers are named in a note; of more the first and the last


@dataclass(frozen=True)
class ModuleChoice:
    """The user's choice of what to show of a module's attention.

    layer: numbers, or the names of modules, in which ``*`` stands for anything.
    kind: of the attention; by default the kind of the first call. text: the index in the batch.
    tokens, key_tokens: the tokens of queries and keys; by default token ids, or indices.
    """

    layer: str | int | None = None
    head: Any = None
    kind: Kind | None = None
    text: int = 0
    tokens: TokenLabels | None = None
    key_tokens: TokenLabels | None = None
    index_base: int = 0

    @classmethod
    def of(cls, options: Mapping[str, Any], request: Any) -> ModuleChoice:
        """Return the choice made on a command line. options: those in the module's file."""
        labels = {name: options.get(name) for name in ("tokens", "key_tokens")}
        chosen = request.layer, request.head or None, request.kind
        return cls(*chosen, options.get("batch", 0), **labels, index_base=request.index_base)


@dataclass(frozen=True)
class ModuleMaps:
    """The maps of a module's heads, and for each (layer, head) how ``run_without`` names it."""

    maps: HeadMaps
    info: ModelInfo
    heads: Mapping[tuple[int, int], tuple[int, int]]
    run: ModuleRun


def module_maps(
    module: nn.Module, inputs: Sequence[Any], named: Mapping[str, Any], choice: ModuleChoice
) -> ModuleMaps:
    """Return the maps of a module's heads over one text of its inputs.

    Layers are the calls of attention of one kind, in the order in which they ran. A module of two
    stacks has the kinds ``encoder``, ``decoder`` and ``cross``; one of one stack ``self``.

    Raises UsageError for a choice that does not fit the module, UnsupportedError as
    ``observe_module`` does.
    """
    run = observe_module(module, inputs, named, choice.text)
    kind, layers = _chosen_layers(run.calls, choice)
    kept = [call for call, own in zip(run.calls, _kinds(run.calls), strict=True) if own == kind]
    shown = [(at, kept[at]) for at in layers]
    most = max(len(call.heads) for call in kept)
    heads = choose_heads(None, spelled_heads(choice.head), len(kept), most, choice.index_base)
    some = [
        (at, call, [h for h in range(len(call.heads)) if heads is None or h in heads.get(at, ())])
        for at, call in shown
    ]
    some = [(at, call, own) for at, call, own in some if own]
    if not some:
        raise no_such_head()
    rows, columns = shown[0][1].weights.shape[1:]
    ids = []  # of the text in each argument that has token ids
    for given in run.texts:
        if given.dtype in (torch.int32, torch.int64):
            if given.ndim == 2 and -len(given) <= choice.text < len(given):
                ids.append(given[choice.text].tolist())
            elif given.ndim == 1:
                ids.append(given.tolist())
    second = kind in ("decoder", "cross")
    queries = _tokens(choice.tokens, "tokens", "query", rows, ids[::-1] if second else ids)
    alike = kind != "cross" and choice.key_tokens is None and rows == columns
    keys = queries if alike else _tokens(choice.key_tokens, "key_tokens", "key", columns, ids)
    weights = tuple(LayerWeights(at, tuple(own), call.weights[own]) for at, call, own in some)
    seen = [np.asarray((layer.weights > 0).any(0)) for layer in weights]
    causal = rows == columns > 1 and not any(np.triu(own, 1).any() for own in seen)
    plain = np.tri(rows, columns, dtype=bool) if causal else np.ones((rows, columns), bool)
    masked = tuple(
        layer if (own == plain).all() else replace(layer, mask=own)
        for layer, own in zip(weights, seen, strict=True)
    )
    info = _info(module, kept, kind, run, choice, shown)
    notes = info.notes + no_numbers(info, [layer.weights for layer in weights])
    if (texts := shown[0][1].texts) > 1:
        notes += (f"text {choice.text % texts} of a batch of {texts}, counted from 0 (batch)",)
    record = AttentionRecord(replace(info, notes=notes), kind, causal, queries, keys, masked)
    selected = heads is not None or sum(len(own) for _, _, own in some) <= FEW_HEADS
    labels = choice.key_tokens if kind == "cross" else choice.tokens
    joined = [" ".join(text.strip() for text in tokens.texts) for tokens in (queries, keys)]
    text = "" if labels is None else joined[1]
    target = joined[0] if kind == "cross" and choice.tokens is not None else None
    report = heads_report(record, selected, choice.index_base, text=text, target=target)
    origins = {(at, head): call.heads[head] for at, call, own in some for head in own}
    return ModuleMaps(HeadMaps(report), info, origins, run)


def _kinds(calls: Sequence[ModuleCall]) -> list[Kind]:
    """Return the kind of attention of each call: self, encoder, decoder or cross.

    A self-attention belongs to the decoder if it stands in the same list of layers as the first
    cross attention; where there is no such list, if it does not run before that one's block.
    """
    first = next((at for at, call in enumerate(calls) if call.cross), None)
    if first is None:
        return ["self"] * len(calls)
    parts = calls[first].name.split(" ")[0].split(".")
    number = next((at for at, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    stem = ".".join(parts[:number]) + "."
    kinds = list[Kind]()
    for at, call in enumerate(calls):
        decodes = call.name.startswith(stem) if stem != "." else at >= first - 1
        kinds.append("cross" if call.cross else "decoder" if decodes else "encoder")
    return kinds


def _chosen_layers(calls: Sequence[ModuleCall], choice: ModuleChoice) -> tuple[Kind, list[int]]:
    """Return the kind that is shown, and its layers: all of one size."""
    kinds = _kinds(calls)
    if choice.kind is not None and choice.kind not in kinds:
        has = " or ".join(dict.fromkeys(kinds))
        raise UsageError(f"there is no {choice.kind} attention here: expected kind {has}")
    layers = [kinds[:at].count(kind) for at, kind in enumerate(kinds)]
    typed = None if choice.layer is None else str(choice.layer)
    by_name = typed is not None and not _NUMBERS.fullmatch(typed)
    wanted = [
        at
        for at, call in enumerate(calls)
        if choice.kind in (None, kinds[at]) and (not by_name or fnmatchcase(call.name, str(typed)))
    ]
    if not wanted:
        names = ", ".join(call.name for call in calls[:_NAMED]) + ", …" * (len(calls) > _NAMED)
        raise UsageError(f"no module {typed!r} attends here: expected one of {names}")
    kind = kinds[wanted[0]]
    if typed is not None and not by_name:
        numbers = choose_heads(typed, (), kinds.count(kind), 1, choice.index_base) or {}
        wanted = [at for at in wanted if kinds[at] == kind and layers[at] in numbers]
    sizes = {at: calls[at].weights.shape[1:] for at in wanted if kinds[at] == kind}
    size = next(iter(sizes.values()))
    other = [calls[at].name for at in wanted if sizes.get(at) != size]
    if other and typed is not None:
        raise UsageError(
            f"layer={choice.layer!r} names attention over texts of different lengths: choose one "
            f"of {calls[wanted[0]].name}, {other[0]}"
        )
    return kind, [layers[at] for at, own in sizes.items() if own == size]


def _info(
    module: nn.Module,
    kept: Sequence[ModuleCall],
    kind: Kind,
    run: ModuleRun,
    choice: ModuleChoice,
    shown: Sequence[tuple[int, ModuleCall]],
) -> ModelInfo:
    """Return the facts about a module and what is shown of it."""
    named = [f"L{at + choice.index_base} {call.name}" for at, call in shown]
    listed = ", ".join(named) if len(named) <= _NAMED else f"{named[0]} to {named[-1]}"
    notes = [f"layers: {listed}"]
    kinds = dict.fromkeys(own for own in _kinds(run.calls) if own != kind)
    if kinds and choice.kind is None and choice.layer is None:
        notes.append(f"{kind} attention; there is {' and '.join(kinds)} attention too (kind)")
    if (left := len(kept) - len(shown)) and choice.layer is None:
        sizes = {call.weights.shape[1:] for call in kept} - {shown[0][1].weights.shape[1:]}
        words = ", ".join(f"{rows} x {columns}" for rows, columns in sorted(sizes))
        notes.append(f"not shown: {counted(left, 'layer')} over {words} tokens (layer)")
    first = next(module.parameters(), None)
    dtype = torch.get_default_dtype() if first is None else first.dtype
    most = max(len(call.heads) for call in kept)
    return ModelInfo(
        name=type(module).__name__,
        revision=None,
        architecture=type(module).__name__,
        dtype=str(dtype).removeprefix("torch."),
        layers=len(kept),
        heads=most,
        kv_heads=most,
        head_dim=max(shown[0][1].head_dim, 1),
        weights="loaded",
        device="cpu" if first is None else str(first.device),
        notes=(*notes, *run.notes),
        layer_names=tuple(call.name for call in kept),
    )


def _tokens(
    labels: TokenLabels | None, name: str, axis: str, length: int, ids: Sequence[list[int]]
) -> Tokens:
    """Return the tokens of an axis: as labelled, else token ids of its length, else indices."""
    own = next((row for row in ids if len(row) == length), None)
    given = map(str, own) if labels is None and own is not None else labels
    tokens = axis_tokens(given, name, axis, length)
    return tokens if own is None else replace(tokens, ids=tuple(own))
