"""What patching all heads costs beside the loop over hooks, at the size of GPT-2 small.

Run as ``python tests/benchmarks/bench_patch.py``; prints ratios, random weights. *loop* is what is
usually done: the clean run's inputs of the output projections are kept, and for each head one
forward pass of the corrupt prompt puts that head's part in, of which the difference of two logits
at the last position is read. It is timed on every ``--sample``-th head and scaled up; its numbers
for these heads are compared with ours, which do all heads and start from an unknown model.
The two take turns, and each of ours is held against the loop of its own turn: what is printed are
medians of wall time, of processor time, and of the ratios.

At 64 tokens the products of the loop are 2.30e12 additions and multiplications: 144 passes of
12 layers, and the logits of all tokens. Ours are 0.74e12: two whole passes, each head from the
output of its own layer on, and behind the last attention one token. The prompts differ from their
first token on, so that no earlier keys and values are shared. By operations alone the ratio is
thus 3.1, and what is above it is time per operation: for a ratio of 8 ours must each take 2.6 times
less than those of the loop. This count does not say whether that can be reached.
"""

import argparse
import time

import numpy as np
import torch
from numpy_twin import numpy_twin
from transformers import GPT2Config, GPT2LMHeadModel

from attnviz.engine.backend import backend_of
from attnviz.engine.patchable import patchable_transformers
from attnviz.engine.patching import Pair, Patch, PatchMethod, PatchOptions, What
from attnviz.engine.scan.on_torch import torch_patching
from attnviz.models.threads import ask_for, use_threads
from attnviz.records import Input

ANSWER, FOIL = 11, 13
Head = tuple[int, int | None]


def prompts(tokens):
    """Two random texts that differ in a quarter of their tokens, from the start."""
    clean = torch.randint(0, 50257, (1, tokens))
    corrupt = clean.clone()
    corrupt[0, : tokens // 4] = torch.randint(0, 50257, (tokens // 4,))
    return clean, corrupt


@torch.inference_mode()
def loop(model, pair, sample):
    """What all heads take, and the logit differences with those that were timed patched."""
    start = clock()
    config, clean = model.config, {}
    projections = [block.attn.c_proj for block in model.transformer.h]
    hooks = [
        projection.register_forward_pre_hook(
            lambda module, args, layer=layer: clean.__setitem__(layer, args[0])
        )
        for layer, projection in enumerate(projections)
    ]
    model(pair[0])
    for hook in hooks:
        hook.remove()
    width, found, once = config.n_embd // config.n_head, {}, clock() - start
    start, heads = clock(), config.n_layer * config.n_head
    for number in range(sample // 2, heads, sample):
        layer, head = divmod(number, config.n_head)

        def put(module, args, layer=layer, head=head):
            columns = slice(head * width, (head + 1) * width)
            merged = args[0].clone()
            merged[..., columns] = clean[layer][..., columns]
            return (merged,)

        hook = projections[layer].register_forward_pre_hook(put)
        logits = model(pair[1]).logits[0, -1]
        hook.remove()
        found[layer, head] = float(logits[ANSWER] - logits[FOIL])
    return once + (clock() - start) * heads / len(found), found


def patched(model, pair, what="output", method="exact", numpy=None):
    """The same of every site by the engine, trying the model out included; in NumPy if given."""
    clean, corrupt = (Input.of_ids(ids[0].tolist()) for ids in pair)
    options = PatchOptions(method=method, metrics=("logit_diff",))
    pairs = [Pair(clean, corrupt)]
    if numpy is None:
        patching = torch_patching(patchable_transformers(model, "self", corrupt), pairs, options)
    else:
        patching = backend_of(numpy).open_patching("self", pairs, options)
    sites = patching.sites(what)
    patches = [Patch((site,)) for site in sites]
    found: dict[Head, float] = {}
    for piece in patching.patch(0, patches, range(len(patches)), ANSWER, FOIL):
        for at, value in zip(piece.patches, piece.metrics["logit_diff"], strict=True):
            found[sites[at].layer, sites[at].head] = float(value)
    return found


def clock():
    return np.array([time.perf_counter(), time.process_time()])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sample", type=int, default=12, help="time every so many-th head")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--others", action="store_true", help="time other sites too")
    arguments = parser.parse_args()
    ask_for(arguments.threads)
    use_threads(arguments.threads)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).eval().requires_grad_(False)
    pair = prompts(arguments.tokens)
    heads = model.config.n_layer * model.config.n_head
    ways: dict[str, tuple[What, PatchMethod]] = {"all heads": ("output", "exact")}
    if arguments.others:
        others: tuple[What, ...] = ("query", "value", "pattern", "mlp", "residual")
        ways |= {what: (what, "exact") for what in others}
        ways["all heads, by their slope"] = ("output", "gradient")
    twin = numpy_twin(model)
    turns: dict[str, list[np.ndarray]] = {}
    worst = 0.0
    for _ in range(arguments.repeats):
        model(pair[1])  # the first run fetches the weights
        seconds, expected = loop(model, pair, arguments.sample)
        turns.setdefault("loop over hooks", []).append(seconds)
        for name, (what, method) in ways.items():
            start = clock()
            found = patched(model, pair, what, method)
            turns.setdefault(name, []).append(clock() - start)
            if method == "exact":
                start = clock()
                patched(model, pair, what, numpy=twin)
                turns.setdefault(f"{name} in NumPy", []).append(clock() - start)
            if (what, method) == ("output", "exact"):
                worst = max(worst, *(abs(found[key] - value) for key, value in expected.items()))
    print(
        f"GPT-2-small shape, {arguments.tokens} tokens, {heads} heads, threads "
        f"{arguments.threads}, torch {torch.__version__}; largest difference to the loop "
        f"{worst:.1e}"
    )
    print(f"  {'':26} {'wall':>11} {'ratio':>9} {'processor':>13} {'ratio':>9}")
    for name, times in turns.items():
        ratios = [slow / fast for slow, fast in zip(turns["loop over hooks"], times, strict=True)]
        (wall, processor), (by_wall, by_processor) = np.median(times, 0), np.median(ratios, 0)
        print(
            f"  {name:26} {wall:9.3f} s {by_wall:7.2f} x {processor:11.3f} s {by_processor:7.2f} x"
        )


if __name__ == "__main__":
    main()
