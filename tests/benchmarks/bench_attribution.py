"""What taking a logit apart costs beside a plain forward pass, at the size of GPT-2 small.

Run as ``python tests/benchmarks/bench_attribution.py``; prints ratios, random weights. *all parts*
are every head, feed-forward block and bias with the heads' source tokens, the plain pass they are
held against included; *and a map* adds what every query of one head writes. They take turns, what
is printed are medians of processor time, and the difference of sum and logit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from attnviz.engine.attribution.on_torch import TorchAttributor
from attnviz.engine.attribution.parts import Attribution
from attnviz.engine.patchable import patchable_transformers
from attnviz.records import Input


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(initializer_range=0.05)).eval()
    for tokens in (16, 64, 256):
        given = Input.of_ids(torch.randint(0, 50257, (tokens,)).tolist())
        attributor = TorchAttributor(patchable_transformers(model, "self", given), given)
        ids = torch.tensor([given.ids])

        def plain(ids: torch.Tensor = ids) -> None:
            with torch.inference_mode():
                model(ids, use_cache=False)

        def parts(one: TorchAttributor = attributor, given: Input = given) -> Attribution:
            return one.attribute(given)

        def mapped(one: TorchAttributor = attributor, given: Input = given) -> Attribution:
            return one.attribute(given, maps=[("self", 5, 1)])

        ways: dict[str, Callable[[], object]] = {
            "plain pass": plain,
            "all parts": parts,
            "and a map": mapped,
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(arguments.repeats + 1):  # the first fetches the weights
            for name, run in ways.items():
                start = time.process_time()
                run()
                if turn:
                    times[name].append(time.process_time() - start)
        found = parts()
        gap = abs(found.sum - found.logit) / found.tolerance * 1e-4
        base = float(np.median(times["plain pass"]))
        print(f"{tokens} tokens; sum and logit differ by {gap:.1e} of the largest logit")
        for name, each in times.items():
            middle = float(np.median(each))
            print(f"  {name:12} {middle:7.3f} s {middle / base:6.2f} x")


if __name__ == "__main__":
    main()
