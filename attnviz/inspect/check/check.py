"""``check``: from a file of rules to a report; the model is loaded only if a rule needs it.

With ``init`` the file and its baseline are written first, from what the model does now.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.files import check_writable, whole_file
from attnviz.draw.labels import visible
from attnviz.errors import UsageError
from attnviz.inspect.check.measure import (
    Baseline,
    CheckedModel,
    check_beside,
    check_finite,
    write_baseline,
)
from attnviz.inspect.check.report import CheckReport
from attnviz.inspect.check.request import CheckRequest
from attnviz.inspect.check.rules import RuleFile, outcome, read_rules
from attnviz.inspect.patterns.probes import probe_tokens
from attnviz.inspect.patterns.report import PatternReport, PatternScores
from attnviz.measures.divergence import js_divergence
from attnviz.measures.labels import best_label, clear_deviations, strengths
from attnviz.measures.registry import RELATIONS, label_named, said_name
from attnviz.models.model import Model, require_number
from attnviz.models.resolve import LoadOptions, in_other_numbers, load
from attnviz.models.work import Work, about_tokens
from attnviz.progress import UNWATCHED, Advance
from attnviz.reading import SETTINGS_BYTES, read_bytes

_LONG = 2_048  # tokens of a text from which torch runs the model
_OPENING = 200  # the first bytes of a baseline, damaged or not, which contain its schema
_BUILT_IN = "tiny"  # the model to check if neither the file nor the person names one


def rules_of(file: Path, request: CheckRequest, written: Sequence[Path] = ()) -> RuleFile | None:
    """Return the rules that are to be checked; None if ``check`` is to write them (``--init``).

    written: other files that this run will write, which are checked here too. Nothing is written
    yet, and no model is loaded. Raises UsageError or LoadError for a file that cannot be read, or
    that must not be written.
    """
    if request.init:
        baseline = baseline_path(file)
        check_writable(file, named=True)
        check_beside(baseline, file)
        for path in (file, baseline):
            if path.exists() and not request.force:
                raise UsageError(f"{str(path)!r} already exists: --force overwrites it")
        _keep_read([file, baseline], written)
        return None
    rules = read_rules(file)
    _keep_read(rules.read, written)
    if request.update:
        if not rules.baselines:
            raise UsageError(f"{str(file)!r} names no baseline: there is nothing to update")
        for path in rules.baselines:
            check_beside(path, file)
            content = read_bytes(path, most=SETTINGS_BYTES) if path.exists() else b""
            if content and b'"attnviz.baseline/' not in content[:_OPENING]:
                raise UsageError(
                    f"{visible(str(path))!r} is not a baseline: --update does not overwrite it; "
                    "name another file in the rule"
                )
    return rules


def _keep_read(read: Sequence[Path], written: Sequence[Path]) -> None:
    """Raise an error if a file to write is also read, is written twice, or cannot be written."""
    taken = set(map(os.path.realpath, read))
    for path in written:
        if os.path.realpath(path) in taken:
            raise UsageError(f"{str(path)!r} is a file that is read or written: name another")
        taken.add(os.path.realpath(path))
        check_writable(path, named=True)


def checked_model(
    model: str | Model | None,
    rules: RuleFile | None,
    seed: int,
    *,
    options: Callable[[str], LoadOptions],
    load: Callable[[str, LoadOptions], Model] = load,
) -> CheckedModel:
    """Return the model to be checked; it is loaded when a rule needs more than its config.

    model: its name, or the loaded model; None for the model that the file of rules names. options:
    returns the options for loading a model, given its name.
    """
    if model is None:
        model = (rules.model if rules is not None else None) or _BUILT_IN
    name, given = (model, None) if isinstance(model, str) else (model.info.name, model)
    long = any(about_tokens(text) >= _LONG for text in (() if rules is None else rules.texts))
    work = Work(None if long else probe_tokens(None, None))
    return CheckedModel(name, seed, replace(options(name), work=work), load, given)


def check(
    model: CheckedModel,
    file: Path,
    request: CheckRequest,
    rules: RuleFile | None,
    advance: Advance = UNWATCHED,
) -> CheckReport:
    """Check a model by rules, or write the rules first; return the outcome of each rule.

    advance: is called with the share (0 to 1) of the probe texts that is done.
    Raises UsageError, which names the rule, for a head or a text that does not fit the model;
    LoadError for files that cannot be read or written. Rules that do not hold are no error: see
    ``CheckReport.passed``.
    """
    began = time.monotonic()
    model.advance = advance
    written: tuple[Path, ...] = ()
    if rules is None:
        written = file, baseline_path(file)
        text = initial_rules(model, file, model.name)
        write_baseline(written[1], model.baseline)
        with whole_file(file, named=True) as stream:
            stream.write(text.encode())
        rules = read_rules(file)
    elif request.update:  # written below, once every rule could be judged
        written = rules.baselines
        model.baselines.update(dict.fromkeys(written, model.baseline))
    outcomes = tuple(outcome(model, rule) for rule in rules.rules)
    if request.update:
        for path in written:
            write_baseline(path, model.baseline)
    info = model.model.info if model.loaded else None
    return CheckReport(
        name=model.name,
        info=info,
        path=rules.path,
        outcomes=outcomes,
        seconds=time.monotonic() - began,
        notes=() if info is None else tuple(info.notes),
        sources=model.sources,
        written=written,
    )


_COUNTS = ("total", "kv_cache.values_per_token")  # they do not depend on the stored dtype
_FACTOR = 2.0  # over the noise of one rounded side: the other may be rounded the other way
_JS_FACTOR = 8.0
"""The same for divergences. Their root is a distance (Endres and Schindelin 2003), so that two
sides may differ by four times what either differs from the exact one. That in turn may be twice
what was measured in a single run (tests/benchmarks/bench_rounding.py)."""

# The least margins, for a model whose numbers are already as coarse as those of the noise; that of
# the sum of a row is how far rounding each weight to the eight bits of bfloat16 can move it.
_LEAST_SCORE, _LEAST_LOSS, _LEAST_JS, _LEAST_ROW = 0.005, 0.001, 1e-6, 2.0**-8


def baseline_path(path: Path) -> Path:
    """Return the path of a baseline for a file of rules: ``checks.attnviz.json`` next to it."""
    return path.with_name(f"{path.stem}.attnviz.json")


def initial_rules(measured: CheckedModel, path: Path, name: str) -> str:
    """Return the content of a new file of rules, with margins measured on this model.

    name: the model's, as it was typed. Do not use the model afterwards: its parameters were
    converted (see ``in_other_numbers``). Raises UnsupportedError for a model that cannot be run in
    another number format, LoadError or UsageError if its attention or its loss is not finite.
    """
    if name[:1] == "." and os.path.isdir(name):  # as seen from the file of rules
        beside = os.path.relpath(name, path.parent)
        name = f"./{Path(beside).as_posix()}" if beside[:1] != "." else beside
    check_finite(measured.baseline)
    now, report, losses = measured.baseline, measured.patterns, _losses(measured)
    apart = max(text.apart for text in measured.built_in)
    counts = {}
    with suppress(UsageError):  # a model that params cannot count gets no rules on counts
        counts = {name: measured.params[name] for name in _COUNTS if measured.params.get(name)}
    other = in_other_numbers(measured.model)
    noise = replace(measured, given=other.model, baselines={})
    check_finite(noise.baseline)
    margins = _margins(now, noise.baseline)
    lines = [
        f"model = {_quoted(name)}",
        "",
        "# Written by attnviz check --init from what the model does now. Margins are",
        "# twice the most that noise moved any head, measured in the same run: the",
        f"# model against itself {other.words}. For scores: {margins[False]:.2g},",
        f"# for relations, which move by whole pairs of words: {margins[True]:.2g}.",
        "# For divergences, which are squared errors, eight times that most.",
    ]
    if measured.model.info.weights == "random":
        lines += ["# Random weights: no head has a label."]

    def add(*rule: str) -> None:
        lines.extend(("", "[[check]]", *rule))

    for label in report.labels:
        heads = report.labelled(label)
        if not heads:
            continue
        best, least = heads[0], sum(_keeps_label(report, entry, margins) for entry in heads)
        floor = math.floor(((best.score or 0.0) - margins[label in RELATIONS]) * 1000) / 1000
        score = f'score = "{said_name(label)}"'
        add(f'head = "L{best.layer}H{best.head}"', score, f"at_least = {floor:g}")
        if least:
            add(f'heads_labelled = "{label_named(label).said}"', f"at_least = {least}")
    floor = _above(max(_JS_FACTOR * _js_noise(measured, noise), _LEAST_JS))
    bound = f'js_divergence = {{ at_most = {floor:g}, heads = "100%" }}'
    add(f"against = {_quoted(baseline_path(path).name)}", bound)
    if losses is not None:
        coarse = _losses(noise) or losses
        moves = [abs(b.mean() - a.mean()) for a, b in zip(losses, coarse, strict=True) if len(a)]
        wider = max(_FACTOR * max(moves), _LEAST_LOSS)
        at_most = math.ceil((np.concatenate(losses).mean() + wider) * 10_000) / 10_000
        add('loss_on = "built-in texts"', f"at_most = {at_most:g}")
    apart = max(apart, *(text.apart for text in noise.built_in))
    add("rows_sum_to_one = true", f"at_most = {_above(max(_FACTOR * apart, _LEAST_ROW)):g}")
    for number, count in counts.items():
        value = f"{count:g}" if count != int(count) else str(int(count))
        add(f'params = "{number}"', f"at_least = {value}", f"at_most = {value}")
    return "\n".join(lines) + "\n"


def _js_noise(measured: CheckedModel, noise: CheckedModel) -> float:
    """Return the largest mean divergence over texts, in bits, that noise causes in any head."""
    moved = [
        js_divergence(*(text.sums / text.sums.sum(-1, keepdims=True) for text in pair))
        for pair in zip(measured.built_in, noise.built_in, strict=True)
    ]
    queries = [text.sums.sum() for text in measured.built_in]
    return float(np.average(moved, axis=0, weights=queries).max())


def _above(value: float) -> float:
    """Return a value rounded up to two significant digits."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / step) * step


