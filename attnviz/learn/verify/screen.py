"""The screen of ``attnviz verify``: the steps if requested, and every check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted
from attnviz.draw.provenance import model_words
from attnviz.draw.theme import Tone
from attnviz.learn.verify.report import (
    MOST,
    Check,
    ComparedNumber,
    ComputationStep,
    Verdict,
    VerifyReport,
    difference,
)

_OWN_NAME = "the library's own attention"
_DECIMALS = 3
_TONES: dict[Verdict, Tone] = {"pass": "good", "fail": "bad", "skipped": "skipped"}
_SHORT = {
    "torch.nn.MultiheadAttention": "nn.MultiheadAttention",
    "F.scaled_dot_product_attention": "torch SDPA",
    "keras.layers.MultiHeadAttention": "Keras",
    "keras.layers.GroupQueryAttention": "Keras",
}
_ROOMY, _TALL = 110, 40
"""Least number of columns for the axes of the steps, and of lines for a model's numbers."""


def document(report: VerifyReport) -> doc.Document:
    """Return the document: the verdict, the computation steps, every check, the tolerances."""
    about = _OWN_NAME if report.model is None else report.model.name
    notes = () if report.model is None else report.model.notes
    groups = [doc.Group(_about(report)), doc.Group([doc.Note(note) for note in notes])]
    if report.steps:
        groups.append(_steps(report))
    if report.model is None:
        groups += [doc.Group([table]) for table in (_summary(report), *_comparisons(report))]
    else:
        groups.append(doc.Group([_properties(report.checks)]))
    groups.append(doc.Group([doc.Note(_tolerance_words(report))]))
    verdict = _verdict_words(report)
    measured = "each line is a property that must hold for this model, measured on this text."
    if report.model is None:
        measured = (
            "each line compares this library's attention with another's, on the same numbers."
        )
    return doc.Document(
        f"verification of {about}",
        f"{about}: {verdict}",
        groups,
        doc.Explanation("verify", measured),
        doc.next_steps(_hints(report)),
        heading=_heading(report),
        quoted=report.text or "",
        finding=f"{verdict}{_worst_words(report)}.",
        first=lambda columns, lines: _first(report, columns, lines),
    )


def _hints(report: VerifyReport) -> list[str]:
    """Return commands to try next."""
    hints = ["--steps: follow it on paper", "--model tiny: check a model"]
    hints.append("--dtype float64: higher precision")
    if report.steps:
        hints = ["--seed 1: other numbers"]
    return [*(hints if report.model is None else []), "--explain: how to read this"]


def _heading(report: VerifyReport) -> doc.Words:
    if report.model is None:
        return _own_facts(report)[:4]
    words = model_words(report.model)
    tokens = " and ".join(f"{count} tokens" for count in report.tokens)
    return [words[0], words[-1], (report.dtype, False), (tokens, False)]


def _about(report: VerifyReport) -> list[doc.Part]:
    """Return the facts that a reader needs to repeat the run."""
    if report.model is None:
        return [doc.Facts(_own_facts(report))]
    counts = " and ".join(f"{count} tokens" for count in report.tokens)
    seed = [] if report.model.seed is None else [(f"seed {report.model.seed}", False)]
    read = (("text", report.text), ("target", report.target))
    return [
        doc.Facts([*model_words(report.model), (counts, False), *seed]),
        *(doc.Quote(name, content) for name, content in read if content is not None),
    ]


def _own_facts(report: VerifyReport) -> doc.Words:
    """Return the sizes of the library's own attention and the versions of the libraries used."""
    sizes = report.sizes
    assert sizes is not None
    facts = [
        report.dtype,
        f"d_model {sizes.d_model}",
        f"{counted(sizes.heads, 'head')} of {sizes.head_dim}",
        f"{counted(sizes.batch, 'text')} of {sizes.tokens} tokens",
        f"seed {sizes.seed}",
        *(f"{name} {version}" for name, version in report.versions.items()),
    ]
    return [(_OWN_NAME, True), *((fact, False) for fact in facts)]


def _verdict_words(report: VerifyReport) -> str:
    """Return a string with the numbers of checks that passed, failed and were skipped."""
    passed, failed, skipped = (report.count(one) for one in ("pass", "fail", "skipped"))
    words = [f"{counted(passed, 'check')} pass{'es' * (passed == 1)}"]
    if failed:
        words = [f"{failed} of {len(report.checks)} checks fail", f"{passed} pass"]
    if skipped:
        does_not = f"do{'es' * (skipped == 1)} not apply"
        words.append(f"{skipped} {'skipped' if report.model is None else does_not}")
    return ", ".join(words)


