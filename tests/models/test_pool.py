"""Tasks dealt out to threads: in order, in their context, BLAS on one thread, and no further."""

import os
import threading
import time

import numpy as np
import pytest

from attnviz.models import memory, threads
from attnviz.models.pool import in_turn, spread
from attnviz.models.threads import ask_for, threads_kept, use_threads, workers

HELD = {}


@pytest.fixture(autouse=True)
def four_processors(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)), raising=False)
    monkeypatch.setattr(memory, "processors", lambda: None)
    HELD.update(blas=4)
    functions = {"blas": (lambda: HELD["blas"], lambda number: HELD.update(blas=number))}
    monkeypatch.setattr(threads, "_libraries", lambda: functions)
    monkeypatch.setattr(threads, "_process", type(threads._process)())


def test_results_come_in_the_order_of_the_tasks():
    def slow_at_first(task):
        time.sleep(0.02 if task == 0 else 0)
        return task * task

    assert spread(slow_at_first, range(20)) == [task * task for task in range(20)]


def test_several_threads_work_and_blas_has_one():
    meeting = threading.Barrier(4, timeout=10)

    def meet(task):
        meeting.wait()  # nobody passes before four are here
        return threading.get_ident(), HELD["blas"]

    found = spread(meet, range(4))
    assert len({thread for thread, _ in found}) == 4
    assert {blas for _, blas in found} == {1}
    assert HELD["blas"] == 4


@pytest.mark.parametrize(
    ("quota", "asked", "expected"),
    [(None, "", 4), (1.2, "", 2), (0.3, "", 1), (64.0, "", 4), (None, "1", 1), (None, "3,2", 3),
     (None, "99", 4), (None, "no", 4)],
)  # fmt: skip
def test_no_more_threads_than_processors_quota_and_environment(quota, asked, expected, monkeypatch):
    monkeypatch.setattr(memory, "processors", lambda: quota)
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert workers() == expected


def test_what_the_user_asked_for_is_respected(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with threads_kept():
        ask_for(2)
        assert workers() == 2
    assert workers() == 1


def test_a_program_that_gave_numpy_fewer_threads_keeps_them():
    HELD["blas"] = 2
    with threads_kept():
        use_threads(1)  # of a small model, whose products run on one
        assert HELD["blas"] == 1
        assert workers() == 2
    assert HELD["blas"] == 2


def test_a_single_task_and_little_work_stay_where_they_are():
    assert spread(lambda task: threading.get_ident(), [0]) == [threading.get_ident()]
    here = threading.get_ident()
    assert set(spread(lambda task: threading.get_ident(), range(9), 1e6)) == {here}


def test_tasks_within_tasks_are_shared_by_the_same_threads():
    meeting = threading.Barrier(4, timeout=10)

    def inner(task):
        meeting.wait()
        return threading.get_ident()

    def outer(task):
        return spread(inner, range(4)) if task else []

    first, second = spread(outer, range(2))
    assert first == []
    assert len(set(second)) == 4  # two for the outer tasks, and two more


def test_many_tasks_within_tasks_end():
    def inner(task):
        return task

    def outer(task):
        return sum(spread(inner, range(task % 7)))

    for _ in range(20):
        assert spread(outer, range(50)) == [sum(range(task % 7)) for task in range(50)]


def test_an_error_within_a_task_is_that_of_the_task():
    def inner(task):
        return 1 // task

    def outer(task):
        return spread(inner, range(1 - task, 5))

    results = in_turn(outer, [0, 1, 0])
    assert next(results) == [1, 0, 0, 0]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_threads_have_the_callers_context():
    def overflow(task):
        return float(np.exp(np.float32(1000)))

    with np.errstate(over="ignore"):
        assert spread(overflow, range(8)) == [np.inf] * 8


def test_an_error_comes_in_its_turn_and_ends_the_others():
    begun = []

    def fail_at_two(task):
        begun.append(task)
        if task == 2:
            raise ValueError("two")
        time.sleep(0.005)
        return task

    results = in_turn(fail_at_two, range(1000))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="two"):
        next(results)
    assert len(begun) < 100
    assert HELD["blas"] == 4


def test_ctrl_c_ends_what_the_other_threads_do_between_inner_tasks():
    begun, steps = threading.Event(), []

    def interrupt_here():
        if threading.current_thread() is threading.main_thread():
            begun.wait(10)
            raise KeyboardInterrupt

    def step(number):
        interrupt_here()
        steps.append(number)
        begun.set()
        time.sleep(0.005)

    def long(task):
        interrupt_here()
        spread(step, range(10_000))

    with pytest.raises(KeyboardInterrupt):
        spread(long, range(4))
    assert len(steps) < 5000
    assert HELD["blas"] == 4
