"""The screen of ``attnviz verify``: the steps if requested, and every check."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted
from attnviz.draw.provenance import model_words
from attnviz.draw.theme import Tone
from attnviz.learn.verify.report import (
    MOST,
    Checked,
    ComputationStep,
    Verdict,
    VerifyReport,
    difference,
    verdict,
    worst,
)

_OWN_NAME = "attnviz's own attention"
_DECIMALS = 3
_TONES: dict[Verdict, Tone] = {"fail": "bad", "pass": "good", "skipped": "skipped"}


def document(report: VerifyReport) -> doc.Document:
    """Return the document: the verdict, the computation steps, every check, the tolerances."""
    model, about = report.model, _OWN_NAME
    measured = "each line compares this library's attention with another's, on the same numbers."
    facts, heading = _own_facts(report), _own_facts(report)[:4]
    hints = ["--steps: do it by hand", "--model tiny: check a model"]
    hints.append("--dtype float64: higher precision")
    if report.steps:
        hints = ["--seed 1: other numbers"]
    if model is not None:
        about, hints = model.name, []
        measured = "each line is a property that must hold for this model, measured on this text."
        words = model_words(model)
        counts = (" and ".join(f"{count} tokens" for count in report.tokens), False)
        facts = [*words, counts, *([] if model.seed is None else [(f"seed {model.seed}", False)])]
        heading = [words[0], words[-1], (report.dtype, False), counts]
    table, counts_words = _table(report), _counts(report)
    first = _first_steps(report) if report.steps else [doc.Group([table._replace(least=3)])]
    quote = [] if report.text is None else [doc.Quote("text", report.text)]
    return doc.Document(
        f"verification of {about}",
        f"{about}: {counts_words}",
        [
            doc.Group([doc.Facts(facts), *quote]),
            doc.Group([doc.Note(note) for note in (() if model is None else model.notes)]),
            *([_steps(report)] if report.steps else []),
            doc.Group([table]),
            doc.Group([doc.Note(_tolerance_words(report))]),
        ],
        doc.Explanation("verify", measured),
        doc.next_steps([*hints, "--explain: how to read this"]),
        heading=heading,
        quoted=report.text or "",
        finding=f"{counts_words}{_worst(report)}.",
        first=lambda columns, lines: first,
    )


def _own_facts(report: VerifyReport) -> doc.Words:
    if (sizes := report.sizes) is None:
        return []
    facts = [
        report.dtype,
        f"d_model {sizes.d_model}",
        f"{counted(sizes.heads, 'head')} of {sizes.head_dim}",
        f"{counted(sizes.batch, 'text')} of {sizes.tokens} tokens",
        f"seed {sizes.seed}",
        *(f"{name} {version}" for name, version in report.versions.items()),
    ]
    return [(_OWN_NAME, True), *((fact, False) for fact in facts)]


def _counts(report: VerifyReport) -> str:
    passed, failed, skipped = report.count("pass"), report.count("fail"), report.count("skipped")
    words = [f"{counted(passed, 'check')} pass{'es' * (passed == 1)}"]
    if failed:
        words = [f"{failed} of {len(report.checks)} checks fail", f"{passed} pass"]
    if skipped:
        does_not = f"do{'es' * (skipped == 1)} not apply"
        words.append(f"{skipped} {'skipped' if report.model is None else does_not}")
    return ", ".join(words)


def _worst(report: VerifyReport) -> str:
    made = [number for number in report.numbers if number.skipped is None]
    if not made:
        return ""
    last = worst(made)
    numbers = f"{difference(last.difference)} of {difference(last.allowed)}"
    if last.passed:
        return f"; worst error {last.severity[0]:.0%} of its tolerance ({numbers})"
    return f"; worst error {numbers} allowed ({last.title}: {last.number})"


def _tolerance_words(report: VerifyReport) -> str:
    least = ", in which its least exact steps are computed"
    return (
        f"tolerance: 4ε·√n·m, where ε = {report.epsilon:.3g} is the machine epsilon of "
        f"{report.rounds_in}{least * (report.rounds_in != report.dtype)}, n successive "
        "roundings accumulate like a random walk (Higham & Mary 2019), and m is the largest number "
        "that is rounded."
    )


def _table(report: VerifyReport) -> doc.Table:
    """Return a table with the worst error of each case and pair, or of each check of a model.

    A pair is an own and another implementation, over all cases. What failed comes first.
    """
    groups: dict[tuple[str, str], list[Checked]] = {}
    pairs: dict[tuple[str, str], list[Checked]] = {}
    for number in report.numbers:
        named = number.check.split(".")[0], number.skipped or number.claim
        if number.case:
            named = number.case, report.cases.get(number.case, number.skipped or "")
        groups.setdefault(named, []).append(number)
        if number.case != number.check and number.against and number.skipped is None:
            pairs.setdefault((number.check, f"vs {number.against}"), []).append(number)
    rows = []
    for named, numbers in (*groups.items(), *pairs.items()):
        outcome, cells = verdict(numbers), ["", "", ""]
        word = outcome.upper()
        if outcome == "skipped":
            word = "N/A" if numbers[0].claim else "SKIP"
        elif made := [number for number in numbers if number.skipped is None]:
            off = worst(made)
            cells = [difference(off.difference), difference(off.allowed), str(len(made))]
        at = (0, 3) if outcome == "fail" else (0,)
        rows.append(doc.Row([word, *named, *cells], tones=dict.fromkeys(at, _TONES[outcome])))
    rows.sort(key=lambda row: row.cells[0] != "FAIL")
    own = report.model is None
    columns = [
        doc.Column("", right=False),
        doc.Column("case" if own else "property", right=False),
        doc.Column(
            "what is compared" if own else "claim", right=False, tone="faint", keep=1, cuts=True
        ),
        *map(doc.Column, ("worst error", "allowed", "n")),
    ]
    return doc.Table(columns, rows)


def _steps(report: VerifyReport) -> doc.Group:
    numbers, steps = report.numbers_shown, []
    remark = f"numbers are shown up to {MOST} tokens and a d_model of {MOST}"
    if numbers:
        remark = (
            f"decimals are rounded to {_DECIMALS}: on paper the last one may differ by one or two"
        )
    for number, step in enumerate(report.steps, 1):
        words = [text for text in (step.formula, ": ".join(_axes(step)), step.note) if text]
        name = (f"{number:>2} {step.name}", True)
        parts: list[doc.Part] = [doc.Facts([name, *((text, False) for text in words)])]
        if numbers and step.result.ndim == 2:
            parts.append(_matrices([*step.given.items(), *step.results.items()]))
        elif numbers:
            for symbol, values in step.results.items():
                heads = [(f"{symbol} head {head}", value) for head, value in enumerate(values)]
                parts.append(_matrices(heads))
        steps.append(doc.Group(parts))
    hidden = "later tokens are masked" if report.causal else "no token is masked"
    title = doc.Facts([(f"Step by step: one text, {hidden}", True)])
    return doc.Group(
        [title, doc.Group(steps, spaced=numbers), doc.Facts([(remark, "faint")])], spaced=True
    )


def _axes(step: ComputationStep) -> tuple[str, str]:
    """Return the names and the lengths of a result's axes; of several, those of the last."""
    names = " × ".join(f"({name})" if "×" in name else name for name in step.axes)
    return names, " × ".join(map(str, [*step.results.values()][-1].shape))


