"""What attnviz costs on a GPU, beside the model's own pass and the loops that it replaces.

    python tests/benchmarks/bench_gpu.py            # on a card: four minutes at most
    python tests/benchmarks/bench_gpu.py --tiny     # on a processor: seconds, to see that it runs

It needs torch, transformers and what attnviz needs, and Triton for the kernels; without it the
blocks are measured. Weights are random, in bfloat16: shapes of Llama with 1.2 and with 8 billion
parameters, of the larger one two layers, which have the ratio of all. Each line of the Markdown
tables is printed as soon as it is known. What would end after ``--limit`` seconds is left out, and
so is, with its reason, a part that fails. All numbers are of the card that the first line names.

*trunk* is a plain pass without the vocabulary; *memory* is the peak above that of the trunk, or for
scans and ``heads`` above the weights, as allocated and, in brackets, as reserved. *loop* is for
each head a pass with a hook on the output projection, of which every ``--sample``-th is timed.
"""

import argparse
import platform
import time
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from statistics import median

import numpy as np
import timing  # noqa: F401 - the repository is on the path then
import torch
from torch import Tensor
from transformers import AutoModel, LlamaConfig, LlamaForCausalLM

from attnviz.engine.backend import backend_of
from attnviz.engine.effects import ScanOptions, Variant
from attnviz.engine.observer import notes_of_runs
from attnviz.engine.patchable import patchable_transformers
from attnviz.engine.patching import Pair, Patch, PatchOptions
from attnviz.engine.scan.on_torch import torch_patching, torch_scan
from attnviz.engine.sums import layer_maker
from attnviz.inspect.patterns.measure import LayerSums
from attnviz.measures.rows import Conditions, TextFacts
from attnviz.models.prepare import prepared
from attnviz.records import Input, Tokens
from tests.engine.kernel_cases import MASKS, errors

BEGAN = time.perf_counter()
ANSWER, FOIL = 11, 13
"""The tokens whose logits are compared."""

CAUSAL = Conditions("self", causal=True, ranked=True)
ORDERS = {"patterns": 8, "heads": 0}
"""How many shuffled orders of the tokens a command reads beside the text's own."""


class Bench:
    """A device and what is left of the time.

    asked: the arguments of the command line.
    """

    def __init__(self, asked):
        self.asked = asked
        self.device = torch.device(asked.device)
        self.on_gpu = self.device.type != "cpu"
        self.dtype = getattr(torch, asked.dtype)

    def left(self):
        return float(self.asked.limit - (time.perf_counter() - BEGAN))

    def wait(self):
        if self.on_gpu:
            torch.accelerator.synchronize()

    def seconds(self, run):
        self.wait()
        start = time.perf_counter()
        run()
        self.wait()
        return time.perf_counter() - start

    def usual(self, run, most=3):
        """Median seconds of up to ``most`` runs, fewer if they are long; the first does not count.

        It compiles kernels, and fills caches.
        """
        first = self.seconds(run)
        times = [self.seconds(run) for _ in range(most if 6 * first < self.left() / most else 1)]
        return median(times)

    def peak(self, run):
        """The bytes by which allocated and reserved memory grow at most; 0 on a processor."""
        if self.device.type != "cuda":
            run()
            return 0, 0
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        held, kept = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        run()
        self.wait()
        grown = torch.cuda.max_memory_allocated() - held
        return grown, torch.cuda.max_memory_reserved() - kept

    def llama(self, shape, layers, tokens, *, words=False):
        """A model of a shape with random weights. words: with its vocabulary of 128,256 words."""
        sizes = {"1.2B": (2048, 8192), "8B": (4096, 14_336), "tiny": (32, 64)}
        hidden, inner = sizes["tiny" if self.asked.tiny else shape]
        heads = 4 if self.asked.tiny else 32
        config = LlamaConfig(
            vocab_size=97 if self.asked.tiny else 128_256 if words else 32_000,
            hidden_size=hidden,
            intermediate_size=inner,
            num_hidden_layers=min(layers, 2) if self.asked.tiny else layers,
            num_attention_heads=heads,
            num_key_value_heads=heads // 4,
            max_position_embeddings=tokens,
            tie_word_embeddings=True,
        )
        with self.device:
            make = LlamaForCausalLM._from_config if words else AutoModel.from_config
            return make(config, dtype=self.dtype).eval().requires_grad_(False)


