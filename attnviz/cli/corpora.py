"""Commands on many texts or sounds: ``patterns``, ``atlas``, ``retrieve``, ``align``, ``merge``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.draw.report import EVERY
from attnviz.errors import UsageError
from attnviz.inspect.align.request import AlignOptions, AlignRequest
from attnviz.inspect.atlas.request import AtlasRequest
from attnviz.inspect.patterns.request import PatternsRequest
from attnviz.inspect.retrieve.request import RetrieveRequest
from attnviz.options import ManyTexts, Options, argument, option

ATLAS = """
attnviz atlas
attnviz atlas tiny --top 3 --out atlas
attnviz atlas openai-community/gpt2 --texts stories.jsonl --out gpt2-atlas
attnviz atlas ./my-checkpoint --texts corpus.jsonl --shard 0/4 --resume part-0.record
"""


@command(ATLAS, "--texts --out --top --shard")
def atlas(
    named: shared.ModelArgument,
    many: ManyTexts,
    request: AtlasRequest,
    model: shared.ShapedModel,
    output: shared.Output,
) -> None:
    """Show where each head fires most across many texts, compared with a control."""
    from attnviz.corpus import open_corpus, read_shard
    from attnviz.draw.files import check_new_directory
    from attnviz.inspect.atlas import atlas as question
    from attnviz.texts import built_in_texts

    outlet = Outlet.open(output, model, name=named.chosen(model.model))
    if request.out is not None:
        check_new_directory(request.out)
    corpus = open_corpus(built_in_texts() if many.texts is None else many.texts, many.column)
    shard, file = read_shard(many.shard, many.resume)
    loaded = outlet.load_model(question.work(corpus, request))
    given = loaded, corpus, request, shard, file
    report = outlet.measured("reading texts", question.atlas, *given, resume=file)
    if request.out is not None:
        report.write(request.out, loaded, output.colours)
        outlet.notices.print(f"the atlas is {request.out}", soft_wrap=True)
    outlet.show(report.with_maps(loaded) if output.pages else report)


MERGE = """
attnviz merge part-*.record --save result.json
attnviz merge part-0.record part-1.record --full
"""


@dataclass(frozen=True)
class _Parts(Options):
    parts: tuple[Path, ...] = argument(
        "PART", "The files that --resume wrote, one per shard.", ..., show_default=False
    )


@command(MERGE, "--full")
def merge(parts: _Parts, output: shared.Output) -> None:
    """Combine the results of shards into what a single run would have given."""
    from attnviz.inspect import merge as question

    outlet = Outlet.open(output)
    outlet.show(question.merge(parts.parts))


RETRIEVE = """
attnviz retrieve
attnviz retrieve --needle "The password is|blue rain" --haystack book.txt
attnviz retrieve --model Qwen/Qwen2.5-0.5B --lengths 1k,4k --save full_attention_heads.tsv
attnviz retrieve --texts books.jsonl --lengths 512 --shard 0/4 --resume part-0.record
"""


@dataclass(frozen=True)
class _TableOutput(shared.Output):
    save: tuple[Path, ...] = shared.saved(f"{EVERY} .tsv")


@command(RETRIEVE, "--needle --haystack --chat --lengths --top", draws="haystacks, random heads")
def retrieve(
    many: ManyTexts, request: RetrieveRequest, model: shared.DrawnModel, output: _TableOutput
) -> None:
    """Find the heads that fetch a fact from a long text, and test the model without them."""
    from attnviz.inspect.retrieve import retrieve as question
    from attnviz.inspect.retrieve.haystacks import read_sentences

    outlet = Outlet.open(output, model)
    if many.texts is not None:
        from attnviz.inspect.retrieve.corpus import refuse_for_corpus, retrieve_over

        refuse_for_corpus(request)
        outlet.run_over("fetching needles", retrieve_over, question.work, request, **vars(many))
        return
    sentences = read_sentences(request.haystack)
    loaded = outlet.load_model(question.work(None, request))
    outlet.run("fetching needles", question.retrieve, loaded, sentences, request)


ALIGN = """
attnviz align --audio clips --words words.csv --model openai/whisper-tiny
attnviz align --audio a.wav --audio b.wav --words words.json --save heads.json
attnviz align --pairs gold.txt --model Helsinki-NLP/opus-mt-en-de
attnviz align --pairs gold.tsv --model t5-small --prefix "translate English to German:"
"""


@command(ALIGN, "--audio --words --pairs --most")
def align(
    given: AlignOptions, request: AlignRequest, model: shared.LoadedModel, output: shared.Output
) -> None:
    """Find the cross-attention heads that align words with audio or a translation."""
    outlet = Outlet.open(output, model)
    from attnviz.inspect.align import align as question

    studied = given.read(request.recipe)
    with outlet.of(model.model):
        opened = outlet.load_model(question.work(studied))
        outlet.run("reading examples", question.align, opened, studied, request)


PATTERNS = """
attnviz patterns
attnviz patterns --watch induction
attnviz patterns "When Mary and John went out, John gave a book to Mary."
attnviz patterns --without-first --control random-weights --save patterns.csv
attnviz patterns --model openai-community/gpt2 --probe my-pairs.tsv
attnviz patterns --texts corpus.jsonl --shard 0/4 --resume part-0.record
attnviz patterns --images photos --model facebook/dinov2-small
"""

_LONG = 5.0  # seconds from which the time of a run is reported


@dataclass(frozen=True)
class _Patterns(PatternsRequest):
    watch: str | None = option(
        "LABEL", "Rank every head by its score for one label.", autocompletion=shared.complete_label
    )


@dataclass(frozen=True)
class _Pictures(Options):
    images: str | None = option("DIR", "Label the heads of a vision model on these images.")


@command(PATTERNS, "--watch --probe --control --top", draws="weights, random tokens, control")
def patterns(
    text: shared.Text,
    many: ManyTexts,
    pictures: _Pictures,
    request: _Patterns,
    model: shared.ShapedModel,
    output: shared.Output,
) -> None:
    """Score every head on each pattern against chance, and label the heads."""
    from attnviz.draw.numbers import spoken_time
    from attnviz.inspect.patterns import patterns as question

    outlet = Outlet.open(output, model)
    if pictures.images is not None:
        given = [*text.given(), *many.given(), *request.given()]
        if unused := [name for name in given if name != "--index-base"]:
            raise UsageError(f"{unused[0]} is for texts: leave it out next to --images")
        from attnviz.inspect.picture.picture import pictures as over_pictures
        from attnviz.models.pictures import picture_files
        from attnviz.models.vision import PictureModel
        from attnviz.models.work import Work

        paths = picture_files(pictures.images)
        opened = outlet.load_model(Work(reads="picture"))
        assert isinstance(opened, PictureModel)
        outlet.run("reading images", over_pictures, opened, paths, request.index_base)
        return
    if many.texts is not None:
        if text.is_given:
            raise UsageError("expected one source of texts: give TEXT, --file or --texts, not two")
        question.refuse_for_corpus(request)
        outlet.run_over(
            "scoring heads", question.patterns_over, question.work, request, **vars(many)
        )
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
