"""What ``link`` costs beside a plain forward pass, at the size of GPT-2 small.

Run as ``python tests/benchmarks/bench_link_cost.py``; prints ratios, random weights. *one link* is
a head of the last layer, with the weight without each part and the pass that it is held against;
*20 controls* run together. *all heads, one pair* is no command: what all parts write into one
query and one key of every head, and the leads, as an addition to a tracked pass that was made. They
take turns, what is printed is the least processor time of several.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from attnviz.engine.attribution.residual_pass import Jacobian, ResidualPass
from attnviz.engine.attribution.scores import AskedLink, SplitScores
from attnviz.engine.attribution.scores_on_torch import TorchScoreSplitter
from attnviz.engine.hook_points import HookedCall
from attnviz.engine.patchable import PatchableModel, patchable_transformers
from attnviz.records import Input

LAYERS, HEADS, DIM = 12, 12, 64
CONTROLS = 20


class Unchanged:
    """Changes no head."""

    def edit(self, number: int, point: HookedCall, outputs: Tensor) -> Tensor:
        return outputs


def tracked(opened: PatchableModel, given: Input) -> ResidualPass:
    with opened.hook_points.borrowed():
        flow = ResidualPass(opened, Unchanged(), reading=True)
        with flow.following():
            opened.run(given)
    return flow


def all_heads(flow: ResidualPass, query: int, key: int) -> list[Tensor]:
    """Return for each layer the leads (head, part of the query, part of the key) of one pair."""
    leaves = [leaf.value for leaf in flow.leaves]
    found = []
    for layer in range(LAYERS):
        read = [flow.read[layer, side][0, at] for side, at in (("query", query), ("key", key))]
        jacobian, moved = Jacobian(read, leaves), []
        for at in filter(jacobian.leads, range(len(leaves))):
            is_heads = flow.leaves[at].kind == "head"
            for head in range(HEADS if is_heads else 1):
                change = leaves[at].detach()
                if is_heads:
                    change = torch.zeros_like(change)
                    change[:, :, head] = leaves[at][:, :, head].detach()
                moved.append(jacobian.moved({at: change}))
        none = torch.zeros(HEADS, DIM)
        queries, keys = (
            torch.stack([none if both[side] is None else both[side] for both in moved])
            for side in (0, 1)
        )
        found.append(torch.einsum("ahd,bhd->hab", queries, keys) * DIM**-0.5)
    return found


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
        opened = patchable_transformers(model, "self", given)
        splitter = TorchScoreSplitter("random", model, opened)
        asked = AskedLink(("self", LAYERS - 1, 1), tokens - 1, tokens // 2)
        split, flow = splitter.split(given, asked), tracked(opened, given)
        ids = torch.tensor([given.ids])

        def plain(ids: Tensor = ids) -> None:
            with torch.inference_mode():
                model(ids, use_cache=False)

        def one(
            splitter: TorchScoreSplitter = splitter, given: Input = given, asked: AskedLink = asked
        ) -> SplitScores:
            return splitter.split(given, asked)

        def controls(
            splitter: TorchScoreSplitter = splitter,
            given: Input = given,
            asked: AskedLink = asked,
            split: SplitScores = split,
        ) -> object:
            return splitter.leads([given] * CONTROLS, asked, split)

        def every(flow: ResidualPass = flow, asked: AskedLink = asked) -> list[Tensor]:
            return all_heads(flow, asked.query, asked.key)

        ways: dict[str, Callable[[], object]] = {
            "plain pass": plain,
            "one link": one,
            "20 controls": controls,
            "all heads, one pair": every,
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(arguments.repeats + 1):  # the first fetches the weights
            for name, run in ways.items():
                start = time.process_time()
                run()
                if turn:
                    times[name].append(time.process_time() - start)
        score = float(split.scores[asked.key])
        gap = abs(float(every()[-1][asked.head[2]].sum()) - score)
        print(f"{tokens} tokens, {len(split.parts)} parts; both scores differ by {gap:.1e}")
        for name, each in times.items():
            print(f"  {name:20} {min(each):7.3f} s {min(each) / min(times['plain pass']):6.2f} x")


if __name__ == "__main__":
    main()