def natural(tokens, words=20_000):
    """Ids as often as words are: the n-th most frequent has a share of 1 / (n + 2.7)."""
    shares = 1 / (np.arange(words) + 2.7)
    ids = np.random.default_rng(0).choice(words, tokens, p=shares / shares.sum())
    texts = tuple("," if each == 2 else f"t{each}" for each in ids)
    return Tokens(tuple(map(int, ids)), texts, (False,) * tokens)


def say(*cells):
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def table(title, *columns):
    print(f"\n**{title}**\n", flush=True)
    say(*columns)
    print("|---" + "|---:" * (len(columns) - 1) + "|", flush=True)


@contextmanager
def part(name):
    """Say why a part fails, and go on with the next one."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - every other part is worth its line
        first = (str(error).splitlines() or [""])[0]
        print(f"\n{name}: failed, {type(error).__name__}: {first[:300]}\n", flush=True)


def memory(grown):
    return f"{grown[0] / 2**20:,.0f} MiB ({grown[1] / 2**20:,.0f})"


def error_table(bench):
    tokens, dim = (61, 16) if bench.asked.tiny else (499, 128)
    table(
        f"Largest error of any sum, beside full matrices in float64 ({tokens:,} tokens)",
        *("masks", "float32", "bfloat16", "float16", "computed by"),
    )
    cases = [
        *((mask, {"mask": mask}) for mask in MASKS if mask != "random"),
        ("causal, a key head for each query head", {"shared": 4}),
        ("causal, one key head", {"shared": 1}),
        ("causal, sinks", {"sink": True}),
        ("window, sinks", {"mask": "window", "sink": True}),
        ("causal, soft cap", {"cap": 5.0}),
        ("causal, heads of 64", {"dim": 64}),
        ("causal, heads of 80", {"dim": 80}),
        ("causal, heads of 256", {"dim": 256}),
    ]
    for name, own in cases:
        case = {"shared": 2, "dim": dim, "bucket": 16 if bench.asked.tiny else 64, **own}
        worst, ways = [], set()
        for dtype in ("float32", "bfloat16", "float16"):
            device = bench.device
            found, apart = errors(
                layer_maker(), dtype=dtype, queries=tokens, heads=4, device=device, **case
            )
            worst.append(f"{max(apart.values()):.1e}")
            # On the device they stay where a kernel computed them.
            ways.add("kernels" if isinstance(found.entropy, Tensor) else "blocks")
        say(name, *worst, ", ".join(ways))
        if bench.left() < 0.6 * bench.asked.limit:  # each case compiles kernels
            print("(the other cases were left out: no time left)", flush=True)
            break


class Scores:
    """Scores each layer from its sums, with buckets for pooled maps of 64 × 64."""

    def __init__(self, text, shuffles):
        self.text = TextFacts(text, text, CAUSAL, shuffles, passing=True)
        self.layers = {}
        self._evens = LayerSums(self.text)._evens

    def wants(self, kind, layer):
        return True

    def layer(self, layer):
        return self.layers.setdefault(layer, LayerSums(self.text, self._evens))

    def sums(self, text, kind, layer, found):
        size = -(-len(self.text.keys) // 64)
        self.layer(layer).add_sums(found, range(found.heads), size)

    def scores(self):
        for sums in self.layers.values():
            sums.scores(tuple(range(1)))


def ratio_table(title):
    ways = (f"`{command}`, orders: {1 + more}" for command, more in ORDERS.items())
    table(title, "shape", "tokens", "trunk", *ways, "memory")


class Ratios:
    """The models of a shape by their tokens, and what their passes cost."""

    def __init__(self, bench, shape, layers, longest):
        self.bench, self.name = bench, f"{shape}, {layers} layers"
        self.made = bench.llama(shape, layers, longest)
        self.model = prepared(shape, self.made, None, bench.device)
        self.backend, self.before = backend_of(self.model), (0, 0.0)
        text = natural(48, 97)
        self.backend.read_sums(Scores(text, 8), [Input(text)])  # the trial

    def line(self, tokens):
        bench, (fewer, took) = self.bench, self.before
        if fewer and took * (tokens / fewer) ** 2 > bench.left() - 5:
            print(f"(not measured: {self.name}, {tokens:,} tokens: no time left)", flush=True)
            return
        start, text = time.perf_counter(), natural(tokens, 97 if bench.asked.tiny else 20_000)
        ids = torch.tensor([text.ids], device=bench.device)

        def trunk():
            with torch.inference_mode():
                self.made(ids, use_cache=False)

        plain = bench.usual(trunk)
        own, ratios, grown = bench.peak(trunk), {}, (0, 0)
        for command, shuffles in ORDERS.items():

            def sums(shuffles=shuffles):
                scores = Scores(text, shuffles)
                self.backend.read_sums(scores, [Input(text)])
                scores.scores()

            ratios[command] = bench.usual(sums) / plain
            if command == "patterns":
                more = bench.peak(sums)
                grown = max(more[0] - own[0], 0), max(more[1] - own[1], 0)
        say(
            *(self.name, f"{tokens:,}", f"{plain * 1e3:.1f} ms"),
            *(f"{ratios[command]:.2f} ×" for command in ORDERS),
            memory(grown),
        )
        self.before = tokens, time.perf_counter() - start


@torch.inference_mode()
def loop(bench, model, row, sample, source=None):
    """Seconds for all heads, and of each timed one what is measured.

    Heads are set to zero, and loss and KL measured; with a ``source`` their outputs are those of
    that text, and the difference of two logits is measured at the end.
    """
    projections = [block.self_attn.o_proj for block in model.model.layers]
    heads, taken = model.config.num_attention_heads, {}
    if source is not None:
        hooks = [
            module.register_forward_pre_hook(
                lambda module, args, layer=layer: taken.__setitem__(layer, args[0])
            )
            for layer, module in enumerate(projections)
        ]
        model(source)
        for hook in hooks:
            hook.remove()
    clean = model(row).logits[0].float().log_softmax(-1)
    every = [(layer, head) for layer in range(len(projections)) for head in range(heads)]
    chosen, found = every[sample // 2 :: sample], {}

    def changing(layer, head):
        def change(module, args):
            merged = args[0].clone()
            own = slice(*(each * merged.shape[-1] // heads for each in (head, head + 1)))
            merged[..., own] = taken[layer][..., own] if taken else 0
            return (merged,)

        return change

    def all_chosen():
        for layer, head in chosen:
            hook = projections[layer].register_forward_pre_hook(changing(layer, head))
            logits = model(row).logits[0].float()
            hook.remove()
            if taken:
                found[layer, head] = float(logits[-1, ANSWER] - logits[-1, FOIL])
                continue
            apart = clean - logits.log_softmax(-1)
            loss = apart[:-1].gather(-1, row[0, 1:, None]).mean()
            kl = (clean.exp() * apart).sum(-1).mean()
            found[layer, head] = float(loss), float(kl)

    all_chosen()  # the first passes choose kernels
    return bench.seconds(all_chosen) * len(every) / len(chosen), found


def patched(model, prompts):
    """Return by head the logit difference with its output of the first prompt in the second."""
    clean, corrupt = (Input.of_ids(ids[0].tolist()) for ids in prompts)
    opened = patchable_transformers(model, "self", corrupt)
    options = PatchOptions(metrics=("logit_diff",))
    patching = torch_patching(opened, [Pair(clean, corrupt)], options)
    sites = patching.sites("output")
    patches, found = [Patch((site,)) for site in sites], {}
    for piece in patching.patch(0, patches, range(len(patches)), ANSWER, FOIL):
        for at, value in zip(piece.patches, piece.metrics["logit_diff"], strict=True):
            found[sites[at].layer, sites[at].head] = float(value)
    return found


def interventions(bench):
    tokens = 12 if bench.asked.tiny else 64
    model = bench.llama("1.2B", 16, max(tokens, 64), words=True)
    vocabulary = model.config.vocab_size
    base, other = (
        torch.randint(0, min(vocabulary, 2000), (1, tokens), device=bench.device) for _ in range(2)
    )
    given = Input.of_ids(base[0].tolist())
    sample = 1 if bench.asked.tiny else bench.asked.sample
    table(
        f"All heads of the 1.2B shape over {tokens} tokens",
        *("what", "heads", "loop", "first run", "again", "loop ÷ again", "memory", "difference"),
    )

    def scanned(**options):
        opened = torch_scan(
            patchable_transformers(model, "self", given), [given], ScanOptions(**options), []
        )
        every = [
            Variant(((layer, head),))
            for layer, some in opened.heads.items()
            for head in range(some)
        ]
        found = {}
        for piece in opened.scan(0, every, range(len(every))):
            loss, kl = (piece.metrics[name].tolist() for name in ("loss_delta", "kl"))
            for at, *values in zip(piece.variants, loss, kl, strict=True):
                found[every[at].heads[0]] = tuple(values)
        return found

    looped, zeroed = loop(bench, model, base, sample)
    replaced_looped, replaced = loop(bench, model, base, sample, other)
    prompts = other, base
    ways = (
        ("`ablate`, loss and KL", lambda: scanned(), looped, zeroed),
        ("`patch`, logit difference", lambda: patched(model, prompts), replaced_looped, replaced),
        ("`ablate --positions last`", lambda: scanned(positions="last"), looped, {}),
    )
    for name, run, beside, expected in ways:
        with part(name):
            first, found = bench.seconds(run), run()
            again = bench.usual(run)
            apart = [
                np.abs(np.subtract(values, found[key])).max() for key, values in expected.items()
            ]
            say(
                *(name, len(found), f"{beside:.2f} s", f"{first:.2f} s", f"{again:.3f} s"),
                f"{beside / again:.1f} ×",
                memory(bench.peak(run)),
                f"{max(apart):.1e}" if apart else "",
            )


def whole_heads(bench, lengths):
    import attnviz

    made = bench.llama("1.2B", 16, lengths[-1])
    model = prepared("1.2B", made, None, bench.device)
    table(
        "`heads` of the 1.2B shape, 16 layers, with the model in memory",
        *("tokens", "seconds", "memory"),
    )
    fewer, took = 0, 0.0
    for tokens in lengths:
        if fewer and took * (tokens / fewer) ** 2 > bench.left() - 5:
            print(f"(not measured: `heads` over {tokens:,} tokens: no time left)", flush=True)
            break
        ids = natural(tokens, 90 if bench.asked.tiny else 20_000).ids
        text, grown = " ".join(f"w{each}" for each in ids), []

        def run(text=text, grown=grown):
            grown.append(bench.peak(lambda: attnviz.heads(model, text, reduce="fused")))

        took, fewer = bench.seconds(run), tokens
        say(f"{tokens:,}", f"{took:.1f} s", memory(grown[0]))


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--limit", type=float, default=215.0, help="seconds after which it ends")
    parser.add_argument("--sample", type=int, default=16, help="time every so many-th head")
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a processor")
    bench = Bench(parser.parse_args())
    torch.manual_seed(0)
    card = platform.processor() or platform.machine()
    if bench.device.type == "cuda":
        facts = torch.cuda.get_device_properties(bench.device)
        card = f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB"
    known = ["torch", "triton", "transformers", "numpy"]
    print(f"# {card}\n\n{bench.asked.dtype}, Python {platform.python_version()}", end="")
    for name in known:
        try:
            print(f", {name} {version(name)}", end="")
        except PackageNotFoundError:
            print(f", no {name}", end="")
    print(flush=True)
    lengths = (64, 160, 200) if bench.asked.tiny else (4_096, 16_384, 65_536, 131_072)
    with part("errors"):
        error_table(bench)
    ratios = None
    with part("ratios"):
        ratios = Ratios(bench, "8B", 2, lengths[-1])
        ratio_table("All sums and scores of every head, as a multiple of the trunk")
        for tokens in lengths[:2]:
            ratios.line(tokens)
    with part("interventions"):
        interventions(bench)
    with part("heads"):
        whole_heads(bench, lengths[:-1] if bench.asked.tiny else lengths)
    with part("long ratios"):
        ratio_table("The same over longer texts, and of the smaller shape")
        for tokens in lengths[2:]:
            if ratios is not None:
                ratios.line(tokens)
        Ratios(bench, "1.2B", 2, lengths[1]).line(lengths[1])
    for note in notes_of_runs():
        print(f"\n{note}", flush=True)
    print(f"\n{time.perf_counter() - BEGAN:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
