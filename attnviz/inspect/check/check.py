"""``check``: from a file of rules to a report; the model is loaded only if a rule needs it.

With ``init`` the file and its baseline are written first, from what the model does now.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attnviz.draw.labels import visible
from attnviz.draw.whole_file import check_writable, whole_file
from attnviz.errors import UsageError
from attnviz.inspect.check.baseline import check_beside, check_renewable, write_baseline
from attnviz.inspect.check.ci import write_junit
from attnviz.inspect.check.initial import baseline_path, initial_rules
from attnviz.inspect.check.judge import outcome
from attnviz.inspect.check.measure import CheckedModel
from attnviz.inspect.check.records import CheckReport, RuleFile
from attnviz.inspect.check.request import CheckRequest
from attnviz.inspect.check.rules import read_rules
from attnviz.models.model import Model
from attnviz.progress import Advance

_LONG = 2_048
"""The tokens of a text from which a model runs in torch."""

BUILT_IN = "tiny"
"""The model to check if neither the file nor the person names one."""


def rules_of(file: Path, request: CheckRequest, written: Sequence[Path] = ()) -> RuleFile | None:
    """Return the rules that are to be checked; None if ``check`` is to write them (``--init``).

    file: of the rules. written: other files that this run will write, which are checked here too.
    Nothing is written yet, and no model is loaded. Raises UsageError or LoadError for a file that
    cannot be read, or that must not be written.
    """
    if request.init:
        _refuse_old(file, force=request.force)
        _keep_read([file, baseline_path(file)], written)
        return None
    rules = read_rules(file)
    _keep_read(rules.read, written)
    if request.update:
        if not rules.baselines:
            raise UsageError(f"{str(file)!r} names no baseline: there is nothing to update")
        for path in rules.baselines:
            check_renewable(path, file)
    return rules


def needs_model(rules: RuleFile | None) -> bool:
    """Return whether the whole model is needed, not only its config: for a rule, or to write rules.

    rules: the result of ``rules_of``.
    """
    return rules is None or not rules.of_config


def reckoned_length(rules: RuleFile | None, request: CheckRequest) -> int | None:
    """Return about how many tokens the model runs on; None if it must be torch.

    rules: the result of ``rules_of``. Torch reads a long text of a rule without whole maps.
    """
    from attnviz.inspect.patterns.probes import reckoned_probe_tokens
    from attnviz.models.resolve import reckoned_tokens

    longest = max(map(reckoned_tokens, () if rules is None else rules.texts), default=0)
    long = request.reduce == "fused" or longest >= _LONG
    return None if long else reckoned_probe_tokens(None, None)


def counted(name: str, loaded: Model | None = None, **loading: Any) -> Callable[[], dict[str, Any]]:
    """Return a function that counts a model's parameters and gives the JSON object of ``params``.

    name: of the model. loaded: the model itself, if it is loaded already.
    loading: ``revision`` and ``offline``, for a model that is given by name.
    """

    def count() -> dict[str, Any]:
        from attnviz.count.params.params import params
        from attnviz.count.params.request import NamedModel, ParamsRequest

        return params([NamedModel(name, loaded=loaded)], ParamsRequest(**loading)).facts()

    return count


def check(
    model: CheckedModel,
    file: Path,
    request: CheckRequest,
    rules: RuleFile | None,
    advance: Advance = lambda share: None,
) -> CheckReport:
    """Check a model by rules, or write the rules first; return the outcome of each rule.

    file: of the rules. rules: the result of ``rules_of``. advance: is called with the share (0 to
        1) of the probe texts that is done.
    Raises UsageError, which names the rule, for a head or a text that does not fit the model;
    LoadError for files that cannot be read or written. Rules that do not hold are no error: see
    ``CheckReport.passed``.
    """
    began = time.monotonic()
    model.advance, model.reduce = advance, request.reduce
    written: tuple[Path, ...] = ()
    if rules is None:
        written = _write(file, model)
        rules = read_rules(file)
    elif request.update:  # written below, once every rule could be judged
        model.baselines.update(dict.fromkeys(rules.baselines, model.baseline))
    outcomes = tuple(outcome(model, rule) for rule in rules.rules)
    if request.update:
        written = rules.baselines
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
    from attnviz.models.resolve import LoadOptions, load

    rules = rules_of(file, request, [] if junit is None else [junit])
    if model is None:
        model = (rules.model if rules is not None else None) or BUILT_IN
    loaded = None if isinstance(model, str) else model
    name = model if isinstance(model, str) else model.info.name
    options = LoadOptions(seed=seed, tokens=reckoned_length(rules, request))
    params = counted(name, loaded)
    checked = CheckedModel(name, lambda: loaded or load(name, options), params, seed)
    report = check(checked, file, request, rules)
    if junit is not None:
        write_junit(junit, report)
    return report


def _refuse_old(file: Path, *, force: bool) -> None:
    """Raise an error if ``--init`` would overwrite a file, or cannot write one.

    file: of the rules; its baseline is looked at too. force: whether overwriting is allowed.
    """
    check_writable(file, named=True)
    check_beside(baseline_path(file), file)
    for path in (file, baseline_path(file)):
        if path.exists() and not force:
            raise UsageError(f"{str(path)!r} is there: --force overwrites it")


def _keep_read(read: Sequence[Path], written: Sequence[Path]) -> None:
    """Raise UsageError if a file to be written is also to be read, or to be written twice."""
    taken = set(map(os.path.realpath, read))
    for path in written:
        if os.path.realpath(path) in taken:
            shown = visible(str(path))
            raise UsageError(f"{shown!r} is a file that is read, or written twice: name another")
        taken.add(os.path.realpath(path))


def _write(path: Path, model: CheckedModel) -> tuple[Path, ...]:
    text = initial_rules(model, path, model.name)
    write_baseline(baseline_path(path), model.baseline)
    with whole_file(path, named=True) as stream:
        stream.write(text.encode())
    return path, baseline_path(path)
