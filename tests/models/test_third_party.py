"""Library code runs silently and as it was written; its errors say where they are from."""

import pytest
import torch
from torch import nn

from attnviz.errors import LoadError
from attnviz.models.third_party import running


class Twice(nn.Module):
    def forward(self, x):
        return 2 * x


@pytest.mark.long
def test_compiled_modules_run_as_they_were_written():
    """Compiled code passes no functions on to what observes them."""
    built = []

    def backend(graph, inputs):
        built.append(graph)
        return graph

    module, x = Twice(), torch.ones(1, 2)
    module.compile(backend=backend)
    with running(module):
        torch.testing.assert_close(module(x), 2 * x)
    assert not built
    first, second = running(module), running(module)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # overlapping, as generators are closed
    module(x)
    assert not built
    second.__exit__(None, None, None)
    torch.testing.assert_close(module(x), 2 * x)
    assert built


def test_an_error_of_another_library_names_it():
    raised = {"__name__": "torchao.kernels"}
    exec("def forward(): raise TypeError('no scale')", raised)
    says = r"Linear cannot .* no scale \(in torchao\.kernels\)"
    with pytest.raises(LoadError, match=says), running(nn.Linear(1, 1)):
        raised["forward"]()
