"""Tiny random models of transformers, and one thread for small matrices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from attnviz.learn.verify.examinee import Examinee
from attnviz.learn.verify.verify import open_examinee
from attnviz.models.prepare import prepared
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Tokens

from ....engine.architectures import small_model


def tokens(count: int, seed: int = 3) -> Tokens:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 89, (count,), generator=generator).tolist()
    return Tokens(tuple(ids), ("",) * count, (False,) * count)


@pytest.fixture
def examinee() -> Callable[..., tuple[TransformersModel, Examinee]]:
    """``examinee("gpt2")``: a model and its examinee over eleven tokens."""

    def make(name: str, dtype: torch.dtype = torch.float32) -> tuple[TransformersModel, Examinee]:
        model = prepared(name, small_model(name).to(dtype), None, torch.device("cpu"), seed=11)
        return model, open_examinee(model, tokens(11), tokens(7, 5) if name == "t5" else None)

    return make


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Small matrices are slower on several threads."""
