"""The document of ``attnviz verify``: the steps if requested, and every check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted
from attnviz.draw.provenance import model_words
from attnviz.draw.theme import Tone
from attnviz.learn.verify.records import MOST, Check, ComputationStep, Matrix, Verdict, VerifyReport
from attnviz.learn.verify.words import (
    difference,
    explanation,
    severity,
    tolerance_words,
    verdict_words,
    worst_words,
)

_OWN_NAME = "the library's own attention"
_DECIMALS = 3
_TONES: dict[Verdict, Tone] = {"pass": "good", "fail": "bad", "skipped": "skipped"}
_SHORT = {
    "torch.nn.MultiheadAttention": "nn.MultiheadAttention",
    "F.scaled_dot_product_attention": "torch SDPA",
}
_ROOMY, _TALL = 110, 40
"""Least number of columns for the axes of the steps, and of lines for a model's numbers."""


def verification_document(report: VerifyReport) -> doc.Document:
    """Return the document: the verdict, the computation steps, every check, the tolerances."""
    about = _OWN_NAME if report.model is None else report.model.name
    heading = _heading(report)
    notes = () if report.model is None else report.model.notes
    groups = [doc.Group(_about(report)), doc.Group([doc.Note(note) for note in notes])]
    if report.steps:
        groups.append(_steps(report))
    if report.model is None:
        groups += [doc.Group([table]) for table in (_summary(report), *_comparisons(report))]
    else:
        groups.append(doc.Group([_properties(report.checks)]))
    groups.append(doc.Group([doc.Note(tolerance_words(report))]))
    verdict = verdict_words(report)
    return doc.Document(
        f"verification of {about}",
        f"{about}: {verdict}",
        groups,
        explanation(report),
        doc.next_steps(_hints(report)),
        heading=heading,
        quoted=report.text or "",
        finding=f"{verdict}{worst_words(report)}.",
        first=lambda columns, lines: _first(report, columns, lines),
    )


def _hints(report: VerifyReport) -> list[str]:
    """Return commands to try next."""
    further = ["--explain: how to read this"]
    if report.model is not None:
        return further
    if report.steps:
        return ["--seed 1: other numbers", *further]
    return [
        "--steps: follow it on paper",
        "--model tiny: check a model",
        "--dtype float64: higher precision",
        *further,
    ]


def _heading(report: VerifyReport) -> doc.Words:
    if report.model is None:
        return [(_OWN_NAME, True), *((fact, False) for fact in _own_facts(report)[:3])]
    words = model_words(report.model)
    tokens = " and ".join(f"{count} tokens" for count in report.tokens)
    return [words[0], words[-1], (report.dtype, False), (tokens, False)]


# The first screen ----------------------------------------------------------------------------


def _first(report: VerifyReport, columns: int, lines: int) -> list[doc.Group]:
    """Return the first screen: a summary with failures first, then details if they fit."""
    if report.steps:
        return [doc.Group([_step_table(report, columns)]), *_worked_head(report)]
    rows = _summary(report)
    shown = [doc.Group([rows._replace(least=3 * (len(rows.rows) + 2 > lines))])]
    if report.model is None:
        tables = enumerate(_comparisons(report), 1)
        return shown + [doc.Group([table], yields=place) for place, table in tables]
    return [*shown, *([doc.Group([_properties(report.checks)], yields=1)] if lines > _TALL else [])]


def _summary(report: VerifyReport) -> doc.Table:
    """Return a table with a row for each case, or each property of a model, and its worst error."""
    rows = []
    for name, words, checks in _by_group(report):
        measures = [measure for check in checks for measure in check.measures]
        verdict = _of_all(checks)
        cells = [verdict.word, name, words, "", "", ""]
        if measures:
            worst = max(measures, key=severity)
            numbers = difference(worst.difference), difference(worst.tolerance.value)
            cells[3:] = [*numbers, str(len(measures))]
        tone = _TONES[verdict.verdict]
        tones: dict[int, Tone] = {0: tone} | ({3: tone} if verdict.verdict == "fail" else {})
        rows.append((verdict.verdict != "fail", doc.Row(cells, tones=tones)))
    own = report.model is None
    columns = [
        doc.Column("", right=False),
        doc.Column("case" if own else "property", right=False),
        doc.Column("what is compared" if own else "claim", right=False, tone="faint", keep=1),
        doc.Column("worst error"),
        doc.Column("allowed"),
        doc.Column("n"),
    ]
    return doc.Table(columns, [row for _, row in sorted(rows, key=lambda entry: entry[0])])


