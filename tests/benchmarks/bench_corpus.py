"""What a corpus costs: its memory, against plain forward passes, and in two processes.

Run with ``python -m pytest tests/benchmarks/bench_corpus.py -m benchmark -n 0 -s``; it prints CPU
seconds, which other programs on the machine change least, and takes ten minutes on one core.
"""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

import attnviz
from attnviz.engine.probing import open_probing
from attnviz.inspect.patterns.probes import OWN, ProbeText, batches
from attnviz.records import Input
from attnviz.texts import natural_texts

pytestmark = pytest.mark.benchmark

_TOKENS = 1_000_000
_CHILD = """
import resource, sys, attnviz
report = attnviz.patterns("tiny", texts=sys.argv[1], shard=sys.argv[2], resume=sys.argv[3] or None)
used = resource.getrusage(resource.RUSAGE_SELF)
print(report.record.tallies.sums["tokens"], used.ru_maxrss / 1e3, used.ru_utime + used.ru_stime)
"""


def written(path, tokens, length=200):
    """Write texts of about ``length`` tokens, of words of the built-in passages in random order."""
    words, rng = " ".join(natural_texts()).split(), np.random.default_rng(0)
    per_word = len(attnviz.load("tiny").encode(" ".join(words[:300]))) / 300
    count = round(length / per_word)
    lines = (" ".join(rng.choice(words, count)) for _ in range(tokens // length))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def begun(path, shard="0/1", part=""):
    command = [sys.executable, "-c", _CHILD, str(path), shard, part]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def results(*children):
    """Tokens, the largest memory in MB and the CPU seconds of some processes."""
    found = [[float(number) for number in child.communicate()[0].split()] for child in children]
    tokens, memory, seconds = zip(*found, strict=True)
    return sum(tokens), max(memory), sum(seconds)


def cpu(run):
    began = time.process_time()
    run()
    return time.process_time() - began


def test_a_million_tokens_in_constant_memory(tmp_path):
    part = tmp_path / "part"
    for tokens in (_TOKENS // 10, _TOKENS):
        path = written(tmp_path / f"{tokens}.txt", tokens)
        read, memory, seconds = results(begun(path, part=str(part)))
        size = part.stat().st_size / 1e3
        part.unlink()
        print(f"\n{read:>9,.0f} tokens: {seconds:.1f} s, {memory:.0f} MB, file of {size:.0f} kB")


def test_two_workers(tmp_path):
    path = written(tmp_path / "corpus.txt", _TOKENS // 10)
    began = time.perf_counter()
    _, _, alone = results(begun(path))
    one = time.perf_counter()
    _, _, both = results(begun(path, "0/2"), begun(path, "1/2"))
    wall = (one - began) / (time.perf_counter() - one)
    print(f"\ntwo workers: {both / alone:.2f} x the CPU time of one, {wall:.2f} x as fast here")


class _Last:
    """An observer that drops the weights of the last layer: a run is a plain forward pass."""

    norms = False

    def __init__(self, layer):
        self._layer = layer

    def wants(self, kind, layer):
        return layer == self._layer

    def observe(self, *given):
        pass


@pytest.mark.parametrize("length", [64, 256])
def test_against_plain_forward_passes(length):
    """Of the same batches of the bundled model, over one block."""
    model = attnviz.load("tiny")
    probing = open_probing(model)
    words, rng = " ".join(natural_texts()).split(), np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, length)) for _ in range(64)]
    inputs = [ProbeText(OWN, Input(model.encode(text))) for text in texts]

    def plain():
        for batch in batches(inputs, 2048):
            probing.run(_Last(model.info.layers - 1), [text.passage for text in batch])

    plain()
    alone, scored = cpu(plain), cpu(lambda: attnviz.patterns(model, texts=texts))
    tokens = sum(len(text.passage.text) for text in inputs)
    print(f"\n{tokens:,} tokens, texts of {length} words: {alone / scored:.2f} x as fast as plain")
