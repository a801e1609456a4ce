"""Run the part of a transformers model that computes attention, and check an observed run of it.

An observed pass must end in the result of a plain pass. Each model is tried on the first text of
every length class (up to 2, 4, 8 … tokens). Rounding errors count as independent: they grow with
the root of their number (Higham & Mary 2019, "A New Approach to Probabilistic Rounding Error
Analysis").
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from attnviz.engine.device_sizes import widest
from attnviz.engine.hook_points import hooked
from attnviz.engine.observer import Observer, SumsReader
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.split import device_of
from attnviz.models.third_party import running
from attnviz.models.whole import require_token_ids
from attnviz.records import Kind

if TYPE_CHECKING:
    from attnviz.models.attention_interface import PreTrainedModel

TWO_STACKS: tuple[Kind, ...] = ("encoder", "decoder", "cross")
"""The kinds of attention that both stacks of an encoder–decoder compute together."""

KINDS: tuple[Kind, ...] = ("self", *TWO_STACKS)

_SOURCE, _TARGET = "input_ids", "decoder_input_ids"

_uncached: WeakSet[nn.Module] = WeakSet()


@dataclass(frozen=True)
class ForwardPass:
    """A planned run of a transformers model over one batch of texts.

    module: the part that runs on ``inputs`` (batch, token) and computes ``kinds`` of attention,
    some of them wanted. compare: whether a plain pass may come first. logits: the tokens that the
    vocabulary projection sees: all, positions, or False for one.
    """

    model: PreTrainedModel
    module: nn.Module
    inputs: dict[str, Tensor]
    kinds: tuple[Kind, ...]
    wanted: frozenset[Kind]
    compare: bool = True
    cached: bool = True
    logits: bool | tuple[int, ...] = False

    @property
    def batch(self) -> int:
        return self.inputs[_SOURCE].shape[0]

    @property
    def lengths(self) -> set[int]:
        """Return the lengths, in tokens, that an axis of queries or keys can have in this run."""
        texts = (_SOURCE, _TARGET)
        return {self.inputs[name].shape[1] for name in texts if name in self.inputs}

    def keys(self, kind: Kind) -> int:
        """Return the number of key tokens in attention of this kind."""
        return self.inputs[_TARGET if kind == "decoder" else _SOURCE].shape[1]

    def run(self, **options: Any) -> Any:
        """Return the module's output for ``self.inputs``, in the module's own form.

        options: further keywords, without those that it lacks. The cache stays on: without it
        numbers lie otherwise in memory, and products round differently.
        """
        if not self.cached or self.module in _uncached:
            options |= {"use_cache": False}
        options = {"return_dict": True} | options
        known = {name: value for name, value in options.items() if self.takes(name)}
        seen = self.logits or (-1,)
        shortened = nullcontext() if seen is True else _short_vocabulary(self.module, seen)
        with shortened, running(self.model, torch.OutOfMemoryError):
            return self.module(**self.inputs, **known)

    def leave_cache_out(self) -> None:
        """Run the module without a cache from now on."""
        _uncached.add(self.module)

    def takes(self, option: str) -> bool:
        """Return True if the module can be called with the keyword ``option``."""
        parameters = _parameters(self.module)
        return option in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    def check(self, kind: Kind, weights: Any) -> None:
        """Raise UnsupportedError unless weights have a kind's (text, head, query, key)."""
        queries = self.inputs[_TARGET if kind in ("decoder", "cross") else _SOURCE].shape[1]
        expected = (self.batch, "heads", queries, self.keys(kind))
        shape = tuple(getattr(weights, "shape", ()))
        if len(shape) != 4 or (shape[0], "heads", *shape[2:]) != expected:
            raise UnsupportedError(
                f"{type(self.model).__name__} does not weigh every token against every token: "
                f"expected weights (batch, heads, query, key) = "
                f"({', '.join(map(str, expected))}), got {shape}."
            )