def _by_group(report: VerifyReport) -> Iterator[tuple[str, str, Sequence[Check]]]:
    """Yield the name of each group of checks, its description, and its checks."""
    if report.model is not None:
        for check in report.checks:
            yield check.name, check.skipped or check.claim, [check]
        return
    for name in dict.fromkeys(check.group for check in report.checks):
        checks = [check for check in report.checks if check.group == name]
        if name:
            yield name, report.cases.get(name, ""), checks
    for check in report.checks:
        if not check.group:
            yield check.name.split(".")[0], check.skipped or "", [check]


def _of_all(checks: Sequence[Check]) -> Check:
    """Return one check for a group: a failed one if any, else a passed, else a skipped one."""
    order: tuple[Verdict, ...] = ("fail", "pass", "skipped")
    return min(checks, key=lambda check: order.index(check.verdict))


def _about(report: VerifyReport) -> list[doc.Part]:
    """Return the facts that a reader needs to repeat the run."""
    if report.model is None:
        return [doc.Facts([(_OWN_NAME, True), *((fact, False) for fact in _own_facts(report))])]
    counts = " and ".join(f"{count} tokens" for count in report.tokens)
    seed = [] if report.model.seed is None else [(f"seed {report.model.seed}", False)]
    parts: list[doc.Part] = [doc.Facts([*model_words(report.model), (counts, False), *seed])]
    read = (("text", report.text), ("target", report.target))
    return parts + [doc.Quote(name, content) for name, content in read if content is not None]


def _own_facts(report: VerifyReport) -> list[str]:
    """Return the sizes of the library's own attention and the versions of the libraries used."""
    sizes = report.sizes
    assert sizes is not None
    texts = f"{counted(sizes.batch, 'text')} of {sizes.tokens} tokens"
    heads = f"{counted(sizes.heads, 'head')} of {sizes.head_dim}"
    made_with = [f"{name} {version}" for name, version in report.versions.items()]
    return [
        report.dtype,
        f"d_model {sizes.d_model}",
        heads,
        texts,
        f"seed {sizes.seed}",
        *made_with,
    ]


# Checks --------------------------------------------------------------------------------------


def _comparisons(report: VerifyReport) -> Iterator[doc.Table]:
    """Yield two tables of compared outputs and attention weights.

    They have a row for each pair of implementations, and a column for each case.
    """
    compared = [one for one in report.checks if one.group not in ("", one.name)]  # not the steps
    cases = list(dict.fromkeys(check.group for check in compared))
    pairs: dict[tuple[str, str], dict[str, Check]] = {}
    for check in compared:
        if check.measures:
            against = "Keras" if check.against.startswith("keras.") else check.against
            pairs.setdefault((check.name, _SHORT.get(against, against)), {})[check.group] = check
    for name in ("outputs", "weights"):
        rows, most = [], {}
        for (ours, against), checks in pairs.items():
            cells, tones = ["PASS", ours, against, *[""] * len(cases)], {0: _TONES["pass"]}
            for place, case in enumerate(cases, 3):
                measures = checks[case].measures if case in checks else ()
                for one in (measure for measure in measures if measure.name == name):
                    most[case] = difference(one.tolerance.value)
                    cells[place] = difference(one.difference)
                    if not one.passed:
                        cells[0], tones[0], tones[place] = "FAIL", _TONES["fail"], _TONES["fail"]
            if any(cells[3:]):
                rows.append(doc.Row(cells, tones=tones))
        allowed = doc.Row(["", "", "allowed", *(most.get(case, "") for case in cases)])
        columns = [doc.Column(title, right=False) for title in ("", "ours", "against")]
        columns += map(doc.Column, cases)
        title = [(name.capitalize(), True), ("largest difference", False)]
        yield doc.Table(columns, [allowed._replace(tone="faint"), *rows], title, lead=3)


def _properties(checks: Sequence[Check]) -> doc.Table:
    """Return a table of checks: a heading for each, and a row for each measure and tolerance."""
    rows = []
    for check in checks:
        why = check.claim if check.skipped is None else check.skipped
        heading = doc.Row(
            [check.word, check.name, "", "", "", why],
            tones={0: _TONES[check.verdict], 1: "strong", 5: "plain"},
            spaced=True,
        )
        rows.append(heading)
        said = ""
        for measure in check.measures:
            sign = "≤" if measure.passed else ">"
            number, most = difference(measure.difference), difference(measure.tolerance.value)
            words = measure.words if measure.words != said else ""
            said = measure.words
            cells = ["", measure.name, number, f"{sign} {most}", measure.where, words]
            rows.append(doc.Row(cells, tones={} if measure.passed else {2: _TONES["fail"]}))
        if check.notes:
            rows[-1] = rows[-1]._replace(below=check.notes)
    columns = [
        doc.Column("", right=False),
        doc.Column("property", right=False),
        doc.Column("error"),
        doc.Column("allowed", right=False),
        doc.Column("where", right=False),
        doc.Column("why", right=False, tone="faint", wraps=True),
    ]
    return doc.Table(columns, rows)


# Steps ---------------------------------------------------------------------------------------


def _steps(report: VerifyReport) -> doc.Group:
    """Return the computation steps in order with shapes, and with numbers if they are few."""
    numbers = report.numbers_shown
    remark = (
        f"decimals are rounded to {_DECIMALS}: on paper the last one may differ by one or two"
        if numbers
        else f"numbers are shown up to {MOST} tokens and a d_model of {MOST}"
    )
    steps = [doc.Group([*_step(n, step, numbers)]) for n, step in enumerate(report.steps, 1)]
    hidden = "later tokens are masked" if report.causal else "no token is masked"
    title = doc.Facts([(f"Step by step: one text, {hidden}", True)])
    return doc.Group(
        [title, doc.Group(steps, spaced=numbers), doc.Facts([(remark, "faint")])], spaced=True
    )


def _step(place: int, step: ComputationStep, numbers: bool) -> Iterator[doc.Part]:
    words = [text for text in (step.formula, _axes(step), step.note) if text]
    yield doc.Facts([(f"{place:>2} {step.name}", True), *((text, False) for text in words)])
    if numbers and step.found[0].values.ndim == 2:
        yield _matrices([*step.given, *step.found])
    elif numbers:
        for one in step.found:
            by_head = enumerate(one.values)
            yield _matrices([Matrix(f"{one.symbol} head {n}", values) for n, values in by_head])


def _axes(step: ComputationStep) -> str:
    """Return the names and lengths of a result's axes; of several arrays, those of the last."""
    names = " × ".join(f"({name})" if "×" in name else name for name in step.axes)
    return f"{names}: {' × '.join(map(str, step.found[-1].shape))}"


def _step_table(report: VerifyReport, columns: int) -> doc.Table:
    """Return a table of the computation steps: shape, formula and, if they fit, axes."""
    titles = ["step", "shape", "computes", *(["axes"] if columns >= _ROOMY else [])]
    rows = []
    for place, step in enumerate(report.steps, 1):
        axes, _, shape = _axes(step).partition(": ")
        cells = [f"{place:>2} {step.name}", shape, step.formula, axes]
        rows.append(doc.Row(cells[: len(titles)]))
    return doc.Table([doc.Column(title, right=False) for title in titles], rows)


def _worked_head(report: VerifyReport) -> list[doc.Group]:
    """Return the numbers of the first head: its attention scores, its weights and its output."""
    if not report.numbers_shown:
        return []
    chosen = [step.found[0] for step in report.steps if step.name in ("scores", "weights", "mixed")]
    first = [Matrix(one.symbol, one.values[0]) for one in chosen]
    return [doc.Group([_matrices(first)._replace(title=[("Head 0", True)])], yields=1)]


def _matrices(matrices: Sequence[Matrix]) -> doc.Table:
    """Return a table of matrices side by side, each after a column with its name."""
    parts = [(one.symbol, _texts(one.values)) for one in matrices]
    rows = []
    for place in range(max(len(lines) for _, lines in parts)):
        cells: list[str] = []
        for name, lines in parts:
            shown = lines[place] if place < len(lines) else [""] * len(lines[0])
            cells += ["" if place else name, *shown]
        rows.append(doc.Row(cells))
    columns = []
    for one in matrices:
        columns += [doc.Column("", right=False, tone="faint"), *[doc.Column("")] * one.shape[1]]
    return doc.Table(columns, rows)


def _texts(values: NDArray[np.floating]) -> list[list[str]]:
    """Return a matrix as rows of strings: whole numbers without decimals, others with three."""
    finite = values[np.isfinite(values)]
    decimals = 0 if (finite == np.round(finite)).all() else _DECIMALS
    return [[_number(float(value), decimals) for value in row] for row in values]


def _number(value: float, decimals: int) -> str:
    if value == float("-inf"):
        return "−∞"
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text
