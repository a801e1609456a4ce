"""What scoring costs: against the plain run of the same texts, and over a long text by itself.

Run with ``python -m pytest tests/benchmarks/bench_patterns.py -s``.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import numpy as np
import pytest

from attnviz.inspect.patterns.score import score_patterns
from attnviz.models.bundled import Bundled
from attnviz.models.own import OwnAttention
from attnviz.texts import natural_texts

pytestmark = pytest.mark.benchmark

LENGTHS = (2_048, 4_096, 8_192, 16_384)


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def test_the_built_in_probes() -> None:
    model = Bundled()
    texts = [model.encode(text) for text in natural_texts()]

    def plain() -> None:
        for text in texts:
            model.stack.run_outputs(text.ids, lambda layer, weights, outputs: None)

    plain()
    alone = seconds(plain)
    scored = seconds(lambda: score_patterns(model, texts))
    everything = seconds(lambda: score_patterns(model))
    print(f"\nnatural text: {alone:.3f} s plain, {scored / alone:.1f} x scored")
    print(f"all probes, labels and maps: {everything:.2f} s")


def test_a_long_text() -> None:
    model = OwnAttention(64, 4, causal=True)
    generator = np.random.default_rng(0)
    for length in LENGTHS:
        words = " ".join(f"w{number}" for number in generator.integers(0, 500, length))
        text = model.encode(words)
        took = seconds(lambda text=text: score_patterns(model, [text]))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"\n{length:>6,} tokens, 4 heads: {took:5.1f} s, at most {peak:.2f} GB so far")
