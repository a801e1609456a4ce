"""The commands about prompts, ``why``, ``link`` and ``lens``, and pairs: ``patch`` and ``path``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.inspect.interventions.patch.request import PatchRequest
from attnviz.inspect.interventions.path.request import PathRequest
from attnviz.inspect.lens.request import LensRequest
from attnviz.inspect.link.request import LinkRequest
from attnviz.inspect.why.request import WhyRequest
from attnviz.options import TextColumn, option

_MANY = "Many prompts: one per line, or CSV, TSV or JSON with a prompt column and, optionally,"
_BRIEF = "Many prompts: one per line, CSV, TSV or JSON."


@dataclass(frozen=True)
class _WhyPrompts(TextColumn, shared.PromptText):
    texts: Path | None = option(
        "FILE", f"{_MANY} “answer”, “foil” and “position” columns.", brief=_BRIEF
    )


WHY = """
attnviz why "Then Mary saw Tom. Then Mary saw"
attnviz why "Then Mary saw Tom. Then Mary saw" --answer Tom --foil Mary
attnviz why --texts prompts.jsonl --save parts.csv
attnviz why "The Eiffel Tower stands in the city of" --model openai-community/gpt2
"""


@command(WHY, "--answer --foil --texts --head --top", draws="weights, control, bootstrap")
def why(
    prompts: _WhyPrompts, request: WhyRequest, model: shared.ShapedModel, output: shared.ArrayOutput
) -> None:
    """Show each head's direct contribution to the logit of the predicted token."""
    from attnviz.inspect.why import why as question
    from attnviz.prompts.study import read_prompts

    outlet = Outlet.open(output, model)
    read, source = read_prompts("why", request, **vars(prompts))
    given = outlet.load_model(question.work(read, request)), read, request
    report = outlet.run("taking logits apart", question.why, *given, long=False, source=source)
    report.require_tally()


@dataclass(frozen=True)
class _LinkPrompts(TextColumn, shared.PromptText):
    texts: Path | None = option("FILE", f"{_MANY} “query”, “key” and “than” columns.", brief=_BRIEF)


LINK = """
attnviz link "When Nancy met John, nobody knew why Nancy met"
attnviz link "Then Mary saw Tom. Then Mary saw" --head L1H2 --key Tom
attnviz link --texts prompts.jsonl --head L1H2 --save parts.csv
"""


@command(LINK, "--head --query --key --than --texts", draws="weights, control, bootstrap")
def link(
    prompts: _LinkPrompts,
    request: LinkRequest,
    model: shared.DrawnModel,
    output: shared.ArrayOutput,
) -> None:
    """Show why a head attends to a token: where the query and key come from."""
    from attnviz.inspect.link import link as question
    from attnviz.prompts.study import read_prompts

    outlet = Outlet.open(output, model)
    read, source = read_prompts("link", request, **vars(prompts))
    given = outlet.load_model(question.work(read, request)), read, request
    report = outlet.run("taking attention apart", question.link, *given, long=False, source=source)
    report.require_tally()


LENS = """
attnviz lens "When Nancy met John, nobody knew why Nancy met"
attnviz lens "Then Mary saw Tom. Then Mary saw" --answer Mary --head L1H2
attnviz lens "The Eiffel Tower stands in the city of" --model openai-community/gpt2
"""


@command(LENS, "--answer --position --head", draws="weights")
def lens(
    prompt: shared.PromptText,
    request: LensRequest,
    model: shared.ShapedModel,
    output: shared.ArrayOutput,
) -> None:
    """Show what the model would predict after each block, and what heads write there."""
    from attnviz.draw.labels import visible
    from attnviz.inspect.lens import lens as question
    from attnviz.regions import given_text

    outlet = Outlet.open(output, model)
    text = given_text(request, prompt.text, prompt.file, "lens")
    source = "" if prompt.file is None else visible(str(prompt.file))
    loaded = outlet.load_model(question.work(text, request))
    outlet.show(question.lens(loaded, text, request, source=source))


PATCH = """
attnviz patch
attnviz patch "Tom Brown ran. Tom" "Tom Harris ran. Tom"
attnviz patch CLEAN CORRUPT --by-token --head L1H0,L1H2
attnviz patch CLEAN CORRUPT --what residual
attnviz patch "What is it?" --image cat.jpg --image dog.jpg --model ./my-vlm
attnviz patch --pairs pairs.jsonl --together L1H0,L1H2 --fdr --save effects.csv
"""


@command(PATCH, "--by-token --head --pairs --together --top")
def patch(
    request: PatchRequest,
    pictures: shared.SomePictures,
    model: shared.DrawnModel,
    output: shared.Output,
) -> None:
    """Patch activations between two prompts to find which heads carry the difference."""
    # Options are checked before a model is loaded. Ctrl-C shows the partial result.
    from attnviz.inspect.interventions.patch import patch as question
    from attnviz.models.work import Work
    from attnviz.prompts.request import picture_pair, read_pairs

    outlet = Outlet.open(output, model, limits_runs=True)
    if pictures.image:
        pictures.refuse(request)
        pairs = picture_pair(request.clean, request.corrupt, pictures.image)
        work = Work(reads="picture and text")
    else:
        pairs = read_pairs(
            request.clean, request.corrupt, request.pairs, request.second, chat=request.chat
        )
        work = question.work(pairs, request)
    loaded = outlet.load_model(work)
    outlet.run("patching", question.patch, loaded, pairs, request, resume=request.resume)


PATH = """
attnviz path L0H0
attnviz path L0H0 "Tom Brown ran. Tom" "Tom Harris ran. Tom"
attnviz path L1H2 --into value --pairs pairs.jsonl --save listeners.csv
"""


@command(PATH, "--into --pairs --top")
def path(request: PathRequest, model: shared.DrawnModel, output: shared.Output) -> None:
    """Follow one head: find which later heads read what it writes."""
    from attnviz.inspect.interventions.path import path as question
    from attnviz.prompts.request import read_pairs

    outlet = Outlet.open(output, model)
    pairs = read_pairs(request.clean, request.corrupt, request.pairs, chat=request.chat)
    loaded = outlet.load_model(question.work(pairs, request))
    outlet.run("following paths", question.path, loaded, pairs, request)
