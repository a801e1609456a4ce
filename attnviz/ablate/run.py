"""What ``attnviz ablate`` does once its options are read: load, measure, rank, show, save."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from attnviz.ablate.gradients import gradient_order
from attnviz.ablate.job import Job, read_reference
from attnviz.ablate.names import variant_name
from attnviz.ablate.order import ranked_effects
from attnviz.ablate.report import measure
from attnviz.ablate.request import ScanWish, ViewWish
from attnviz.ablate.resume import ResumeFile
from attnviz.ablate.screen import ablation_screen
from attnviz.ablate.view import AblationView
from attnviz.cli.inputs import Texts
from attnviz.cli.options import Output
from attnviz.cli.outlet import open_outlet
from attnviz.cli.progress import loading, scanning, spoken_time
from attnviz.cli.terminal import messages
from attnviz.draw.blocks import Block
from attnviz.draw.theme import Theme
from attnviz.engine.effects import AblationReport
from attnviz.engine.run import capture
from attnviz.errors import UnsupportedError
from attnviz.measures.traits import head_scores
from attnviz.measures.words import joined
from attnviz.models.model import Model
from attnviz.models.resolve import LoadOptions, load
from attnviz.records import HeadsReport

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.files import Writer

__all__ = ["Scanned", "make_view", "show_ablation"]


@dataclass(frozen=True)
class Scanned:
    """A report and how it is to be seen."""

    report: AblationReport
    view: AblationView

    def screen(self, theme: Theme, console: Console) -> Block:
        return ablation_screen(self.report, self.view, theme, console.width)

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.ablate.json import write_ablation_json

        write_ablation_json(self.report, self.view, stream)

    def files(self, palette: str) -> Mapping[str, Writer]:
        from attnviz.ablate.csv import write_ablation_csv
        from attnviz.ablate.page import ablation_page
        from attnviz.draw.files import page_files, text_file

        csv = text_file(partial(write_ablation_csv, self.report))
        page = partial(ablation_page, self.report, self.view, palette)
        return {".csv": csv, **page_files(page, palette)}


_ALL_MAPS = 64_000_000
_SOME_MAPS = 512_000_000
"""Bytes of maps up to which those of all scanned heads, or of the ranked ones, are kept."""


def make_view(
    report: AblationReport,
    job: Job,
    source: str,
    scan: ScanWish,
    wish: ViewWish,
    hinting: bool,
) -> AblationView:
    """What is to be shown; ``source`` says where the texts come from."""
    base = scan.choice.index_base
    return AblationView(
        job.written[0],
        source,
        len(job.written),
        patterns=_patterns(report, job.model, wish.top, base),
        top=wish.top,
        by_token=wish.by_token,
        index_base=base,
        target=_target(report, scan),
        answer=job.pair[0][1] if job.pair else None,
        foil=job.pair[1][1] if job.pair else None,
        explain=wish.explain,
        hints=_hints(report, scan, wish) if hinting else (),
    )


def _patterns(
    report: AblationReport, model: Model, top: int, index_base: int
) -> HeadsReport | None:
    """The attention of the scanned heads over the first text, or only of the ranked ones."""
    wanted = _scanned(report)
    queries = (report.targets if report.kind in ("decoder", "cross") else report.texts)[0]
    one = 4 * len(queries) * len(report.texts[0])
    if one * len(wanted) > _ALL_MAPS:
        wanted = _ranked(report, top)
    if not wanted or one * len(wanted) > _SOME_MAPS:
        return None
    heads: dict[int, set[int]] = {}
    for layer, head in wanted:
        heads.setdefault(layer, set()).add(head)
    target = report.targets[0] if report.targets else None
    try:
        record = capture(model, report.texts[0], kind=report.kind, target=target, heads=heads)
    except UnsupportedError:  # what its heads cost is known all the same
        return None
    # What these notes say of the text has no place among those of a scan.
    record = replace(record, model=replace(record.model, notes=()))
    return HeadsReport(record, head_scores(record), (), True, index_base)


def _scanned(report: AblationReport) -> set[tuple[int, int]]:
    return {head for effect in report.effects for head in effect.variant.heads} | set(
        report.gradients
    )


def _ranked(report: AblationReport, top: int) -> set[tuple[int, int]]:
    order = ranked_effects(report, top)
    measured = {effect.variant.heads[0] for effect in (*order.matter, *order.harm)}
    return measured or set(gradient_order(report)[:top])


def _target(report: AblationReport, scan: ScanWish) -> str | None:
    """What the decoder read with the first text, as given or as the model wrote it."""
    if not report.targets:
        return None
    return scan.target if scan.target is not None else joined(report.targets[0])


def _hints(report: AblationReport, scan: ScanWish, wish: ViewWish) -> tuple[str, ...]:
    """What to try next."""
    hints = []
    order = ranked_effects(report, 1)
    if order.matter and not wish.by_token and report.baseline.get("loss") is not None:
        name = variant_name(report, order.matter[0].variant, scan.choice.index_base)
        chosen = f"--head {name} " if report.unit == "head" else ""
        hints.append(f"next: {chosen}--by-token shows where in the text it is missed")
    if len(report.texts) == 1:
        hints.append("--texts FILE gives intervals over many texts")
    if not wish.explain:
        hints.append("--explain reads it for you")
    return tuple(hints)


_LONG = 5.0
"""Seconds of a scan that are worth a word."""


def show_ablation(
    read_texts: Callable[[], Texts],
    model_name: str,
    options: LoadOptions,
    wish: ScanWish,
    view_wish: ViewWish,
    output: Output,
) -> None:
    """Run the command. What can be refused is refused before a model is loaded.

    Ctrl-C shows what is done, and passes on as KeyboardInterrupt.
    """
    outlet = open_outlet(output)
    notices = outlet.notices
    texts, reference = read_texts(), read_reference(wish)
    with loading(model_name, notices) as progress:
        model = load(model_name, replace(options, progress=progress))
        job = Job.prepare(model, texts, reference, wish, options.seed, view_wish.by_token)
    file = ResumeFile(wish.resume, job.identity(wish)) if wish.resume is not None else None
    with file or nullcontext(), scanning("removing heads", messages(output.quiet)) as advance:
        measured = measure(job, wish, view_wish.top, file, advance)
    if not measured.empty:
        report = measured.report()
        view = make_view(report, job, texts.source, wish, view_wish, not output.quiet)
        outlet.show(Scanned(report, view))
        if report.seconds > _LONG:
            notices.print(f"the scan took {spoken_time(report.seconds)}")
    if not measured.complete:
        _say_what_is_kept(notices, wish)
        raise KeyboardInterrupt


def _say_what_is_kept(notices: Console, wish: ScanWish) -> None:
    if wish.resume is not None:
        notices.print("the same command goes on where this one ended")
