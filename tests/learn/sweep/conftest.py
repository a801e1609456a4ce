"""A sweep of made-up numbers, round ones that a reader can check on the screen."""

from dataclasses import replace

from attnviz.learn.sweep.report import PatternScore, Reference, SweepModel, SweepReport, SweepTask
from attnviz.learn.train.report import CurvePoint

LOSSES = {
    1: (0.5, 0.75, 0.625),
    2: (0.25, 0.0, 0.125),
    4: (0.0625, 0.0, 0.125),
    8: (0.25, 0.125, 0.375),
}


def _model(heads, seed, loss):
    points = [
        CurvePoint(step, step * 64, step / 100, 0.01, 2.0 / (1 + step / 20 / (loss + 0.125)))
        for step in (1, 20, 40, 60, 80, 100)
    ]
    wide = heads > 1
    patterns = (
        PatternScore("back_2", "2 tokens back", 0, 0, 0.9 if wide else 0.5, 0.07),
        PatternScore("back_3", "3 tokens back", 0, int(wide), 0.8 if wide else 0.4, 0.06),
        PatternScore("induction", "what followed before", 1, heads - 1, 1 - loss, 0.06),
    )
    return SweepModel(heads, seed, 15136, tuple(points), loss, 1 - loss / 2, heads / 250, patterns)


def sweeps(losses=LOSSES, **changes):
    seeds = max(map(len, losses.values()))
    report = SweepReport(
        task=SweepTask(
            "induction",
            "repeat what followed this letter before: 3 strands of 9 letters take turns",
            10,
            42,
            Reference("chance: 9 letters", 2.1972, 1 / 9),
            Reference("best possible", 0.0, 1.0),
            (Reference("a letter of its strand", 1.34, 0.27),),
        ),
        heads=tuple(losses),
        seeds=tuple(range(seeds)),
        layers=2,
        d_model=32,
        steps=100,
        batch=32,
        learning_rate=0.01,
        held_out=512,
        predictions=13824,
        device="cpu",
        threads=1,
        models=tuple(
            _model(heads, seed, losses[heads][seed])
            for seed in range(seeds)
            for heads in losses
            if seed < len(losses[heads])
        ),
        seconds=12.0,
    )
    return replace(report, **changes)
