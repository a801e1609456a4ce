"""The commands that compare: ``diff`` of two models, ``check`` of one with the rules in a file."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.errors import AttnvizError, CheckError, UsageError
from attnviz.inspect.check.request import CheckRequest
from attnviz.inspect.diff.request import DiffRequest
from attnviz.options import Options, TextColumn, argument, option
from attnviz.ranks import follows

if TYPE_CHECKING:
    from attnviz.inspect.check.report import CheckReport
    from attnviz.texts import Texts

DIFF = """
attnviz diff openai-community/gpt2 ./tuned
attnviz diff ./model ./model --dtype-b bfloat16 --texts stories.txt
attnviz diff ./model ./pruned --match --save diff.html
attnviz diff facebook/dinov2-small ./tuned --images photos
attnviz patterns --model ./model --save base.json && attnviz diff base.json ./tuned
"""


@dataclass(frozen=True)
class _Sides(Options):
    a: str = argument(
        "A",
        "Anything --model accepts, or a result that attnviz patterns saved as .json.",
        ...,
        brief="A model, or a result saved as .json.",
    )
    b: str | None = argument("B", "What to compare A with (default: A itself).")


@dataclass(frozen=True)
class _Texts(TextColumn, panel="What to compare"):
    texts: Path | None = option(
        "FILE",
        "Texts: one per line, or CSV, TSV or JSON with a column named text (default: 10 built-in "
        "texts).",
        brief="Texts: one per line, CSV, TSV or JSON.",
    )
    text: str | None = option(
        "TEXT", "A single text (no confidence intervals: anecdotal).", words=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text is not None and self.texts is not None:
            raise UsageError("expected one source of texts: give --text or --texts, not both")


@dataclass(frozen=True)
class _Pictures(shared.SomePictures, panel="What to compare"):
    images: str | None = option("DIR", "Compare vision models on these images.")

    def read(self, texts: _Texts, texts_b: Options) -> Texts:
        """Return the pictures in place of texts, or the one text with them."""
        self.refuse(texts)
        text = texts.text
        if given := [*texts_b.given()]:
            raise UsageError(f"{given[0]} is for texts: leave it out next to images")
        if self.images is None:
            from attnviz.texts import read_text, with_pictures

            prompt = None if text is None else read_text(text, None, "diff")
            return with_pictures(prompt, [*self.image])
        if self.image or text is not None:
            raise UsageError("--images gives all images: leave out --image and --text")
        from attnviz.models.pictures import picture_files
        from attnviz.texts import Texts

        return Texts(picture_files(self.images), self.images)


@dataclass(frozen=True)
class _TextsOfB(Options, panel="B under different settings"):
    text_b: str | None = option(
        "TEXT", "Text for B, instead of --text; must have the same number of tokens.", words=True
    )
    texts_b: Path | None = option(
        "FILE", "Texts for B, instead of --texts; line n is compared with line n of --texts."
    )


@dataclass(frozen=True)
class _Request(DiffRequest):
    seed: int = option("N", "Random seed (weights, random tokens, bootstrap).", 0, min=0)


@command(DIFF, "--texts --match --dtype-b --top")
def diff(
    sides: _Sides,
    texts: _Texts,
    pictures: _Pictures,
    request: _Request,
    texts_b: _TextsOfB,
    loading: shared.Loading,
    output: shared.Output,
) -> None:
    """Compare two models head by head, against a noise floor."""
    from attnviz.inspect.diff import diff as question
    from attnviz.inspect.diff.compare import both_sides
    from attnviz.models.resolve import LoadOptions
    from attnviz.models.work import Work

    outlet = Outlet.open(output)
    work: Work | None = None
    read: Texts | None
    read_b: Texts | None = None
    if pictures.image or pictures.images is not None:
        prompted = texts.text is not None
        read = pictures.read(texts, texts_b)
        work = Work(reads="picture and text" if prompted else "picture")
    else:
        read = _read(texts.text, texts.texts, texts.column)
        read_b = _read(texts_b.text_b, texts_b.texts_b, texts.column)
    for other, own in (("text_b", "text"), ("texts_b", "texts")):
        if getattr(texts_b, other) is not None and getattr(texts, own) is None:
            name = other.replace("_", "-")
            raise UsageError(f"--{name} is what B reads in place of --{own}: add --{own}")
    a, b = both_sides(
        request,
        sides.a,
        sides.a if sides.b is None else sides.b,
        LoadOptions(**vars(loading), seed=request.seed),
        texts=read,
        texts_b=read_b,
        pictures=work,
    )
    report = question.diff(
        *(a, b, request),
        opening=lambda side: outlet.load(side.name, side.options),
        scanning=lambda: outlet.advancing("comparing heads"),
    )
    outlet.show(report)


def _read(text: str | None, many: Path | None, column: str | None) -> Texts | None:
    from attnviz.texts import Texts, read_text, read_texts_file

    if many is not None:
        return read_texts_file(many, "--texts", column)
    return None if text is None else Texts((read_text(text, None, "diff"),), "")


CHECK = """
attnviz check checks.toml --init
attnviz check checks.toml
attnviz check checks.toml --model ./tuned --junit report.xml
attnviz check checks.toml --update
"""


@dataclass(frozen=True)
class _File(Options):
    file: Path = argument("FILE", "Rules in TOML; see attnviz docs check.", ...)


@dataclass(frozen=True)
class _Model(Options, panel="Model"):
    model: str | None = option(
        "NAME",
        "Check this model instead of the one in FILE: tiny, mha, a directory or a Hugging Face id.",
        short="-m",
        autocompletion=shared.complete_model,
        brief="Check this model instead of the file's.",
    )
    seed: int = option("N", "Random seed (weights, random tokens).", 0, min=0)


@dataclass(frozen=True)
class _Junit(Options, panel="Output"):
    junit: Path | None = option("FILE", "Write JUnit XML, one test case per rule.", writes=True)


@command(CHECK, "--init --update --junit --device")
def check(
    file: _File,
    request: CheckRequest,
    model: _Model,
    loading: shared.Loading,
    output: shared.Output,
    junit: _Junit,
) -> None:
    """Test a model against rules in a file: a gate for CI."""
    from attnviz.inspect.check import check as question

    outlet = Outlet.open(output)
    also = [*output.save, *([junit.junit] if junit.junit else [])]
    rules = question.rules_of(file.file, request, also)
    checked = question.checked_model(
        *(model.model, rules, model.seed),
        options=lambda name: shared.load_options(name, loading, model.seed),
        load=outlet.load,
    )
    if rules is None or any(rule.kind != "CountRule" for rule in rules.rules):
        _ = checked.model  # loads it under its own spinner
    with outlet.advancing("scoring heads") as advance:
        report = question.check(checked, file.file, request, rules, advance)
    if report.written and (outlet.console is None or output.whole):  # else it is on the screen
        outlet.notices.print(report.files_written, soft_wrap=True)
        report = replace(report, written=())
    _show(report, outlet, junit.junit)


def _show(report: CheckReport, outlet: Outlet, junit: Path | None) -> None:
    """Show the report, write the files for CI, and end with an exit code if a rule fails.

    junit: the path of the JUnit file, if any. If one output fails, the others are still written,
        and a failed rule still fails the command.
    """
    from attnviz.cli.terminal import discard_output
    from attnviz.inspect.check import ci
    from attnviz.inspect.check.report import on_github

    lost: list[AttnvizError] = []
    try:
        if junit is not None:
            ci.write_junit(junit, report)
    except AttnvizError as error:
        lost.append(error)
    try:
        outlet.show(report)
    except AttnvizError as error:
        lost.append(error)
    except (BrokenPipeError, SystemExit):  # rich turns the first into the second
        discard_output()
    if on_github() and not follows():
        for line in ci.github_lines(report):
            print(line, file=sys.stderr)
        try:
            ci.add_summary(report.document(explain=outlet.output.explain))
        except OSError as error:  # does not affect the result
            outlet.notices.print(f"no step summary: {error.strerror}", soft_wrap=True)
    failures = "; ".join(map(str, lost))
    if not report.passed:
        if outlet.output.for_programs or lost:
            raise CheckError("; ".join(filter(None, (report.finding, failures))))
        raise typer.Exit(CheckError.exit_code)  # the reason is on the screen
    if lost:
        raise type(lost[0])(failures)
