"""Scans of small models, opened for a test."""

import numpy as np

from attnviz.engine.effects import ScanOptions, Variant
from attnviz.engine.patchable import patchable_transformers
from attnviz.engine.scan import on_torch
from attnviz.records import Input

from .architectures import inputs_of

IDS = tuple(inputs_of("gpt2")["input_ids"][0].tolist())


def input_of(inputs):
    """What a model of transformers is called with, as attnviz takes it."""
    target = inputs.get("decoder_input_ids")
    ids = inputs["input_ids"][0].tolist()
    return Input.of_ids(ids, None if target is None else target[0].tolist())


def torch_scan(model, texts=(IDS,), references=(), kind="self", mask=None, **options):
    """A scan over token ids, or inputs."""
    inputs = [one if isinstance(one, Input) else Input.of_ids(one) for one in texts]
    others = [Input.of_ids(ids) for ids in references]
    patchable = patchable_transformers(model, kind, inputs[0], mask)
    return on_torch.torch_scan(patchable, inputs, ScanOptions(**options), others)


def every(scan):
    return [Variant(((layer, head),)) for layer, some in scan.heads.items() for head in range(some)]


def measured(scan, variants, text=0):
    """Each metric as an array in the order of ``variants``."""
    found = {}
    for piece in scan.scan(text, variants, range(len(variants))):
        for name, values in piece.metrics.items():
            found.setdefault(name, np.full(len(variants), np.nan))[list(piece.variants)] = values
    return found
