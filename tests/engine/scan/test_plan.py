"""In half precision a model is read through its vocabulary matrix, if that is all it does."""

import pytest
import torch
from torch.nn.functional import linear

from attnviz.engine.scan.expansion import Inside
from attnviz.engine.scan.plan import Way, fitting

from ..architectures import small_model
from ..scans import torch_scan

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


def read_out_of(model):
    scan = torch_scan(model)
    with scan._runner.open():
        return scan._runner.read_out


@DTYPES
@pytest.mark.parametrize("name", ["llama", "gpt2", "phi"])
def test_half_precision_needs_no_pass_of_the_model(name, dtype):
    assert read_out_of(small_model(name).to(dtype)).own is None


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_too_little_memory_is_no_verdict_on_a_strategy(error):
    states = torch.ones(2, 3, 4)

    def run(strategy, kept):
        if strategy == "first":
            raise error("as it is said")
        return states

    def found():
        return fitting(Way(Inside(), {}), ["first", "second"], states, run, short=False)

    if error is RuntimeError:
        assert found() == Way(Inside(), {}, "second", ends_short=False)
    else:
        with pytest.raises(error):
            found()


def scaled(logits):
    return logits * (1 + 2 * torch.finfo(logits.dtype).eps)


def capped(logits):
    return 300 * (logits / 300).tanh()


def with_another_word(logits):
    logits = logits.clone()
    logits[..., 5] *= 1.5
    return logits


@DTYPES
@pytest.mark.parametrize("changed", [scaled, capped, with_another_word])
def test_a_wrong_vocabulary_matrix_is_refused_in_half_precision(changed, dtype):
    """A factor of two epsilons, a cap that small logits hardly feel, a single other word."""
    model = small_model("llama").to(dtype)
    head = model.lm_head
    head.forward = lambda rows: changed(linear(rows, head.weight))
    assert read_out_of(model).own is not None
