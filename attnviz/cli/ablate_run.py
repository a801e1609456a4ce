"""What ``attnviz ablate`` does once its options are read: load, measure, rank, show."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

from rich.console import Console

from attnviz.cli.ablate_job import Job, read_reference
from attnviz.cli.ablate_report import measure
from attnviz.cli.ablate_result import Scanned, make_view
from attnviz.cli.ablate_wish import ScanWish, ViewWish
from attnviz.cli.outlet import open_outlet
from attnviz.cli.output import Output
from attnviz.cli.progress import loading
from attnviz.cli.resume_file import ResumeFile
from attnviz.cli.scan_progress import scanning, spoken_time
from attnviz.cli.terminal import messages
from attnviz.cli.texts_input import Texts
from attnviz.models.resolve import LoadOptions, load

__all__ = ["show_ablation"]

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
