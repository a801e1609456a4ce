"""Direct logit attribution of a running torch model: one forward and one backward pass.

The forward pass is a ``ResidualPass``. The sum is compared with the logit of a plain, unobserved
pass. A model in half precision runs in half precision both times, with its own tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.attention.functional import Array
from attnviz.engine.answers import (
    ALONE,
    START_END,
    likeliest_answer,
    log_chances_of_places,
    no_foil,
)
from attnviz.engine.attribution.followed_run import (
    FollowedRun,
    Predicted,
    batch_logits,
    calls_of,
    difference,
    follow,
    logits_of,
    parts_of,
    tolerance_of,
)
from attnviz.engine.attribution.lens import LensReading
from attnviz.engine.attribution.lens_on_torch import lens_of_answer, torch_lens
from attnviz.engine.attribution.neurons import NeuronReading
from attnviz.engine.attribution.neurons_on_torch import torch_neurons
from attnviz.engine.attribution.own_scores import wide_arrays
from attnviz.engine.attribution.parts import AskedLogit, Attribution, Attributor, Part, place_of
from attnviz.engine.device_sizes import widest
from attnviz.engine.hook_points import HookedCall
from attnviz.engine.labels import place_of_label, require_one_choice
from attnviz.engine.patchable import PatchableModel, probe_of
from attnviz.engine.plain_pass import not_its_own
from attnviz.engine.replacing import LostTrackError
from attnviz.engine.scan.plan import is_causal
from attnviz.errors import UsageError
from attnviz.models.model import no_logits
from attnviz.records import HeadKey, Input, ModelInfo

_TOP = 5

_NO_ROWS = "the attention weights of some heads could not be read: these have no source tokens"


class TorchAttributor(Attributor):
    """Splits the logits of a torch model into contributions of its parts."""

    def __init__(self, model: PatchableModel, given: Input) -> None:
        self.model = model
        self.labels = model.labels
        self._causal = True
        if model.labels:
            return
        with torch.no_grad(), model.hook_points.borrowed():
            self._causal = is_causal(model, probe_of(given))

    @classmethod
    def of(cls, info: ModelInfo, opened: PatchableModel, given: Input) -> TorchAttributor:
        """Return the attributor of a model; the texts to be split may differ from ``given``.

        info: names the model in messages. opened: the model itself. given: a text on which it is
        tried whether tokens see later ones. Raises UsageError if the model predicts no tokens.
        """
        if opened.head is None:
            raise no_logits(info.name)
        return cls(opened, given)

    def taken_apart(self, given: Input, asked: AskedLogit) -> Attribution:
        model = self.model
        chosen = calls_of(model, asked.maps)
        with model.hook_points.borrowed():
            with torch.no_grad():
                place, own, answer, foil, top, span = self.predicted(given, asked)
            run = follow(model, given, place, frozenset(chosen.values()))
        tolerance = tolerance_of(run, own)
        towards = difference(run.logits, answer, foil)  # (row,)
        slopes = run.slopes(towards[run.row], again=bool(chosen))
        softcap, uncapped = run.before_cap(own, answer, foil, tolerance)
        parts = parts_of(run, slopes)
        rows = _rows(run, slopes, parts, tolerance)
        return Attribution(
            position=place,
            answer=answer,
            foil=foil,
            top=top,
            logit=float(difference(own, answer, foil)),
            parts=parts,
            rows=rows,
            tolerance=tolerance,
            maps=_maps(run, run.slopes(towards.sum()), chosen) if chosen else {},
            softcap=softcap,
            uncapped=uncapped,
            notes=(
                *([_NO_ROWS] if len(rows) < sum(part.kind == "head" for part in parts) else []),
                *([ALONE] if model.answers and not given.text.joined else []),
                *run.notes,
            ),
            labels=self.labels,
            span=span,
            several=model.several,
        )

    def predicted(self, given: Input, asked: AskedLogit) -> Predicted:
        """Return what the borrowed model predicts, and which of its logits is asked for."""
        find = self.predicted_answer if self.model.answers else self._predicted_token
        return find(given, asked)

    def _predicted_token(self, given: Input, asked: AskedLogit) -> Predicted:
        place = self.place_in(given, asked.position)
        own = widest(logits_of(self.model, given, place)[0])
        # Of equal logits the first counts, as in NumPy.
        likeliest = own.argsort(descending=True, stable=True)[:_TOP]
        shares = own.sigmoid() if self.model.several else own.softmax(-1)
        top = tuple(zip(likeliest.tolist(), shares[likeliest].tolist(), strict=True))
        answer, foil = asked.words(top[0][0], len(own))
        return Predicted(place, own, answer, foil, top)

    def predicted_answer(self, given: Input, asked: AskedLogit) -> Predicted:
        """Return a question-answering model's logits of the answer's start, or end if asked for."""
        logits = widest(logits_of(self.model, given, None))
        logs = log_chances_of_places(logits.cpu().numpy(), given.text)
        span = likeliest_answer(logs)
        answer, foil = asked.words(0, len(START_END))
        if foil is not None:
            raise no_foil()
        place = place_of(asked.position, len(logs), (span.start, span.end)[answer])
        if np.isinf(logs[place, answer]):
            raise UsageError(f"position {place} is no token of the context: no answer is there")
        top = ((answer, float(np.exp(logs[place, answer]))),)
        return Predicted(place, logits[place], answer, None, top, span)

    def lens(self, given: Input, asked: AskedLogit) -> LensReading:
        model = self.model
        require_one_choice(model)
        if not model.answers:
            return torch_lens(model, given, asked, self.place_in(given, asked.position))
        with model.hook_points.borrowed(), torch.no_grad():
            predicted = self.predicted_answer(given, asked)
        return lens_of_answer(model, given, predicted)

    def neurons(self, given: Input, asked: AskedLogit, layer: int) -> NeuronReading:
        with self.model.hook_points.borrowed(), torch.no_grad():
            predicted = self.predicted(given, asked)
        return torch_neurons(self.model, given, layer, predicted)

    def logits_of_texts(
        self, texts: Sequence[Input], place: int, hidden: Sequence[int] = ()
    ) -> Array:
        model = self.model
        at = None if model.answers else place
        with torch.no_grad(), model.hook_points.borrowed():
            if not hidden:
                logits = batch_logits(model, texts[0], at, *texts[1:])
            else:
                each = zip(texts, hidden, strict=True)
                logits = torch.cat([self._hidden(given, at, token) for given, token in each])
        if logits.is_cuda and not model.answers:  # to copy many words of many texts takes long
            return logits[:, 0].double()
        found = widest(logits).cpu().numpy()
        if model.answers:
            return log_chances_of_places(found, texts[0].text)[:, place]
        return found[:, 0]

    def _hidden(self, given: Input, place: int | None, token: int) -> Tensor:
        """Return logits (1, row, vocab) at ``place`` while no other token attends to ``token``."""
        model = self.model

        def hide(point: HookedCall, queries: int, keys: int) -> Tensor | None:
            if point.kind != model.kind:
                return None
            hidden = torch.zeros(point.heads, queries, keys, dtype=torch.bool, device=model.device)
            hidden[:, :, token] = True
            hidden[:, token, token] = False
            return hidden

        try:
            with model.hook_points.hiding(hide, given):
                return batch_logits(model, given, place)
        except LostTrackError as error:
            raise not_its_own(model.root, str(error)) from error

    def place_in(self, given: Input, position: int | None) -> int:
        """Return the position from 0; raise UsageError if the model predicts no token there.

        given: the text. position: as typed, negative from the end; None for the default.
        """
        read, mask = given.predicted.ids, self.model.mask_id
        if self.labels:
            return place_of_label(self.model, given, position)
        if self._causal:
            return place_of(position, len(read), len(read) - 1)
        if mask is None:
            raise UsageError("this model reads both ways and has no mask token: it predicts none")
        masked = [at for at, token in enumerate(read) if token == mask]
        if not masked:
            raise UsageError(
                "this model reads both ways and predicts what its mask token hides: write "
                f"{mask.text!r} in the place of a word"
            )
        place = place_of(position, len(read), masked[-1])
        if place not in masked:
            raise UsageError(
                f"the token at position {place} is no mask token: expected position "
                f"{' or '.join(map(str, masked))}"
            )
        return place


def _rows(
    run: FollowedRun, slopes: Sequence[Tensor | None], parts: Sequence[Part], tolerance: float
) -> dict[HeadKey, NDArray[np.floating]]:
    """Return for each head its contribution to the logit from each source token: (key,).

    Heads whose row does not add up to their part, within ``tolerance``, are left out.
    """
    expected = {(one.attention, one.layer, one.head): one.contribution for one in parts}
    calls, written = list[HookedCall](), list[Tensor]()
    for leaf, slope in zip(run.leaves, slopes, strict=True):
        mixing = None if leaf.point is None else run.mixing.get(leaf.point)
        if leaf.point is None or mixing is None or slope is None:
            continue
        point = run.model.hook_points.found[leaf.point]
        at = run.place if mixing.weights.shape[1] > 1 else 0
        row = replace(mixing, weights=mixing.weights[:, at : at + 1])
        calls.append(point)
        written.append(row.written(slope[0, run.place : run.place + 1])[:, 0])
    rows: dict[HeadKey, NDArray[np.floating]] = {}
    for point, flat in zip(calls, wide_arrays(written), strict=True):  # a single copy from a GPU
        for head, one in enumerate(flat.reshape(point.heads, -1)):
            key = point.kind, point.layer, head
            if abs(one.sum() - expected[key]) <= tolerance:
                rows[key] = one
    return rows


def _maps(
    run: FollowedRun, slopes: Sequence[Tensor | None], chosen: Mapping[HeadKey, int]
) -> dict[HeadKey, NDArray[np.floating]]:
    written = {
        leaf.point: run.mixing[leaf.point].written(slope[0])
        for leaf, slope in zip(run.leaves, slopes, strict=True)
        if leaf.point in set(chosen.values()) & run.mixing.keys() and slope is not None
    }
    return {
        key: _array(written[number][key[2]]) for key, number in chosen.items() if number in written
    }


def _array(tensor: Tensor) -> NDArray[np.floating]:
    wide = tensor.detach() if tensor.dtype == torch.float64 else tensor.detach().float()
    return wide.cpu().numpy()
