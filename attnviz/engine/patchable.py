"""A torch model as removal needs it: what runs, where its heads are, what its answer is read from.

Nothing here knows an architecture; the stacks and the vocabulary projection are asked of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.attention.torch_decoder import TorchDecoder
from attnviz.engine.ablation_hook_points import HookPointSites
from attnviz.engine.forward_pass import ForwardPass
from attnviz.engine.sites import Sites
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.foreign import running
from attnviz.records import Kind

__all__ = ["Passage", "Subject", "decoder_subject", "transformers_subject"]

_PROBE = {"source": 5, "target": 3}
"""Tokens of the short texts that a model is tried with; different, so that axes can be told."""


@dataclass(frozen=True)
class Passage:
    """Token ids of one run: the text, and of an encoder–decoder also the decoder's text."""

    ids: tuple[int, ...]
    target: tuple[int, ...] | None = None

    @property
    def predicted(self) -> tuple[int, ...]:
        """The text whose tokens the language model's head predicts."""
        return self.ids if self.target is None else self.target

    def masked(self, position: int, mask: int) -> Passage:
        """The same with one token of the text hidden."""
        return replace(self, ids=(*self.ids[:position], mask, *self.ids[position + 1 :]))

    def probe(self) -> Passage:
        """A short passage of the same tokens, repeated where there are too few."""
        source, target = _PROBE.values()
        longer = (self.ids * source)[:source]
        return Passage(longer, None if self.target is None else (self.target * target)[:target])


@dataclass(frozen=True, eq=False)
class Subject:
    """A torch model whose heads can be removed.

    root: the module that runs; one call of it is a pass.
    stack: the module under it whose output, or the first entry of it, is the final hidden states.
    head: the vocabulary projection, whose input is the last thing of a position's own; None where
        the model has none.
    kind: the attention whose heads are removed.
    sites: where they are.
    inputs: the keyword arguments of one call, for token ids.
    options: more keyword arguments of every call.
    mask_id: the token that hides a word from a masked model, None where there is none.
    ours: whether it is the library's own decoder, whose behaviour need not be tried.
    """

    root: nn.Module
    stack: nn.Module
    head: nn.Linear | None
    kind: Kind
    sites: Sites
    inputs: Callable[[Passage], dict[str, Tensor]]
    options: dict[str, Any]
    mask_id: int | None = None
    ours: bool = False

    def run(self, *passages: Passage) -> Tensor | None:
        """One pass over texts of one length: logits (text, token, word), None without a head."""
        each = [self.inputs(passage) for passage in passages]
        inputs = {name: torch.cat([one[name] for one in each]) for name in each[0]}
        with running(self.root, torch.OutOfMemoryError):
            output = self.root(**inputs, **self.options)
        if isinstance(output, Tensor):
            return output
        logits: Tensor | None = getattr(output, "logits", None) if self.head is not None else None
        return logits

    @property
    def device(self) -> torch.device:
        return next(self.root.parameters()).device

    @property
    def itemsize(self) -> int:
        """Bytes of one of the model's numbers."""
        return next(self.root.parameters()).element_size()

    @property
    def heads(self) -> dict[int, int]:
        """The number of heads of each layer that has this kind of attention."""
        found = {site.layer: site.heads for site in self.sites.found if site.kind == self.kind}
        return dict(sorted(found.items()))


def decoder_subject(decoder: TorchDecoder) -> Subject:
    """The library's own decoder."""
    device = decoder.norm.weight.device
    return Subject(
        root=decoder,
        stack=decoder.norm,
        head=decoder.lm_head,
        kind="self",
        sites=HookPointSites(decoder),
        inputs=lambda passage: {"ids": torch.tensor([passage.ids], device=device)},
        options={},
        ours=True,
    )


