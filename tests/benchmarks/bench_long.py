"""What it costs to read every head over a long text, next to the plain forward pass of the trunk.

All pattern scores, entropy, the largest weights and 64 × 64 pooled maps of every head are read from
sums (``--reduce fused``), or the scores from blocks of rows for comparison. Layers are alike: a
model of few of them has the ratio of the whole one. The memory is that above the plain pass.

    python tests/benchmarks/bench_long.py [--tokens 1024,16384] [--layers 2] [--dtype bfloat16]
        [--shape gpt2|llama1b|llama8b] [--device cuda]
"""

import argparse
import resource
import time

import numpy as np
import torch
from transformers import AutoModel, GPT2Config, LlamaConfig

from attnviz.engine.backend import backend_of
from attnviz.inspect.patterns.measure import SHUFFLES, LayerSums
from attnviz.measures.rows import Conditions, TextFacts
from attnviz.models.prepare import prepared
from attnviz.records import Input, Tokens

CONDITIONS = Conditions("self", causal=True, ranked=True)


def config_of(shape, layers, tokens):
    if shape == "gpt2":
        return GPT2Config(n_layer=layers, n_positions=tokens)
    hidden, inner = (4096, 14_336) if shape == "llama8b" else (2048, 8192)
    return LlamaConfig(
        vocab_size=32_000,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=tokens,
    )


def natural(tokens):
    """Ids as often as words are: the n-th most frequent has a share of 1 / (n + 2.7)."""
    shares = 1 / (np.arange(20_000) + 2.7)
    ids = np.random.default_rng(0).choice(20_000, tokens, p=shares / shares.sum())
    texts = tuple("," if each == 2 else f"t{each}" for each in ids)
    return Tokens(tuple(map(int, ids)), texts, (False,) * tokens)


class Scores:
    """Scores each layer from its sums or from its blocks of rows."""

    norms = False

    def __init__(self, text):
        self.text = TextFacts(text, text, CONDITIONS, SHUFFLES, passing=True)
        self.layers: dict[int, LayerSums] = {}
        self._evens = LayerSums(self.text)._evens

    def wants(self, kind, layer):
        return True

    def layer(self, layer):
        return self.layers.setdefault(layer, LayerSums(self.text, self._evens))

    def observe(self, text, kind, layer, start, weights, beside):
        self.layer(layer).add(weights, start, beside.mask)

    def sums(self, text, kind, layer, found):
        size = -(-len(self.text.keys) // 64)
        rows = self.layer(layer).add_sums(found, range(found.heads), size)
        assert rows.found.pooled is not None


def spent(run, device):
    """Seconds, and megabytes by which the peak of the processor's or a GPU's memory grew."""
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held, start = torch.cuda.memory_allocated(), time.perf_counter()
        run()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        return seconds, (torch.cuda.max_memory_allocated() - held) / 2**20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    run()
    seconds = time.process_time() - start
    return seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def measure(asked, tokens):
    shape, layers, device = asked.shape, asked.layers, asked.device
    with torch.device(device):
        made = AutoModel.from_config(
            config_of(shape, layers, tokens), dtype=getattr(torch, asked.dtype)
        )
    model = prepared(shape, made, None, torch.device(device))
    text = natural(tokens)
    ids = torch.tensor([text.ids], device=device)
    backend = backend_of(model)
    short = Scores(text.cut(48))
    backend.read_sums(short, [Input(text.cut(48))])  # the trial

    def plain():
        with torch.inference_mode():
            model.model(ids)

    def fused():
        scores = Scores(text)
        backend.read_sums(scores, [Input(text)])

    def in_blocks():
        backend.observe(Scores(text), [Input(text)], held="blocks")

    plain()
    found = [(spent(plain, device), spent(fused, device)) for _ in range(asked.repeats)]
    forward, sums = (min(pair[which][0] for pair in found) for which in (0, 1))
    extra = max(pair[1][1] - pair[0][1] * (device != "cpu") for pair in found)
    line = f"{shape} {tokens:,} tokens, {layers} layers: trunk {forward:.2f} s, sums {sums:.2f} s"
    line += f" = {sums / forward:.2f} ×, +{extra:,.0f} MB"
    if asked.blocks:
        line += f"; scores in blocks {spent(in_blocks, device)[0] / forward:.2f} ×"
    print(line, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", default="1024,16384")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--shape", choices=("gpt2", "llama1b", "llama8b"), default="gpt2")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--blocks", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    asked = parser.parse_args()
    torch.manual_seed(0)
    for tokens in map(int, asked.tokens.split(",")):
        measure(asked, tokens)


if __name__ == "__main__":
    main()
