"""The labels of a classifier: which linear layer computes their logits, and from which token.

This module knows no model family. It finds the layer by a short run: the layer's output equals the
model's logits. Either a text has one label, which depends on one token of the final states or on
several, or each token has a label.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.engine.hook_points import first_of, hooked, with_first
from attnviz.engine.likely import START_END, answer_places
from attnviz.engine.patchable import PatchableModel, blocks_of, logits_in, probe_of
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.split import whole_modules
from attnviz.records import Input

POOLED = (
    "the label is read through a pooler: its activation is taken as its input times a ratio, that "
    "of this run"
)

SEVERAL = (
    "a text may have several of these labels or none: the probability of each is the sigmoid of "
    "its own logit"
)

_SEVERAL = "multi_label_classification"


def with_labels(
    model: Any, opened: PatchableModel, given: Input, *, several: bool = False
) -> PatchableModel:
    """Return a classifier with the linear layer that computes the logits of its labels.

    ``opened`` itself is returned if the model is no classifier, or if its labels are not one choice
    of two or more. model: of transformers. given: a text for a short trial.
    several: True also takes a model that gives a text several labels.
    """
    config = model.config
    count = getattr(config, "num_labels", 0)
    independent = getattr(config, "problem_type", None) == _SEVERAL
    if opened.root is not model or gives_a_number(model) or (independent and not several):
        return opened
    seen: list[tuple[nn.Module, Tensor]] = []

    def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor) and output.shape[-1] == count:
            seen.append((module, output))

    with ExitStack() as hooks, torch.no_grad(), opened.hook_points.borrowed():
        for module in model.modules():
            hooks.enter_context(hooked(module.register_forward_hook(keep)))
        output = opened.root(**opened.inputs(probe_of(given)), **opened.options)
    logits, answers = logits_in(output), hasattr(output, "start_logits")
    if not isinstance(logits, Tensor) or not seen or logits.shape[-1] != count:
        return opened
    own = logits.reshape(-1, count)[-1]
    # The innermost module that puts them out ends first: a layer may wrap another.
    heads = (one for one, last in seen if (last.reshape(-1, count) == own).all(-1).any())
    if (head := next(heads, None)) is None:
        return opened
    names = tuple(str(config.id2label.get(at, at)) for at in range(count))
    return replace(
        opened,
        head=head,
        labels=START_END if answers else names,
        several=independent,
        answers=answers,
    )


def gives_a_number(model: Any) -> bool:
    """Return True for a transformers model with a regression head: it predicts a number."""
    problem, count = (getattr(model.config, name, None) for name in ("problem_type", "num_labels"))
    is_number = problem == "regression" or ((count or 0) < 2 and problem != _SEVERAL)
    return bool(is_number and model.base_model is not model)


def require_one_choice(model: PatchableModel) -> None:
    """Raise UnsupportedError for a model that gives a text several labels."""
    if model.several:
        raise UnsupportedError(
            f"a text may have several labels of this {type(model.root).__name__}: the lens follows "
            "the choice of one; attnviz why takes the logit of a label apart"
        )


def of_labels(logits: Tensor, place: int | None) -> Tensor:
    """Return logits (text, row, label) at ``place``, or everywhere, of (text[, token], label)."""
    if logits.ndim == 2:
        return logits[:, None]
    return logits if place is None else logits[:, place : place + 1]


def label_places(model: PatchableModel, given: Input) -> tuple[int, ...]:
    """Return the indices of the tokens whose labels count; the model has labels.

    If each token has a label, they are the tokens that are not special, or that may be an answer.
    If the text has one label, it counts at the token that it is read from, or at the last token if
    it is read from several.
    """
    if model.answers:
        return tuple(answer_places(given.text))
    read = _read_from(model, given)
    if read is not None:
        return (read[0] if len(read) == 1 else len(given.text) - 1,)
    return _plain_places(given)


def _plain_places(given: Input) -> tuple[int, ...]:
    plain = [at for at, special in enumerate(given.text.special) if not special]
    return tuple(plain) or (len(given.text) - 1,)


def place_of_label(model: PatchableModel, given: Input, position: int | None) -> int:
    """Return the index of the token whose label is read; the model has labels.

    position: as typed; by default the pooled token, or the last plain one. Raises UsageError for a
    position without a label, UnsupportedError if the label is read from several tokens.
    """
    tokens = len(given.text)
    if position is not None and not -tokens <= position < tokens:
        raise UsageError(f"no position {position}: the text has tokens 0 to {tokens - 1}")
    place = None if position is None else position % tokens
    read = _read_from(model, given)
    if read is None:
        return place if place is not None else _plain_places(given)[-1]
    if len(read) != 1:
        raise UnsupportedError(
            f"{type(model.root).__name__} reads its label from {len(read)} tokens at once: its "
            "logit belongs to no position, and what heads write there is not known"
        )
    if place not in (None, read[0]):
        raise UsageError(
            f"the label of a text is read at position {read[0]} alone: leave out --position"
        )
    return read[0]


def _read_from(model: PatchableModel, given: Input) -> Sequence[int] | None:
    """Return the tokens whose last states a text's label depends on; None if each has a label."""
    ends: list[Tensor] = []

    def cut_off(block: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        first = first_of(output)
        assert first is not None
        ends.append(first.detach().requires_grad_())
        return with_first(output, ends[-1])

    with ExitStack() as hooks, torch.inference_mode(False), torch.enable_grad():
        hooks.enter_context(model.hook_points.borrowed())
        hooks.enter_context(whole_modules(model.root))
        for block in blocks_of(model):
            hooks.enter_context(hooked(block.register_forward_hook(cut_off)))
        logits = model.run(given)
        if logits is None or logits.ndim == 3:
            return None
        (slope,) = torch.autograd.grad(logits[0, 0], ends[-1])
    return slope.reshape(-1, slope.shape[-1]).any(-1).nonzero()[:, 0].tolist()