def _worst_words(report: VerifyReport) -> str:
    """Return the worst error and its tolerance, as the end of a sentence."""
    measures = [(check, measure) for check in report.checks for measure in check.measures]
    if not measures:
        return ""
    check, worst = max(measures, key=lambda pair: pair[1].severity)
    numbers = f"{difference(worst.difference)} of {difference(worst.tolerance.value)}"
    if worst.passed:
        return f", worst error {worst.severity[0]:.0%} of its tolerance ({numbers})"
    return f", worst error {numbers} allowed ({check.title}: {worst.name})"


def _tolerance_words(report: VerifyReport) -> str:
    """Return a sentence on the origin of the tolerances."""
    least = ", in which its least exact steps are computed"
    return (
        f"tolerance: 4ε·√n·m, where ε = {report.epsilon:.3g} is the machine epsilon of "
        f"{report.rounds_in}{least * (report.rounds_in != report.dtype)}, n roundings follow one "
        "another and add up as a random walk (Higham & Mary 2019), and m is the largest number "
        "that is rounded."
    )


def _first(report: VerifyReport, columns: int, lines: int) -> list[doc.Group]:
    """Return the first screen: a summary with failures first, then details if they fit."""
    if report.steps:
        return [doc.Group([_step_table(report, columns)]), *_worked_head(report)]
    rows = _summary(report)
    shown = [doc.Group([rows._replace(least=3 * (len(rows.rows) + 2 > lines))])]
    if report.model is None:
        tables = enumerate(_comparisons(report), 1)
        return shown + [doc.Group([table], yields=order) for order, table in tables]
    return [*shown, *([doc.Group([_properties(report.checks)], yields=1)] if lines > _TALL else [])]


# Checks --------------------------------------------------------------------------------------


class _Summed(NamedTuple):
    """The checks of a case of the own attention, or of a property of a model, in one line.

    check: the one that decides: one that failed, else passed, else was skipped.
    """

    name: str
    words: str
    check: Check
    measures: list[ComparedNumber]

    @property
    def worst(self) -> ComparedNumber | None:
        return max(self.measures, key=lambda measure: measure.severity, default=None)


def _summary(report: VerifyReport) -> doc.Table:
    """Return a table with a row for each case, or each property of a model, and its worst error."""
    own = report.model is None
    groups: dict[str, list[Check]] = {}
    for check in report.checks:
        groups.setdefault(check.case or check.name.split(".")[0], []).append(check)
    order: tuple[Verdict, ...] = ("fail", "pass", "skipped")
    entries = []
    for name, checks in groups.items():
        check = min(checks, key=lambda check: order.index(check.verdict))
        words = check.skipped or check.claim
        if check.case:
            words = report.cases.get(name, "")
        measures = [measure for check in checks for measure in check.measures]
        entries.append(_Summed(name, words, check, measures))
    case, compared = ("case", "what is compared") if own else ("property", "claim")
    named = [
        doc.ColumnOf[_Summed]("", lambda entry: entry.check.word, right=False),
        doc.ColumnOf[_Summed](case, lambda entry: entry.name, right=False),
        doc.ColumnOf[_Summed](compared, lambda e: e.words, right=False, tone="faint", keep=1),
    ]
    return doc.table(
        sorted(entries, key=lambda entry: entry.check.verdict != "fail"),
        *named,
        doc.ColumnOf("worst error", lambda e: difference(e.worst.difference) if e.worst else ""),
        doc.ColumnOf("allowed", lambda e: difference(e.worst.tolerance.value) if e.worst else ""),
        doc.ColumnOf("n", lambda entry: str(len(entry.measures) or "")),
        row=lambda entry: {"tones": _tones(entry.check.verdict, 3)},
    )


def _tones(verdict: Verdict, *numbers: int) -> dict[int, Tone]:
    """Return the tones of a row: of its verdict, and of its ``numbers`` if they failed."""
    return dict.fromkeys((0, *numbers) if verdict == "fail" else (0,), _TONES[verdict])


class _Pair(NamedTuple):
    """Two implementations, and how far their outputs or weights are apart in each case."""

    ours: str
    against: str
    measures: Mapping[str, ComparedNumber]

    @property
    def verdict(self) -> Verdict:
        return "pass" if all(measure.passed for measure in self.measures.values()) else "fail"


