"""Small reports of random queries and keys and of the library's own attention."""

import pytest

from attnviz.learn.scaling.request import ScalingRequest
from attnviz.learn.scaling.scaling import BUILT_IN, scaling
from attnviz.models.own import OwnAttention
from attnviz.texts import Texts

TEXT = "The cat sat on the mat because the cat was tired of the [red]mat[/] ."


def drawn(**options):
    return scaling(None, BUILT_IN, ScalingRequest(**options))


def of_model(model, text=TEXT, source="", **options):
    return scaling(model, Texts((text,), source), ScalingRequest(**options))


@pytest.fixture(scope="session")
def random_report():
    return drawn(seq=31, samples=23, seed=1)


@pytest.fixture(scope="session")
def one_report():
    return drawn(d_k="64", seq=7, samples=1, seed=1)


@pytest.fixture(scope="session")
def head_report():
    model = OwnAttention(256, 8, seed=2)
    return of_model(model, source="built in: no text was given", head=("*",), index_base=1)


@pytest.fixture(scope="session")
def layer_report():
    return of_model(OwnAttention(64, 8, 2, causal=True, seed=2))