def _margins(now: Baseline, noise: Baseline) -> dict[bool, float]:
    """Return twice the largest change of a score by noise, by whether it is of a relation."""
    moved = {True: [_LEAST_SCORE], False: [_LEAST_SCORE]}
    for head, scores in now.scores.items():
        for name, score in scores.items():
            other = noise.scores[head][name]
            if score is not None and other is not None:
                moved[name in RELATIONS].append(_FACTOR * abs(score - other))
    return {relation: max(changes) for relation, changes in moved.items()}


def _keeps_label(report: PatternReport, head: PatternScores, margins: Mapping[bool, float]) -> bool:
    """Return whether a head keeps its label if noise lowers its score and raises all others."""
    scores = {
        name: None
        if score is None
        else score + margins[name in RELATIONS] * (-1 if name == head.label else 1)
        for name, score in head.scores.items()
    }
    relations = sum(name in RELATIONS for name in report.labels)
    return head.label == best_label(
        strengths(report.labels, scores, head.base_rate),
        scores,
        head.base_rate,
        head.measured,
        deviations=clear_deviations(len(report.heads) * relations),
    )


def _losses(measured: CheckedModel) -> list[NDArray[np.float64]] | None:
    """Return the finite losses of each built-in text, in nats; None without predicted tokens."""
    losses = [text.losses for text in measured.built_in if text.losses is not None]
    if len(losses) < len(measured.built_in):
        return None
    every = float(np.concatenate(losses).sum())
    require_number("loss over the built-in texts", every, measured.model.info)
    return losses


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
