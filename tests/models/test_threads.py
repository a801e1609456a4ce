"""How many threads torch and NumPy get, and that a Python program keeps its own numbers."""

import os
import subprocess
import sys
from functools import partial

import pytest

import attnviz
from attnviz.attention.growing import GrowingRun
from attnviz.attention.numpy_stack import NumpyStack
from attnviz.attention.torch_decoder import TorchDecoder
from attnviz.models import memory, threads
from attnviz.models.bundled import Bundled
from attnviz.models.threads import allowed_processors, suit, threads_for, threads_kept, use_threads

SENTENCE, OTHER = "The cat sat on the mat.", "The dog sat on the mat."
LARGE = 10**9

HELD = {}
"""The numbers of threads of what stands in for torch and OpenBLAS."""
REAL = threads._libraries


@pytest.fixture(autouse=True)
def libraries(monkeypatch):
    """Stand in for both, of three threads each, on eight processors without a quota.

    Real threads would wait for one another where the machine is busy.
    """
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(memory, "processors", lambda: None)
    HELD.update(torch=3, blas=3)
    functions = {
        name: (partial(HELD.__getitem__, name), partial(HELD.__setitem__, name)) for name in HELD
    }
    monkeypatch.setattr(threads, "_libraries", lambda: functions)
    monkeypatch.setattr(threads, "_process", type(threads._process)())  # whoever ran before


def numbers():
    return set(HELD.values())


def test_the_libraries_are_those_that_compute():
    import torch

    found = REAL()
    assert found["torch"][0]() == torch.get_num_threads()
    for get, put in found.values():
        before = get()
        put(2)
        assert get() == 2
        put(before)
        assert get() == before


@pytest.mark.parametrize(
    ("quota", "expected"), [(None, 8), (0.5, 1), (1.9, 1), (2.0, 2), (64.0, 8)]
)
def test_the_processors_allowed_are_those_of_affinity_and_quota(quota, expected, monkeypatch):
    monkeypatch.setattr(memory, "processors", lambda: quota)
    assert allowed_processors() == expected


def test_without_affinity_the_processors_are_counted(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert allowed_processors() == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert allowed_processors() == 1


def test_small_models_have_one_thread_and_larger_ones_what_is_allowed(monkeypatch):
    monkeypatch.setattr(memory, "processors", lambda: 2.0)
    assert threads_for(19_999_999) == 1
    assert threads_for(20_000_000) == 2


def test_a_model_gets_fewer_threads_never_more_than_the_program_has(monkeypatch):
    with threads_kept():
        use_threads(1)
        assert numbers() == {1}
        use_threads(threads_for(LARGE))
        assert numbers() == {3}
        monkeypatch.setattr(memory, "processors", lambda: 2.0)
        use_threads(threads_for(LARGE))
        assert numbers() == {2}
    assert numbers() == {3}


@pytest.mark.parametrize(
    ("number", "threads"), [("3", 3), ("3,2", 3), (" 3", 3), ("", 1), ("0", 1), ("many", 1)]
)
def test_what_a_person_set_stays_where_it_is_a_number(number, threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", number)
    with threads_kept():
        suit(Bundled())
        assert numbers() == {threads}


@pytest.mark.parametrize(("asked", "expected"), [(1, 1), (2, 2), (5, 5), (100, 8)])
def test_what_is_asked_for_goes_before_all_up_to_the_processors(asked, expected, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    model = Bundled()
    with threads_kept():
        suit(model, asked)
        assert numbers() == {expected}
        suit(Bundled())  # such as its random twin
        assert numbers() == {expected}
    assert numbers() == {3}
    with threads_kept():
        suit(model)
        assert numbers() == {3}


def seen_by(monkeypatch):
    """Return a list to which each run of the bundled model adds the numbers of threads."""
    seen = []

    def noting(name, owner):
        plain = getattr(owner, name)

        def run(*given, **more):
            seen.append(dict(HELD))
            return plain(*given, **more)

        monkeypatch.setattr(owner, name, run)

    for name in ("run_rows", "run_outputs", "reader"):
        noting(name, Bundled)
    noting("traced", NumpyStack)
    noting("__init__", GrowingRun)
    noting("forward", TorchDecoder)
    return seen


def all_had(seen, expected):
    """Return whether each run had so many threads; where tasks share them, a product has one."""
    return bool(seen) and all(
        one["torch"] == expected and one["blas"] in {1, expected} for one in seen
    )


CALLS = {
    "capture": lambda model: attnviz.capture(model, SENTENCE),
    "rollout": lambda model: attnviz.rollout(model, text=SENTENCE),
    "why": lambda model: attnviz.why(model, SENTENCE),
    "ablate": lambda model: attnviz.ablate(model, SENTENCE, head="L0H0"),
    "patch": lambda model: attnviz.patch(
        model, SENTENCE, OTHER, head="L0H0", answer=" a", foil=" on"
    ),
    "prune": lambda model: attnviz.prune(model, [SENTENCE, OTHER], heads="L0H0", draws=1),
}


@pytest.mark.parametrize(
    ("name", "by_name"), [(name, bool(at % 2)) for at, name in enumerate(CALLS)]
)
def test_functions_set_the_threads_and_give_them_back(name, by_name, monkeypatch):
    model = "tiny" if by_name else attnviz.load("tiny", threads=2)
    seen = seen_by(monkeypatch)
    CALLS[name](model)
    assert all_had(seen, 1 if by_name else 2)
    assert numbers() == {3}


@pytest.mark.parametrize("command", ["heads", "ablate"])
@pytest.mark.parametrize(("given", "expected"), [((), 1), (("--threads", "2"), 2)])
def test_the_command_line_asks_for_threads(command, given, expected, run, monkeypatch):
    seen = seen_by(monkeypatch)
    assert run(command, SENTENCE, *given, "--json").code == 0
    assert all_had(seen, expected)
    assert numbers() == {3}


def test_an_error_gives_the_threads_back():
    with pytest.raises(attnviz.errors.UsageError):
        attnviz.ablate("tiny", SENTENCE, head="L99H0")
    assert numbers() == {3}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, "PASSIVE 0"), ({"OMP_WAIT_POLICY": "ACTIVE", "KMP_BLOCKTIME": "9"}, "ACTIVE 9")],
)
@pytest.mark.parametrize("first", ["attnviz.cli.main", "attnviz.api.opening"])
def test_threads_wait_without_spinning_but_where_a_person_wants_it(environment, expected, first):
    names = ("OMP_WAIT_POLICY", "KMP_BLOCKTIME")
    told = (
        f"import {first}, os, sys; assert 'torch' not in sys.modules; "
        f"print(*map(os.environ.get, {names}))"
    )
    plain = {name: text for name, text in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", told],
        env=plain | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected
