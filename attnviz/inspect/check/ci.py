"""Output for CI: JUnit XML, annotations of GitHub Actions, and its step summary."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from attnviz.draw.document import Document
from attnviz.draw.files import whole_file
from attnviz.draw.labels import visible
from attnviz.draw.markdown import document_markdown
from attnviz.inspect.check.report import CheckReport, Outcome, printable
from attnviz.inspect.check.screen import brief


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
    return printable("; ".join(word for word in words if word))


def github_lines(report: CheckReport) -> Iterator[str]:
    """Yield GitHub's annotations of broken rules, with files named from the checkout's root."""
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


def add_summary(document: Document) -> None:
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
