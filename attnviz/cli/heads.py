"""The commands that show one text, picture or sound: ``attnviz heads`` and ``attnviz rollout``."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.draw.labels import visible
from attnviz.draw.report import EVERY, Report
from attnviz.errors import UsageError
from attnviz.inspect.heads.request import HeadsRequest
from attnviz.inspect.picture.request import PictureOptions
from attnviz.inspect.rollout.request import RolloutRequest
from attnviz.inspect.speech.request import SpeechOptions
from attnviz.models.resolve import built, names_function, running
from attnviz.options import Options, flag, option

if TYPE_CHECKING:
    from attnviz.models.model import Model

HEADS = """
attnviz heads "The cat sat on the mat because it was tired."
attnviz heads "Mary met John, and John met Mary." --head L1H0 --values
attnviz heads "The animal didn't cross the street because it was tired." --pair it animal
attnviz heads --file story.txt --layer 0-1 --top 3
attnviz heads "A text." --model ./my-checkpoint --token text --save heads.svg
attnviz heads --image cat.jpg --model facebook/dinov2-small
attnviz heads "What is in the picture?" --image cat.jpg --model Qwen/Qwen2.5-VL-3B-Instruct
attnviz heads --audio talk.wav --model openai/whisper-tiny
attnviz heads --texts stories.txt --save heads.html
attnviz heads --chat chat.json --model ./my-chat-model
attnviz heads "The cat sat on the mat because it was tired." --span who="The cat" --span it=7:8
attnviz heads "나는 오늘 학교에 갔다 ." --model mha --d-model 64 --heads 8 --causal
attnviz heads "the cat sat on the mat" --model mha --kind self,cross --target "my four query words"
attnviz heads "the dog" --and "the cat sat on the mat" --model mha --heads 2 --compare-mask
"""


@dataclass(frozen=True)
class _Moved(Options):
    """The option of earlier versions that is refused, with the words to type in its place."""

    cut: str | None = option("WORD→WORD", "See attnviz ablate --edge.", words=True, hidden=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cut is not None:
            raise UsageError('--cut is gone: type attnviz ablate TEXT --edge "it→cat"')


@dataclass(frozen=True)
class HeadsOutput(shared.PagedOutput):
    """The output options of every command, with files of arrays."""

    save: tuple[Path, ...] = shared.saved(f"{EVERY} .npz")


@dataclass(frozen=True)
class _Saved(Options):
    saved: Path | None = option(
        "FILE", "Show maps saved as .npz or .json, without the model.", name="--from"
    )
    vectors: bool = flag("Also save queries, keys and value norms, for --from.")


@command(HEADS, "--head --layer --token --pair --values --file")
def heads(
    text: shared.TextOrTexts,
    saved: _Saved,
    request: HeadsRequest,
    pictures: PictureOptions,
    sound: SpeechOptions,
    moved: _Moved,
    model: shared.ShapedModel,
    output: HeadsOutput,
) -> None:
    """Show what each attention head attends to in text, images or audio."""
    from attnviz.inspect.heads import heads as question
    from attnviz.inspect.heads.report import LongHeads
    from attnviz.progress import UNWATCHED
    from attnviz.regions import given_text
    from attnviz.texts import Texts, read_texts

    if saved.saved is not None:
        unused = [*model.given()] + ["--vectors"] * saved.vectors
        _show_saved(saved.saved, text, request, unused, output)
        return
    if pictures.tower:  # it reads no text
        if not pictures.image or pictures.generate is not None:
            raise UsageError("--tower is the part that reads images: give --image FILE alone")
        text = replace(text, text=None, file=None)
    if pictures.image and text.is_given:
        _show_prompt(text, request, pictures, model, output)
        return
    if pictures.generate is not None:
        raise UsageError("--generate is for a text with images: give a TEXT and --image FILE")
    if pictures.image or pictures.at is not None:
        show_picture(text, request, pictures, model, output)
        return
    if sound.audio is not None or sound.transcript is not None:
        _show_sound(text, request, sound, model, output)
        return
    if names_function(model.model):
        _show_module(text, request, model, output)
        return
    if request.compare_mask and model.causal is not None:
        raise UsageError("--compare-mask shows both: leave out --causal and --no-causal")
    vectors = output.pages or saved.vectors
    several = text.texts is not None
    outlet = Outlet.open(output, model, *request.changed)
    (first, _), *_ = question.requested_runs(request, of_texts=several)  # before a file is read
    content: str | Texts
    if text.texts is not None:
        content = read_texts(text.text, text.file, text.texts, text.column)
    else:
        content = given_text(request, text.text, text.file)

    def opening(changes: dict[str, Any]) -> Model:
        return outlet.load_model(question.work(content, request), **changes)

    opened = opening(first)
    watch = opened.info.backend == "torch" and not several
    shown = outlet.advancing("reading the layers") if watch else nullcontext(UNWATCHED)
    with outlet.of(model.model), shown as advance:
        report = question.heads(opened, content, request, opening, vectors=vectors, advance=advance)
    outlet.show(report)
    if isinstance(report, LongHeads) and not report.complete:
        raise KeyboardInterrupt


def _show_module(
    text: shared.TextOrTexts, request: HeadsRequest, model: shared.ShapedModel, output: HeadsOutput
) -> None:
    kept = {"--layer", "--head", "--kind", "--values", "--top", "--sink/--no-sink", "--index-base"}
    unused = [name for name in (*text.given(), *request.given()) if name not in kept | {"TEXT"}]
    if unused or request.sink is False:
        raise UsageError(f"{(*unused, '--no-sink')[0]} is for models that read texts: leave it out")
    outlet = Outlet.open(output, model)
    from attnviz.inspect.heads.own_modules import ModuleChoice, module_maps
    from attnviz.inspect.heads.report import HeadsView, compare_heads

    made = built(model.model, text.text, trusted=model.trust_remote_code)
    asked = ModuleChoice.of(made.options, request)
    with running(model.model):
        record = module_maps(made.module, made.inputs, made.named, asked).maps.report
    view = HeadsView(request.values, request.top, sink=bool(request.sink))
    outlet.show(replace(compare_heads([record]), view=view))


def show_picture(
    text: shared.TextOrTexts,
    request: HeadsRequest,
    pictures: PictureOptions,
    model: shared.ShapedModel,
    output: shared.Output,
) -> None:
    """Show where the heads of a vision model look, on a picture."""
    from attnviz.inspect.picture.request import picture_request, two_numbers

    at = None if pictures.at is None else two_numbers(pictures.at, "--at")
    asked = picture_request(request, [*text.given()], at)
    if len(pictures.image) != 1:
        given = len(pictures.image) or "no"
        raise UsageError(f"a vision model looks at one image, got {given} of --image")
    from attnviz.inspect.picture.picture import picture
    from attnviz.models.pictures import read_picture
    from attnviz.models.vision import PictureModel
    from attnviz.models.work import Work

    outlet = Outlet.open(output, model)
    file = read_picture(pictures.image[0])
    with outlet.of(model.model):
        opened = outlet.load_model(Work(reads="picture"))
        assert isinstance(opened, PictureModel)
        with outlet.advancing("reading the layers") as advance:
            whole = isinstance(output, HeadsOutput) and output.pages
            report = picture(opened, opened.read(file), asked, advance, maps=whole)
    outlet.show(report)


def _show_prompt(
    text: shared.TextOrTexts,
    request: HeadsRequest,
    pictures: PictureOptions,
    model: shared.ShapedModel,
    output: HeadsOutput,
) -> None:
    from attnviz.inspect.picture_text.request import picture_text_request

    asked = picture_text_request(request, pictures.generate)
    if pictures.at is not None or text.texts is not None:
        raise UsageError(f"{'--texts' if text.texts else '--at'} is not for a text with images")
    from attnviz.inspect.picture_text.picture_text import picture_text
    from attnviz.models.picture_texts import PictureTextModel
    from attnviz.models.pictures import picture_prompt
    from attnviz.models.work import Work
    from attnviz.texts import read_text

    outlet = Outlet.open(output, model)
    prompt = picture_prompt(read_text(text.text, text.file), pictures.image)
    with outlet.of(model.model):
        opened = outlet.load_model(Work(reads="picture and text"))
        assert isinstance(opened, PictureTextModel)
        with outlet.advancing("reading the layers") as advance:
            report = picture_text(opened, prompt, asked, advance)
    outlet.show(report)


def _show_sound(
    text: shared.TextOrTexts,
    request: HeadsRequest,
    sound: SpeechOptions,
    model: shared.ShapedModel,
    output: HeadsOutput,
) -> None:
    from attnviz.inspect.speech.request import speech_request

    if sound.audio is None:
        raise UsageError("--text is the transcript of the audio: add --audio FILE")
    words = request.kind == "decoder"
    asked = None if words else speech_request(request, [*text.given()], sound.transcript)
    from attnviz.inspect.heads import heads as question
    from attnviz.inspect.speech.speech import speech
    from attnviz.models.speech import SpeechModel
    from attnviz.models.work import Work

    outlet = Outlet.open(output, model)
    with outlet.of(model.model):
        opened = outlet.load_model(Work(reads="sound"))
        assert isinstance(opened, SpeechModel)
        heard = opened.hear(sound.audio)
        report: Report
        with outlet.advancing("reading the layers") as advance:
            if asked is not None:
                report = speech(opened, heard, asked, advance)
            else:
                given = replace(request, target=sound.transcript)
                report = question.heads(
                    opened, sound.audio, given, lambda changes: opened, advance=advance
                )
    outlet.show(report)


def _show_saved(
    path: Path, text: shared.Text, request: HeadsRequest, unused: list[str], output: HeadsOutput
) -> None:
    from attnviz.inspect.heads.report import HeadsView, chosen_heads, only
    from attnviz.inspect.heads.saved import read_heads
    from attnviz.reading import ARRAY_BYTES, read_bytes
    from attnviz.records import HeadsRecord, HeadVectors

    kept = {"--layer", "--head", "--values", "--top", "--sink/--no-sink", "--index-base"}
    unused += [name for name in request.given() if name not in kept]
    unused += [*text.given()] + ["--no-sink"] * (request.sink is False)
    if unused:
        raise UsageError(f"--from shows what was saved, without its model: leave out {unused[0]}")
    outlet = Outlet.open(output)
    name = repr(visible(str(path)))
    report = read_heads(read_bytes(path, name=name, most=ARRAY_BYTES), name)
    runs = list[HeadsRecord]()
    for run in report.reports:
        vectors = run.vectors or HeadVectors()
        missing = ["value norms"] * (not vectors.norms)
        missing += ["queries and keys"] * (not vectors.queries)
        if missing and not vectors.notes:  # notes are of another program's capture
            how = "heads --vectors keeps them in .npz, as far as the model shows them"
            vectors = replace(vectors, notes=(f"The file has no {', '.join(missing)}: {how}.",))
        runs.append(replace(run, index_base=request.index_base, vectors=vectors))
    if request.head or request.layer is not None:
        runs = [only(run, chosen_heads(run, request.head, request.layer)) for run in runs]
    view = HeadsView(request.values, request.top, sink=bool(request.sink))
    outlet.show(replace(report, reports=tuple(runs), view=view))


ROLLOUT = """
attnviz rollout "The cat sat on the mat because it was tired."
attnviz rollout "Mary met John, and John met Mary." --values --explain
attnviz rollout --file story.txt --save rollout.svg
attnviz rollout --image cat.jpg --model facebook/dinov2-small
"""


@command(ROLLOUT, "--token --values --sink --file")
def rollout(
    text: shared.Text,
    picture: shared.OnePicture,
    request: RolloutRequest,
    model: shared.ShapedModel,
    output: shared.Output,
) -> None:
    """Follow attention through all layers, from each position back to the input."""
    from attnviz.inspect.rollout import rollout as question
    from attnviz.models.work import Work
    from attnviz.regions import given_text

    outlet = Outlet.open(output, model)
    if picture.image is not None:
        content = picture.path(text, request)
        options = outlet.of_model(Work(reads="picture"))
    else:
        content = given_text(request, text.text, text.file, "rollout")
        options = outlet.of_model(question.work(content, request))
    with outlet.opened(model.model, options) as loaded:
        report = question.rollout(loaded, content, request)
    outlet.show(report)
