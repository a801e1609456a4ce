"""The options of a command: what is checked when a request is made, and amounts as typed."""

import ast

import numpy as np
import pytest

from attnviz.draw.numbers import spoken_time
from attnviz.errors import UsageError
from attnviz.inspect.heads.request import HeadsRequest
from attnviz.inspect.why.request import WhyRequest
from attnviz.options import Budget, read_budget, read_size

from .test_imports import PATHS, tree


def test_no_group_of_options_forgets_the_check_of_its_base():
    """Types are checked in ``Options.__post_init__``, which a subclass could leave out."""
    groups = [
        (module, node)
        for module in PATHS
        if module.endswith(".request") or module == "attnviz.options"
        for node in tree(module).body
        if isinstance(node, ast.ClassDef) and node.bases
    ]
    checks = {
        f"{module}:{group.name}": ast.unparse(each)
        for module, group in groups
        for each in group.body
        if isinstance(each, ast.FunctionDef) and each.name == "__post_init__"
    }
    assert len(checks) > 8
    assert not [name for name, text in checks.items() if "super().__post_init__()" not in text]


@pytest.mark.parametrize(
    ("typed", "budget"),
    [
        ("30s", Budget(seconds=30)),
        ("2.5 m", Budget(seconds=150)),
        ("1H", Budget(seconds=3600)),
        ("20", Budget(count=20)),
        ("20 heads", Budget(count=20)),
    ],
)
def test_budgets(typed, budget):
    assert read_budget(typed) == budget


def test_no_budget():
    for typed in ("0", "0s", "0.0m"):
        with pytest.raises(UsageError, match="leaves nothing to measure"):
            read_budget(typed)
    spoiled = ("", "soon", "-3", "2.5", "3 days", "1e3", "20 tails", "2.5 heads", "9" * 5000)
    for typed in spoiled:
        with pytest.raises(UsageError, match="cannot read --budget"):
            read_budget(typed)


def test_sizes():
    assert read_size("2GB") == read_size("2g") == 2 * 10**9
    assert read_size("1.5 GiB") == 3 * 2**29
    assert read_size("512MiB") == 2**29
    assert (read_size("700k"), read_size("7 B")) == (700_000, 7)


def test_no_size():
    for typed in ("", "much", "-1GB", "2XB", "GB", "1024", "24"):
        with pytest.raises(UsageError, match="cannot read --max-memory"):
            read_size(typed)
    with pytest.raises(UsageError, match=r"cannot read --memory '24': .* such as 24GB"):
        read_size("24", "--memory")  # it could mean any unit
    with pytest.raises(UsageError, match="leaves no room"):
        read_size("0GB")


def test_spoken_time():
    assert [*map(spoken_time, (3.4, 120, 9000))] == ["3 s", "2 min", "2.5 h"]


@pytest.mark.parametrize(
    ("pair", "said"),
    [(("cat",), "takes 2 values, got 1"), (("a", "b", "c"), "got 3"), ((2, 4), "takes str, got 2")],
)
def test_a_pair_from_python_is_two_words(pair, said):
    with pytest.raises(UsageError, match=said):
        HeadsRequest.of({"pair": pair})


def test_an_index_from_python_is_a_number_too():
    """``position`` and ``token`` are a word or an index, which a person types as digits."""
    assert WhyRequest.of({"position": -2}).position == "-2"
    assert HeadsRequest.of({"token": np.int64(3)}).token == "3"
    with pytest.raises(UsageError, match="answer takes str, got 3"):
        WhyRequest.of({"answer": 3})
