"""The exact scan: what each removal costs over each text, for every kind of model.

Removing head h of layer L changes nothing before layer L, so one forward pass carries many
removals and the answer is that of removing them one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

from attnviz.engine.effects import Scores, Variant
from attnviz.engine.scan.options import ScanOptions
from attnviz.errors import UsageError
from attnviz.models.model import Model
from attnviz.models.own import OwnAttention
from attnviz.records import Kind, Tokens

__all__ = ["Progress", "Scan", "ScanOptions", "open_scan"]

Progress = Callable[[int, int], None]
"""Called as ``(done, total)`` in removals, those of all texts counted."""


class Scan(Protocol):
    """A model and texts that are ready to be scanned.

    heads: the number of heads of each layer that has the chosen kind of attention.
    notes: sentences about how it was done, complete once it is.
    """

    notes: list[str]

    @property
    def heads(self) -> Mapping[int, int]: ...

    def scan(
        self,
        text: int,
        variants: Sequence[Variant],
        wanted: Sequence[int],
        on_progress: Callable[[int], None] | None = None,
    ) -> Iterator[Scores]:
        """Measure the ``wanted`` ones of ``variants`` over one text, piece by piece."""
        ...

    def gradients(
        self,
        removed: Collection[tuple[int, int]] = (),
        on_progress: Callable[[int, int], None] | None = None,
    ) -> dict[tuple[int, int], float]:
        """First-order importance of each (layer, head) over all texts, some heads removed already.

        See ``gradient_importance``; UsageError where the model has no loss.
        """
        ...


def open_scan(
    model: Model,
    texts: Sequence[Tokens],
    options: ScanOptions | None = None,
    *,
    kind: Kind | None = None,
    targets: Sequence[Tokens] = (),
    references: Sequence[Tokens] | None = None,
    reference_targets: Sequence[Tokens] = (),
) -> Scan:
    """Ready ``model`` for a scan over ``texts``.

    kind: the attention whose heads are removed, None for the model's default.
    targets: of an encoder–decoder the decoder's text of each text; without them only its encoder
        can be scanned, and has no loss.
    references: the texts of mean and resample, None for ``texts``.
    reference_targets: their decoder texts.
    Raises UsageError where these do not fit together, UnsupportedError where the heads of the
    architecture cannot be removed.
    """
    options = options or ScanOptions()
    kind = kind or model.kinds[0]
    if kind not in model.kinds:
        raise UsageError(
            f"{model.info.name!r} has no {kind} attention: expected {' or '.join(model.kinds)}"
        )
    if not texts:
        raise UsageError("no text to scan: expected at least one")
    if targets and len(targets) != len(texts):
        raise UsageError(f"expected a target for each of {len(texts)} texts, got {len(targets)}")
    if options.pair is not None and isinstance(model, OwnAttention):
        raise UsageError(f"{model.info.name!r} predicts no words: it has no answer and no foil")
    if references is None:
        references, reference_targets = texts, targets
    if isinstance(model, OwnAttention):
        from attnviz.engine.scan.own import OwnScan

        return OwnScan(model, texts, options, references)
    from attnviz.engine.scan.models import open_torch_scan  # torch only where needed

    return open_torch_scan(model, texts, options, kind, targets, references, reference_targets)
