"""The keys of a text that the model writes on: begin, pause, step, sample in another way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from attnviz.engine.generation import Sampling, Step
from attnviz.inspect.explore.desk import Desk
from attnviz.inspect.explore.jobs import Waiting
from attnviz.inspect.explore.view import Written


class Writing:
    """The key actions of explore for a generated text: begin, pause, step, change the sampling.

    Each public method is one action. tokens: how many tokens are generated at a time.
    pace: the least seconds from one generated token to the next, so that a person can follow.
    """

    tokens = 40
    pace = 0.08

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._going = threading.Event()

    def generate(self) -> None:
        if not self._desk.whole("attnviz generate"):
            return
        if self._desk.view.written is None:
            self._write(self._desk.source.session.sampling or Sampling(tokens=self.tokens))
        else:
            self._desk.leave_written()

    def _write(self, sampling: Sampling) -> None:
        """Start a job in which the model continues the text, from its first new token on."""
        desk = self._desk
        text, removed = desk.view.frame.text, desk.view.scene.removed
        self._going.set()
        desk.jobs.drop("mode")
        scene = replace(desk.view.scene, mode="raw", side="a")
        desk.put(replace(desk.view, scene=scene, written=Written(sampling)).fitted())

        def work(waiting: Waiting) -> None:
            began = time.monotonic()
            for step in desk.source.session.generation(text, sampling, removed):
                time.sleep(max(self.pace - (time.monotonic() - began), 0))
                while not self._going.wait(0.05) and waiting():
                    pass
                waiting.tell(partial(self._stepped, step))
                began = time.monotonic()

        desk.jobs.later("write", work, lambda _: self._change(running=False))

    def _stepped(self, step: Step) -> None:
        written = self._desk.view.written
        if written is not None:
            steps = (*written.steps, step)
            last = written.at == len(written.steps)
            self._change(steps=steps, at=len(steps) if last else written.at)

    def _change(self, **changed: Any) -> None:
        """Change fields of the screen's ``Written``, and move the cursor to the newest token."""
        view = self._desk.view
        if view.written is not None:
            self._desk.put(view.with_written(replace(view.written, **changed)))

    def pause(self) -> None:
        written = self._desk.view.written
        if written is not None and written.running:
            (self._going.clear if self._going.is_set() else self._going.set)()
            self._change(paused=not self._going.is_set(), at=len(written.steps))

    def walk(self, step: int) -> None:
        """Show one more generated token (step is 1), or one less (−1)."""
        written = self._desk.view.written
        if written is None:
            return
        self._going.clear()
        at = min(max(written.at + step, 0), len(written.steps))
        self._change(at=at, paused=True)

    def temperature(self, change: float) -> None:
        self._resample(
            lambda old: replace(old, temperature=max(round(old.temperature + change, 2), 0.0))
        )

    def reseed(self) -> None:
        written = self._desk.view.written
        if written is not None and not written.sampling.temperature:
            self._desk.say("greedy: a seed changes nothing, t makes it warmer")
            return
        self._resample(lambda old: replace(old, seed=old.seed + 1))

    def _resample(self, changed: Callable[[Sampling], Sampling]) -> None:
        written = self._desk.view.written
        if written is None:
            self._desk.say("g lets the model write; then t, T and r change how")
        elif self._desk.live("is written already"):
            self._write(changed(written.sampling))
