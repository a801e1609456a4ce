"""Scans and patches in NumPy give the same numbers, whoever and how many do the work."""

import os
import threading

import pytest

import attnviz
from attnviz.attention.growing import GrowingRun
from attnviz.models import memory

TEXTS = ["The cat sat on the mat.", "The dog ran to the old house.", "Once there was a small fox."]
LONG = " ".join(3 * TEXTS)
OTHER = LONG.replace("cat", "dog")
QUESTIONS = {
    "ablate": lambda: attnviz.ablate("tiny", TEXTS),
    "ablate one text": lambda: attnviz.ablate("tiny", LONG, mode="mean"),
    "patch": lambda: attnviz.patch("tiny", LONG, OTHER, what="value", answer=" a", foil=" on"),
    "prune": lambda: attnviz.prune("tiny", TEXTS, fraction=0.2, draws=2),
}


def without_seconds(found):
    return {name: value for name, value in found.items() if name != "seconds"}


@pytest.mark.parametrize(
    "name", ["ablate", *(pytest.param(name, marks=pytest.mark.long) for name in [*QUESTIONS][1:])]
)
def test_three_threads_give_what_one_gives(name, monkeypatch):
    monkeypatch.setattr(memory, "processors", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(3)), raising=False)
    begun = []
    plain = GrowingRun.ends

    def ends(run, *given, **more):
        begun.append(threading.get_ident())
        return plain(run, *given, **more)

    monkeypatch.setattr(GrowingRun, "ends", ends)
    found, threads = [], []
    for number in ("1", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", number)
        begun.clear()
        found.append(without_seconds(QUESTIONS[name]().to_dict()))
        threads.append(len(set(begun)))
    assert threads[0] == 1
    assert threads[1] > 1
    assert found[0] == found[1]
