"""What ``attnviz heads`` does once its options are read: load, observe, score, show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from attnviz.analysis.heads_report import heads_report
from attnviz.capture.over_text import Choice, observe
from attnviz.cli.heads_result import Compared, Single, Wish, comparison_hints, make_view
from attnviz.cli.heads_variants import Variant
from attnviz.cli.outlet import Result, open_outlet
from attnviz.cli.output import Output
from attnviz.cli.progress import loading
from attnviz.errors import UsageError
from attnviz.models.resolve import load
from attnviz.records import HeadsReport

__all__ = ["Choice", "Wish", "show_heads"]


def show_heads(
    read_text: Callable[[], str],
    model_name: str,
    variants: Sequence[Variant],
    wish: Wish,
    output: Output,
) -> None:
    """Run the command. What can be refused is refused before a model is loaded."""
    outlet = open_outlet(output)
    text = read_text()
    with loading(model_name, outlet.notices) as progress:
        reports = _reports(model_name, text, variants, wish, progress)
    outlet.show(_result(reports, text, variants, wish, hinting=not output.quiet))


def _reports(
    model_name: str,
    text: str,
    variants: Sequence[Variant],
    wish: Wish,
    progress: Callable[[str, int, int | None], None] | None,
) -> list[HeadsReport]:
    """One report for each run; a model is loaded again only where it is another."""
    reports: list[HeadsReport] = []
    model, loaded = None, None
    for variant in variants:
        if model is None or loaded != variant.options:
            model = load(model_name, replace(variant.options, progress=progress))
            loaded = variant.options
        choice = variant.choice
        record, selected = observe(model, text, choice)
        reports.append(heads_report(record, selected, choice.index_base, wish.sort, wish.reverse))
    return reports


def _result(
    reports: Sequence[HeadsReport],
    text: str,
    variants: Sequence[Variant],
    wish: Wish,
    hinting: bool,
) -> Result:
    """Raises UsageError where runs that were to be compared are the same."""
    views = [
        make_view(report, text, variant.choice.target, wish, hinting)
        for report, variant in zip(reports, variants, strict=True)
    ]
    if len(reports) == 1:
        return Single(reports[0], views[0])
    ways = {(each.record.kind, each.record.causal, each.record.model.score) for each in reports}
    if len(ways) < len(reports):
        raise UsageError("a single word has no later one to hide: give a text of at least two")
    from attnviz.analysis.heads_comparison import compare_heads

    hints = comparison_hints(reports[0], wish.explain) if views[0].hints else ()
    return Compared(compare_heads(reports), [replace(view, hints=hints) for view in views])
