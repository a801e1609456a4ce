"""Enter a transformers model through one attention function, registered under our own name.

The function delegates to the eager function of the calling module's own file, so the weights are
bit for bit those that ``output_attentions`` reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from torch import Tensor, nn

from attnviz.capture.forward_pass import ForwardPass, wants_any
from attnviz.capture.model_state import borrowed
from attnviz.capture.observer import Observer
from attnviz.capture.stacks import Places
from attnviz.capture.stray_attention import IncompleteError, StrayAttention
from attnviz.models.attention_interface import (
    eager_attention,
    register_attention,
    sdpa_attention,
)

if TYPE_CHECKING:
    from attnviz.models.attention_interface import PreTrainedModel

__all__ = [
    "AttentionCall",
    "AttentionRun",
    "active",
    "cross_attention",
    "observe_registered",
    "registered",
]

_NAME = "attnviz"

# Up to this many cells per head eager attention costs at most a twentieth of a forward pass more
# than the fused one. Unwanted layers take it too, so that the numbers of a layer do not depend on
# which others were asked for; beyond, they differ by the rounding of the fused one.
_EXACT_CELLS = 512 * 512

# What has run once without stray attention need not be watched again.
_complete: WeakSet[nn.Module] = WeakSet()


def observe_registered(forward: ForwardPass, observer: Observer) -> bool:
    """Run once and hand over what is wanted; False if our function did not see all of it."""
    with registered(forward.model) as implementations:
        cross = cross_attention(forward) if Places.ambiguous(forward) else {}
        run = _Run(forward, observer, implementations, Places(forward, cross))
        try:
            run.start()
        except IncompleteError:
            return False
    return True


@contextmanager
def registered(model: PreTrainedModel, *, fused_mask: bool = False) -> Iterator[Mapping[int, str]]:
    """Route every attention call of ``model`` through our function; see ``borrowed``.

    fused_mask: as in ``register_attention``.
    """
    name = f"{_NAME}-fused-mask" if fused_mask else _NAME
    register_attention(name, _attend, fused_mask=fused_mask)
    with borrowed(model, name) as implementations:
        yield implementations


class AttentionRun(Protocol):
    """What takes the attention calls of this thread while it is ``active``."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """The call's output (batch, query, heads, dims) and weights, or None for these."""
        ...


_current: ContextVar[AttentionRun | None] = ContextVar("attnviz attention run", default=None)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The registered function: query (batch, heads, query, dims) to (batch, query, heads, dims)."""
    call = AttentionCall(module, query, key, value, attention_mask, options)
    run = _current.get()
    # Another thread may use the model plainly while it is borrowed: eager serves it just as well.
    return call.eager() if run is None else run.attend(call)


@dataclass(frozen=True)
class AttentionCall:
    """One call of an attention function, as transformers makes it."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    options: dict[str, Any]

    def eager(self) -> tuple[Tensor, Tensor | None]:
        function = eager_attention(self.module)
        if function is None:
            raise IncompleteError
        return function(self.module, self.query, self.key, self.value, self.mask, **self.options)

    def fused(self) -> tuple[Tensor, Tensor | None]:
        # The mask was built for eager attention, where no mask means that nothing is hidden; the
        # fused function would then hide the future of a module that calls itself causal.
        options = self.options | {"is_causal": False}
        function = sdpa_attention(self.module)
        return function(self.module, self.query, self.key, self.value, self.mask, **options)

    def fused_as_masked(self) -> Tensor:
        """The fused output under the masks of fused attention, which may be none."""
        function = sdpa_attention(self.module)
        return function(self.module, self.query, self.key, self.value, self.mask, **self.options)[0]

    def is_fused(self, implementations: Mapping[int, str]) -> bool:
        """Whether the module's own config asks for the fused function."""
        return implementations.get(id(getattr(self.module, "config", None))) == "sdpa"


class _Run:
    """The state of one observed pass."""

    def __init__(
        self,
        forward: ForwardPass,
        observer: Observer,
        implementations: Mapping[int, str],
        places: Places,
    ) -> None:
        self._forward = forward
        self._observer = observer
        self._implementations = implementations
        self._places = places
        self._stray = StrayAttention(
            forward.batch, {*forward.queries.values(), *forward.keys.values()}
        )

    def start(self) -> None:
        trunk = self._forward.module
        with active(self), nullcontext() if trunk in _complete else self._stray:
            self._forward.run()
        if any(wants_any(self._observer, kind, trunk) for kind in self._places.missed):
            raise IncompleteError
        _complete.add(trunk)

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        self._stray.allowed = True
        kind, layer = self._places.next(call.module, call.key.shape[-2])
        if self._observer.wants(kind, layer):
            output, weights = call.eager()
            self._forward.check(kind, weights)
            self._observer.observe(kind, layer, weights)
        else:
            output, weights = call.fused() if self._prefers_fused(call) else call.eager()
        self._stray.allowed = False
        return output, weights

    def _prefers_fused(self, call: AttentionCall) -> bool:
        cells = call.query.shape[-2] * call.key.shape[-2]
        return cells > _EXACT_CELLS and call.is_fused(self._implementations)


class _Probe:
    """Learns from one token read over two which modules attend to the encoder."""

    def __init__(self) -> None:
        self.cross: dict[int, bool] = {}

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        self.cross[id(call.module)] = call.key.shape[-2] == 2
        return call.eager()


def cross_attention(forward: ForwardPass) -> Mapping[int, bool]:
    """For each attention module, whether it attends to the encoder."""
    probe = _Probe()
    first = {name: ids[:1, :1] for name, ids in forward.inputs.items() if name != "attention_mask"}
    first["input_ids"] = first["input_ids"].repeat(1, 2)
    with active(probe):
        replace(forward, inputs=first).run()
    return probe.cross


@contextmanager
def active(run: AttentionRun) -> Iterator[None]:
    """Let ``run`` take the attention calls that this thread makes."""
    token = _current.set(run)
    try:
        yield
    finally:
        _current.reset(token)
