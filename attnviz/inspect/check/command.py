"""``attnviz check``: rules in a file about what a model's heads do, as a gate for CI."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.errors import AttnvizError, CheckError, UsageError
from attnviz.inspect.check.options import CheckedModel, Junit, Rules

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from _typeshed import SupportsWrite

    from attnviz.cli.outlet import Outlet
    from attnviz.draw.document import Document
    from attnviz.inspect.check.measure import Measured
    from attnviz.inspect.check.records import CheckReport
    from attnviz.models.model import Model

EXAMPLES = """
[bold]Examples[/bold]

attnviz check checks.toml --init

attnviz check checks.toml

attnviz check checks.toml --model ./tuned --junit report.xml

attnviz check checks.toml --update
"""


@command(EXAMPLES)
def check(
    rules: Rules,
    model: CheckedModel,
    loading: shared.Loading,
    output: shared.Output,
    junit: Junit,
) -> None:
    """Hold a model against rules in a file: a gate for CI."""
    from attnviz.cli.outlet import open_outlet
    from attnviz.cli.progress import scanning
    from attnviz.draw.whole_file import check_writable
    from attnviz.inspect.check.baseline import check_renewable, write_baseline
    from attnviz.inspect.check.initial import baseline_path
    from attnviz.inspect.check.judge import outcome
    from attnviz.inspect.check.records import CheckReport
    from attnviz.inspect.check.rules import read_rules
    from attnviz.inspect.check.words import said

    began = time.monotonic()
    outlet = open_outlet(output)
    if junit.junit is not None:
        check_writable(junit.junit, named=True)
    if rules.init:
        _refuse_old(rules)
    checked = None if rules.init else read_rules(rules.file)
    read = checked.read if checked is not None else (rules.file, baseline_path(rules.file))
    _keep_read(read, [*output.save, *([junit.junit] if junit.junit else [])])
    if checked is not None and rules.update:
        if not checked.baselines:
            raise UsageError(f"{str(rules.file)!r} names no baseline: there is nothing to update")
        for path in checked.baselines:
            check_renewable(path, rules.file)
    name = model.model or (checked.model if checked is not None else None) or "tiny"
    measured = _measured(name, model.seed, loading, outlet)
    if checked is None or not checked.of_config:
        _ = measured.model
    written: tuple[Path, ...] = ()
    with scanning("scoring heads", outlet.notices) as measured.advance:
        if checked is None:
            written = _write(rules.file, name, measured)
            checked = read_rules(rules.file)
        elif rules.update:  # written below, once every rule could be judged
            measured.baselines.update(dict.fromkeys(checked.baselines, measured.baseline))
        outcomes = tuple(outcome(measured, rule) for rule in checked.rules)
    if rules.update:
        written = checked.baselines
        for path in written:
            write_baseline(path, measured.baseline)
    info = measured.model.info if measured.loaded else None
    report = CheckReport(
        name,
        info,
        checked.path,
        outcomes,
        time.monotonic() - began,
        () if info is None else tuple(info.notes),
        measured.sources,
    )
    told = [f"wrote {', '.join(said(str(path)) for path in written)}"] * bool(written)
    if outlet.console is None or output.whole:  # else the first screen says it, and stays
        for line in told:
            outlet.notices.print(line, soft_wrap=True)
        told = []
    hints = () if output.quiet else (*told, "--explain")
    _show(_Checked(report, output.explain, hints), outlet, junit.junit)


def _refuse_old(rules: Rules) -> None:
    """Raise where --init would overwrite, or cannot write."""
    from attnviz.draw.whole_file import check_writable
    from attnviz.inspect.check.baseline import check_beside
    from attnviz.inspect.check.initial import baseline_path

    check_writable(rules.file, named=True)
    check_beside(baseline_path(rules.file), rules.file)
    for path in (rules.file, baseline_path(rules.file)):
        if path.exists() and not rules.force:
            raise UsageError(f"{str(path)!r} is there: --force overwrites it")


def _keep_read(read: Sequence[Path], written: Sequence[Path]) -> None:
    """Raise UsageError where a file to be written is one that is read, or two are one."""
    from attnviz.draw.labels import visible

    taken = set(map(os.path.realpath, read))
    for path in written:
        if os.path.realpath(path) in taken:
            shown = visible(str(path))
            raise UsageError(f"{shown!r} is a file that is read, or written twice: name another")
        taken.add(os.path.realpath(path))


def _measured(name: str, seed: int, loading: shared.Loading, outlet: Outlet) -> Measured:
    """A model that is loaded when a rule needs it."""
    from attnviz.inspect.check.measure import Measured

    options = shared.load_options(name, loading, seed)

    def open_model() -> Model:
        from attnviz.cli import progress
        from attnviz.inspect.patterns.probes import reckoned_probe_tokens
        from attnviz.models.resolve import load

        tokens = reckoned_probe_tokens(None, None)
        with progress.loading(name, outlet.notices) as advance:
            return load(name, replace(options, progress=advance, tokens=tokens))

    def count() -> dict[str, Any]:
        from attnviz.count.params.cases import NamedModel, requested_cases
        from attnviz.count.params.data import params_data
        from attnviz.count.params.request import ParamsRequest

        request = ParamsRequest(revision=loading.revision, offline=loading.offline)
        return params_data(requested_cases([NamedModel(name)], request))

    return Measured(open_model, count, seed)


def _write(path: Path, name: str, measured: Measured) -> tuple[Path, ...]:
    """Write the rules and their baseline, both or nothing; their names."""
    from attnviz.draw.whole_file import whole_file
    from attnviz.inspect.check.baseline import write_baseline
    from attnviz.inspect.check.initial import baseline_path, initial_rules

    text = initial_rules(measured, path, name)
    write_baseline(baseline_path(path), measured.baseline)
    with whole_file(path, named=True) as stream:
        stream.write(text.encode())
    return path, baseline_path(path)


def _show(found: _Checked, outlet: Outlet, junit: Path | None) -> None:
    """Every outlet and what CI reads; where a rule fails the exit code of a CheckError.

    None is lost with another. Neither a file that cannot be written nor a reader who leaves
    makes a rule hold.
    """
    from attnviz.cli.terminal import discard_output
    from attnviz.inspect.check import ci
    from attnviz.inspect.check.words import finding, on_github

    lost: list[AttnvizError] = []
    try:
        if junit is not None:
            ci.write_junit(junit, found.report)
    except AttnvizError as error:
        lost.append(error)
    try:
        outlet.show(found)
    except AttnvizError as error:
        lost.append(error)
    except (BrokenPipeError, SystemExit):  # the latter is how rich tells of the former
        discard_output()
    if on_github():
        for line in ci.github_lines(found.report):
            print(line, file=sys.stderr)
        try:
            ci.add_summary(found.document())
        except OSError as error:  # beside the result: it decides nothing
            outlet.notices.print(f"no step summary: {error.strerror}", soft_wrap=True)
    told = "; ".join(map(str, lost))
    if not found.report.passed:
        if outlet.output.json or lost:
            raise CheckError("; ".join(filter(None, (finding(found.report), told))))
        raise typer.Exit(CheckError.exit_code)  # the screen has said it
    if lost:
        raise type(lost[0])(told)


@dataclass(frozen=True)
class _Checked:
    """What was found, for every outlet. explain: add a reading for newcomers."""

    report: CheckReport
    explain: bool
    hints: tuple[str, ...]

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.inspect.check.data import write_check_json

        write_check_json(self.report, stream)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.inspect.check.data import check_rows

        return check_rows(self.report)

    def document(self) -> Document:
        from attnviz.inspect.check.document import check_document

        return check_document(self.report, self.explain, self.hints)
