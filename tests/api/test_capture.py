"""``attnviz.capture``: names and loaded models, against what transformers itself computes."""

import numpy as np
import pytest
import torch

import attnviz
from attnviz.errors import LoadError, UsageError

from ..small_models import bart_fields

TEXT = "the cat sat on the mat"


def expected(model, ids):
    """Each layer's weights (head, query, key), by the library's own eager attention."""
    model.eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        layers = model(torch.tensor([ids]), output_attentions=True).attentions
    return [layer[0].numpy() for layer in layers]


def test_a_loaded_model(model, tokenizer):
    maps = attnviz.capture(model.eval(), TEXT, tokenizer=tokenizer)
    assert maps.tokens == ("<s>", *TEXT.split(), "</s>")
    assert maps.text == TEXT
    for layer, weights in enumerate(expected(model, tokenizer(TEXT)["input_ids"])):
        for head in range(3):
            assert np.array_equal(maps[layer, head], weights[head])
    assert repr(maps) == "<HeadMaps of LlamaForCausalLM: 6 heads, 8 tokens>"
    assert "loaded weights · float32\n2 layers × 3 heads on 1 key/value" in str(maps)


def test_some_heads_of_a_loaded_model(model, tokenizer):
    every = attnviz.capture(model, TEXT, tokenizer=tokenizer)
    some = attnviz.capture(model, TEXT, tokenizer=tokenizer, layer=1, head=["0", 2])
    assert list(some) == [(1, 0), (1, 2)]
    assert np.array_equal(some["L1H2"], every["L1H2"])
    assert list(attnviz.capture(model, TEXT, tokenizer=tokenizer, head=(0, 1))) == [(0, 1)]


def test_a_directory(model, tokenizer, tmp_path):
    """A model that was read from it is called by its name."""
    model.save_pretrained(tmp_path / "fine-tuned")
    tokenizer.save_pretrained(tmp_path / "fine-tuned")
    by_path = attnviz.capture(attnviz.load(tmp_path / "fine-tuned"), TEXT)
    loaded = attnviz.capture(model, TEXT, tokenizer=tokenizer)
    assert np.array_equal(np.asarray(by_path), np.asarray(loaded))
    assert by_path.report.record.model.weights == "checkpoint"
    again = type(model).from_pretrained(tmp_path / "fine-tuned")
    maps = attnviz.capture(again, TEXT, tokenizer=tokenizer)
    assert repr(maps).startswith("<HeadMaps of fine-tuned:")
    with pytest.raises(LoadError, match="no directory"):
        attnviz.capture(tmp_path / "nothing", TEXT)


def test_models_that_were_opened():
    model = attnviz.load("mha", d_model=10, heads=5, causal=True, seed=3)
    maps = attnviz.capture(model, "나는 오늘 학교에 갔다")
    assert len(maps) == 5
    assert maps.report.record.model.seed == 3
    assert np.array_equal(np.triu(maps["L0H4"], 1), np.zeros((4, 4)))
    opened = attnviz.load("tiny")
    first, second = (attnviz.capture(opened, text) for text in ("a cat", "a dog"))
    assert first.report.record.model == second.report.record.model
    assert str(first) == str(attnviz.capture("tiny", "a cat"))


def test_an_encoder_decoder(tokenizer):
    import transformers

    torch.manual_seed(0)
    config = transformers.BartConfig(
        **bart_fields(10, 7, 31, (1, 1), (2, 2)),
        vocab_size=11,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    model = transformers.BartForConditionalGeneration(config).eval()
    maps = attnviz.capture(model, TEXT, tokenizer=tokenizer, kind="cross", target="the dog")
    assert maps.key_tokens == ("<s>", *TEXT.split(), "</s>")
    assert "dog" in maps.tokens
    assert maps.target == "the dog"
    attnviz.capture(model, TEXT, tokenizer=tokenizer, kind="decoder")
    with pytest.raises(UsageError, match="add --kind decoder or --kind cross"):
        attnviz.capture(model, TEXT, tokenizer=tokenizer, target="the dog")


def wrong(*arguments, **options):
    return lambda model, tokenizer: attnviz.capture(*arguments, **options)


def opening(*arguments, **options):
    return lambda model, tokenizer: attnviz.load(*arguments, **options)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (wrong("tiny", 3), "expected one text of at least one word, got 3"),
        (wrong("tiny", TEXT, head="L9H0"), "no layer 9"),
        (opening("tiny", d_model=8), "--d-model shapes the library's own attention: add --model"),
        (opening("tiny", revision="main"), "--revision is for models on the Hub"),
        (wrong("tiny", TEXT, tokenizer=str.split), "tokenizer is for a loaded model"),
        (wrong("tiny", "word " * 9999), "shorten it, or add --truncate to cut it there"),
        (opening("mha", d_model=7, heads=2), "does not divide into 2 heads"),
        (wrong(None, TEXT), "got a NoneType"),
        (
            wrong(torch.nn.Linear(2, 3), TEXT),
            "loaded transformers model, got a Linear: give it its own inputs, as in .*capture",
        ),
        (lambda model, _: attnviz.capture(model, TEXT), "needs its tokenizer .* give tokenizer="),
        (
            lambda model, tokenizer: attnviz.capture(model, "cat " * 40, tokenizer=tokenizer),
            "42 tokens, 'LlamaForCausalLM' takes at most 31",
        ),
    ],
)
def test_what_cannot_be_done(call, said, model, tokenizer):
    with pytest.raises(UsageError, match=said):
        call(model, tokenizer)


def test_regions_are_those_of_the_spans():
    maps = attnviz.capture(
        "tiny", "The cat sat on the mat.", spans={"who": (1, 3), "on": "the mat"}
    )
    assert maps.report.record.keys.regions.count("who") == 2
    assert {"who", "on"} <= {*maps.report.regions.keys}
