"""Read a growing text with a torch model, using the model's own cache of keys and values.

At the first step of each length class (up to 2, 4, 8 … tokens), of the same text and of another
that begins alike, the result for the last token is compared with a pass over the whole text. A
model whose cached steps differ, or that has no cache, reads the whole text for every token.

Of a long text only the last token is observed: the others run with the model's own attention, so
that no matrix of weights is stored. The first such result of each length class is compared with
the scores of the model's own pass over the whole text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnviz.attention.growing import shared
from attnviz.engine.attention_calls import borrowed
from attnviz.engine.forward_pass import length_class
from attnviz.engine.head_run import Run
from attnviz.engine.hook_points import HookedCall
from attnviz.engine.observer import to_numpy
from attnviz.engine.patchable import PatchableModel, mask_id_of, patchable_transformers
from attnviz.engine.patching import What
from attnviz.engine.replacing import LostTrackError
from attnviz.engine.scan.plan import MISFITS
from attnviz.engine.scan.unembedding import wide
from attnviz.engine.selection import check_heads
from attnviz.errors import UnsupportedError
from attnviz.measures.rows import all_on_host
from attnviz.models.memory import require_room
from attnviz.models.model import Reader, cannot_write
from attnviz.models.split import device_of
from attnviz.models.third_party import running
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Floats, Input, Kind, Tokens

OpenHeads = Callable[[Kind, Input, bool], tuple[Run, tuple[str, ...]]]

_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}
_HALF_TOLERANCE = 0.02
"""The largest difference in half precision between a cached step and a whole pass: absolute for a
weight, relative to the largest score for a score."""

_OBSERVED = 2**24
"""The most attention weights of a layer that are held: beyond, only the last token is observed."""

_MATRICES = 3
"""The matrices of a layer's weights that are in memory at once while they are observed."""


def open_reader(
    model: TransformersModel,
    open_heads: OpenHeads,
    *,
    tokens: Tokens,
    begun: Tokens,
    kind: Kind,
    removed: Collection[tuple[int, int]],
) -> Reader:
    """Return a reader, which runs a torch model on a text that grows token by token.

    open_heads: of ``Backend``, if cached steps cannot be observed. tokens: of an encoder. Raises
    UnsupportedError without next tokens or attention, UsageError for heads that do not exist.
    """
    source = None if kind == "self" else tokens
    given, whole = _input(source, begun.ids), model.model
    if not whole.can_generate():
        raise cannot_write(model.info)
    reader: _Looking | _Plain = _Plain(model, open_heads, kind, source, removed)
    try:
        patchable = patchable_transformers(whole, kind, given, mask_id_of(model))
        check_heads(patchable.heads, removed)
        looking = _Looking(patchable, source)
        looking.begin(begun.ids)
        looking.remove(removed)
        reader = looking
    except (UnsupportedError, LostTrackError):
        reader.begin(begun.ids)
    if not reader.causal and not model.continues:
        raise cannot_write(model.info)
    return reader


def _input(source: Tokens | None, ids: Sequence[int]) -> Input:
    read = Tokens.bare(ids)
    return Input(read) if source is None else Input(source, read)


class _Plain:
    """A reader that runs the whole text at each step, for models that only report their weights."""

    def __init__(
        self,
        model: TransformersModel,
        open_heads: OpenHeads,
        kind: Kind,
        source: Tokens | None,
        removed: Collection[tuple[int, int]],
    ) -> None:
        self._model, self._open_heads = model, open_heads
        self._kind, self._source, self._removed = kind, source, removed
        self.causal = True

    def begin(self, ids: Sequence[int]) -> None:
        """Open the model, and set ``causal`` by a trial on the token ids."""
        given = _input(self._source, ids)
        self._run, _ = self._open_heads(self._kind, given, True)
        weights = self._run(given, self._removed).weights.values()
        later = any((layer[:, 0, 1:] > 0).any() for layer in weights)
        self.causal = self._kind == "cross" or not later

    def read(self, ids: Sequence[int]) -> tuple[Floats, dict[int, Floats]]:
        given = _input(self._source, ids)
        run = self._run(given, self._removed)
        rows = {layer: weights[:, -1] for layer, weights in run.weights.items()}
        return self._scores(given) if run.logits is None else to_numpy(run.logits[-1]), rows

    @torch.inference_mode()
    def _scores(self, given: Input) -> Floats:
        """Return the logits (vocab,) that the unobserved model gives to a text's next token."""
        whole = self._model.model
        inputs: dict[str, Any] = {"input_ids": torch.tensor([given.ids], device=device_of(whole))}
        if given.target_ids is not None:
            inputs["decoder_input_ids"] = torch.tensor([given.target_ids], device=device_of(whole))
        if "use_cache" in signature(whole.forward).parameters:
            inputs["use_cache"] = False
        with borrowed(whole), running(whole, torch.OutOfMemoryError):
            return to_numpy(whole(**inputs, return_dict=True).logits[0, -1])


