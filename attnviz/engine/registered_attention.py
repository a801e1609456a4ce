"""Enter a transformers model where it looks its attention function up.

The function that it gets delegates to the eager function of the calling module's own file, so the
weights are bit for bit those that ``output_attentions`` reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from weakref import WeakSet

from torch import Tensor, nn

from attnviz.engine.attention_call import AttentionCall, active
from attnviz.engine.forward_pass import ForwardPass, wants_any
from attnviz.engine.model_state import borrowed
from attnviz.engine.observer import Observer
from attnviz.engine.plain_pass import PlainCheck
from attnviz.engine.stacks import Places
from attnviz.engine.stray_attention import IncompleteError, StrayAttention

__all__ = ["cross_attention", "observe_registered"]

# Up to this many cells per head eager attention costs at most a twentieth of a forward pass more
# than the fused one. Unwanted layers take it too, so that the numbers of a layer do not depend on
# which others were asked for; beyond, they differ by the rounding of the fused one.
_EXACT_CELLS = 512 * 512

# What has run once without stray attention need not be watched again.
_complete: WeakSet[nn.Module] = WeakSet()


def observe_registered(forward: ForwardPass, observer: Observer) -> bool:
    """Run once and hand over what is wanted; False if our function did not see all of it.

    Raises UnsupportedError where the pass turns out not to be the model's own.
    """
    with borrowed(forward.model):
        cross = cross_attention(forward) if Places.ambiguous(forward) else {}
        run = _Run(forward, observer, Places(forward, cross))
        try:
            run.start()
        except IncompleteError:
            return False
    return True


class _Run:
    """The state of one observed pass."""

    def __init__(self, forward: ForwardPass, observer: Observer, places: Places) -> None:
        self._forward = forward
        self._observer = observer
        self._places = places
        self._check = PlainCheck(forward, "eager").begin()
        self._stray = StrayAttention(
            forward.batch, {*forward.queries.values(), *forward.keys.values()}
        )

    def start(self) -> None:
        trunk = self._forward.module
        with active(self), nullcontext() if trunk in _complete else self._stray:
            output = self._forward.run()
        if any(wants_any(self._observer, kind, trunk) for kind in self._places.missed):
            raise IncompleteError
        _complete.add(trunk)
        self._check.end(output)

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        self._stray.allowed = True
        kind, layer = self._places.next(call.module, call.key.shape[-2])
        wanted = self._observer.wants(kind, layer)
        output, weights = call.eager() if wanted or not _prefers_own(call) else call.own()
        self._check.call(call, output)
        if wanted:
            self._forward.check(kind, weights)
            self._observer.observe(kind, layer, weights)
        self._stray.allowed = False
        return output, weights


def _prefers_own(call: AttentionCall) -> bool:
    cells = call.query.shape[-2] * call.key.shape[-2]
    return cells > _EXACT_CELLS and call.found.is_fused


class _Probe:
    """Learns from one token read over two which modules attend to the encoder."""

    def __init__(self) -> None:
        self.cross: dict[int, bool] = {}

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        self.cross[id(call.module)] = call.key.shape[-2] == 2
        return call.own()


def cross_attention(forward: ForwardPass) -> Mapping[int, bool]:
    """For each attention module, whether it attends to the encoder."""
    probe = _Probe()
    first = {name: ids[:1, :1] for name, ids in forward.inputs.items() if name != "attention_mask"}
    first["input_ids"] = first["input_ids"].repeat(1, 2)
    with active(probe):
        replace(forward, inputs=first).run()
    return probe.cross
