"""What the exact scan of all heads costs beside the loop over hooks, at the size of GPT-2 small.

Run as ``python tests/benchmarks/bench_scan.py``; prints ratios, random weights. *loop* is what is
usually done: for each head a pre-hook on the output projection, one forward pass, and loss and KL
from its logits. It is timed on every ``--sample``-th head and scaled up; its numbers for these
heads are compared with the scan's, which does all of them and starts from an unknown model.
The bundled model is compared on the default text with the loop over the same weights in
transformers, and with the loop over our own decoder.
The ways take turns, and each is held against the loop of its own turn: what is printed are medians
of wall time and of the ratios, and those of processor time, which other programs disturb less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy_twin import numpy_twin
from timing import parser
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

import attnviz
from attnviz.engine.backend import backend_of
from attnviz.engine.effects import ScanOptions, Variant
from attnviz.engine.patchable import PatchableModel, patchable_transformers
from attnviz.engine.scan.on_torch import gradient_importance, torch_scan
from attnviz.models.bundled import Bundled
from attnviz.models.stack_model import StackModel
from attnviz.models.threads import ask_for, use_threads
from attnviz.records import Input
from attnviz.texts import BUILT_IN_TEXT


@dataclass(frozen=True)
class Plain:
    """A model as a loop over hooks sees it: how to run it, where a layer's output projection is."""

    logits: Callable[[Tensor], Tensor]
    projection: Callable[[int], nn.Module]


@dataclass(frozen=True)
class Case:
    """A model and texts: how to open it anew for a scan, and what loops run over, by their name.

    numpy: the same in NumPy.
    """

    name: str
    open: Callable[[], PatchableModel]
    loops: Mapping[str, Plain]
    texts: Sequence[tuple[int, ...]]
    numpy: StackModel


def gpt2(tokens, texts):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).eval().requires_grad_(False)
    ids = [tuple(torch.randint(0, 50257, (tokens,)).tolist()) for _ in range(texts)]
    return Case(
        f"gpt2-small shape, {texts} x {tokens} tokens",
        lambda: patchable_transformers(model, "self", Input.of_ids(ids[0])),
        {
            "loop": Plain(
                lambda row: model(row).logits, lambda layer: model.transformer.h[layer].attn.c_proj
            )
        },
        ids,
        numpy_twin(model),
    )


def bundled():
    model = Bundled()
    ids = model.encode(BUILT_IN_TEXT).ids
    subject = backend_of(model).open_patchable("self", Input.of_ids(ids))
    decoder = subject.root
    theirs = LlamaForCausalLM.from_pretrained(
        Path(attnviz.__file__).parent / "data" / "tiny", dtype=torch.float32
    )
    return Case(
        f"bundled model, {len(ids)} tokens",
        lambda: subject,
        {
            "loop over transformers": _llama(theirs.eval().requires_grad_(False)),
            "loop over our decoder": Plain(
                decoder,
                lambda layer: decoder.get_submodule(f"layers.{layer}.self_attn.output_projection"),
            ),
        },
        [ids],
        model,
    )


def _llama(model):
    return Plain(
        lambda row: model(row).logits, lambda layer: model.model.layers[layer].self_attn.o_proj
    )


