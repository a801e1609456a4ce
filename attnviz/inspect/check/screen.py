"""What people and CI read of ``attnviz check``: a line per rule, those that fail first.

For CI there are JUnit XML, annotations of GitHub Actions, and its step summary.
"""

from __future__ import annotations

import errno
import math
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from attnviz.draw import document as doc
from attnviz.draw.labels import cut, short_name, visible
from attnviz.draw.markdown import document_markdown
from attnviz.draw.numbers import counted
from attnviz.draw.provenance import model_words, notes_group
from attnviz.draw.theme import Tone
from attnviz.draw.whole_file import whole_file
from attnviz.inspect.check.report import Bounds, CheckReport, Outcome, said
from attnviz.records import Tokens

_TONES: dict[str, Tone] = {"✗": "bad", "!": "strong", "✓": "good"}
"""The signs of outcomes with their styles, in the order in which the rules are listed."""

_NAMED, _NAME = 2, 40  # how many rules the finding names, and the columns of a name
_LEAST_ROWS = 3
_LEAD = 9


def document(report: CheckReport) -> doc.Document:
    """Return the document of a check, with everything that it shows."""
    advice = [*([report.files_written] if report.written else []), "--explain"]
    about = [(said(report.name), True)] if report.info is None else model_words(report.info)
    named = [("rules", said(str(report.path))), *_sources(report)]
    facts = [doc.Facts([(words, False)], name, _LEAD) for name, words in named]
    wrong = (*report.failed, *report.warned)
    return doc.Document(
        name=f"rules about {report.name}",
        title=f"Rules about {report.name}",
        groups=[
            doc.Group([doc.Facts(about, "model", _LEAD), *facts]),
            notes_group(report.notes, Tokens((), (), ())),
            doc.Group([_rule_table(report)]),
            doc.Group([doc.Say(f"{own.rule.said}: {own.detail}") for own in wrong if own.detail]),
        ],
        explain=doc.Explanation("check", "each line is a rule of the file."),
        hints=doc.next_steps(advice, tone="faint"),
        heading=_heading(report),
        finding=finding(report),
        first=partial(_first, report),
    )


def _first(report: CheckReport, columns: int, lines: int) -> list[doc.Group]:
    shared = [(f"{name}: {words}", False) for name, words in _sources(report)]
    facts: list[doc.Part] = [doc.Facts(shared)] if shared else []
    return [doc.Group([*facts, _rule_table(report, _LEAST_ROWS)])]


def _rule_table(report: CheckReport, least: int = 0) -> doc.Table:
    """Return a table with a row for each rule; those that do not hold come first.

    Otherwise the order is that of the file. least: how many rows a first screen must show, in full;
    0 for the whole table.
    """
    order = [*_TONES]

    def measured_on(outcome: Outcome) -> str:
        detail = outcome.detail if least and not outcome.passed else ""
        return ", ".join(filter(None, (outcome.over, outcome.unit, detail)))

    return doc.table(
        sorted(report.outcomes, key=lambda outcome: order.index(_sign(outcome))),
        doc.ColumnOf("", _sign, right=False),
        doc.ColumnOf("rule", lambda outcome: outcome.rule.said, right=False, cuts=True),
        doc.ColumnOf("value", value_text),
        doc.ColumnOf("bound", lambda outcome: _bound_text(outcome.rule.bounds), right=False),
        doc.ColumnOf("measured on", measured_on, right=False, tone="faint", cuts=True),
        row=lambda outcome: {"tones": {0: _TONES[_sign(outcome)]}},
        lead=2,
        least=least,
    )


def _heading(report: CheckReport) -> list[tuple[str, bool]]:
    info = report.info
    facts = [
        info.revision[:12] if info is not None and info.revision is not None else None,
        "random weights" if info is not None and info.weights == "random" else None,
        said(report.path.name),
        counted(len(report.outcomes), "rule"),
    ]
    name = said(short_name(report.name))
    return [(name, True), *((fact, False) for fact in facts if fact is not None)]


def _sources(report: CheckReport) -> list[tuple[str, str]]:
    """Return (short name, explanation) of the texts that the rules were measured on."""
    used = {outcome.over.partition(",")[0] for outcome in report.outcomes}
    return [(name, words) for name, words in report.sources.items() if name in used]


def finding(report: CheckReport) -> str:
    """Return the finding: in one sentence whether the rules hold."""
    total, failed, warned = len(report.outcomes), report.failed, report.warned
    more = f" {counted(len(warned), 'warning')}: {_some(warned)}." if warned else ""
    if failed and total == 1:
        return f"The rule fails: {_some(failed)}."
    if failed:
        fail = "fails" if len(failed) == 1 else "fail"
        return f"{len(failed)} of {counted(total, 'rule')} {fail}: {_some(failed)}.{more}"
    holding = total - len(warned)
    if not holding:
        return f"No rule fails.{more}"
    every = "The rule holds" if holding == 1 else f"All {holding} rules hold"
    return f"{every}.{more}"


def _some(outcomes: Sequence[Outcome]) -> str:
    rest = len(outcomes) - _NAMED
    named = "; ".join(map(brief, outcomes[:_NAMED]))
    return f"{named}; and {rest} more" if rest > 0 else named


