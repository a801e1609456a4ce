"""The names of the package itself: found late, typed, and not in each other's way."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import attnviz

HEAVY = {"torch", "transformers", "huggingface_hub", "keras", "matplotlib"}


def loaded(program):
    """The packages that a fresh process has imported after ``program``."""
    ending = "\nimport sys\nprint(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", program + ending], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split("\n")[-2].split())


def test_the_import_costs_nothing():
    assert not loaded("import attnviz") & (HEAVY | {"numpy", "rich", "typer"})
    assert not loaded("import attnviz; dir(attnviz)") & (HEAVY | {"numpy", "typer"})


def test_what_needs_no_torch():
    program = """
import attnviz, numpy, rich
rich.print(attnviz.heatmap([[1.0]]))
attnviz.patterns, attnviz.ablate, attnviz.params, attnviz.prune
print(attnviz.capture("tiny", "A cat.")._repr_html_())
print(attnviz.capture("mha", "A cat."))
print(attnviz.rollout("tiny", text="A cat sat."))
print(attnviz.params(d_model=64, heads=8))
"""
    assert not loaded(program) & HEAVY


def test_the_mechanism_needs_neither_torch_nor_rich():
    program = "import numpy, attnviz\nx = numpy.ones((2, 3))\n"
    program += "output, weights = attnviz.scaled_dot_product_attention(x, x, x)"
    assert not loaded(program) & (HEAVY | {"rich"})


def test_every_name_is_there():
    assert set(attnviz.__all__) <= set(dir(attnviz))
    assert all(getattr(attnviz, name) is not None for name in attnviz.__all__)
    for name in ("capture", "heatmap", "rollout", "scaled_dot_product_attention"):
        assert getattr(attnviz, name).__name__ == name
        assert getattr(attnviz, name).__doc__


def test_no_other_name_and_a_wrong_argument_is_a_value_error():
    with pytest.raises(AttributeError, match="'attnviz' has no attribute 'heatmaps'"):
        attnviz.heatmaps  # noqa: B018  the access is the test
    assert issubclass(attnviz.errors.UsageError, ValueError)
    assert issubclass(attnviz.errors.UsageError, attnviz.errors.AttnvizError)


def test_types_are_declared_for_every_name():
    """Editors and type checkers read the imports that never run, and the lists of their modules."""
    tree = ast.parse(Path(attnviz.__file__).read_text())
    (declared,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in declared.body if isinstance(node, ast.ImportFrom)]
    names = {alias.name for node in imports for alias in node.names} - {"*"}
    pages = [node.module for node in imports if node.names[0].name == "*"]
    for page in map(import_module, map(str, pages)):
        assert set(page.__all__) == {
            name
            for name, value in vars(page).items()
            if hasattr(value, "__wrapped__") and value.__module__ == page.__name__
        } | ({"load"} & set(page.__all__))
        names |= set(page.__all__)
    assert names | {"__version__"} == set(attnviz.__all__)


def test_a_session_shows_a_loaded_model():
    assert repr(attnviz.load("tiny")) == "<attnviz.Model tiny: 6 layers × 4 heads>"
    assert repr(attnviz.load("mha")) == "<attnviz.Model mha: 1 layer × 8 heads>"