@dataclass(frozen=True, eq=False)
class _Read:
    """The result of running the model on the first ``tokens`` tokens of a text.

    scores: the logits (vocab,) of the next token. rows: by layer, the last query's attention
        weights (head, key). cache: the keys and values of these tokens.
    """

    tokens: int
    scores: Floats
    rows: Mapping[int, Floats]
    cache: Any


class _Looking:
    """A reader with the model's cache that records weights and sets removed heads to zero."""

    def __init__(self, model: PatchableModel, source: Tokens | None) -> None:
        self._model, self._source = model, source
        self._removed: dict[int, list[int]] = {}
        self._options = dict(model.options)
        if "logits_to_keep" in signature(model.root.forward).parameters:
            self._options["logits_to_keep"] = 1
        self._cached = "use_cache" in self._options
        self._rereads = self._quietly = self.causal = True
        self._tried: set[tuple[int, bool | None]] = set()
        self._encoded: Any = None
        self._ids: tuple[int, ...] = ()
        self._read: _Read | None = None

    @torch.inference_mode()
    def begin(self, ids: Sequence[int]) -> None:
        """Run the first tokens; raise LostTrackError if a plain pass gives another result."""
        model, given = self._model, _input(self._source, ids)
        with model.hook_points.borrowed():
            plain = model.run(given)
            if self._source is not None:
                encoder: Any = model.root
                only = {"input_ids": model.inputs(given)["input_ids"]}
                self._encoded = encoder.get_encoder()(**only, return_dict=True)
        self._read, self._ids = self._pass(ids), tuple(ids)
        if plain is None or not _near(self._read.scores, to_numpy(plain[0, -1]), _most(model)):
            raise LostTrackError("it predicts something else while its patterns are seen")

    def remove(self, heads: Collection[tuple[int, int]]) -> None:
        """Set the outputs of these heads to zero from now on. heads: (layer, head) of each."""
        for layer, head in heads:
            self._removed.setdefault(layer, []).append(head)
            self._read = None

    def read(self, ids: Sequence[int]) -> tuple[Floats, Mapping[int, Floats]]:
        text = tuple(ids)
        if self._read is None or text != self._ids:
            before, self._read = self._read, None
            self._read = self._next(text, before)
            self._ids = text
        return self._read.scores, self._read.rows

    def _next(self, text: tuple[int, ...], before: _Read | None) -> _Read:
        known = shared(text[:-1], self._ids)
        if before is None or before.cache is None or not self._cached or not known:
            return self._pass(text)
        other = text[:-1] != self._ids  # another text that begins alike
        if other and not (self._rereads and hasattr(before.cache, "crop")):
            return self._pass(text)
        with suppress(*MISFITS):
            if known < len(self._ids):
                before.cache.crop(known - len(self._ids))
            step = self._pass(text[known:], replace(before, tokens=known))
            key = length_class(len(text)), other
            if key in self._tried:
                return step
            whole = self._pass(text)
            if _alike(step, whole, _most(self._model)):
                self._tried.add(key)
                return step
        self._cached, self._rereads = self._cached and other, False
        return self._pass(text)

    def _pass(self, ids: Sequence[int], before: _Read | None = None) -> _Read:
        """Run the model on a text, or on what is new if its beginning was run ``before``."""
        keys = len(ids) + (0 if before is None else before.tokens)
        keys = keys if self._source is None else max(keys, len(self._source))
        cells = max(self._model.heads.values()) * len(ids) * keys
        if cells <= _OBSERVED or len(ids) < 2:
            return self._run(ids, before)
        if self._cached and self._quietly and before is not None:  # what ``_next`` compares
            return self._last(ids, before)
        if self._cached and self._quietly:
            with suppress(*MISFITS):
                last, key = self._last(ids), (length_class(keys), None)
                whole = last if key in self._tried else self._run(ids, quiet=True)
                if _near(last.scores, whole.scores, _most(self._model)):
                    self._tried.add(key)
                    return last
            self._quietly = False
        most = f"the weights of a layer over {keys:,} tokens take"
        require_room(most, _MATRICES * 4 * cells, "shorten the text")
        return self._run(ids, before)

    def _last(self, ids: Sequence[int], before: _Read | None = None) -> _Read:
        """Run the model on a text, and observe its last token only."""
        return self._run(ids[-1:], self._run(ids[:-1], before, quiet=True))

    @torch.inference_mode()
    def _run(self, ids: Sequence[int], before: _Read | None = None, quiet: bool = False) -> _Read:
        model, points, kind = self._model, self._model.hook_points, self._model.kind
        inputs: dict[str, Any] = dict(model.inputs(_input(self._source, ids)))
        if self._source is not None:
            del inputs["input_ids"]
            inputs["encoder_outputs"] = self._encoded
        if before is not None:
            inputs["past_key_values"] = before.cache
        options = {**self._options, **({"use_cache": True} if self._cached else {})}
        look = _Look(kind, self._removed)
        order = [n for n, point in enumerate(points.calls) if point.kind != "encoder"]
        inside: tuple[What, ...] = () if quiet else ("pattern",)
        with points.borrowed(), points.intervening(look, order, inside), running(model.root):
            output = model.root(**inputs, **options)
        self.causal &= look.causal
        if not quiet and look.rows.keys() != model.heads.keys():
            raise LostTrackError("the weights of some layers were not seen")
        tokens = len(ids) + (0 if before is None else before.tokens)
        keys = tokens if self._source is None or kind == "decoder" else len(self._source)
        scores, *rows = all_on_host([*map(wide, (output.logits[0, -1], *look.rows.values()))])
        if any(row.shape[1] > keys for row in rows):
            raise LostTrackError("there are more keys than tokens")
        padded = [np.pad(row, ((0, 0), (keys - row.shape[1], 0))) for row in rows]  # if some is cut
        by_layer = dict(zip(look.rows, padded, strict=True))
        return _Read(tokens, scores, by_layer, getattr(output, "past_key_values", None))