def brief(outcome: Outcome) -> str:
    """Return a rule's name, its value and its bounds as one string."""
    name = cut(outcome.rule.said, _NAME)
    return f"{name} {value_text(outcome)} (rule: {_bound_text(outcome.rule.bounds)})"


# The words of a rule --------------------------------------------------------------------------


def _sign(outcome: Outcome) -> str:
    """Return the sign of a rule's outcome: ✓ if it holds, ! for a warning, ✗ if it fails."""
    if outcome.passed:
        return "✓"
    return "!" if outcome.rule.warning else "✗"


def value_text(outcome: Outcome) -> str:
    """Return a value with at least three digits, and as many as tell it from its bound."""
    value, bounds = outcome.value, outcome.rule.bounds
    if not math.isfinite(value) or value == int(value):
        return _number_text(value)
    texts = (f"{value:#.{digits}g}".rstrip(".") for digits in (3, 4, 6, 9, 12))
    told = (
        text
        for text in texts
        if bounds.hold(float(text)) == outcome.passed and float(text) not in bounds.ends
    )
    return next(told, repr(value))


def _number_text(value: float) -> str:
    """Return a number as a string such as ``5,008,640``, ``0.6``; a dash if infinite or NaN."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if value == int(value) else f"{value:.12g}"


def _bound_text(bounds: Bounds) -> str:
    """Return bounds as a string such as ``≥ 0.6``, ``= 4`` or ``0.1 to 0.5``."""
    ends = [*map(_number_text, bounds.ends)]
    if len(ends) == 2:
        return f"= {ends[0]}" if bounds.at_least == bounds.at_most else " to ".join(ends)
    return f"{'≤' if bounds.at_least is None else '≥'} {ends[0]}"


# For CI --------------------------------------------------------------------------------------


def write_junit(path: Path, report: CheckReport) -> None:
    """Write JUnit XML with a test case for each rule; raise LoadError if that fails."""
    from xml.etree.ElementTree import Element, ElementTree, SubElement, indent  # for this alone

    total, failed = len(report.outcomes), len(report.failed)
    counts = {"tests": str(total), "failures": str(failed), "errors": "0"}
    suites = Element("testsuites", counts)
    told = {"name": f"attnviz check {visible(report.path.name)}", "time": f"{report.seconds:.3f}"}
    suite = SubElement(suites, "testsuite", {**told, **counts, "skipped": "0"})
    for outcome in report.outcomes:
        name = {"classname": "attnviz.check", "name": visible(outcome.rule.name)}
        case = SubElement(suite, "testcase", name)
        if outcome.passed or outcome.rule.warning:
            warning = "" if outcome.passed else "warning: "
            text = f"{warning}{brief(outcome)}; {_measured(outcome)}"
            SubElement(case, "system-out").text = text
        else:
            failure = {"message": brief(outcome), "type": outcome.rule.kind}
            SubElement(case, "failure", failure).text = _measured(outcome)
    indent(suites)
    with whole_file(path, named=True) as stream:
        ElementTree(suites).write(stream, encoding="utf-8", xml_declaration=True)


def _measured(outcome: Outcome) -> str:
    words = [f"measured on {outcome.measured_on}", outcome.detail]
    return said("; ".join(word for word in words if word))


def github_lines(report: CheckReport) -> Iterator[str]:
    """Yield GitHub Actions' commands that annotate a file, one for each rule that does not hold.

    Files are named from the root of the checkout, GITHUB_WORKSPACE, wherever attnviz runs.
    """
    path = report.path
    with suppress(OSError):  # the working directory is gone
        whole = Path(os.path.realpath(path))
        root = os.path.realpath(os.environ.get("GITHUB_WORKSPACE") or ".")
        path = whole.relative_to(root) if whole.is_relative_to(root) else path
    for outcome in (*report.failed, *report.warned):
        level = "warning" if outcome.rule.warning else "error"
        where = {"file": path.as_posix(), "title": outcome.rule.name}
        if outcome.rule.line:
            where["line"] = str(outcome.rule.line)
        given = (f"{key}={_escaped(visible(value), ':,')}" for key, value in where.items())
        yield f"::{level} {','.join(given)}::{_escaped(f'{brief(outcome)}; {_measured(outcome)}')}"


def _escaped(text: str, more: str = "") -> str:
    """Return the text with percent signs, line ends and ``more`` signs as GitHub escapes them."""
    return "".join(f"%{ord(sign):02X}" if sign in f"%\r\n{more}" else sign for sign in text)


def add_summary(document: doc.Document) -> None:
    """Append the document as Markdown to the step summary of GitHub Actions.

    Nothing is done outside of GitHub Actions. Raises OSError if the system refuses, and for a pipe,
    which would block until it is read.
    """
    named = os.environ.get("GITHUB_STEP_SUMMARY")
    if not named:
        return
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    flags |= getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(os.open(named, flags, 0o666), "wb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        text = "\n".join(document_markdown(document)) + "\n"
        stream.write(text.encode("utf-8", "backslashreplace"))
