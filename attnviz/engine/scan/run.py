"""Open the exact scan of ablations, and patching, for every kind of model.

Ablating head h of layer L changes nothing before layer L, so one forward pass carries many
ablations, and the result is that of ablating them one at a time. The same holds for patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from attnviz.engine.backend import backend_of
from attnviz.engine.effects import ScanOptions
from attnviz.engine.patching import Pair, PatchOptions
from attnviz.engine.scan.patching import Patching as Patching
from attnviz.engine.scan.scan import Scan as Scan
from attnviz.errors import UsageError
from attnviz.models.model import Model
from attnviz.records import Input, Kind, Tokens


def inputs_of(texts: Sequence[Tokens], targets: Sequence[Tokens] = ()) -> list[Input]:
    """Return the texts as inputs, with decoder texts if there are any.

    Raises UsageError if the numbers of texts and targets differ.
    """
    if targets and len(targets) != len(texts):
        raise UsageError(f"expected a target for each of {len(texts)} texts, got {len(targets)}")
    pairs = zip_longest(texts, targets)
    return [Input(text, target) for text, target in pairs]


def open_scan(
    model: Model,
    inputs: Sequence[Input],
    options: ScanOptions | None = None,
    *,
    kind: Kind | None = None,
    references: Sequence[Input] | None = None,
) -> Scan:
    """Return an object that ablates heads of ``model`` over ``inputs`` and measures the effects.

    kind: the attention whose heads are ablated; None means the model's default. An encoder–decoder
    without a target can only be scanned in its encoder, and has no loss. references: the texts
    whose outputs replace those of ablated heads, for the modes mean and resample; None means
    ``inputs``. Raises UsageError if these do not fit together, UnsupportedError if the heads of the
    architecture cannot be ablated.
    """
    options = options or ScanOptions()
    kind = _kind_of(model, kind)
    if not inputs:
        raise UsageError("no text to scan: expected at least one")
    references = inputs if references is None else references
    return backend_of(model).open_scan(kind, inputs, options, references)


def open_patching(
    model: Model,
    pairs: Sequence[Pair],
    options: PatchOptions | None = None,
    *,
    kind: Kind | None = None,
) -> Patching:
    """Return an object that patches: it puts values of one prompt into a run of the other.

    kind: the attention whose values are patched; None means the model's default. Raises UsageError
    if these do not fit together, UnsupportedError for an architecture without patching.
    """
    kind = _kind_of(model, kind)
    if not pairs:
        raise UsageError("no prompts to patch: expected at least one pair")
    return backend_of(model).open_patching(kind, pairs, options or PatchOptions())


def _kind_of(model: Model, kind: Kind | None) -> Kind:
    kind = kind or model.kinds[0]
    if kind not in model.kinds:
        raise UsageError(
            f"{model.info.name!r} has no {kind} attention: expected {' or '.join(model.kinds)}"
        )
    return kind
