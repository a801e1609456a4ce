"""What capture of all heads costs beside the plain forward pass, at the size of GPT-2 small.

Run as ``python tests/benchmarks/bench_capture.py``; prints ratios of medians of interleaved runs,
random weights. *forward* is the model as its user calls it, *trunk* the same without the
vocabulary projection; both run fused attention (sdpa) in inference mode.
"""

import torch
from timing import median_seconds, parser
from transformers import GPT2Config, GPT2LMHeadModel

from attnviz.engine.observer import KeepWeights
from tests.engine.architectures import observe_transformers

LENGTHS = (16, 64, 128, 512)


def cases(model, ids):
    """What is compared over one text."""

    def capture(heads=None):
        keep = KeepWeights("self", heads)
        observe_transformers(model, keep, ids)
        return keep

    return {
        "forward": torch.inference_mode()(lambda: model(ids)),
        "trunk": torch.inference_mode()(lambda: model.transformer(ids)),
        "all heads": capture,
        "one layer": lambda: capture({5: range(12)}),
    }


def check(model, ids):
    """What is fast must also be right: equal to transformers' own eager weights."""
    keep = KeepWeights("self")
    observe_transformers(model, keep, ids)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        expected = model(ids, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    for layer, weights in zip(keep.layers, expected, strict=True):
        if not torch.equal(torch.from_numpy(layer.weights), weights[0]):
            raise SystemExit(f"layer {layer.layer} differs from eager attention")


def main():
    arguments = parser(__doc__, repeats=9).parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).eval()
    print(
        f"12 × 12 heads, width 768, float32, threads {arguments.threads}, torch {torch.__version__}"
    )
    print(f"{'tokens':>6}  {'forward ms':>10}  {'trunk ms':>8}", end="")
    print("  all heads ÷ forward  ÷ trunk  one layer ÷ forward")
    for length in LENGTHS:
        ids = torch.randint(0, model.config.vocab_size, (1, length))
        check(model, ids)
        times = median_seconds(cases(model, ids), arguments.repeats)
        forward, trunk = times["forward"], times["trunk"]
        print(f"{length:6}  {forward * 1e3:10.1f}  {trunk * 1e3:8.1f}", end="")
        print(f"  {times['all heads'] / forward:19.2f}  {times['all heads'] / trunk:7.2f}", end="")
        print(f"  {times['one layer'] / forward:19.2f}")


if __name__ == "__main__":
    main()
