"""A step of a growing text against a pass over all of it, and the start to the first token.

Ratios of one run, on a random Llama of 12 layers that both NumPy and torch run, and on the bundled
model; each number is the median of several. Run with ``python -m pytest
tests/benchmarks/bench_generate.py -s``: a minute.
"""

import subprocess
import sys
import time
from functools import partial
from statistics import median
from typing import Any

import pytest
import torch

from attnviz.engine.backend import backend_of
from attnviz.models.model import Reader
from attnviz.models.resolve import LoadOptions, load
from attnviz.models.work import Work
from attnviz.records import Input, Tokens

from ..conftest import save_tokenizer
from ..small_models import SPECIAL, llama_fields, random_model

pytestmark = pytest.mark.benchmark

LENGTHS = (64, 256)
STEPS, RUNS = 8, 5
SIZE = llama_fields(512, 1376, 512, (8, 8, 64), layers=12)

FIRST = """
from attnviz.engine.generation import Sampling, generate
from attnviz.models.resolve import load
model = load("tiny")
next(generate(model, model.encode("The cat sat on the mat because"), Sampling()))
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    torch.manual_seed(0)
    made = tmp_path_factory.mktemp("generate")
    fields = SIZE | {"vocab_size": 8192, **SPECIAL}
    random_model(("LlamaForCausalLM", "LlamaConfig", fields)).save_pretrained(made)
    save_tokenizer(made)
    return made


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def step(reader, ids):
    """A token more, the median of several; on torch one in a length class takes two passes."""
    reader.read(ids)
    texts = [[*ids, *[5] * more] for more in range(1, STEPS)]
    return median(seconds(partial(reader.read, text)) for text in texts)


def ratio(model, reader, length):
    """A step over what a pass over all tokens takes that shows weights and predictions."""
    ids = [3 + place % 7 for place in range(length)]
    tokens = Tokens.bare(ids)
    run, _ = backend_of(model).open_heads("self", Input(tokens), True)
    run(Input(tokens))
    whole = median(seconds(lambda: run(Input(tokens))) for _ in range(RUNS))
    return median(step(reader(tokens), ids) for _ in range(RUNS)) / whole


def test_a_step_against_a_whole_pass(directory, one_thread):
    for backend, tokens in (("numpy", 9), ("torch", None)):
        model: Any = load(str(directory), LoadOptions(backend=backend, work=Work(tokens)))

        def reader(given, model=model):
            if model.info.backend == "numpy":
                found: Reader = model.reader()
                return found
            return backend_of(model).open_reader(given, given, "self", ())

        for length in LENGTHS:
            share = ratio(model, reader, length)
            print(f"{backend}, {length} tokens: a step is {share:.3f} of a whole pass")


def test_the_first_token_against_importing_torch():
    def process(code):
        return seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True))

    pairs = [(process(FIRST), process("import torch")) for _ in range(RUNS)]
    ours, theirs = (median(times) for times in zip(*pairs[1:], strict=True))
    print(f"tiny: the first token after {ours / theirs:.2f} of import torch")
