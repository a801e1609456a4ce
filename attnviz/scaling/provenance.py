"""What is said of a run in words: which queries and keys, and what the bars are."""

from __future__ import annotations

from attnviz.draw.blocks import Block
from attnviz.draw.labels import visible
from attnviz.draw.prose import wrapped
from attnviz.draw.provenance import model_parts, quoted_line
from attnviz.draw.theme import Theme
from attnviz.scaling.records import ScalingReport

__all__ = ["bars_legend", "random_words", "scaling_provenance"]


def random_words(report: ScalingReport) -> list[str]:
    """The parts that tell how random queries and keys were drawn."""
    samples = f"{report.samples:,} sample{'s' * (report.samples != 1)}"
    return [
        "random queries and keys",
        "entries independent, mean 0, variance 1 (normal)",
        f"{samples} of {report.keys:,} queries and {report.keys:,} keys",
        "float64",
        f"seed {report.seed}",
    ]


def scaling_provenance(report: ScalingReport, theme: Theme, room: int) -> Block:
    """Whose queries and keys: what a reader needs to repeat the run."""
    if report.model is None:
        first, *rest = random_words(report)
        return Block(
            tuple(wrapped([(first, True), *((p, False) for p in rest)], room, theme)), room
        )
    seed = report.model.seed
    parts = [
        *model_parts(report.model, theme),
        (f"{report.keys:,} tokens", False),
        *([] if seed is None else [(f"seed {seed}", False)]),
        ("scores and weights made in float64", False),
    ]
    lines = wrapped(parts, room, theme)
    lines.append(quoted_line("text", report.text, room, theme))
    if report.source:
        lines += wrapped([(f"       {visible(report.source, theme.encoding)}", False)], room, theme)
    return Block(tuple(lines), room)


def bars_legend(report: ScalingReport, theme: Theme) -> str:
    """One paragraph on the histograms and the table."""
    errors = (
        "± is one standard error over the samples. "
        if report.model is None and report.samples > 1
        else ""
    )
    source = (
        "Theory is the variance of a sum of d_k independent products, times the scale's square. "
        if report.model is None
        else "Random is the variance that independent entries of variance 1 would give. "
        "Queries that see a single key are left out. "
    )
    words = (
        "Bars: share of the attention weights that have this size, on a logarithmic axis, four "
        "bins to a power of ten; the first bar holds all below 1e-8 and may be cut at the top "
        "of the chart. Both charts of a pair have one vertical scale, and whatever is not empty is "
        "drawn. "
        f"{errors}{source}Entropy is over that of even attention; the Jacobian's norm is "
        "‖diag(p) − p pᵀ‖ (Frobenius), mean over queries."
    )
    if theme.ascii:
        for sign, plain in (("±", "+-"), ("‖", "||"), ("−", "-"), ("pᵀ", "p^T")):
            words = words.replace(sign, plain)
    return words
