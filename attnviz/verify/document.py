"""What ``attnviz verify`` has to say: the steps where they are wanted, and every check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from attnviz.draw import document as doc
from attnviz.draw.provenance import counted, model_words
from attnviz.draw.theme import Tone
from attnviz.verify.records import MOST, Check, Matrix, Step, Verification
from attnviz.verify.tables import (
    TONES,
    case_block,
    case_width,
    difference,
    matrices_block,
    model_block,
)

_OWN_NAME = "the library's own attention"
_LONGEST = 100
_DECIMALS = 3


def verification_document(
    found: Verification, hints: Sequence[str] = (), explain: bool = False
) -> doc.Document:
    """Where the numbers are from, the steps, the checks, and how many of these hold."""
    about = _OWN_NAME if found.model is None else found.model.name
    ending = _summary(found)
    notes = () if found.model is None else found.model.notes
    groups = [doc.Group(_about(found)), doc.Group([doc.Note(note) for note in notes])]
    if found.steps:
        groups.append(_steps(found))
    groups += (
        _own_checks(found) if found.model is None else [doc.Group([_properties(found.checks)])]
    )
    groups.append(doc.Group([doc.Facts(ending), doc.Note(_epsilon_words(found))]))
    return doc.Document(
        f"verification of {about}",
        f"{about}: {', '.join(text for text, _ in ending)}",
        groups,
        [doc.Say(text, _LONGEST) for text in _explanation(found)] if explain else (),
        [doc.Facts([(hint, False) for hint in hints])] if hints else (),
    )


def _about(found: Verification) -> list[doc.Part]:
    """What a reader needs to repeat the run."""
    if found.model is None:
        return [doc.Facts([(_OWN_NAME, True), *((fact, False) for fact in _own_facts(found))])]
    counts = " and ".join(f"{count} tokens" for count in found.tokens)
    seed = [] if found.model.seed is None else [(f"seed {found.model.seed}", False)]
    parts: list[doc.Part] = [doc.Facts([*model_words(found.model), (counts, False), *seed])]
    read = (("text", found.text), ("target", found.target))
    return parts + [doc.Quote(name, content) for name, content in read if content is not None]


def _own_facts(found: Verification) -> list[str]:
    """The sizes of the own attention and the libraries that took part."""
    sizes = found.sizes
    assert sizes is not None
    texts = f"{counted(sizes.batch, 'text')} of {sizes.tokens} tokens"
    heads = f"{counted(sizes.heads, 'head')} of {sizes.head_dim}"
    made_with = [f"{name} {version}" for name, version in found.versions.items()]
    return [found.dtype, f"d_model {sizes.d_model}", heads, texts, f"seed {sizes.seed}", *made_with]


# Words ---------------------------------------------------------------------------------------


def _summary(found: Verification) -> list[tuple[str, Tone]]:
    """How many checks ended how, as parts with the tone of the verdict that they tell of."""
    failed, skipped = found.count("fail"), found.count("skipped")
    parts: list[tuple[str, Tone]] = [
        (f"{found.count('pass')} of {len(found.checks)} checks pass", "good")
    ]
    if failed:
        parts.append((f"{failed} fail", "bad"))
    if skipped:
        word = "skipped" if found.model is None else f"do{'es' * (skipped == 1)} not apply"
        parts.append((f"{skipped} {word}", "skipped"))
    return parts


def _epsilon_words(found: Verification) -> str:
    """Where tolerances come from, in one sentence."""
    least = (
        "" if found.rounds_in == found.dtype else ", in which its least exact steps are computed"
    )
    return (
        f"tolerance: 4ε·√n·m, where ε = {found.epsilon:.3g} is the machine epsilon of "
        f"{found.rounds_in}{least}, n roundings follow one another and add up as a random walk "
        "(Higham & Mary 2019), and m is the largest number that is rounded."
    )


def failure_words(found: Verification) -> str:
    """The failed checks in one line."""
    named = []
    for check in found.failed:
        name = check.name if not check.against else f"{check.name} against {check.against}"
        group = f"{check.group}: " if check.group else ""
        worst = next(measure for measure in check.measures if not measure.passed)
        named.append(
            f"{group}{name} ({worst.name} {difference(worst.difference)}, tolerance "
            f"{difference(worst.tolerance.value)})"
        )
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    count = f"{len(named)} of {len(found.checks)} checks failed"
    return f"{count}: {'; '.join(named[:3])}{more}"


def _explanation(found: Verification) -> tuple[str, ...]:
    """Paragraphs; what stands before the first colon is what they are about."""
    return tuple(_of_model(found) if found.model is not None else _of_own(found))


def _of_own(found: Verification) -> Iterator[str]:
    yield (
        "How to read this: each row computes the same attention twice, by this library and by "
        "another way, and shows the largest difference of any two numbers: of the outputs, and of "
        "the attention weights. PASS means that no difference is larger than rounding explains."
    )
    yield (
        "ours: NumPy and torch are the library's own two ways; fused is its torch module while "
        "nobody looks at the weights, when a kernel computes the output without them."
    )
    yield (
        "against: the naive loop is the textbook's formula as three nested loops over plain "
        "numbers, written apart from the library; torch and Keras bring layers of their own, into "
        "which the same numbers were put. F.scaled_dot_product_attention returns no weights: they "
        "are read off by letting it mix the rows of an identity matrix."
    )
    yield (
        "rounding: computers keep a limited number of digits, so the same sum in another order "
        "ends a little differently. A mistake in the formula is thousands of times larger."
    )
    if found.steps:
        yield (
            "the steps: each head compares the query of a token (Q) with the key of every token "
            "(K), turns the scores into shares of one (A), and mixes the values (V) by them."
        )


def _of_model(found: Verification) -> Iterator[str]:
    yield (
        "How to read this: each block is a property that must hold if what attnviz shows of this "
        "model is to be trusted. A line is one measured number, its tolerance, and why it may be "
        "that large. PASS means that every number of the block is within its tolerance."
    )
    yield "rows: a query spreads exactly one over what it sees; a learned sink may take a part."
    yield (
        "causality: a language model must not see the future. Later tokens are changed for real, "
        "and everything before them has to stay."
    )
    yield (
        "heads: what each head puts out (z_h), sent through its own part of the output projection "
        "(W_O^h), adds up to what the module puts out; so removing a head is well defined."
    )
    yield (
        "bit for bit: where the same operations run on the same numbers, not even the last digit "
        "may differ; there the tolerance is 0."
    )


# Checks --------------------------------------------------------------------------------------


def _own_checks(found: Verification) -> list[doc.Group]:
    """A table for each case, side by side where there is room, then what belongs to none."""
    cases: dict[str, list[Check]] = {}
    for check in found.checks:
        cases.setdefault(check.group, []).append(check)
    loose = cases.pop("", [])
    tables = [
        _comparisons(name, found.cases.get(name, ""), checks) for name, checks in cases.items()
    ]
    beside = doc.Beside(case_width(found.checks), gap=4, stretch=False)
    return [
        doc.Group(tables, beside=beside),
        *(doc.Group([_comparisons("", "", [one])]) for one in loose),
    ]


def _comparisons(name: str, words: str, checks: Sequence[Check]) -> doc.Table:
    """A row a comparison, the most that its numbers may be above."""
    measured = next((check.measures for check in checks if len(check.measures) == 2), ())
    rows = []
    if measured:
        bounds = dict.fromkeys(measure.tolerance.words for measure in measured)
        most = [difference(measure.tolerance.value) for measure in measured]
        rows.append(doc.Row(["", "", f"at most {' and '.join(bounds)}", *most], tone="faint"))
    for check in checks:
        numbers = [difference(measure.difference) for measure in check.measures]
        cells = [check.word, check.name, check.against, *numbers, *[""] * (2 - len(numbers))]
        tones = {3 + n: TONES["fail"] for n, one in enumerate(check.measures) if not one.passed}
        below = () if check.skipped is None else (check.skipped,)
        rows.append(doc.Row(cells, tones={0: TONES[check.verdict], **tones}, below=below))
    titles = ("ours", "against") if measured else ("", "")
    columns = [doc.Column("", right=False), *(doc.Column(title, right=False) for title in titles)]
    columns += [doc.Column(measure.name) for measure in measured] or [
        doc.Column(""),
        doc.Column(""),
    ]
    return doc.Table(
        columns,
        rows,
        [(name, True), *([(words, False)] if words else [])] if name else (),
        screen=partial(case_block, name, words, checks),
    )


def _properties(checks: Sequence[Check]) -> doc.Table:
    """A heading a check with what it claims, and a row a measure with why it may be so large."""
    rows = []
    for check in checks:
        why = check.claim if check.skipped is None else ""
        below = check.notes if check.skipped is None else (check.skipped, *check.notes)
        heading = doc.Row(
            [check.word, check.name, "", "", "", why],
            tones={0: TONES[check.verdict], 1: "strong", 5: "plain"},
            spaced=True,
        )
        rows.append(heading if check.measures else heading._replace(below=below))
        for place, measure in enumerate(check.measures, start=1):
            sign = "≤" if measure.passed else ">"
            number, most = difference(measure.difference), difference(measure.tolerance.value)
            row = doc.Row(
                ["", measure.name, number, f"{sign} {most}", measure.where, measure.words],
                tones={} if measure.passed else {2: TONES["fail"]},
            )
            rows.append(row._replace(below=below) if place == len(check.measures) else row)
    columns = [
        doc.Column("", right=False),
        doc.Column("property", right=False),
        doc.Column("measured"),
        doc.Column("at most", right=False),
        doc.Column("where", right=False),
        doc.Column("why", right=False, tone="faint", wraps=True),
    ]
    return doc.Table(columns, rows, screen=partial(model_block, checks))


# Steps ---------------------------------------------------------------------------------------


def _steps(found: Verification) -> doc.Group:
    """Every step in order: shapes always, numbers where they fit on paper."""
    hidden = "later tokens are hidden" if found.causal else "no token is hidden"
    numbers = found.numbers_shown
    told = (
        f"decimals are rounded to {_DECIMALS}: on paper the last one may differ by one or two"
        if numbers
        else f"numbers are shown up to {MOST} tokens and a d_model of {MOST}"
    )
    steps = [doc.Group([*_step(n, step, numbers)]) for n, step in enumerate(found.steps, 1)]
    title = doc.Facts([(f"Step by step: one text, {hidden}", True)])
    return doc.Group(
        [title, doc.Group(steps, spaced=numbers), doc.Facts([(told, "faint")])], spaced=True
    )


def _step(place: int, step: Step, numbers: bool) -> Iterator[doc.Part]:
    shape = step.found[0].shape
    if len({matrix.shape for matrix in step.found}) > 1:
        shape = step.found[-1].shape
    names = " × ".join(f"({name})" if "×" in name else name for name in step.axes)
    axes = f"{names}: {' × '.join(map(str, shape))}"
    words = [text for text in (step.formula, axes, step.note) if text]
    yield doc.Facts([(f"{place:>2} {step.name}", True), *((text, False) for text in words)])
    if numbers:
        yield _matrices(
            [
                (one.symbol, _texts(one.values))
                for matrix in (*step.given, *step.found)
                for one in _by_head(matrix)
            ]
        )


def _by_head(matrix: Matrix) -> Iterator[Matrix]:
    """An array as matrices, one a head, under the names they are shown by."""
    if matrix.values.ndim == 2:
        yield matrix
        return
    for head, values in enumerate(matrix.values):
        yield Matrix(f"{matrix.symbol} head {head}", values)


def _texts(values: NDArray[np.floating]) -> list[list[str]]:
    """A matrix as texts: whole numbers as such, else all with the same decimals."""
    finite = values[np.isfinite(values)]
    decimals = 0 if (finite == np.round(finite)).all() else _DECIMALS
    return [[_number(float(value), decimals) for value in row] for row in values]


def _number(value: float, decimals: int) -> str:
    if value == float("-inf"):
        return "−∞"
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def _matrices(matrices: Sequence[tuple[str, list[list[str]]]]) -> doc.Table:
    """Matrices side by side in one table, each behind a column of its own that holds its name."""
    columns = [
        doc.Column(name if place == 0 else "", right=bool(place), tone="plain")
        for name, rows in matrices
        for place in range(len(rows[0]) + 1)
    ]
    lines = zip_longest(*(rows for _, rows in matrices))
    cells = [
        [
            text
            for (_, rows), row in zip(matrices, line, strict=True)
            for text in ("", *(row or [""] * len(rows[0])))
        ]
        for line in lines
    ]
    screen = partial(matrices_block, matrices)
    return doc.Table(columns, [doc.Row(row) for row in cells], screen=screen)