def _comparisons(report: VerifyReport) -> Iterator[doc.Table]:
    """Yield two tables of compared outputs and attention weights.

    They have a row for each pair of implementations, and a column for each case.
    """
    compared = [check for check in report.checks if check.case not in ("", check.name)]
    cases = list(dict.fromkeys(check.case for check in compared))
    for name in ("outputs", "weights"):
        pairs: dict[tuple[str, str], dict[str, ComparedNumber]] = {}
        for check in compared:
            for measure in check.measures:
                if measure.name == name:
                    pair = check.name, _SHORT.get(check.against, check.against)
                    pairs.setdefault(pair, {})[check.case] = measure
        entries = [_Pair(*pair, measures) for pair, measures in pairs.items()]
        allowed = {case: measure for pair in entries for case, measure in pair.measures.items()}

        def cell(case: str, pair: _Pair) -> str:
            measure = pair.measures.get(case)
            if measure is None:
                return ""
            return difference(measure.difference if pair.ours else measure.tolerance.value)

        def row(pair: _Pair) -> Mapping[str, Any]:
            if not pair.ours:
                return {"tone": "faint"}
            failed = [
                column
                for column, case in enumerate(cases, 3)
                if case in pair.measures and not pair.measures[case].passed
            ]
            return {"tones": _tones(pair.verdict, *failed)}

        yield doc.table(
            [_Pair("", "allowed", allowed), *entries],
            doc.ColumnOf("", lambda p: p.verdict.upper() if p.ours else "", right=False),
            doc.ColumnOf("ours", lambda pair: pair.ours, right=False),
            doc.ColumnOf("against", lambda pair: pair.against, right=False),
            *(doc.ColumnOf(case, partial(cell, case)) for case in cases),
            row=row,
            title=[(name.capitalize(), True), ("largest difference", False)],
            lead=3,
        )


def _properties(checks: Sequence[Check]) -> doc.Table:
    """Return a table of checks: a heading for each, and a row for each measure and tolerance."""
    rows = []
    for check in checks:
        why = check.claim if check.skipped is None else check.skipped
        tones: dict[int, Tone] = {0: _TONES[check.verdict], 1: "strong", 5: "plain"}
        rows.append(doc.Row([check.word, check.name, "", "", "", why], tones=tones, spaced=True))
        before = ""
        for measure in check.measures:
            number, most = difference(measure.difference), difference(measure.tolerance.value)
            words = measure.tolerance.words
            cells = ["", measure.name, number, f"{'≤' if measure.passed else '>'} {most}"]
            cells += [measure.where, words if words != before else ""]
            rows.append(doc.Row(cells, tones={} if measure.passed else {2: _TONES["fail"]}))
            before = words
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


def _step(number: int, step: ComputationStep, numbers: bool) -> Iterator[doc.Part]:
    words = [text for text in (step.formula, ": ".join(_axes(step)), step.note) if text]
    yield doc.Facts([(f"{number:>2} {step.name}", True), *((text, False) for text in words)])
    if numbers and step.result.ndim == 2:
        yield _matrices([*step.given.items(), *step.found.items()])
    elif numbers:
        for symbol, values in step.found.items():
            yield _matrices([(f"{symbol} head {n}", head) for n, head in enumerate(values)])


def _axes(step: ComputationStep) -> tuple[str, str]:
    """Return the names and the lengths of a result's axes; of several, those of the last."""
    names = " × ".join(f"({name})" if "×" in name else name for name in step.axes)
    return names, " × ".join(map(str, [*step.found.values()][-1].shape))


def _step_table(report: VerifyReport, columns: int) -> doc.Table:
    """Return a table of the computation steps: shape, formula and, if they fit, axes."""
    steps = [(f"{number:>2} {step.name}", step) for number, step in enumerate(report.steps, 1)]
    axes = doc.ColumnOf[Any]("axes", lambda step: _axes(step[1])[0], right=False)
    return doc.table(
        steps,
        doc.ColumnOf("step", lambda step: step[0], right=False),
        doc.ColumnOf("shape", lambda step: _axes(step[1])[1], right=False),
        doc.ColumnOf("computes", lambda step: step[1].formula, right=False),
        *([axes] if columns >= _ROOMY else []),
    )


def _worked_head(report: VerifyReport) -> list[doc.Group]:
    """Return the numbers of the first head: its attention scores, its weights and its output."""
    if not report.numbers_shown:
        return []
    chosen = [step for step in report.steps if step.name in ("scores", "weights", "mixed")]
    first = _matrices([(next(iter(step.found)), step.result[0]) for step in chosen])
    return [doc.Group([first._replace(title=[("Head 0", True)])], yields=1)]


def _matrices(matrices: Sequence[tuple[str, NDArray[np.floating]]]) -> doc.Table:
    """Return a table of matrices side by side, each after a column with its name."""
    columns: list[doc.Column] = []
    rows: list[list[str]] = [[] for _ in range(max(len(values) for _, values in matrices))]
    for name, values in matrices:
        columns += [doc.Column("", right=False, tone="faint")]
        columns += [doc.Column("")] * values.shape[1]
        finite = values[np.isfinite(values)]
        decimals = 0 if (finite == np.round(finite)).all() else _DECIMALS
        for at, cells in enumerate(rows):
            numbers = values[at] if at < len(values) else [None] * values.shape[1]
            cells += ["" if at else name, *(_number(number, decimals) for number in numbers)]
    return doc.Table(columns, [doc.Row(cells) for cells in rows])


def _number(value: float | None, decimals: int) -> str:
    """Return a number with decimals, −∞ for a hidden score, and no minus before zero."""
    if value is None:
        return ""
    if value == float("-inf"):
        return "−∞"
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text