def transformers_subject(
    model: Any, kind: Kind, passage: Passage, mask_id: int | None = None
) -> Subject:
    """A transformers model, tried on a few tokens of ``passage``.

    Raises UnsupportedError where its heads cannot be found, or it does not read text; UsageError
    where decoder or cross attention is wanted without a decoder text.
    """
    # Imported late: the library's own decoder does without transformers.
    from attnviz.engine.ablation_projection import find_projections
    from attnviz.engine.ablation_registered import find_registered
    from attnviz.models.attention_interface import uses_interface

    if model.main_input_name != "input_ids":
        raise UnsupportedError(
            f"{type(model).__name__} reads {model.main_input_name}, not text: "
            "choose a model that reads token ids."
        )
    if kind in ("decoder", "cross") and passage.target is None:
        raise UsageError(
            f"the {kind} heads of {type(model).__name__} need a decoder text: give one"
        )
    probe = _pass(model, kind, passage.probe())
    stack = _stack(model, probe)
    head = _head(model) if probe.module is model else None
    with torch.inference_mode(), _noting_call(stack) as called, _unasked(head):
        found = find_registered(probe) if uses_interface(model) else None
        sites: Sites = found or find_projections(probe)
    options = {"use_cache": False, "return_dict": True}
    return Subject(
        root=probe.module,
        stack=stack
        if called and not _holds(stack, head)
        else _inner_stack(stack, probe, sites, head),
        head=head,
        kind=kind,
        sites=sites,
        inputs=lambda passage: _inputs(model, passage),
        options={name: value for name, value in options.items() if probe.takes(name)},
        mask_id=mask_id,
    )


def _pass(model: Any, kind: Kind, passage: Passage) -> ForwardPass:
    source = len(passage.ids)
    root: Any = model
    if kind == "self":
        lengths: dict[Kind, int] = {"self": source}
        keys = lengths
    elif passage.target is None:
        root, lengths = model.get_encoder(), {"encoder": source}
        keys = lengths
    else:
        target = len(passage.target)
        lengths = {"encoder": source, "decoder": target, "cross": target}
        keys = {"encoder": source, "decoder": target, "cross": source}
    return ForwardPass(model, root, _inputs(model, passage), tuple(lengths), lengths, keys)


def _inputs(model: Any, passage: Passage) -> dict[str, Tensor]:
    def row(ids: Sequence[int]) -> Tensor:
        return torch.tensor([ids], device=model.device)

    if passage.target is None:
        return {"input_ids": row(passage.ids)}
    return {"input_ids": row(passage.ids), "decoder_input_ids": row(passage.target)}


def _stack(model: Any, probe: ForwardPass) -> nn.Module:
    if probe.module is not probe.model:
        return probe.module
    stack: nn.Module = model.get_decoder() if len(probe.kinds) > 1 else model.base_model
    return stack


@contextmanager
def _noting_call(module: nn.Module) -> Iterator[list[nn.Module]]:
    """Yields a list that holds the module once it was called."""
    called: list[nn.Module] = []
    hook = module.register_forward_pre_hook(lambda module, args: called.append(module))
    try:
        yield called
    finally:
        hook.remove()


@contextmanager
def _unasked(head: nn.Linear | None) -> Iterator[None]:
    """While this is open, ``head`` projects nothing: its logits are not needed, and not cheap."""
    if head is None:
        yield
        return
    hook = head.register_forward_pre_hook(lambda module, args: (args[0][:, :0], *args[1:]))
    try:
        yield
    finally:
        hook.remove()


def _holds(module: nn.Module, part: nn.Module | None) -> bool:
    return any(inner is part for inner in module.modules())


def _inner_stack(
    stack: nn.Module, probe: ForwardPass, sites: Sites, head: nn.Module | None
) -> nn.Module:
    """The outermost module that runs, of those in ``stack`` that hold all attention but no head.

    Some models call the inner part of their own trunk, or have their head within it.
    """
    attention = {id(site.module) for site in sites.found}
    for module in stack.modules():
        if (
            module is not stack
            and not _holds(module, head)
            and attention <= {id(part) for part in module.modules()}
        ):
            with torch.inference_mode(), sites.borrowed(), _noting_call(module) as called:
                probe.call(use_cache=False)
            if called:
                return module
    return stack


def _head(model: Any) -> nn.Linear | None:
    head = model.get_output_embeddings()
    return head if isinstance(head, nn.Linear) else None
