"""The command ``attnviz patterns``: scores and labels every head, compared with a base rate."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.errors import UsageError
from attnviz.inspect.patterns.request import PatternsRequest
from attnviz.options import ManyTexts, Options, option

EXAMPLES = """
attnviz patterns
attnviz patterns --watch induction
attnviz patterns "When Mary and John went out, John gave a book to Mary."
attnviz patterns --without-first --control random-weights --save patterns.csv
attnviz patterns --model openai-community/gpt2 --probe my-pairs.tsv
attnviz patterns --texts corpus.jsonl --shard 0/4 --resume part-0.record
attnviz patterns --images photos --model facebook/dinov2-small
"""

_LONG = 5.0
"""Seconds from which the time of a run is reported."""


@dataclass(frozen=True)
class _Request(PatternsRequest):
    """The options of ``patterns``, with shell completion of labels."""

    watch: str | None = option(
        "LABEL", "Rank every head by its score for one label.", autocompletion=shared.complete_label
    )


@dataclass(frozen=True)
class _Pictures(Options):
    images: str | None = option("DIR", "Label the heads of a vision model on these images.")


@command(EXAMPLES, "--watch --probe --control --top", draws="weights, random tokens, control")
def patterns(
    text: shared.Text,
    many: ManyTexts,
    pictures: _Pictures,
    request: _Request,
    model: shared.ShapedModel,
    output: shared.Output,
) -> None:
    """Score every head on each pattern against chance, and label it."""
    from attnviz.draw.numbers import spoken_time
    from attnviz.inspect.patterns import patterns as question

    outlet = Outlet.open(output, model)
    if pictures.images is not None:
        _over_pictures(pictures.images, [*text.given(), *many.given()], request, model, outlet)
        return
    if many.texts is not None:
        if text.is_given:
            raise UsageError("expected one source of texts: give TEXT, --file or --texts, not two")
        from attnviz.inspect.patterns.corpus import patterns_over, refuse_for_corpus

        refuse_for_corpus(request)
        outlet.run_over("scoring heads", patterns_over, question.work, request, **vars(many))
        return
    read = text.read("patterns")
    sentences = question.read_sentences(request, read)
    loaded = outlet.load_model(question.work(read, request, sentences))
    file = "" if text.file is None else str(text.file)
    with outlet.advancing("scoring heads") as advance:
        report = question.patterns(
            loaded, read, request, sentences=sentences, file=file, advance=advance
        )
    if report.seconds > _LONG:  # another line after a whole screen would scroll it
        outlet.notices.print(f"scoring took {spoken_time(report.seconds)}")
    outlet.show(report)


def _over_pictures(
    directory: str,
    given: list[str],
    request: PatternsRequest,
    model: shared.ShapedModel,
    outlet: Outlet,
) -> None:
    unused = [*given, *(name for name in request.given() if name != "--index-base")]
    if unused:
        raise UsageError(f"{unused[0]} is for texts: leave it out next to --images")
    from attnviz.inspect.pictures.pictures import pictures
    from attnviz.models.pictures import picture_files
    from attnviz.models.vision import PictureModel
    from attnviz.models.work import Work

    paths = picture_files(directory)
    opened = outlet.load_model(Work(reads="picture"))
    assert isinstance(opened, PictureModel)
    outlet.run("reading images", pictures, opened, paths, request.index_base)
