"""What later heads read from a head is the same in NumPy as on the running torch model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attnviz.engine.attribution.paths_on_numpy import numpy_path_reads
from attnviz.engine.attribution.paths_on_torch import torch_path_reads
from attnviz.engine.patchable import patchable_transformers
from attnviz.engine.patching import PathRead
from attnviz.records import Input, Tokens

from ...attention.test_families import IDS, MODELS, made, stack
from ..stacks import once_quick

CORRUPT = [*IDS[:4], 23, *IDS[5:9], 31, 45, 8, 100]
SENDERS = [("self", 0, 1), ("self", 0, 2), ("self", 1, 0)]


def _equal(found: PathRead, expected: PathRead, near: float) -> None:
    assert (found.kind, found.layer, found.what) == (expected.kind, expected.layer, expected.what)
    size = np.abs(expected.clean).max()
    for name in ("clean", "difference", "whole"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() <= near * size, name
    assert found.alone.keys() == expected.alone.keys()
    for sender, part in expected.alone.items():
        assert np.abs(found.alone[sender] - part).max() <= near * size


@pytest.mark.parametrize(
    "name", once_quick([name for name in MODELS if not name.startswith("gpt-neo")])
)
def test_every_family_reads_what_torch_reads(name: str, tmp_path: Path) -> None:
    model = made(tmp_path, name).double()
    ours, read = stack(tmp_path)
    ours.__init__(read.shape, ours.tensors.stored, np.float64)  # type: ignore[misc]
    texts = Tokens.bare(IDS), Tokens.bare(CORRUPT)
    found = numpy_path_reads(ours, *texts, SENDERS)
    inputs = Input(texts[0]), Input(texts[1])
    patchable = patchable_transformers(model, "self", inputs[0])
    expected = torch_path_reads(patchable, *inputs, SENDERS)
    assert len(found) == 3 * read.shape.layers
    by_place = {(one.layer, one.what): one for one in expected}
    assert by_place
    for one in found:
        if one.alone:
            _equal(one, by_place[one.layer, one.what], 1e-6)