def plan_pass(
    model: PreTrainedModel,
    wanted: Collection[Kind],
    input_ids: Tensor,
    decoder_input_ids: Tensor | None = None,
) -> ForwardPass:
    """Return the plan of a run of the smallest part that computes the wanted attention.

    That is the trunk without its language-model head, or only the encoder. The ids: (text, token).
    Raises UnsupportedError for a model that does not take token ids, UsageError if decoder or cross
    attention is wanted without a decoder text.
    """
    require_token_ids(model)
    inputs = {_SOURCE: input_ids.to(device_of(model))}
    kinds = frozenset(wanted)
    # The encoder of an encoder–decoder may be opened alone, with the config of the whole.
    both = model.config.is_encoder_decoder and _TARGET in _parameters(model)
    if not both:
        return ForwardPass(model, model.base_model, inputs, ("self",), kinds)
    if kinds.isdisjoint(("decoder", "cross")):
        return ForwardPass(model, model.get_encoder(), inputs, ("encoder",), kinds)
    if decoder_input_ids is None:
        raise UsageError(
            f"{type(model).__name__} has decoder and cross attention only over a decoder text: "
            "give one, or ask for the encoder alone."
        )
    inputs[_TARGET] = decoder_input_ids.to(device_of(model))
    return ForwardPass(model, model.base_model, inputs, TWO_STACKS, kinds)


def wanted_kinds(observer: Observer | SumsReader, model: nn.Module) -> frozenset[Kind]:
    """Return the kinds of attention of which the observer wants at least one layer."""
    # No stack has more layers than modules, whatever its config calls their number; where layers
    # share one module, the config's own count is the larger.
    config: Any = getattr(model, "config", None)
    most = max(sum(1 for _ in model.modules()), getattr(config, "num_hidden_layers", None) or 0)
    return frozenset(kind for kind in KINDS if any(observer.wants(kind, at) for at in range(most)))


def _parameters(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(module.forward).parameters


@contextmanager
def _short_vocabulary(module: Any, seen: tuple[int, ...]) -> Iterator[None]:
    """Let the vocabulary projection see only some tokens if the trunk cannot be run without it.

    Attention weights do not depend on the logits, and the projection takes a third of a small
    model's time. Other threads that use the module meanwhile get all of their logits.
    """
    head = getattr(module, "get_output_embeddings", lambda: None)()  # a bare stack may have none
    if not isinstance(head, nn.Module):
        yield
        return
    thread = get_ident()

    def some_tokens(head: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if get_ident() != thread or len(args) != 1 or args[0].ndim != 3:
            return None
        return (args[0][:, list(seen)],)

    with hooked(head.register_forward_pre_hook(some_tokens)):
        yield


# Against the plain pass ---------------------------------------------------------------------------

STORED = 4
"""The results of one attention that are rounded in turn: scores, exponents, weights, sums."""


def length_class(tokens: int) -> int:
    """Return the class of a text's length: 0 for 1 token, 1 for 2, 2 for up to 4, and so on."""
    return (tokens - 1).bit_length()


def not_its_own(model: nn.Module, why: str) -> UnsupportedError:
    """Return the error for a model that observing changes, with the difference that proves it."""
    return UnsupportedError(
        f"{type(model).__name__} computes something else while it is observed than when it runs "
        f"plainly ({why}): nothing of it can be shown, choose another model"
    )


def ends_alike(module: nn.Module, end: Tensor, plain: Tensor, *, exact: bool) -> bool:
    """Return True if two passes of ``module`` over one text end in the same hidden states.

    exact: True compares bits, at least on a CPU. Otherwise half of the tokens must agree up to
    rounding: a router may send single ones elsewhere. Tokens not finite in ``end`` are never shown,
    and left out.
    """
    if end.shape != plain.shape:
        return False
    known = end.isfinite().all(-1)
    end, plain = end[known], plain[known]
    same = end == plain
    if bool(same.all()) or (exact and plain.device.type == "cpu"):
        return bool(same.all())
    # Half precision sums in float32, so that only stored results are rounded.
    wide = plain.dtype in (torch.float32, torch.float64)
    roundings = sum(
        STORED + (weight.shape[-1] if wide and weight.ndim else 0)
        for part in module.modules()
        for weight in part.parameters(recurse=False)
    )
    apart = widest((end - plain).masked_fill(same, 0)).norm(dim=-1)
    allowed = epsilon(plain) * math.sqrt(roundings) * widest(plain.nan_to_num()).norm(dim=-1)
    return bool((apart <= allowed).float().mean() >= 0.5)


_ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-3}
_HALF_ROUNDING = 5e-2


def nearly_equal(own: Tensor, expected: Tensor) -> bool:
    """Return True if two tensors differ at most by rounding, relative to their largest number."""
    if own.shape != expected.shape:
        return False
    rounding = _ROUNDING.get(expected.dtype, _HALF_ROUNDING)
    return bool((own - expected).abs().max() <= rounding * expected.abs().max())


def epsilon(tensor: Tensor) -> float:
    """Return the relative rounding error of a softmax over numbers of the tensor's type."""
    # transformers computes the softmax in float32 in all models.
    return max(torch.finfo(tensor.dtype).eps, torch.finfo(torch.float32).eps)
