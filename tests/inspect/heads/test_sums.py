"""Heads over long texts: every number is that of the whole maps, which are never there."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from attnviz.engine import observer
from attnviz.engine.backend import backend_of
from attnviz.engine.observer import KeepWeights
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.heads.heads import _Reading, heads
from attnviz.inspect.heads.report import HeadsReport, LongHeads
from attnviz.inspect.heads.request import HeadsRequest
from attnviz.inspect.heads.sentences import long_finding
from attnviz.models.bundled import Bundled
from attnviz.models.prepare import prepared
from attnviz.records import Input

from ...engine.sizes import set_sizes
from ...made_records import measured
from ...small_models import bert_fields, llama_fields

TOKENS = 203
TEXT = " ".join(f"w{number}" for number in np.random.default_rng(5).integers(0, 60, TOKENS))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    fields = llama_fields(12, 17, 131_072, (6, 2, 4), layers=2)
    config = transformers.LlamaConfig(vocab_size=101, initializer_range=1.0, **fields)
    return prepared("made", transformers.LlamaForCausalLM(config), None, torch.device("cpu"))


@pytest.fixture(scope="module")
def whole(model):
    keep = KeepWeights("self")
    backend_of(model).observe(keep, [Input(model.encode(TEXT))], cells=None)
    return np.stack([layer.weights for layer in keep.layers])


def read(model, text=TEXT, **options):
    request = HeadsRequest.of({"reduce": "fused"} | options)
    return heads(model, text, request, lambda _: model)


def test_the_finding_on_one_head_is_about_that_head(model, whole):
    sink, tokens = whole[1, 0, 1:, 0].mean(), whole.shape[-1]
    far = (whole[1, 0] * abs(np.arange(tokens)[:, None] - np.arange(tokens))).sum(-1).mean()
    finding = long_finding(read(model, head=("L1H0",)))
    assert finding.startswith(f"L1H0 {'sinks' if sink > 0.3 else 'does not sink'} on the first")
    assert f"(weight {sink:.2f})".replace("0.", ".") in finding
    assert f"looks {far:,.0f} tokens away on average" in finding


def test_pooled_maps_and_scores(model, whole):
    found = read(model)
    size = whole.shape[-1]
    assert found.bucket == -(-size // 64) == 4
    assert [(head.layer, head.head) for head in found.heads] == [
        (layer, head) for layer in range(2) for head in range(6)
    ]
    ids = np.asarray(found.tokens.ids)
    for head in found.heads:
        weights = whole[head.layer, head.head]
        for row, start in enumerate(range(0, size, 4)):
            for column, key in enumerate(range(0, size, 4)):
                cell = weights[start : start + 4, key : key + 4].sum(1).mean()
                assert head.pooled[row, column] == pytest.approx(cell, abs=1e-5)
        assert np.abs(head.pooled.sum(-1) - 1).max() < 1e-5
        for name in ("previous", "first", "duplicate", "entropy", "distance", "confidence"):
            expected = float(measured(name, weights, tuple(map(int, ids))))
            assert head.scores[name] == pytest.approx(expected, rel=1e-4, abs=1e-5), name


def test_the_furthest_head_is_named_with_what_uniform_attention_gives(model):
    config = transformers.BertConfig(vocab_size=101, **bert_fields(6, 2, 300, 1))
    encoder = prepared("made", transformers.BertModel(config), None, torch.device("cpu"))
    for one, base in ((model, lambda size: (size - 1) / 4), (encoder, lambda n: (n - 1 / n) / 3)):
        found = read(one)
        assert [head.even for head in found.heads] == pytest.approx(
            [base(len(found.tokens))] * len(found.heads)
        )
        finding = " ".join(str(found).split())
        assert f"on average (uniform attention: {base(len(found.tokens)):,.0f})." in finding


@pytest.mark.parametrize("many", [1, 6])
def test_a_part_in_full_a_word_and_pairs_of_some_heads_at_a_time(model, whole, many, monkeypatch):
    set_sizes(monkeypatch, sum_bytes=4 * 40 * TOKENS * many)
    found = read(model, queries="150-159", keys="140-155", token="7", top=3, head=("L1H2",))
    (head,) = found.heads
    every = read(model)
    assert [head[:2] for head in every.heads] == [(i, j) for i in range(2) for j in range(6)]
    assert head.scores == every.heads[6 + 2].scores
    weights = whole[1, 2]
    part = weights[150:160, 140:156]
    hidden = np.arange(140, 156) > np.arange(150, 160)[:, None]
    assert (np.isnan(head.part) == hidden).all()
    assert np.nan_to_num(head.part) == pytest.approx(part, abs=1e-6)
    assert head.row == pytest.approx(weights[7], abs=1e-6)
    beside = weights.copy()
    beside[:, 0] = 0  # the sink is left out
    strongest = np.sort(beside, axis=None)[::-1][:3]
    assert [weight for weight, *_ in head.pairs] == pytest.approx(strongest, abs=1e-6)
    for weight, query, key in head.pairs:
        assert weight == pytest.approx(beside[query, key], abs=1e-6)
    screen = str(found)
    assert "queries 150–159, keys 140–155" in screen
    assert "a cell stands for 4 × 4 tokens" in screen
    (entry,) = json.loads(json.dumps(found.to_dict()))["heads"]
    assert entry["queries"] == [150, 160]
    assert entry["weights"][0][-1] is None


def test_what_needs_whole_maps_is_read_so_however_long_the_text(model, monkeypatch):
    def kind_of(**options):
        request = HeadsRequest.of(options)
        return type(heads(model, TEXT, request, lambda _: model))

    monkeypatch.setattr(observer, "_LONG", 100)
    monkeypatch.setattr(observer, "_LARGE", 1_000_000)
    assert kind_of() is LongHeads
    assert kind_of(pair=("w1", "w2")) is HeadsReport


def test_what_cannot_be_read_is_refused(model, monkeypatch):
    with pytest.raises(UsageError, match="--norm-weighted needs whole maps"):
        read(model, norm_weighted=True)
    for typed in ("9-3", "0-5000", "a-b", "1-2-3", "9" * 5000):
        with pytest.raises(UsageError, match="expected tokens"):
            read(model, queries=typed)
    with pytest.raises(UsageError, match="no token 'absent'"):
        read(model, token="absent")
    with pytest.raises(UnsupportedError, match="leave out --reduce fused"):
        read(Bundled(), "The cat sat on the mat.")
    monkeypatch.setattr("attnviz.models.memory.free_memory", lambda device=None: 1_000)
    with pytest.raises(UsageError, match="shorten the text or the parts of it"):
        read(model)


@pytest.mark.parametrize("reduce", ["fused", "full"])
def test_each_layer_is_told_as_progress(model, reduce):
    told = []
    request = HeadsRequest.of({"reduce": reduce})
    heads(model, TEXT, request, lambda _: model, advance=told.append)
    assert told == [0.5, 1]
    told.clear()
    chosen = HeadsRequest.of({"reduce": reduce, "layer": "0"})
    heads(model, TEXT, chosen, lambda _: model, advance=told.append)
    assert told[0] == told[-1] == 1


def test_an_interrupted_run_shows_its_layers(model, monkeypatch):
    original, done = _Reading.sums, []

    def interrupted(self, text, kind, layer, found):
        original(self, text, kind, layer, found)
        done.append(layer)
        raise KeyboardInterrupt

    monkeypatch.setattr(_Reading, "sums", interrupted)
    found = read(model)
    assert done == [0]
    assert not found.complete
    assert {head.layer for head in found.heads} == {0}
    assert "interrupted after 1 of 2 layers" in str(found)
    assert replace(found, complete=True).rows()


def test_regions(model):
    spans = {"early": (0, 60), "late": (150, 200)}
    found = read(model, spans=spans)
    request = HeadsRequest.of({"spans": spans, "reduce": "full"})
    whole = heads(model, TEXT, request, lambda _: model)
    assert found.regions.heads == whole.first.regions.heads
    for name in ("share", "uniform", "on_sink", "above"):
        expected = pytest.approx(getattr(whole.first.regions, name), abs=1e-5, nan_ok=True)
        assert getattr(found.regions, name) == expected
