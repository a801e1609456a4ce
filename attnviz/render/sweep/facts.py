"""What was trained, on what, how: what a reader needs to repeat a sweep."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.render.blocks import DIM, Block, Line, text_line
from attnviz.render.labels import at_blanks, visible
from attnviz.render.prose import wrapped
from attnviz.render.theme import Theme
from attnviz.sweeping import SweepReport, SweepTask

__all__ = ["parameter_words", "sweep_provenance", "task_words"]

_LEAD = 7


def sweep_provenance(report: SweepReport, theme: Theme, room: int) -> Block:
    """The model, the task and the training, a line or more each."""
    times = "x" if theme.ascii else "×"
    size = "1 layer" if report.layers == 1 else f"{report.layers} layers"
    model = [
        ("attnviz's own decoder", True),
        (f"{size} of width {report.d_model}", False),
        (f"feed-forward {report.d_ff}", False),
        (f"float32 on {report.device}", False),
        (_threads(report.threads), False),
        (_seeds(report.seeds), False),
        (parameter_words(report), False),
    ]
    training = [
        (f"{report.steps:,} steps of {report.batch} {times} {report.task.length} tokens", False),
        ("the same first weights and batches for every number of heads", False),
        (f"AdamW, learning rate {report.learning_rate:.3g}, warm-up and cosine", False),
        (f"measured on {report.held_out:,} other sequences", False),
        (f"{report.predictions:,} predictions that can be known", False),
    ]
    if report.task.text is not None:
        training[-1] = (f"{report.predictions:,} predictions", False)
    lines = wrapped(_safe(model, theme), room, theme)
    inner = max(room - _LEAD, 1)
    words = at_blanks(visible(task_words(report.task), theme.encoding), inner, "", theme.ellipsis)
    lines += _named("task", [text_line(line) for line in words])
    lines += _named("run", wrapped(_safe(training, theme), inner, theme))
    return Block(tuple(lines), room)


def task_words(task: SweepTask) -> str:
    """The task's name and what it asks for, in one sentence."""
    if task.text is None:
        return f"{task.name}: {task.words}"
    names = ", ".join(task.text.files)
    return (
        f"{task.name}: {task.words}, {names} ({task.text.bytes:,} bytes, digest "
        f"{task.text.digest}); its last tenth is held out"
    )


def parameter_words(report: SweepReport) -> str:
    """How many numbers are trained, and whether that depends on the heads."""
    counts = {model.heads: model.parameters for model in report.models}
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{count:,} with {heads}" for heads, count in sorted(counts.items()))
        return f"parameters: {each} heads"
    same = " whatever the heads" if len(counts) > 1 else ""
    return f"{next(iter(counts.values())):,} parameters{same}"


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"seeds {seeds[0]} to {seeds[-1]}"


def _threads(threads: int) -> str:
    return f"{threads} thread{'s' * (threads != 1)}"


def _named(name: str, lines: Sequence[Line]) -> list[Line]:
    """Lines behind a dim name."""
    lead = name.ljust(_LEAD)
    return [
        [*text_line((" " * _LEAD if number else lead, DIM)), *line]
        for number, line in enumerate(lines)
    ]


def _safe(parts: Sequence[tuple[str, bool]], theme: Theme) -> list[tuple[str, bool]]:
    return [(visible(text, theme.encoding), bold) for text, bold in parts]
