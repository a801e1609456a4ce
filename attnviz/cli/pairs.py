"""The commands about pairs of prompts: ``attnviz patch`` and ``attnviz path``."""

from __future__ import annotations

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.inspect.interventions.patch.request import PatchRequest
from attnviz.inspect.interventions.path.request import PathRequest

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
    from attnviz.inspect.interventions.prompts import picture_pair, read_pairs
    from attnviz.models.work import Work

    outlet = Outlet.open(output, model, limits_runs=True)
    if pictures.image:
        pictures.refuse(request)
        pairs = picture_pair(request.clean, request.corrupt, pictures.image)
        work = Work(picture_texts=True)
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
    from attnviz.inspect.interventions.prompts import read_pairs

    outlet = Outlet.open(output, model)
    pairs = read_pairs(request.clean, request.corrupt, request.pairs, chat=request.chat)
    loaded = outlet.load_model(question.work(pairs, request))
    outlet.run("following paths", question.path, loaded, pairs, request)
