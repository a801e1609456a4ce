"""The command ``attnviz params``: the exact costs of a shape or a named model."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.cli.default_model import DefaultName, default_model
from attnviz.cli.groups import command
from attnviz.cli.options import Output, complete_shape
from attnviz.cli.outlet import Outlet
from attnviz.count.params.request import ParamsRequest
from attnviz.options import Options, argument, option

EXAMPLES = """
attnviz params --d-model 4096 --heads 32
attnviz params --d-model 4096 --heads 32 --compare kv-heads=32,8,1
attnviz params --d-model 512 --heads 8 --layers 6 --d-ff 2048 --formula
attnviz params llama-2-70b --tokens 4096 --memory 160GB
attnviz params gpt2 bert-base llama-2-7b --save models.md
"""


@dataclass(frozen=True)
class _Models(Options):
    names: tuple[str, ...] = argument(
        "MODEL",
        "A preset such as llama-2-7b, a directory with a config.json, a GGUF file, or a Hugging "
        "Face id; several are shown side by side.",
        (),
        autocompletion=complete_shape,
        show_default=False,
        brief="A preset, directory, GGUF or Hugging Face id.",
    )
    models: tuple[str, ...] = option(
        "NAME",
        "Same as MODEL; a bare name is taken as a Hugging Face id if such an id exists.",
        (),
        name="--model",
        short="-m",
        autocompletion=complete_shape,
        brief="Same as MODEL.",
    )


@command(EXAMPLES, "--tokens --batch --dtype --memory --gpu --compare")
def params(named: _Models, request: ParamsRequest, output: Output) -> None:
    """Compute the exact parameter count, KV cache, FLOPs and memory of any architecture."""
    from attnviz.count.params import params as question
    from attnviz.count.params.request import NamedModel

    outlet = Outlet.open(output)
    first = dict.fromkeys(named.names, True)
    chosen = first | {name: False for name in named.models if name not in first}
    models = [NamedModel(name, shapes_first) for name, shapes_first in chosen.items()]
    default = "" if models or request.names_a_shape else default_model()
    if isinstance(default, DefaultName):
        models = [NamedModel(default)]
    with outlet.of(default):
        report = question.params(models, request)
    outlet.show(report)
