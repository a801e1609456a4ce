"""The keys that ablate heads, and that rank them by what each ablation changes."""

from __future__ import annotations

from dataclasses import replace

from attnviz.engine.removals import Effects
from attnviz.inspect.explore.desk import Desk
from attnviz.inspect.explore.jobs import Waiting


class Ablating:
    """The key actions of explore that ablate heads; each public method is one action."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def ablate(self) -> None:
        if not self._desk.live("removes no heads") or not self._desk.whole("attnviz ablate"):
            return
        self._desk.see(self._desk.view.scene.toggled())
        self._scan()

    def restore(self) -> None:
        self._desk.see(replace(self._desk.view.scene, removed=frozenset()))

    def _scan(self) -> None:
        """Start measuring the effect of each single ablation, unless that was already started."""
        desk = self._desk
        if desk.view.effects is not None or desk.view.scanned is not None:
            return
        text = desk.view.frame.text

        def work(waiting: Waiting) -> Effects:
            told = 0

            def advance(share: float) -> None:
                nonlocal told
                if not waiting() or int(100 * share) > told:
                    told = int(100 * share)
                    waiting.tell(lambda: desk.show(scanned=share))

            return desk.source.session.effects(text, advance)

        desk.show(scanned=0.0)
        desk.jobs.later("scan", work, self._scanned)

    def _scanned(self, effects: Effects) -> None:
        self._desk.show(effects=effects, scanned=None)
        if self._desk.view.by_effect:
            self._desk.see(self._desk.view.scene.with_head(effects.ranking()[0]))

    def important(self, step: int) -> None:
        desk, effects = self._desk, self._desk.view.effects
        if effects is None:
            if desk.live("has no effects of removals") and desk.whole("attnviz ablate"):
                desk.show(by_effect=True)
                self._scan()
        elif desk.view.by_effect:
            desk.see(desk.view.scene.next_of(effects.ranking(), step))
        else:
            desk.show(by_effect=True)
            desk.see(desk.view.scene.with_head(effects.ranking()[0]))

    def by_effect(self) -> None:
        desk = self._desk
        if not desk.whole("attnviz ablate"):
            return
        if desk.view.effects is None and desk.live("has no effects of removals"):
            self._scan()
        desk.show(by_effect=not desk.view.by_effect)

    def stop(self) -> None:
        """Stop measuring the ablations, or leave the generated text or the window of a long one.

        This is the action of the key Esc.
        """
        if self._desk.jobs.drop("scan"):
            self._desk.show(scanned=None)
            self._desk.say("the scan was stopped; i starts it anew")
        elif self._desk.view.written is not None:
            self._desk.leave_written()
        else:
            self._desk.overview()
