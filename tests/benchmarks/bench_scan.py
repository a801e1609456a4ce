"""What the exact scan of all heads costs beside the loop over hooks, at the size of GPT-2 small.

Run as ``python tests/benchmarks/bench_scan.py``; prints ratios, random weights. *loop* is what is
usually done: for each head a pre-hook on the output projection, one forward pass, and loss and KL
from its logits. It is timed on every ``--sample``-th head and scaled up; its numbers for these
heads are compared with those of the scans, which do all of them and start from an unknown model.
The ways take turns, and each is held against the loop of its own turn: what is printed are medians
of wall time and of the ratios, and those of processor time, which other programs disturb less.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from timing import parser
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

import attnviz
from attnviz.engine.backend import backend_of
from attnviz.engine.effects import ScanOptions
from attnviz.engine.patchable import patchable_transformers
from attnviz.engine.scan.on_torch import gradient_importance
from attnviz.models.bundled import Bundled
from attnviz.models.threads import ask_for, use_threads
from attnviz.records import Input
from attnviz.texts import BUILT_IN_TEXT
from tests.engine.scans import every, measured, torch_scan
from tests.engine.stacks import of_model


def clock():
    return np.array([time.perf_counter(), time.process_time()])


@torch.inference_mode()
def loop(model, projections, texts, sample):
    """What all heads over all texts take, and loss and KL of each head that was timed."""
    heads = model.config.num_attention_heads
    every_head = [(layer, head) for layer in range(len(projections)) for head in range(heads)]
    chosen = every_head[sample // 2 :: sample]
    found, clean_seconds, seconds = dict.fromkeys(chosen, 0), 0, 0
    for ids in texts:
        row, start = torch.tensor([ids]), clock()
        clean = model(row).logits[0].log_softmax(-1)
        clean_seconds = clean_seconds + clock() - start
        start = clock()
        for layer, head in chosen:

            def without(module, args, head=head):
                merged = args[0].clone()
                merged.unflatten(-1, (heads, -1))[..., head, :] = 0
                return (merged,)

            hook = projections[layer].register_forward_pre_hook(without)
            apart = clean - model(row).logits[0].log_softmax(-1)
            hook.remove()
            loss = apart[:-1].gather(-1, row[0, 1:, None]).mean()
            kl = (clean.exp() * apart).sum(-1).mean()
            found[layer, head] += np.array([float(loss), float(kl)]) / len(texts)
        seconds = seconds + clock() - start
    return seconds * len(every_head) / len(chosen) + clean_seconds, found


def scanned(open_scan, texts):
    """The same by a scan, trying the model out included."""
    start, scan = clock(), open_scan()
    variants = every(scan)
    found = np.zeros((2, len(variants)))
    for text in range(len(texts)):
        metrics = measured(scan, variants, text)
        found += np.stack([metrics["loss_delta"], metrics["kl"]]) / len(texts)
    by_head = {one.heads[0]: values for one, values in zip(variants, found.T, strict=True)}
    return clock() - start, by_head


def compare(name, model, projections, numpy, texts, sample, repeats):
    """Print one case; each way is timed ``repeats`` times."""
    passages = [Input.of_ids(ids) for ids in texts]
    options = ScanOptions()
    ways = {
        "exact scan": lambda: torch_scan(model, texts),
        "exact scan in NumPy": lambda: backend_of(numpy).open_scan("self", passages, options, []),
        "scan, last position only": lambda: torch_scan(model, texts, positions="last"),
    }
    turns, worst = {way: [] for way in ("loop", *ways, "gradient")}, 0.0
    for _ in range(repeats):
        seconds, expected = loop(model, projections, texts, sample)
        turns["loop"].append(seconds)
        for way, open_scan in ways.items():
            seconds, found = scanned(open_scan, texts)
            turns[way].append(seconds)
            if way.startswith("exact"):
                apart = [np.abs(found[head] - values).max() for head, values in expected.items()]
                worst = max(worst, *apart)
        start = clock()
        gradient_importance(patchable_transformers(model, "self", passages[0]), passages)
        turns["gradient"].append(clock() - start)
    print(f"{name}, {len(texts)} x {len(texts[0])} tokens: largest difference {worst:.1e}")
    print(f"  {'':26} {'wall':>11} {'ratio':>9} {'processor':>13} {'ratio':>9}")
    for way, times in turns.items():
        wall, processor = np.median(times, 0)
        by_wall, by_processor = np.median(np.array(turns["loop"]) / times, 0)
        print(
            f"  {way:26} {wall:9.3f} s {by_wall:7.2f} x {processor:11.3f} s {by_processor:7.2f} x"
        )


def main():
    options = parser(__doc__, repeats=3, threads=2)
    options.add_argument("--sample", type=int, default=12, help="time every so many-th head")
    asked = options.parse_args()
    ask_for(asked.threads)
    use_threads(asked.threads)
    print(f"threads {asked.threads}, torch {torch.__version__}")
    torch.manual_seed(0)
    gpt2 = GPT2LMHeadModel(GPT2Config()).eval().requires_grad_(False)
    with tempfile.TemporaryDirectory() as folder:
        gpt2.save_pretrained(folder)
        numpy = of_model(gpt2, Path(folder)).numpy
        projections = [block.attn.c_proj for block in gpt2.transformer.h]
        for tokens, count, sample in ((64, 1, asked.sample), (128, 8, asked.sample * 4)):
            texts = torch.randint(0, 50257, (count, tokens)).tolist()
            name = "gpt2-small shape"
            compare(name, gpt2, projections, numpy, texts, sample, asked.repeats)
    tiny = Path(attnviz.__file__).parent / "data" / "tiny"
    model = LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval().requires_grad_(False)
    projections = [block.self_attn.o_proj for block in model.model.layers]
    texts = [Bundled().encode(BUILT_IN_TEXT).ids]
    compare("bundled model", model, projections, Bundled(), texts, 1, 5 * asked.repeats)


if __name__ == "__main__":
    main()
