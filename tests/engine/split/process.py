"""One of the processes that share a model: asks it everything, and prints the answers as JSON.

Its arguments: the directory with the checkpoints, and ``quick`` where the command line alone is
asked.
"""

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.distributed import DistributedConfig
from transformers.utils import logging

import attnviz
from attnviz.cli.main import main
from attnviz.errors import AttnvizError
from attnviz.models.prepare import handed_over
from tests.engine.split.asked import MODELS, REFUSED, TEXT, questions

QUICK = sys.argv[2:] == ["quick"]
directory = Path(sys.argv[1])
model = str(directory / "grouped")
loading = ("--model", model, "--tp")
saved = str(directory / "saved.json")


def opened(path, **ways):
    """Return a checkpoint that transformers splits, as a person's program would load it."""
    config = DistributedConfig(**ways, **({"tp_plan": "auto"} if "tp_size" in ways else {}))
    return AutoModelForCausalLM.from_pretrained(path, distributed_config=config).eval()


def asked(call):
    """Return the JSON of an answer, or the words of a refusal."""
    stream = io.StringIO()
    try:
        call().write_json(stream)
    except AttnvizError as error:
        return f"{type(error).__name__}: {error}"
    return json.loads(stream.getvalue())


def commanded(*arguments):
    """Return exit code, standard output and standard error of a command line in this process."""
    sys.argv = ["attnviz", *arguments]
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as end:
            code = end.code
    return [code, out.getvalue(), err.getvalue()]


def everything(root):
    found = {}
    for name in MODELS:
        path, rules = root / name, root / "rules.toml"
        model = handed_over(opened(path, tp_size=2), AutoTokenizer.from_pretrained(path))
        found[name] = {
            each: asked(partial(ask, model, rules)) for each, ask in questions(name).items()
        }
    for name, (_, _, ways) in REFUSED.items():
        path = root / name.replace("/", " ")
        model, tokenizer = opened(path, **ways), AutoTokenizer.from_pretrained(path)
        found[name] = asked(partial(attnviz.capture, model, TEXT, tokenizer=tokenizer))
    return found


logging.set_verbosity_error()
logging.disable_progress_bar()
dist.init_process_group("gloo")
answers = {} if QUICK else everything(directory)
answers["shown"] = commanded("heads", TEXT, *loading, "--save", saved)
answers["wrong"] = commanded("heads", TEXT, *loading, "--head", "L9H9")
dist.destroy_process_group()
(directory / f"{os.environ['RANK']}.json").write_text(json.dumps(answers), encoding="utf-8")
