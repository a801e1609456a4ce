"""Run the library's own attention block with changes: one layer, no vocabulary, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn, TypeVar

import numpy as np

from attnviz.engine.effects import Variant
from attnviz.engine.replacing import Change, Held, Point
from attnviz.engine.scan.runner import ChangedRuns, Ends, Runner
from attnviz.errors import UsageError
from attnviz.models.own import OwnAttention
from attnviz.records import Input, Kind

_Found = TypeVar("_Found")


class OwnRunner(Runner):
    """Ablates heads of the library's own attention block; its methods are those of ``Runner``."""

    kind: Kind = "self"
    causal = False
    read_out = None

    def __init__(self, model: OwnAttention) -> None:
        self._model, self.name = model, model.info.architecture
        self.heads = {0: model.info.heads}
        self.notes = []

    def open(self) -> AbstractContextManager[None]:
        return nullcontext()

    def size(self, given: Input, wanted: int) -> int:
        return 1 << 10

    def ordered(self, changes: Sequence[Change]) -> list[int]:
        return list(range(len(changes)))

    def outputs(self, given: Input) -> Held:
        return {("output", 0): self._model.head_outputs(given.text).swapaxes(0, 1)}

    def ends(self, runs: ChangedRuns) -> Ends:
        outputs = np.repeat(self.outputs(runs.given)["output", 0][None], 1 + len(runs.changes), 0)
        edits = runs.replaced(dict(enumerate(runs.changes, start=1)))
        edits.edit_rows(Point(self.kind, "output", 0), outputs, 0)
        hidden = [self._model.attention.joined(row.swapaxes(0, 1)) for row in outputs]
        return Ends(np.stack(hidden), None)

    def is_no_op(self, variant: Variant) -> bool:
        attention = self._model.attention
        return not any(attention.output_by_head[:, head].any() for _, head in variant.heads)

    def in_torch(self) -> NoReturn:
        raise UsageError(
            f"{self._model.info.name!r} predicts no words: it has no loss to differentiate"
        )
