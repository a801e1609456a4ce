"""How many heads of random weights get a name from one text, as if a checkpoint held them.

Over 20 seeds and five sentences: ``mha``, and GPT-2, BERT and Llama of two sizes with an
initializer_range of 0.02, 0.3 and 0.5, whose weights nothing but evidence tells from learnt ones.
``tests/inspect/test_masks.py`` has a smaller sample of every kind of mask.
Run with ``python -m pytest tests/benchmarks/bench_labels.py -s``: a quarter of an hour.
"""

from dataclasses import replace

import pytest

from attnviz.measures.one_text import head_scores
from attnviz.models.own import OwnAttention
from attnviz.records import AttentionRecord, LayerWeights, ModelInfo, Tokens

from ..small_models import whole_weights

pytestmark = pytest.mark.benchmark

SEEDS = 20
SENTENCES = (
    "The cat sat on the mat because it was tired .",
    "When Mary and John went to the shop , John gave a drink to Mary .",
    "The animal didn ' t cross the street because it was too tired .",
    "the trophy does not fit in the suitcase because the suitcase is too small",
    "the cat sat on the mat and the dog sat on the rug and the bird sat on the branch",
)
WORDS = list(dict.fromkeys(" ".join(SENTENCES).lower().split()))
NAMES = ("<s>", "</s>", *WORDS)
SIZES = {"small": (4, 3, 48), "large": (12, 12, 768)}
"""Layers, heads, width."""


def texts():
    for sentence in SENTENCES:
        yield [2 + WORDS.index(word) for word in sentence.lower().split()]


def record_of(tokens, maps, causal):
    """Return maps of layers, (head, query, key), as if a checkpoint had made them."""
    heads = len(maps[0])
    info = ModelInfo(
        "made", None, "None", "float32", len(maps), heads, heads, 8, weights="checkpoint"
    )
    layers = [LayerWeights(at, tuple(range(heads)), each) for at, each in enumerate(maps)]
    return AttentionRecord(info, "self", causal, tokens, tokens, tuple(layers))


def named(record):
    """Return the names that heads get over tokens that no word tells apart."""
    ids, special = record.queries.ids, record.queries.special
    plain = Tokens(ids, ("a",) * len(ids), special)
    record = replace(record, queries=plain, keys=plain)
    return [entry.label.name for entry in head_scores(record) if entry.label.is_finding]


def model_of(kind, size, spread, seed):
    import torch
    import transformers as hub

    layers, heads, width = SIZES[size]
    shared = {
        "vocab_size": len(WORDS) + 2,
        "initializer_range": spread,
        "attn_implementation": "eager",
    }
    torch.manual_seed(seed)
    if kind == "gpt2":
        config = hub.GPT2Config(n_layer=layers, n_head=heads, n_embd=width, **shared)
        return hub.GPT2Model(config).eval()
    usual = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_size": width,
        "intermediate_size": 3 * width,
    }
    if kind == "bert":
        return hub.BertModel(hub.BertConfig(**usual, **shared), add_pooling_layer=False).eval()
    return hub.LlamaModel(hub.LlamaConfig(**usual, **shared)).eval()


def random_records(kind, size, spread, seeds):
    """Yield what models with random weights make of each sentence."""
    import torch

    for seed in range(seeds):
        model = model_of(kind, size, spread, seed)
        for words in texts():
            ids = [0, *words, *([1] if kind == "bert" else [])]
            names = tuple(f" {NAMES[each]}" for each in ids)
            tokens = Tokens(tuple(ids), names, tuple(each < 2 for each in ids))
            with torch.no_grad():
                maps = model(torch.tensor([ids]), output_attentions=True).attentions
            yield record_of(tokens, [each[0].numpy() for each in maps], kind != "bert")


def told(title, names, heads, most=0.01):
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    print(f"{title:24} {len(names):4} of {heads:6} heads named ({len(names) / heads:.3%}) {counts}")
    assert len(names) <= heads * most


@pytest.mark.parametrize("causal", [True, False])
def test_own_attention(causal):
    names = []
    heads = 0
    for seed in range(SEEDS):
        model = OwnAttention(causal=causal, seed=seed)
        for sentence in SENTENCES:
            tokens = model.encode(sentence)
            maps = list(whole_weights(model, tokens).values())
            plain = Tokens(tokens.ids, tokens.texts, (False,) * len(tokens))
            names += named(record_of(plain, maps, causal))
            heads += len(maps[0])
    told(f"mha {'causal' if causal else 'both ways'}", names, heads)


@pytest.mark.parametrize("spread", [0.02, 0.3, 0.5])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
def test_random_models(kind, size, spread):
    records = [*random_records(kind, size, spread, SEEDS)]
    names = [name for record in records for name in named(record)]
    told(f"{kind} {size} {spread}", names, sum(1 for record in records for _ in record))
