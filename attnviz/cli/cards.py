"""The commands that describe heads: ``attnviz head``, and ``attnviz report`` for many at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.errors import UsageError
from attnviz.inspect.head.request import CardRequest, HeadRequest
from attnviz.inspect.report.request import ReportRequest
from attnviz.options import Options, TextColumn, argument, option

HEAD = """
attnviz head L1H2
attnviz head induction "The cat sat on the mat." --save card.svg
attnviz head L5H1 --model openai-community/gpt2 --texts stories.txt --save card.html
attnviz head L5H1 --image cat.jpg --token 4,7 --model facebook/dinov2-small
"""


@dataclass(frozen=True)
class _HeadTexts(shared.TextOrTexts):
    """The arguments and options on texts: one for the map, others for the ablation of the head."""

    text: str | None = argument(
        "TEXT",
        "The text for the map and the prediction (default: a short built-in text).",
        brief="The text for the map and the prediction.",
    )


@dataclass(frozen=True)
class _Which(Options):
    head: str = argument(
        "HEAD", "The head, such as L1H2.", ..., autocompletion=shared.complete_head
    )


@dataclass(frozen=True)
class _OnPicture(shared.OnePicture):
    token: str | None = option(
        "ROW,COLUMN", "The query: a patch of the image (ROW,COLUMN), CLS or mean."
    )


@command(HEAD, "--texts --file --top --kind")
def head(
    which: _Which,
    texts: _HeadTexts,
    picture: _OnPicture,
    view: CardRequest,
    model: shared.ShapedModel,
    output: shared.Output,
) -> None:
    """Show one head's card: label, map, loss without it, what it reads and writes, and its cost."""
    from attnviz.inspect.head import head as question
    from attnviz.texts import read_texts

    if not question.names_a_head(which.head):
        raise UsageError(
            f"expected a head such as L1H2, got {which.head!r:.60}: attnviz heads shows every "
            "head over a text"
        )
    if texts.text and texts.text[0] in "Ll" and question.names_a_head(texts.text):
        raise UsageError(
            f"expected one head, then a text, got {which.head} and {texts.text}: a card is of one "
            "head"
        )
    if picture.image is not None or picture.token is not None:
        from attnviz.cli.heads import show_picture
        from attnviz.inspect.heads.request import HeadsRequest
        from attnviz.inspect.picture.request import PictureOptions

        if picture.image is None:
            raise UsageError("--token names a patch of an image: add --image FILE")
        unused = [name for name in view.given() if name != "--index-base"]
        path = picture.path(texts, view, unused)
        asked = HeadsRequest(head=(which.head,), token=picture.token, index_base=view.index_base)
        show_picture(texts, asked, PictureOptions(image=(path,)), model, output)
        return
    request = HeadRequest.of(vars(view) | vars(which))
    outlet = Outlet.open(output, model)
    text = texts.read("head L1H2")
    many = read_texts(None, None, texts.texts, texts.column)
    loaded = outlet.load_model(question.work(many, request))
    outlet.run("making the card", question.head, loaded, text, many, request)


REPORT = """
attnviz report
attnviz report tiny --cards 1 --save report.html
attnviz report ./my-checkpoint --texts stories.txt --save report.html
attnviz report openai-community/gpt2-xl --budget 5m --save report.html
"""


@dataclass(frozen=True)
class _Named(TextColumn, shared.ModelArgument):
    text: str | None = option(
        "TEXT", "The text for the maps on the cards (default: built-in).", words=True
    )
    texts: Path | None = option(
        "FILE",
        "Ablate heads on these texts (default: built-in ones): one per line, or CSV, TSV or JSON "
        "with a column named text; use - for standard input.",
        brief="Ablate heads on these texts, not the built-in ones.",
    )


@command(REPORT, "--texts --text --cards --budget")
def report(
    named: _Named, request: ReportRequest, model: shared.ShapedModel, output: shared.Output
) -> None:
    """Summarise a model: what its heads do and which ones matter, with cards for a few."""
    from attnviz.inspect.report import report as question
    from attnviz.texts import read_text, read_texts

    outlet = Outlet.open(output, model, name=named.chosen(model.model))
    text = None if named.text is None else read_text(named.text, None, "report --text")
    many = read_texts(None, None, named.texts, named.column)
    loaded = outlet.load_model(question.work(many, request))
    outlet.run("making the report", question.report, loaded, text, many, request)
