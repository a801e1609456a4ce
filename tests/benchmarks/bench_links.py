"""How often a model with random weights has a link between words that beats chance.

Over seeds and the sentences of ``bench_labels``: ``mha``, and GPT-2, BERT and Llama of four sizes
with an initializer_range of 0.02, 0.3 and 0.5, as if a checkpoint held them; ``heads`` says of a
model that it knows to be untrained that nothing beats chance. With the usual 0.02 no text may have
one, with the others five in a hundred.
Run with ``python -m pytest tests/benchmarks/bench_links.py -s``: ten minutes.
"""

import pytest

from attnviz.engine.capture import capture
from attnviz.measures.word_links import agreed_links
from attnviz.models.own import OwnAttention

from .bench_labels import SENTENCES, SIZES, random_records

pytestmark = pytest.mark.benchmark

SHAPES = {**SIZES, "bundled": (6, 4, 96), "many": (6, 12, 96)}
SEEDS = {"large": 4}


def clear(record):
    found = agreed_links(record)
    return any(link.beats_chance for link in found.links)


def told(title, clears, most):
    print(f"{title:24} {sum(clears):3} of {len(clears):5} texts ({sum(clears) / len(clears):.2%})")
    assert sum(clears) <= len(clears) * most


@pytest.mark.parametrize("causal", [True, False])
def test_own_attention(causal):
    clears = []
    for seed in range(60):
        model = OwnAttention(causal=causal, seed=seed)
        for sentence in SENTENCES:
            clears.append(clear(capture(model, model.encode(sentence), kind="self")))
    told(f"mha {'causal' if causal else 'both ways'}", clears, 0.05)


@pytest.mark.parametrize(("spread", "most"), [(0.02, 0.0), (0.3, 0.05), (0.5, 0.05)])
@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
def test_random_models(kind, spread, most):
    SIZES.update(SHAPES)
    every = []
    for size in SHAPES:
        clears = [clear(one) for one in random_records(kind, size, spread, SEEDS.get(size, 20))]
        print(f"{kind} {spread} {size}: {sum(clears)} of {len(clears)}")
        every += clears
    told(f"{kind} {spread}", every, most)
