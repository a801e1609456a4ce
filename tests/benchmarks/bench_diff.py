"""How often ``diff`` is right.

200 comparisons of a model with itself (threads, batch shapes, dtypes), and 100 planted changes.
Run with ``python -m pytest tests/benchmarks/bench_diff.py -s -n 0``.
"""

from contextlib import contextmanager
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import attnviz
from attnviz.engine import patchable
from attnviz.models.bundled import Bundled
from attnviz.texts import built_in_texts, natural_texts

from ..inspect.diff import planted

pytestmark = pytest.mark.benchmark

TINY = Path(attnviz.__file__).parent / "data" / "tiny"
SENTENCES = [
    sentence.strip() + "." for text in natural_texts() for sentence in text.split(".")[:-1]
]
SENTENCES = [sentence for sentence in SENTENCES if len(sentence.split()) > 5]
ONE_HEAD = ("queries permuted", "head zeroed")


def training_step(tensors, model, text, rate=3e-4):
    """One step of Adam on one text."""
    import torch

    from attnviz.attention.torch_decoder import TorchDecoder

    decoder = TorchDecoder.from_llama(model.checkpoint.config, tensors)
    ids = torch.tensor([model.encode(text, 128).ids])
    logits = decoder(ids)[0, :-1]
    torch.nn.functional.cross_entropy(logits, ids[0, 1:]).backward()
    torch.optim.Adam(decoder.parameters(), rate).step()
    trained = decoder.llama_tensors()
    for name in tensors:
        tensors[name] = np.array(trained[name])


@contextmanager
def batched(copies):
    """Every pass runs over so many copies of its text."""
    plain = patchable._inputs

    def repeated(model, given):
        return {name: ids.repeat(copies, 1) for name, ids in plain(model, given).items()}

    patchable._inputs = repeated
    try:
        yield
    finally:
        patchable._inputs = plain


def test_a_model_with_itself():
    import torch

    from attnviz.models.huggingface import load_transformers
    from attnviz.models.work import LoadOptions

    models = {
        name: load_transformers(str(TINY), LoadOptions(dtype=name))
        for name in ("float32", "bfloat16")
    }
    generator = np.random.default_rng(0)
    threads, copies = (1, 2), (1, 2, 3, 5, 8)
    runs = heads = wrong = wrong_runs = 0
    largest = 0.0
    for a in ("float32", "bfloat16") * 5:
        texts = [SENTENCES[at] for at in generator.choice(len(SENTENCES), 10, replace=False)]
        first = planted.maps_of(models[a], texts)
        floor = planted.floor_of(load_transformers(str(TINY), LoadOptions(dtype=a)), first, texts)
        for count, (name, model), rows in product(threads, models.items(), copies):
            before = torch.get_num_threads()
            torch.set_num_threads(count)
            with batched(rows):
                second = planted.maps_of(model, texts)
            torch.set_num_threads(before)
            found = planted.verdict(first, second, floor, seed=runs)
            false = len(found.changed | found.output_changed)
            runs, heads, wrong = runs + 1, heads + len(planted.EVERY), wrong + false
            wrong_runs += false > 0
            largest = max(largest, floor.js)
            if false:
                print(f"\n{a} against {name}, {count} threads, batch of {rows}: {found}")
    print(
        f"\n{runs} comparisons of a model with itself: {wrong} of {heads:,} heads reported, in "
        f"{wrong_runs} comparisons; the largest floor was {largest:.1e} bits"
    )


PLANTS = {
    "queries permuted": lambda t, at: planted.permute_queries(t, planted.EVERY[at % 24], at),
    "head zeroed": lambda t, at: planted.zero_head(t, planted.EVERY[at % 24]),
    "4-bit noise in a layer": lambda t, at: planted.four_bits(t, at % planted.LAYERS, at),
    "one training step": lambda t, at: training_step(t, Bundled(), SENTENCES[at]),
}


def test_planted_changes():
    model, texts = Bundled(), built_in_texts().texts
    first = planted.maps_of(model, texts)
    floor = planted.floor_of(model, first, texts)
    print(f"\nnoise floor {floor.js:.1e} bits\n{'25 of each':<26}found  planted head first")
    for name, plant in PLANTS.items():
        found = right = 0
        for at in range(25):
            changed = planted.changed_model(model, lambda t, plant=plant, at=at: plant(t, at))
            second = planted.maps_of(changed, texts)
            said = planted.verdict(
                first, second, planted.floor_of_both((model, first), (changed, second), texts)
            )
            found += said.found
            right += said.first == planted.EVERY[at % 24]
        print(f"{name:<26}{found:>5}  {right if name in ONE_HEAD else '-':>18}")
