"""The screen of ``attnviz sweep``: provenance, losses by number of heads, what the heads do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attnviz.draw.blocks import DIM, Block, Line, stack, text_line, trimmed
from attnviz.draw.labels import at_blanks, visible
from attnviz.draw.prose import paragraph, wrapped
from attnviz.draw.table import Column, table
from attnviz.draw.theme import Theme
from attnviz.sweep.curves import curves_by_heads, mean_curves
from attnviz.sweep.numbers import heads_name, milliseconds, nats, percent
from attnviz.sweep.patterns import patterns_found
from attnviz.sweep.records import Reference, Spread, SweepModel, SweepReport, SweepTask
from attnviz.sweep.seen import seen

__all__ = [
    "explanation",
    "parameter_words",
    "results",
    "sweep_provenance",
    "sweep_screen",
    "task_words",
]

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


def results(report: SweepReport, theme: Theme, room: int) -> Block:
    """A row a rule and a number of heads; a bar is as long as the loss."""
    task, trained = report.task, report.measured
    above = [task.chance, *task.between]
    below = [task.best] if task.best is not None else []
    losses = [report.spread(heads, lambda model: model.loss) for heads in trained]
    right = [report.spread(heads, lambda model: model.accuracy) for heads in trained]

    def column(title: str, rule: Callable[[Reference], str], cells: Sequence[str]) -> Column:
        return Column(title, [*map(rule, above), *cells, *map(rule, below)])

    sign = "+-" if theme.ascii else "±"

    def spreads(values: Sequence[Spread], show: Callable[[float], str]) -> list[str]:
        return ["" if one.deviation is None else show(one.deviation) for one in values]

    columns = [
        column("loss", lambda rule: nats(rule.loss), [nats(one.mean) for one in losses]),
        column(sign, _nothing, spreads(losses, nats)),
        column("right", lambda rule: percent(rule.accuracy), [percent(one.mean) for one in right]),
        column(sign, _nothing, spreads(right, percent)),
        column("head width", _nothing, [str(report.d_model // heads) for heads in trained]),
        column("ms/step", _nothing, [milliseconds(_step(report, heads)) for heads in trained]),
        column(
            "parameters", _nothing, [f"{report.of(heads)[0].parameters:,}" for heads in trained]
        ),
        column("seeds", _nothing, [str(len(report.of(heads))) for heads in trained]),
    ]
    if len(report.seeds) == 1:
        columns = [each for each in columns if each.title != sign]
    names = [rule.name for rule in above] + [*map(heads_name, trained)]
    names += [rule.name for rule in below]
    values = [rule.loss for rule in above] + [one.mean for one in losses]
    values += [rule.loss for rule in below]
    drawn = table(names, values, max(values), columns, theme, room)
    return Block((*wrapped(_title(report, sign), room, theme), *drawn.lines), room)


def _title(report: SweepReport, sign: str) -> list[tuple[str, bool]]:
    parts = [
        ("On held-out sequences", True),
        ("loss in nats per prediction", False),
        ("right: the likeliest answer is", False),
    ]
    if len(report.seeds) > 1:
        parts.append((f"mean over seeds {sign} standard deviation", False))
    return parts


def _nothing(rule: Reference) -> str:
    return ""


def _step(report: SweepReport, heads: int) -> float:
    def seconds(model: SweepModel) -> float:
        return model.step_seconds

    return report.spread(heads, seconds).mean


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


_LONGEST = 100


def sweep_screen(
    report: SweepReport, theme: Theme, room: int, hints: Sequence[str] = (), explain: bool = False
) -> Block:
    """Everything that one run shows, in ``room`` columns; at least one model is trained."""
    words = min(room, _LONGEST)
    notes = [paragraph(visible(note, theme.encoding), words, theme, DIM) for note in report.notes]
    parts = [
        sweep_provenance(report, theme, room),
        stack(notes, gap=0),
        mean_curves(curves_by_heads(report), theme, room),
        results(report, theme, room),
        patterns_found(report, theme, room),
        _paragraphs(seen(report), theme, words),
    ]
    if explain:
        parts.append(_paragraphs(explanation(report), theme, words))
    if hints:
        parts.append(Block(tuple(wrapped([(hint, False) for hint in hints], room, theme)), room))
    return trimmed(stack(part for part in parts if part.lines))


def _paragraphs(texts: Sequence[str], theme: Theme, room: int) -> Block:
    plain = [text.replace("±", "+-") if theme.ascii else text for text in texts]
    return stack([paragraph(visible(text, theme.encoding), room, theme) for text in plain], gap=0)
