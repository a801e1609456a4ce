"""A reading of a sweep in plain words, for someone new to it."""

from __future__ import annotations

from attnviz.sweeping import SweepReport

__all__ = ["explanation"]


def explanation(report: SweepReport) -> list[str]:
    """Paragraphs, each of which begins with words and a colon."""
    widths = ", ".join(str(report.d_model // heads) for heads in report.measured)
    lines = [
        "How to read this: the same small model is trained again and again; only the number of "
        f"heads that its width of {report.d_model} is cut into changes (heads as wide as "
        f"{widths}). The parameters are as many and begin with the same values, and the batches "
        "are the same, so that nothing but the heads can make the difference.",
        "Loss: how surprised the model is by the right answer, in nats; 0 is certainty. Chance is "
        "an answer drawn evenly from all, and a loss far below it was learned.",
        "Seeds: every training is repeated from other first weights and other batches. What "
        "differs by less than the seeds do is no finding.",
        "Heads: a head spreads its attention, which sums to one, over the tokens before. With two "
        "tokens to find one head must share it, two heads need not. But more heads are narrower "
        "ones; what that costs, or does not, is in the table.",
    ]
    if report.task.name == "induction":
        lines.append(
            "Induction: to say what followed this letter before, one layer finds for each token "
            "the letter before it, and the next layer looks for the place where that letter "
            "stood. Where strands take turns, letters at two distances must be found."
        )
    return lines
