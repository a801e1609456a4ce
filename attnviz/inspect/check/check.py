"""``check``: from a file of rules to a report; the model is loaded only if a rule needs it.

With ``init`` the file and its baseline are written first, from what the model does now.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from attnviz.draw.whole_file import check_writable, whole_file
from attnviz.errors import UsageError
from attnviz.inspect.check.baseline import check_beside, check_renewable, write_baseline
from attnviz.inspect.check.ci import write_junit
from attnviz.inspect.check.initial import baseline_path, initial_rules
from attnviz.inspect.check.measure import CheckedModel
from attnviz.inspect.check.report import CheckReport
from attnviz.inspect.check.request import CheckRequest
from attnviz.inspect.check.rules import RuleFile, outcome, read_rules
from attnviz.inspect.patterns.probes import probe_tokens
from attnviz.models.model import Model
from attnviz.models.resolve import LoadOptions, load
from attnviz.models.work import Work, about_tokens
from attnviz.progress import UNWATCHED, Advance

_LONG = 2_048  # tokens of a text from which torch runs the model
_BUILT_IN = "tiny"  # the model to check if neither the file nor the person names one


def rules_of(file: Path, request: CheckRequest, written: Sequence[Path] = ()) -> RuleFile | None:
    """Return the rules that are to be checked; None if ``check`` is to write them (``--init``).

    file: of the rules. written: other files that this run will write, which are checked here too.
    Nothing is written yet, and no model is loaded. Raises UsageError or LoadError for a file that
    cannot be read, or that must not be written.
    """
    if request.init:
        baseline = baseline_path(file)
        check_writable(file, named=True)
        check_beside(baseline, file)
        for path in (file, baseline):
            if path.exists() and not request.force:
                raise UsageError(f"{str(path)!r} is there: --force overwrites it")
        _keep_read([file, baseline], written)
        return None
    rules = read_rules(file)
    _keep_read(rules.read, written)
    if request.update:
        if not rules.baselines:
            raise UsageError(f"{str(file)!r} names no baseline: there is nothing to update")
        for path in rules.baselines:
            check_renewable(path, file)
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

    model: its name, or the loaded model; None for the model that the file of rules names. rules:
    the result of ``rules_of``. seed: of the random tokens. options: returns the options for loading
    a model, given its name. load: loads it.
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

    model: as ``checked_model`` returns it. file: of the rules. rules: the result of ``rules_of``.
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


def check_file(
    model: str | Model | None, file: Path, request: CheckRequest, *, junit: Path | None, seed: int
) -> CheckReport:
    """Check a model, given by its name or loaded, by the rules in a file.

    model: None for the one that the file names. file: of the rules. junit: a file to be written as
    JUnit XML, if any. seed: of the random tokens. Raises what ``check`` raises.
    """
    rules = rules_of(file, request, [] if junit is None else [junit])
    options = LoadOptions(seed=seed)
    checked = checked_model(model, rules, seed, options=lambda name: options)
    report = check(checked, file, request, rules)
    if junit is not None:
        write_junit(junit, report)
    return report
