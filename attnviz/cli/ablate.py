"""The commands that remove heads: ``attnviz ablate`` for a run, ``attnviz prune`` for good."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.errors import UsageError
from attnviz.inspect.interventions.ablate.request import AblateRequest
from attnviz.inspect.prune.request import PruneRequest
from attnviz.models.resolve import built, names_function, running
from attnviz.options import Sharding

ABLATE = """
attnviz ablate
attnviz ablate --head 3
attnviz ablate "When Mary and John went out, John gave a book to Mary." --head L1H0 --by-token
attnviz ablate "The cat sat on the mat because it was tired." --edge "it→cat"
attnviz ablate --texts stories.txt --mode mean --resume scan.jsonl --save scan.csv
attnviz ablate --model openai-community/gpt2 --method budget --budget 30s
attnviz ablate --image cat.jpg --model google/vit-base-patch16-224
attnviz ablate "Is it a cat?" --image cat.jpg --model ./my-vlm --edge "cat→picture"
"""


@dataclass(frozen=True)
class _Model(shared.SeededModel, shared.OwnShape, Sharding, shared.LoadedModel):
    """The options on the model, and on the share of a corpus that it runs on."""


_OWN = ("TEXT", "--model", "--trust-remote-code", "--seed", "--device", "--threads")
"""The options that a module of the person's own takes."""

_FOLLOWED = 3  # number of heads whose losses by token a first screen may show


@command(
    ABLATE,
    "--head --by-token --texts --mode --budget --together",
    draws="weights, resampling, bootstrap, control",
)
def ablate(
    texts: shared.TextOrTexts,
    pictures: shared.SomePictures,
    request: AblateRequest,
    model: _Model,
    output: shared.Output,
) -> None:
    """Ablate each head and measure how much the loss rises."""
    # Options are checked before a model is loaded. Ctrl-C shows the partial result.
    from attnviz.corpus import is_corpus, under_torchrun
    from attnviz.inspect.interventions.ablate import ablate as question
    from attnviz.models.work import Work
    from attnviz.regions import chat_or_text
    from attnviz.texts import read_texts

    outlet = Outlet.open(output, model, limits_runs=True)
    if names_function(model.model):
        from attnviz.inspect.heads.own_modules import ModuleChoice
        from attnviz.inspect.interventions.ablate.own_modules import ablate_module

        if unused := [name for name in (*texts.given(), *model.given()) if name not in _OWN]:
            raise UsageError(f"{unused[0]} is for models that read texts: leave it out")
        made = built(model.model, texts.text, trusted=model.trust_remote_code)
        choice = ModuleChoice.of(made.options, request)
        asked = made.module, made.inputs, made.named, made.options.get("loss"), choice, request
        with running(model.model):
            outlet.run("ablating heads", ablate_module, *asked)
        return
    text = chat_or_text(request, texts.text, texts.file)
    alone = texts.texts if text is None and texts.file is None else None
    large = alone is not None and is_corpus(alone)
    if model.shard is not None or under_torchrun() or large:
        from attnviz.inspect.interventions.ablate.corpus import ablate_over, refuse_for_corpus

        if alone is None:
            raise UsageError("--shard is for a corpus: give --texts FILE alone")
        refuse_for_corpus(request)
        outlet.run_over(
            *("ablating heads", ablate_over, question.work, request),
            texts=alone,
            column=texts.column,
            shard=model.shard,
            resume=request.resume,
        )
        return
    if pictures.image:
        read = pictures.texts(texts, request)
        prompted = any(texts.given())
        work = Work(reads="picture and text" if prompted else "picture")
    else:
        read = read_texts(text, texts.file, texts.texts, texts.column)
        work = question.work(read, request)
    given = outlet.load_model(work), read, request
    followed = _FOLLOWED if outlet.console is not None and not output.whole else 0
    outlet.run("ablating heads", question.ablate, *given, followed=followed, resume=request.resume)


PRUNE = """
attnviz prune --fraction 0.3
attnviz prune --fraction 0.25 --uniform --out smaller
attnviz prune --until-loss 1.05 --rerank --texts stories.txt
attnviz prune --head L0H1,L2H3 --out without-two
attnviz prune --model openai-community/gpt2 --fraction 0.2 --method gradient
"""


@command(PRUNE, "--fraction --head --until-loss --out --texts")
def prune(
    texts: shared.TextOrTexts,
    request: PruneRequest,
    model: shared.LoadedModel,
    output: shared.Output,
) -> None:
    """Remove the least important heads, and compare with removing random ones."""
    from attnviz.draw.files import check_new_directory
    from attnviz.inspect.prune import prune as question
    from attnviz.texts import read_texts

    outlet = Outlet.open(output, model, seed=request.seed, limits_runs=True)
    if request.out is not None:
        check_new_directory(request.out)
    read = read_texts(texts.text, texts.file, texts.texts, texts.column)
    loaded = outlet.load_model(question.work(read, request))
    outlet.run("removing heads", question.prune, loaded, read, request, long=False)