def _most(model: PatchableModel) -> float:
    dtype = next(model.root.parameters()).dtype
    return _TOLERANCE.get(dtype, _HALF_TOLERANCE)


def _alike(step: _Read, whole: _Read, most: float) -> bool:
    """Return True if a step with the cache agrees with a pass over the whole text."""
    return _near(step.scores, whole.scores, most) and all(
        np.allclose(row, whole.rows[layer], rtol=0, atol=most, equal_nan=True)
        for layer, row in step.rows.items()
    )


def _near(scores: Floats, others: Floats, most: float) -> bool:
    largest = float(np.max(np.abs(others[np.isfinite(others)]), initial=0.0))
    return np.allclose(scores, others, rtol=0, atol=most * largest, equal_nan=True)


class _Look:
    """Records the last query's attention weights in a pass, and sets some heads' outputs to zero.

    rows: by layer these weights, (head, key). All is read after the pass, so that no GPU waits.
    """

    def __init__(self, kind: Kind, removed: Mapping[int, list[int]]) -> None:
        self._kind, self._removed = kind, removed
        self.rows: dict[int, Tensor] = {}
        self._later: list[Tensor] = []

    @property
    def causal(self) -> bool:
        """Return False if an earlier query has seen a later token."""
        return not self._later or not torch.stack(self._later).any()

    def edit(self, number: int, point: HookedCall, outputs: Tensor) -> Tensor:
        if point.kind != self._kind:
            return outputs
        if point.sort == "pattern":  # (batch, query, head, key)
            later = outputs[0, 0, :, 1 + outputs.shape[3] - outputs.shape[1] :]
            if self._kind != "cross":
                self._later.append((later > 0).any())
            self.rows[point.layer] = outputs[0, -1].clone()
        elif point.layer in self._removed:  # (batch, token, head, dim)
            outputs[:, :, self._removed[point.layer]] = 0
        return outputs
