"""A first file of rules from what a model does now, with margins from measured noise."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from attnviz.errors import UsageError
from attnviz.inspect.check.baseline import check_finite
from attnviz.inspect.check.measure import Measured
from attnviz.inspect.diff.compare import Divergences, noise_floor
from attnviz.models.other_numbers import in_other_numbers

_COUNTS = ("total", "kv_cache.bytes_per_token")
_FACTOR = 2.0
"""Margins over the noise of one rounded side, as ``diff.compare.noise_floor`` has it."""

_LEAST_SCORE, _LEAST_LOSS, _LEAST_JS = 0.005, 0.001, 1e-6
"""The least margins, where the model is already in numbers as coarse."""

_LEAST_ROW = 2.0**-8
"""What rounding each weight to bfloat16's eight bits can move the sum of a row."""


def baseline_path(path: Path) -> Path:
    """Where the baseline of a file of rules stands: ``checks.attnviz.json`` beside it."""
    return path.with_name(f"{path.stem}.attnviz.json")


def initial_rules(measured: Measured, path: Path, name: str) -> str:
    """The file's text. The model is not to be used afterwards, see ``in_other_numbers``.

    Raises UnsupportedError for a model that cannot be run in other numbers, UsageError for one
    whose attention is no number.
    """
    check_finite(measured.baseline)
    now, report, losses = measured.baseline, measured.patterns, _loss(measured)
    apart = max(each.apart for each in measured.built_in)
    counts = _counts(measured)
    other = in_other_numbers(measured.model)
    noise = measured.beside(other.model)
    moved = max(
        (change for change in now.score_change(noise.baseline).values() if math.isfinite(change)),
        default=0.0,
    )
    margin = max(_FACTOR * moved, _LEAST_SCORE)
    lines = [
        f"model = {_quoted(_model(name, path))}",
        "",
        "# Written by attnviz check --init from what the model does now. Margins are",
        "# twice the most that noise moved any head, measured in the same run: the",
        f"# model against itself {other.words}. For scores: {margin:.2g}.",
    ]
    if measured.model.info.weights == "random":
        lines += ["# Random weights: no head has a label."]
    for label in report.labels:
        heads = report.labelled(label)
        if not heads:
            continue
        best, least = heads[0], min(len(heads), len(noise.patterns.labelled(label)))
        floor = math.floor(((best.score or 0.0) - margin) * 1000) / 1000
        lines += _rule(f'head = "L{best.layer}H{best.head}"', f'score = "{label}"',
                       f"at_least = {floor:g}")  # fmt: skip
        lines += _rule(f'heads_labelled = "{label}"', f"at_least = {least}")
    js = now.js_divergence(noise.baseline).values()
    floor = _above(max(_js_floor([*js]), _LEAST_JS))
    bound = f'js_divergence = {{ at_most = {floor:g}, heads = "100%" }}'
    lines += _rule(f"against = {_quoted(baseline_path(path).name)}", bound)
    if losses is not None:
        coarse = _loss(noise)
        wider = max(_FACTOR * abs((coarse or losses) - losses), _LEAST_LOSS)
        at_most = math.ceil((losses + wider) * 10_000) / 10_000
        lines += _rule('loss_on = "built-in texts"', f"at_most = {at_most:g}")
    rows = max(_FACTOR * max(each.apart for each in noise.built_in), _FACTOR * apart, _LEAST_ROW)
    lines += _rule("rows_sum_to_one = true", f"at_most = {_above(rows):g}")
    for number, count in counts:
        value = f"{count:g}" if count != int(count) else str(int(count))
        lines += _rule(f'params = "{number}"', f"at_least = {value}", f"at_most = {value}")
    return "\n".join(lines) + "\n"


def _js_floor(js: list[float]) -> float:
    """The noise floor of ``diff`` over attention by distance."""
    apart, none = np.array([js]), np.full((1, len(js)), math.nan)
    return noise_floor(Divergences(apart, none, none)).js


def _above(value: float) -> float:
    """The next number of two digits."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / step) * step


def _loss(measured: Measured) -> float | None:
    """Nats per token over the built-in texts; None for a model that predicts none."""
    losses = [each.losses for each in measured.built_in if each.losses is not None]
    if len(losses) < len(measured.built_in):
        return None
    loss = float(np.concatenate(losses).mean())
    return loss if math.isfinite(loss) else None


def _counts(measured: Measured) -> list[tuple[str, float]]:
    """What ``params`` counts of the model, nothing of one that it cannot count."""
    try:
        return [(name, measured.params[name]) for name in _COUNTS if measured.params.get(name)]
    except UsageError:
        return []


def _rule(*lines: str) -> Iterator[str]:
    yield ""
    yield "[[check]]"
    yield from lines


def _model(name: str, path: Path) -> str:
    """A relative directory as it is found from the file's own."""
    if name[:1] != "." or not Path(name).is_dir():
        return name
    import os

    beside = os.path.relpath(name, path.parent)
    return f"./{Path(beside).as_posix()}" if beside[:1] != "." else beside


def _quoted(text: str) -> str:
    """A basic string of TOML, which has JSON's escapes but no halves of pairs."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
