"""Small checkpoints of every family that NumPy runs, opened by NumPy and by torch, for a test."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from attnviz.engine.effects import ScanOptions
from attnviz.engine.patchable import patchable_transformers
from attnviz.engine.patching import Pair, PatchOptions
from attnviz.engine.scan.on_numpy import NumpyRunner
from attnviz.engine.scan.on_torch import torch_patching, torch_scan
from attnviz.engine.scan.patching import Patching
from attnviz.engine.scan.scan import Scan
from attnviz.models.stack_model import StackModel
from attnviz.models.work import ModelSizes
from attnviz.records import NO_PREDICTIONS, Input, ModelInfo

from ..attention.test_families import MODELS, made, stack
from .ablation_loop import MASK

ALIKE = {"gemma": "llama", "smollm3": "llama", "phi3": "llama"}
"""Model types whose modules are named as another's in the tables of the loops."""

HEADED = [name for name, (named, _) in MODELS.items() if named.endswith(("LM", "LMHeadModel"))]
"""The models that predict words."""


def once_quick(names, *, every=1, start=0):
    """Return parameters for a test: all but the first model of each class are marked long.

    every: how many classes one is taken of, from the class `start` on.
    """
    first = [*{MODELS[name][0]: name for name in reversed(names)}.values()][start::every]
    return [pytest.param(name, marks=() if name in first else pytest.mark.long) for name in names]


class Both(NamedTuple):
    """A model of transformers, the same in float64, and the same in NumPy.

    loop: its name in the tables of the loops.
    """

    model: Any
    wide: Any
    numpy: StackModel
    loop: str

    @property
    def masked(self):
        """Whether it reads both ways."""
        return not self.numpy.causal

    @property
    def heads(self):
        shape = self.numpy.stack.shape
        return [(layer, head) for layer in range(shape.layers) for head in range(shape.heads)]

    def scans(self, texts, references=(), **options):
        inputs, others = ([Input.of_ids(ids) for ids in some] for some in (texts, references))
        chosen = ScanOptions(**options)
        patchable = patchable_transformers(self.model, "self", inputs[0], MASK)
        return [
            Scan(NumpyRunner(self.numpy, lambda: patchable, None), inputs, chosen, others),
            torch_scan(patchable, inputs, chosen, others),
        ]

    def patchings(self, clean, corrupt, places=None, **options):
        """The same for patching."""
        pair = Pair(Input.of_ids(clean), Input.of_ids(corrupt), places)
        chosen = PatchOptions(**options)
        patchable = patchable_transformers(self.model, "self", pair.corrupt, MASK)
        texts = () if self.masked else (pair.clean, pair.corrupt)
        runner = NumpyRunner(self.numpy, lambda: patchable, None, texts)
        return [Patching(runner, [pair], chosen), torch_patching(patchable, [pair], chosen)]


def both(name, directory):
    return of_model(made(directory, name), directory)


def of_model(model, directory):
    """A model that was saved to a directory."""
    found, read = stack(directory)
    shape, kind = read.shape, model.config.model_type
    info = ModelInfo(
        name=kind,
        revision=None,
        architecture=read.architecture,
        dtype="float32",
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        weights="random",
        backend="numpy",
        notes=() if read.predicts else (NO_PREDICTIONS,),
    )
    sizes = ModelSizes(shape.layers, shape.heads, 1.0, 1.0, 1, 1, 101)
    ours = StackModel(info, found, _no_tokenizer, sizes=sizes, mask_id=MASK)
    wide = type(model).from_pretrained(directory, attn_implementation="eager", dtype=torch.float64)
    return Both(model, wide.eval(), ours, ALIKE.get(kind, kind))


def _no_tokenizer():
    raise AssertionError("texts are given as ids")
