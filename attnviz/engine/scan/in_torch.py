"""Open torch models for a scan or for patching."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.engine.answers import ALONE
from attnviz.engine.effects import ScanOptions
from attnviz.engine.labels import require_one_choice
from attnviz.engine.patchable import PatchableModel
from attnviz.engine.patching import Pair, PatchOptions
from attnviz.engine.scan.on_torch import TorchRunner
from attnviz.engine.scan.patching import Patching
from attnviz.engine.scan.scan import Scan
from attnviz.engine.scan.slopes import Slopes
from attnviz.errors import UnsupportedError
from attnviz.records import Input

STARTS = (
    "answer and foil are tokens of the context: their logits are those of the answer's start there"
)
"""The note on what is predicted of a model that answers questions."""


def torch_scan(
    model: PatchableModel,
    inputs: Sequence[Input],
    options: ScanOptions,
    references: Sequence[Input],
) -> Scan:
    """Return an object that ablates the heads of a torch model over ``inputs``.

    options: how they are ablated. references: the texts whose outputs replace those of ablated
        heads, for mean and resample.
    """
    runner = TorchRunner(model, inputs[0], options.positions, options.max_memory)
    return Scan(runner, inputs, options, references)


def torch_patching(model: PatchableModel, pairs: Sequence[Pair], options: PatchOptions) -> Patching:
    """Return an object that puts values of one prompt into a torch model's run of the other.

    pairs: the prompt pairs.
    """
    require_one_choice(model)
    if model.answers and options.method == "gradient":
        raise UnsupportedError(
            f"{type(model.root).__name__} chooses the start of an answer among tokens: patch them "
            "with --method exact"
        )
    runner = TorchRunner(model, pairs[0].corrupt, "last", options.max_memory)
    if model.answers:
        alone = not all(pair.corrupt.text.joined for pair in pairs)
        runner.notes += [STARTS, *([ALONE] if alone else [])]
    estimate = Slopes(runner).estimated if options.method == "gradient" else None
    return Patching(runner, pairs, options, estimate)
