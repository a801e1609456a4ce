"""What is asked of every model: in the test of one process, and in each of two that share it."""

from pathlib import Path

import torch
import transformers
import yaml

import attnviz

from ...small_models import SPECIAL, llama_fields, word_tokenizer

TEXT = "the cat sat on the mat because the cat sat tired"

OTHER = "mat on cat the sat"
"""A second text. It does not begin as the first does: equal beginnings are a tie."""
PROMPTS = ("the cat sat on the", "the mat sat on the")
RULES = '[[check]]\nhead = "L0H0"\nscore = "induction"\nat_least = 0\n'

_SIZES = {
    **llama_fields(32, 24, 64, (4, 2, 8)),
    **SPECIAL,
    "vocab_size": 16,
    "initializer_range": 0.3,
}
_TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))

MODELS = _TABLE["models"]
"""By what is special about it: a model's type, and the fields that differ from the others'."""

REFUSED = _TABLE["refused"]
"""By a part of the message: a model's type and fields, and how it is split over two processes."""


def saved(directory, kind, **fields):
    """Save a tiny random checkpoint with its tokenizer; return its directory."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **_SIZES | fields)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(directory)
    word_tokenizer(ends=False).save_pretrained(directory)
    return directory


FEW = {
    "capture": lambda model, _: attnviz.capture(model, TEXT),
    "patterns": lambda model, _: attnviz.patterns(model, TEXT),
    "ablate": lambda model, _: attnviz.ablate(model, [TEXT]),
}
"""What is asked of every model."""

MANY = {
    **FEW,
    "rollout": lambda model, _: attnviz.rollout(model, TEXT),
    "why": lambda model, _: attnviz.why(model, TEXT),
    "check": lambda model, rules: attnviz.check(model, rules),
    "diff": lambda model, _: attnviz.diff(model, model, [TEXT, TEXT + " on"]),
    "generate": lambda model, _: attnviz.generate(model, TEXT, tokens=3),
    "heads": lambda model, _: attnviz.heads(model, TEXT),
    "patch": lambda model, _: attnviz.patch(model, *PROMPTS, what="query"),
    "pooled": lambda model, _: attnviz.heads(model, TEXT, reduce="fused"),
    "gradient": lambda model, _: attnviz.ablate(model, [TEXT], method="gradient"),
    "head": lambda model, _: attnviz.head(model, "L0H1", TEXT, [TEXT, OTHER]),
    "inputs": lambda model, _: attnviz.why(model, PROMPTS[0], inputs=True),
    "lens": lambda model, _: attnviz.lens(model, TEXT),
    "link": lambda model, _: attnviz.link(model, TEXT),
    "mean": lambda model, _: attnviz.ablate(model, [TEXT], mode="mean"),
    "norms": lambda model, _: attnviz.patterns(model, TEXT, norm_weighted=True),
    "pattern": lambda model, _: attnviz.patch(model, *PROMPTS, what="pattern"),
    "patch by gradient": lambda model, _: attnviz.patch(model, *PROMPTS, method="gradient"),
    "path": lambda model, _: attnviz.path(model, "L0H0", *PROMPTS),
    "report": lambda model, _: attnviz.report(model, [TEXT, OTHER], cards=1),
    "retrieve": lambda model, _: attnviz.retrieve(
        model, needle="the cat|sat on", lengths="48", haystacks=1
    ),
    "scaling": lambda model, _: attnviz.scaling(model, TEXT),
}
"""What is asked of one of them."""


def questions(name):
    """Return what is asked of a model of ``MODELS``."""
    return MANY if name == "grouped" else FEW


def flat(found, path=""):
    """Yield (path, value) of every value in nested lists and objects of JSON."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield from flat(value, f"{path}.{key}")
    elif isinstance(found, list):
        for at, value in enumerate(found):
            yield from flat(value, f"{path}[{at}]")
    else:
        yield path, found