@torch.inference_mode()
def loop(case, plain, heads, sample):
    """What all heads over all texts take, and the numbers of those that were timed."""
    pairs = [(layer, head) for layer, some in heads.items() for head in range(some)]
    chosen = pairs[sample // 2 :: sample]
    found = {Variant((pair,)): np.zeros(2) for pair in chosen}
    clean_seconds = seconds = np.zeros(2)
    for ids in case.texts:
        row = torch.tensor([ids])
        start = clock()
        clean = plain.logits(row)[0].float().log_softmax(-1)
        chances = clean.exp()
        clean_seconds = clean_seconds + clock() - start
        start = clock()
        for layer, head in chosen:

            def without(module, args, layer=layer, head=head):
                merged = args[0].clone()
                width = merged.shape[-1] // heads[layer]
                merged[..., head * width : (head + 1) * width] = 0
                return (merged,)

            hook = plain.projection(layer).register_forward_pre_hook(without)
            scores = plain.logits(row)[0].float().log_softmax(-1)
            hook.remove()
            loss = (clean - scores)[:-1].gather(-1, row[0, 1:, None]).mean()
            kl = (chances * (clean - scores)).sum(-1).mean()
            float((scores.argmax(-1) != clean.argmax(-1)).float().mean())
            found[Variant(((layer, head),))] += (float(loss), float(kl))
        seconds = seconds + clock() - start
    all_heads = seconds * len(pairs) / len(chosen) + clean_seconds
    return all_heads, {one: value / len(case.texts) for one, value in found.items()}


def scan(case, numpy=None, **options):
    """The same by the scan, trying the model out included; in NumPy where that is given."""
    start = clock()
    passages = [Input.of_ids(ids) for ids in case.texts]
    if numpy is None:
        opened = torch_scan(case.open(), passages, ScanOptions(**options), [])
    else:
        opened = backend_of(numpy).open_scan("self", passages, ScanOptions(**options), [])
    variants = [
        Variant(((layer, head),)) for layer, some in opened.heads.items() for head in range(some)
    ]
    found = {variant: np.zeros(2) for variant in variants}
    for text in range(len(passages)):
        for piece in opened.scan(text, variants, range(len(variants))):
            for place, index in enumerate(piece.variants):
                both = piece.metrics["loss_delta"][place], piece.metrics["kl"][place]
                found[variants[index]] += both
    seconds = clock() - start
    return seconds, {one: value / len(passages) for one, value in found.items()}


def gradient(case):
    start = clock()
    gradient_importance(case.open(), [Input.of_ids(ids) for ids in case.texts])
    return clock() - start


def clock():
    return np.array([time.perf_counter(), time.process_time()])


def compare(case, sample, repeats, *, others):
    """Print one case; each way is timed ``repeats`` times."""
    heads = case.open().heads
    turns = {}
    worst = 0.0
    for _ in range(repeats):
        expected = {}
        for name, plain in case.loops.items():
            seconds, expected = loop(case, plain, heads, sample)
            turns.setdefault(name, []).append(seconds)
        seconds, found = scan(case)
        turns.setdefault("exact scan", []).append(seconds)
        worst = max(worst, *(np.abs(found[one] - value).max() for one, value in expected.items()))
        seconds, found = scan(case, case.numpy)
        turns.setdefault("exact scan in NumPy", []).append(seconds)
        worst = max(worst, *(np.abs(found[one] - value).max() for one, value in expected.items()))
        if others:
            last, _ = scan(case, positions="last")
            turns.setdefault("scan, last position only", []).append(last)
            turns.setdefault("gradient", []).append(gradient(case))
    print(f"{case.name}: {sum(heads.values())} heads, largest difference to the loop {worst:.1e}")
    print(f"  {'':26} {'wall':>11} {'ratio':>9} {'processor':>13} {'ratio':>9}")
    for reference in case.loops:
        if len(case.loops) > 1:
            print(f"  beside the {reference}:")
        for name, times in turns.items():
            ratios = [slow / fast for slow, fast in zip(turns[reference], times, strict=True)]
            wall, processor = np.median(times, 0)
            by_wall, by_processor = np.median(ratios, 0)
            print(
                f"  {name:26} {wall:9.3f} s {by_wall:7.2f} x {processor:11.3f} s "
                f"{by_processor:7.2f} x"
            )


def main():
    options = parser(__doc__, repeats=3, threads=2)
    options.add_argument("--sample", type=int, default=12, help="time every so many-th head")
    arguments = options.parse_args()
    ask_for(arguments.threads)
    use_threads(arguments.threads)
    print(f"threads {arguments.threads}, torch {torch.__version__}")
    compare(gpt2(64, 1), arguments.sample, arguments.repeats, others=True)
    fewer = max(1, arguments.repeats // 2)
    compare(gpt2(128, 8), arguments.sample * 4, fewer, others=False)
    compare(bundled(), 1, 5 * arguments.repeats, others=True)


if __name__ == "__main__":
    main()
