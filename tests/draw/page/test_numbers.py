"""A page's numbers are the library's: every head of three models, in every way of weighting."""

import base64
import json
import re
import zlib

import numpy as np
import pytest

import attnviz
from attnviz.draw.page import data
from attnviz.inspect.heads.heads import heads_report
from attnviz.inspect.heads.report import compare_heads
from attnviz.measures.sinks import norm_weighted, sink_of, without_sink
from attnviz.records import AttentionRecord, LayerWeights, ModelInfo, Tokens

CAT = "the cat saw the dog ."
TEXTS = dict.fromkeys(("gpt2", "bert", "t5"), CAT)
TEXTS["tiny"] = "When Mary and John went out, John gave Mary a book."
TIMES = "it was the best of times , it was the worst of times ,"
CLOSE = 3e-5


def on_page(shown, head, mode):
    values = shown.js(f"[...shown.map([{head}], '{mode}')].map((v) => v === v ? v : null)")
    n, m = shown.js("[shown.n, shown.m]")
    return np.array([np.nan if v is None else v for v in values], float).reshape(n, m)


def worst(found, wanted, scale=1.0):
    """The largest difference; a cell that is blank on one side counts as zero on it."""
    return float(np.max(np.abs(np.nan_to_num(found) - np.nan_to_num(wanted)) / scale))


@pytest.mark.parametrize(
    "kind",
    ["tiny", *(pytest.param(name, marks=pytest.mark.long) for name in ("gpt2", "bert", "t5"))],
)
def test_every_head_is_what_it_is(opened, checkpoint, tmp_path, kind):
    model = kind if kind == "tiny" else str(checkpoint(kind))
    maps = attnviz.capture(model, TEXTS[kind], vectors=True)
    maps.save(tmp_path / "page.html")
    shown = opened(tmp_path / "page.html")
    report = maps.report
    sink = sink_of(report.record)[1]
    for at, (layer, head) in enumerate(maps):
        weights = maps[layer, head].astype(np.float64)
        assert worst(on_page(shown, at, "raw"), weights) < CLOSE
        if sink.any():
            left = np.maximum(np.where(sink, 0, weights).sum(-1, keepdims=True), 0.005)
            bare = without_sink(weights, sink)
            assert worst(on_page(shown, at, "sinkless"), bare, 1 / left) < CLOSE
        norms = report.vectors.norms[layer][head]
        moved = norm_weighted(weights[None], norms[None])[0]
        assert worst(on_page(shown, at, "value"), moved, np.max(norms) / np.min(norms)) < CLOSE
    if kind != "t5":
        assert shown.js("shown.query_key !== undefined")


def test_the_sink_is_named_by_its_places(opened, trained_bert, tmp_path):
    """A mask of the sink was once read as places, and hid the first two tokens."""
    maps = attnviz.capture(str(trained_bert), CAT)
    maps.save(tmp_path / "page.html")
    shown = opened(tmp_path / "page.html", "#L0H0&mode=sinkless")
    places = np.flatnonzero(sink_of(maps.report.record)[1]).tolist()
    assert places == [0, len(maps.tokens) - 1]
    every = np.stack([on_page(shown, at, "sinkless") for at in range(len(maps))])
    blank = np.isnan(every).all((0, 1))
    assert np.flatnonzero(blank).tolist() == places


def made(layers, heads, tokens, alpha=0.15):
    """A report of random causal weights in the shape of a larger model.

    Its heads differ: some attend to the token before, the first token, commas or equal words too.
    """
    rng = np.random.default_rng(0)
    words = TIMES.split()
    texts = tuple(f" {words[at % len(words)]}" for at in range(tokens))
    axis = Tokens(tuple(range(tokens)), texts, (False,) * tokens)
    kept, seen = [], np.tri(tokens)
    equal = np.array([[one == other for other in texts] for one in texts])
    commas = np.array([text == " ," for text in texts])
    shapes = [
        np.eye(tokens, k=-1), np.eye(tokens, 1, dtype=float)[0] + np.zeros((tokens, 1)),
        np.roll(equal, 1, 1) * seen, np.zeros((tokens, tokens)), commas * seen,
    ]  # fmt: skip
    for layer in range(layers):
        weights = rng.gamma(alpha, size=(heads, tokens, tokens)) * np.tri(tokens) + 1e-9
        weights *= np.tri(tokens)
        weights /= weights.sum(-1, keepdims=True)
        for head in range(heads):
            shape = shapes[(layer * heads + head) * 7 % 5] * seen
            weights[head] += (
                rng.uniform(0.5, 4) * shape / np.maximum(shape.sum(-1, keepdims=True), 1)
            )
        weights /= weights.sum(-1, keepdims=True)
        kept.append(LayerWeights(layer, tuple(range(heads)), weights.astype(np.float32)))
    info = ModelInfo("made", None, "Made", "float32", layers, heads, heads, 8, "loaded")
    record = AttentionRecord(info, "self", True, axis, axis, tuple(kept))
    return compare_heads([heads_report(record, False, text="".join(texts))])


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    report, path = made(12, 12, 256), tmp_path_factory.mktemp("large") / "page.html"
    report.save(path)
    return report, path


