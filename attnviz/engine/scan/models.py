"""Opens loaded models that run in torch for a scan: the bundled one and those of transformers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from attnviz.attention.torch_decoder import TorchDecoder
from attnviz.engine.patchable import (
    Passage,
    Subject,
    decoder_subject,
    transformers_subject,
)
from attnviz.engine.scan.on_torch import TorchScan
from attnviz.engine.scan.options import ScanOptions
from attnviz.errors import UnsupportedError
from attnviz.models.bundled import Bundled
from attnviz.models.model import Model
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Kind, Tokens

__all__ = ["open_subject", "open_torch_scan", "passages_of"]


def open_torch_scan(
    model: Model,
    texts: Sequence[Tokens],
    options: ScanOptions,
    kind: Kind,
    targets: Sequence[Tokens],
    reference: Sequence[Tokens],
    reference_targets: Sequence[Tokens],
) -> TorchScan:
    """See ``open_scan``."""
    passages = passages_of(texts, targets)
    subject = open_subject(model, kind, passages[0])
    predicted = targets or texts
    special = [text.special for text in predicted]
    return TorchScan(subject, passages, special, options, passages_of(reference, reference_targets))


def open_subject(model: Model, kind: Kind, passage: Passage) -> Subject:
    """A loaded model as removal needs it, tried on a few tokens of ``passage``.

    Raises UnsupportedError where its heads cannot be removed.
    """
    if isinstance(model, Bundled):
        checkpoint = model.checkpoint
        decoder = TorchDecoder.from_llama(checkpoint.config, checkpoint.tensors)
        dtype = torch.float64 if model.info.dtype == "float64" else torch.float32
        return decoder_subject(decoder.to(dtype).eval().requires_grad_(False))
    if isinstance(model, TransformersModel):
        return transformers_subject(model.model, kind, passage, _mask_id(model))
    raise UnsupportedError(f"no way to remove heads from a {type(model).__name__}")


def passages_of(texts: Sequence[Tokens], targets: Sequence[Tokens]) -> list[Passage]:
    """The token ids of texts, and of their decoder texts where there are any."""
    if not targets:
        return [Passage(text.ids) for text in texts]
    return [Passage(text.ids, target.ids) for text, target in zip(texts, targets, strict=True)]


def _mask_id(model: TransformersModel) -> int | None:
    for owner in (model.tokenizer, model.model.config):
        number = getattr(owner, "mask_token_id", None)
        if isinstance(number, int):
            return number
    return None
