"""Change the heads' outputs of a transformers model where it looks its attention function up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from attnviz.engine.attention_call import AttentionCall, active
from attnviz.engine.forward_pass import ForwardPass
from attnviz.engine.model_state import borrowed
from attnviz.engine.sites import HeadEditor, Site, SiteCounter
from attnviz.engine.stacks import Places
from attnviz.engine.stray_attention import IncompleteError, StrayAttention

__all__ = ["RegisteredSites", "find_registered"]


def find_registered(probe: ForwardPass) -> RegisteredSites | None:
    """The sites of a pass, or None where the function does not see all of its attention.

    probe: a short pass whose texts differ in length, so that cross attention can be told.
    """
    with borrowed(probe.model):
        run = _Find(probe)
        try:
            with active(run), run.stray:
                probe.call(use_cache=False)
        except IncompleteError:
            return None
    return RegisteredSites(probe, tuple(run.found)) if run.found else None


class RegisteredSites:
    """Every call of an attention function in a pass of ``probe``'s module."""

    def __init__(self, probe: ForwardPass, found: tuple[Site, ...]) -> None:
        self._probe = probe
        self.found = found

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        with borrowed(self._probe.model):
            yield

    @contextmanager
    def editing(self, editor: HeadEditor, order: Sequence[int] | None = None) -> Iterator[None]:
        counter = SiteCounter(self._probe.module, self.found, editor, order)
        with counter.counting(), active(_Edit(counter)):
            yield


class _Edit:
    """Answers each attention call as the model itself would, and has its output edited."""

    def __init__(self, counter: SiteCounter) -> None:
        self._counter = counter

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        output, weights = call.own()
        return self._counter.edit(call.module, output), weights


class _Find:
    """Takes down the calls of a pass."""

    def __init__(self, probe: ForwardPass) -> None:
        self._places = Places(probe)
        self.stray = StrayAttention(probe.batch, {*probe.queries.values(), *probe.keys.values()})
        self.found: list[Site] = []

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        self.stray.allowed = True
        kind, layer = self._places.next(call.module, call.key.shape[-2])
        output, weights = call.own()
        self.stray.allowed = False
        if output.ndim != 4:
            raise IncompleteError
        self.found.append(Site(kind, layer, call.module, *output.shape[2:]))
        return output, weights