@pytest.mark.long
def test_a_large_page_says_how_far_its_numbers_are(opened, large):
    report, path = large
    assert path.stat().st_size <= 4_600_000
    shown = opened(path, "#L3H3&q=200&view=both")
    coarse = [at for at in range(144) if not shown.js(f"shown.exact({at})")]
    fine = next(at for at in range(144) if shown.js(f"shown.exact({at})"))
    sink = np.arange(256) == 0
    errors = {"raw": 0.0, "sinkless": 0.0}
    for head in coarse[::29]:
        entry = report.first.heads[head]
        weights = report.first.weights(entry.layer, entry.head).astype(np.float64)
        for mode, wanted in (("raw", weights), ("sinkless", without_sink(weights, sink))):
            found = on_page(shown, head, mode)
            errors[mode] = max(errors[mode], worst(found, wanted))
            for query in (3, 77, 255):
                keys = [*range(0, query + 1, 7)]
                said = shown.js(f"{keys}.map((j) => shown.error({head}, '{mode}', {query}, j))")
                gap = np.abs(np.nan_to_num(found) - np.nan_to_num(wanted))[query, keys]
                assert (gap <= np.array(said) + 1e-7).all()
    assert errors["raw"] <= 0.00395
    assert errors["sinkless"] > 1.2 * errors["raw"]  # rescaled
    entry = report.first.heads[fine]
    assert worst(on_page(shown, fine, "raw"), report.first.weights(entry.layer, entry.head)) < CLOSE
    shown.js(f"set({{head: {coarse[0]}, query: 200, key: 3, locked: true}}, 'head')")
    assert re.search(r"≈ <?\.\d\d ± <?\.\d\d\d", shown.text("#readout"))
    assert "≈" in shown.text("#scale-words")
    shown.js(f"set({{head: {fine}}}, 'head')")
    assert "≈" not in shown.text("#readout") + shown.text("#scale-words")


def test_the_heads_to_look_at_are_exact(opened, large):
    shown = opened(large[1])
    assert shown.js("data.look.length && data.look.every(({ head }) => shown.exact(head))")


@pytest.mark.parametrize("fine", [0, data.FINE])
def test_a_page_has_a_largest_size(monkeypatch, tmp_path, fine):
    """The second bytes of exact heads are counted, in a page where only some are exact too."""
    monkeypatch.setattr(data, "LARGEST", 300_000)
    monkeypatch.setattr(data, "FINE", fine)
    report = made(4, 8, 200)
    report.save(tmp_path / "page.html")
    content = (tmp_path / "page.html").read_text()
    (said,) = re.findall(
        r'<p class="soft">(\d+) of 32 heads are left out, the least dis[^<]*', content
    )
    record = page_json(content)["captures"][0]
    assert len(record["heads"]["name"]) == 32 - int(said)
    assert "--save x.npz" in content
    blocks = re.findall(r'id="block-\d+">([^<]*)<', content)
    assert sum(map(len, blocks)) <= 300_000
    looked = {record["heads"]["name"][each["head"]] for each in page_json(content)["look"]}
    assert looked


def test_a_text_too_long_for_one_map_is_pooled(opened, monkeypatch, tmp_path):
    monkeypatch.setattr(data, "LARGEST", 16_000)
    monkeypatch.setattr(data, "_AXIS", 60)
    report = made(1, 2, 240)
    report.save(tmp_path / "page.html")
    assert "the largest weight of 4 × 4 tokens" in (tmp_path / "page.html").read_text()
    shown = opened(tmp_path / "page.html")
    assert shown.js("shown.n") == 60
    entry = report.first.heads[shown.js("shown.heads.head[0]")]
    weights = report.first.weights(entry.layer, entry.head)
    pooled = weights.reshape(60, 4, 60, 4).max(axis=(1, 3))
    assert worst(on_page(shown, 0, "raw"), pooled) < 0.004


def page_json(content):
    (found,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', content, re.S
    )
    return json.loads(found)


def test_the_format_is_as_described(mary):
    content = mary.read_text()
    found = page_json(content)
    assert found["schema"] == "attnviz.page/1"
    (record,) = found["captures"]
    (text,) = re.findall(rf'id="block-{record["weights"]["block"]}">([^<]*)<', content)
    unpacked = zlib.decompress(base64.b64decode(text))
    size = 24 * 14 * 15 // 2
    high, low = (np.frombuffer(part, np.uint8) for part in (unpacked[:size], unpacked[size:]))
    weights = ((high * 256.0 + low) / 65534) ** 2
    maps = attnviz.capture("tiny", TEXTS["tiny"])
    wanted = np.concatenate([maps[place][np.tri(14, dtype=bool)] for place in maps])
    assert np.abs(weights - wanted).max() < CLOSE


def test_whole_numbers_keep_what_is_not_there():
    values = np.array([0.0, 1.0, np.nan, 0.25])
    assert data.whole_numbers(values).tolist() == [0, 65534, data.MISSING, 32767]
    assert data.whole_numbers(np.array([-2.0, 0.0, 2.0, np.nan]), 2.0).tolist() == [
        0, 32767, 65534, data.MISSING,
    ]  # fmt: skip
