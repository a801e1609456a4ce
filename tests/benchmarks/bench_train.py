"""Tokens per second of training the library's own decoder beside transformers' Llama.

Run as ``python tests/benchmarks/bench_train.py``; both models have the same shape, weights, batches
and optimiser step (``take_step``), and take turns. Prints the medians and their ratio, above 1
where the own decoder is faster. ``--device cuda`` runs on a GPU.
"""

import tempfile
from functools import partial

import torch
from timing import ROOT, median_seconds, parser
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from attnviz.attention.checkpoint import save_checkpoint
from attnviz.attention.decoder_config import DecoderConfig
from attnviz.attention.torch_decoder import TorchDecoder
from attnviz.learn.train.recipe import Optimiser, read_recipe
from attnviz.learn.train.trainer import make_optimiser, take_step

TOKENIZER = '{"added_tokens": []}'
TINY = ROOT / "configs" / "tiny.toml"
SHAPES = {
    "tiny": read_recipe(TINY).model.decoder(vocabulary=4096, beginning=0),
    "wide": DecoderConfig(4096, 512, 8, 8, 8, 64, 1376, tied=True),
}


def main():
    options = parser(__doc__, repeats=9)
    options.add_argument("--device", default="cpu")
    options.add_argument("--shape", choices=SHAPES, default="tiny")
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--length", type=int, default=256)
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    config = SHAPES[arguments.shape]
    print(
        f"{config.layers} × {config.heads} heads of {config.head_dim}, width {config.d_model}, "
        f"{arguments.batch} × {arguments.length} tokens, {arguments.device}, "
        f"threads {arguments.threads}, torch {torch.__version__}"
    )
    print(f"{'products in':>12}  {'own tokens/s':>12}  {'Llama tokens/s':>14}  {'own ÷ Llama':>11}")
    for autocast in (None, torch.bfloat16):
        speeds = compare(config, autocast, arguments)
        name = "float32" if autocast is None else "bfloat16"
        own, theirs = speeds["own"], speeds["Llama"]
        print(f"{name:>12}  {own:12,.0f}  {theirs:14,.0f}  {own / theirs:11.2f}")


def compare(config, autocast, arguments):
    """Median tokens per second of each model; SystemExit where their losses differ."""
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    shape = (arguments.batch, arguments.length + 1)
    own = TorchDecoder(config)
    theirs = as_llama(own)
    learners = {
        "own": learner(own.to(device), own, autocast),
        "Llama": learner(theirs.to(device), lambda ids: theirs(ids).logits, autocast),
    }
    batches = [
        torch.randint(0, config.vocabulary, shape).to(device)
        for _ in range(arguments.repeats + 2)  # the first ones warm up
    ]
    losses: dict[str, list[float]] = {name: [] for name in learners}

    def step(name):
        losses[name].append(float(learners[name](batches[len(losses[name])])))

    cases = {name: partial(step, name) for name in learners}
    seconds = median_seconds(cases, arguments.repeats, warming=2)
    for own_loss, their_loss in zip(*losses.values(), strict=True):
        if abs(own_loss - their_loss) > 0.02:
            raise SystemExit(f"the losses differ: {losses}")
    tokens = arguments.batch * arguments.length
    return {name: tokens / taken for name, taken in seconds.items()}


def as_llama(own):
    """transformers' model with the same weights, by the directory that both read."""
    with tempfile.TemporaryDirectory() as directory:
        save_checkpoint(directory, own.config, own.llama_tensors(), TOKENIZER)
        return AutoModelForCausalLM.from_pretrained(
            directory, attn_implementation="sdpa", dtype=torch.float32
        ).train()


def learner(model, forward, autocast):
    """One optimiser step on a batch; its loss."""
    wanted = Optimiser()
    optimiser = make_optimiser(model, wanted)

    def learn(ids):
        weights = torch.ones(ids.shape[0], ids.shape[1] - 1, device=ids.device)
        return take_step(
            forward,
            optimiser,
            ids,
            weights,
            rate=1e-3,
            clip=wanted.clip,
            autocast=autocast,
        )

    return learn


if __name__ == "__main__":
    main()