def _first_steps(report: VerifyReport) -> list[doc.Group]:
    """Return the table of steps, and scores, weights and output of the first head if small."""
    table = doc.table(
        enumerate(report.steps, 1),
        doc.ColumnOf("step", lambda step: f"{step[0]:>2} {step[1].name}", right=False),
        doc.ColumnOf("shape", lambda step: _axes(step[1])[1], right=False),
        doc.ColumnOf("computes", lambda step: step[1].formula, right=False),
        doc.ColumnOf("axes", lambda step: _axes(step[1])[0], right=False, keep=1),
    )
    if not report.numbers_shown:
        return [doc.Group([table])]
    chosen = [step for step in report.steps if step.name in ("scores", "weights", "mixed")]
    first = _matrices([(next(iter(step.results)), step.result[0]) for step in chosen])
    return [doc.Group([table]), doc.Group([first._replace(title=[("Head 0", True)])], yields=1)]


def _matrices(matrices: Sequence[tuple[str, NDArray[np.floating]]]) -> doc.Table:
    """Return a table of matrices side by side, each after a column with its name."""
    columns: list[doc.Column] = []
    rows: list[list[str]] = [[] for _ in range(max(len(values) for _, values in matrices))]

    def written(value: float, decimals: int) -> str:
        """Return a number, −∞ for a hidden score, and no minus before zero."""
        if value == float("-inf"):
            return "−∞"
        text = f"{value:.{decimals}f}"
        return text.removeprefix("-") if float(text) == 0 else text

    for name, values in matrices:
        columns += [doc.Column("", right=False, tone="faint")]
        columns += [doc.Column("")] * values.shape[1]
        finite = values[np.isfinite(values)]
        decimals = 0 if (finite == np.round(finite)).all() else _DECIMALS
        for at, cells in enumerate(rows):
            shown = values[at] if at < len(values) else []
            numbers = [written(value, decimals) for value in shown] or [""] * values.shape[1]
            cells += ["" if at else name, *numbers]
    return doc.Table(columns, [doc.Row(cells) for cells in rows])
