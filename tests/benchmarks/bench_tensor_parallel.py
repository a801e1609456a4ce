"""How many bytes the processes of tensor parallelism send for a layer, and what that takes.

Run as ``python tests/benchmarks/bench_tensor_parallel.py``; it starts two processes (gloo, on the
processor) that share a random Llama, and prints for each text length the bytes that a process sends
for a layer, and the processor time of a pass beside that of the same pass without attnviz.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LAYERS, HEADS, WIDTH = 4, 16, 64
LENGTHS = (128, 1024, 4096)


def checkpoint(directory):
    """Save the random model whose layers the processes share."""
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": HEADS * WIDTH, "intermediate_size": 512, "vocab_size": 512}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS // 2}
    config = transformers.LlamaConfig(**sizes, **heads, num_hidden_layers=LAYERS)
    transformers.LlamaForCausalLM(config).save_pretrained(directory)


class Sent:
    """Counts the bytes that this process hands to others in torch.distributed's gathers."""

    def __init__(self):
        import torch.distributed as dist

        self.bytes, self._plain = 0, dist.all_gather
        dist.all_gather = self._counted

    def _counted(self, parts, part, **options):
        self.bytes += part.numel() * part.element_size()
        return self._plain(parts, part, **options)


def cost(call, sent):
    """Return the bytes sent for a layer and the processor time in seconds of a second call."""
    call()
    before, start = sent.bytes, time.process_time()
    call()
    return (sent.bytes - before) / LAYERS, time.process_time() - start


def share(directory):
    """Measure in one of the processes; the first prints."""
    import torch
    import torch.distributed as dist
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    from attnviz.engine.observe_torch import observe_torch
    from attnviz.engine.observer import BLOCK_CELLS, KeepWeights
    from attnviz.models.prepare import handed_over
    from attnviz.records import Input

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    config = DistributedConfig(tp_size=2, tp_plan="auto")
    model = handed_over(
        AutoModelForCausalLM.from_pretrained(directory, distributed_config=config).eval(),
        None,
        reads=False,
    )
    sent, shown = Sent(), dist.get_rank() == 0
    if shown:
        print("tokens  what is read of all heads      MB sent a layer   CPU s   plain pass")
    for length in LENGTHS:
        given = [Input.of_ids([at * 7 % 512 for at in range(length)])]
        ids = torch.tensor([given[0].ids])
        plain = cost(torch.inference_mode()(lambda ids=ids: model.model.model(ids)), sent)[1]

        def whole(given=given):
            observe_torch(model, KeepWeights("self"), given, None)

        def sums(given=given, length=length):
            columns = torch.ones(length, 8).numpy()
            read = lambda text, kind, layer, rows: rows.reduced(columns)  # noqa: E731
            observe_torch(model, KeepWeights("self"), given, BLOCK_CELLS, sums=read)

        cases = {"sums over its rows (patterns)": sums}
        if length <= 1024:
            cases = {"whole weights (heads)": whole} | cases
        for name, call in cases.items():
            size, seconds = cost(call, sent)
            if shown:
                print(f"{length:6}  {name:30} {size / 1e6:15.3f} {seconds:8.2f} {plain:11.2f}")
    dist.destroy_process_group()


def main():
    with socket.socket() as found, tempfile.TemporaryDirectory() as directory:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
        found.close()
        checkpoint(Path(directory))
        both = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        started = [
            subprocess.Popen(
                [sys.executable, __file__, "--share", directory],
                env=both | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(2)
        ]
        sys.exit(max(abs(one.wait()) for one in started))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--share", type=Path, help=argparse.SUPPRESS)
    if (shared := parser.parse_args().share) is not None:
        share(shared)
    else:
        main()
