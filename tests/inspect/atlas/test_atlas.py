"""What adds up over texts: means, histograms, places once each, tenths, tokens; in shards too."""

import itertools
import json
import math
from collections import Counter
from functools import reduce
from operator import add

import numpy as np
import pytest

import attnviz
from attnviz.corpus import Reading, Shard, open_corpus
from attnviz.engine.capture import capture, open_probing
from attnviz.inspect.atlas.atlas import FIRES, NAMES, atlas, report_of, scan
from attnviz.inspect.atlas.report import edges
from attnviz.inspect.atlas.request import AtlasRequest
from attnviz.mergeable import best_of, read_record
from attnviz.records import Input

from ...masked_models import masked_model, opened
from .conftest import TEXTS, TOP

WORDS = ["<pad>", "<s>", "</s>", "<unk>", ",", "the", "cat", "dog", "sat", "on", "mat", "and"]
SENTENCES = ("Then Mary saw Tom. Then Mary saw", "It was unbelievable, they said; she believed it.")


def measured(model, shard):
    return atlas(model, open_corpus(TEXTS), AtlasRequest(top=TOP), shard)


@pytest.fixture(scope="module")
def texts(tiny):
    """Scanned in the blocks of the corpus: which texts run together decides the last digits."""
    blocks, probing = Reading(open_corpus(TEXTS), Shard()), open_probing(tiny)
    return [
        one
        for block in blocks
        for one in scan(probing, [Input(tiny.encode(line.text)) for line in block.lines])
    ]


def test_means_and_histograms(whole, texts):
    for at, head in enumerate(whole.heads):
        for row, name in enumerate(NAMES):
            scores = [value for one in texts if (value := one.scores[row, at]) == value]
            chance = [value for one in texts if (value := one.chance[row, at]) == value]
            assert head.texts[name] == len(scores)
            assert sum(head.histogram[name]) == len(scores)
            if scores:
                assert head.scores[name] == pytest.approx(sum(scores) / len(scores), abs=1e-9)
                assert head.base_rate[name] == pytest.approx(sum(chance) / len(chance), abs=1e-9)
            else:
                assert head.scores[name] is None
            ends = edges(name).tolist()
            for number, count in enumerate(head.histogram[name]):
                top = ends[number + 1] if number + 1 < len(head.histogram[name]) else math.inf
                assert count == sum(ends[number] <= score < top for score in scores)
        half = sum(one.scores[0, at] >= 0.5 for one in texts)
        assert head.share == pytest.approx(half / head.texts[FIRES])


def test_weight_by_distance(whole, texts):
    for at, head in enumerate(whole.heads):
        for group, (usual, even) in enumerate(zip(head.by_distance, head.even, strict=True)):
            links = sum(int(one.links[at, group]) for one in texts)
            if not links:
                assert usual is even is None
                continue
            weight = sum(float(one.weight[at, group]) for one in texts)
            assert usual == pytest.approx(weight / links, abs=1e-9)
            evenly = sum(float(one.even[at, group]) for one in texts)
            assert even == pytest.approx(evenly / links, abs=1e-9)


def test_each_kind_of_place_is_listed_once(whole, texts):
    for at, head in enumerate(whole.heads):
        found = []
        for index, one in enumerate(texts):
            query, key = one.places[at].tolist()
            near = (one.queries.ids[max(end - 2, 0) : end + 1] for end in (query, key))
            found.append((-one.scores[0, at], index, query, key, tuple(near)))
        listed = {}
        for weight, index, query, key, near in sorted(found):
            listed.setdefault(near, (index, query, key, -weight))
        mine = [
            (one.link.text, one.link.query, one.link.key, one.link.weight) for one in head.fires
        ]
        assert mine == [*listed.values()][:TOP]
        for one in head.fires:
            assert one.even == pytest.approx(1 / (one.link.query + 1))
            distance = one.link.query - one.link.key
            group = distance - 1 if distance <= 4 else 1 + math.ceil(math.log2(distance))
            assert one.usual == head.by_distance[group]


def test_tenths_hold_every_different_text_once(whole, texts):
    """The corpus has fewer different texts than a sample."""
    different = {one.queries.ids: index for index, one in reversed([*enumerate(texts)])}
    assert whole.sampled == len(different) < len(TEXTS)
    for at, head in enumerate(whole.heads):
        weights = [each.link.weight for tenth in head.tenths for each in tenth]
        assert weights == sorted(texts[index].scores[0, at] for index in different.values())
        assert head.median == pytest.approx(float(np.median(weights)))
        sizes = [len(tenth) for tenth in head.tenths]
        assert len(sizes) == 10
        assert max(sizes) - min(sizes) <= 1


def tail(places, total, base):
    """Return the chance that a binomial number is at least ``places``."""
    each = (
        math.comb(total, k) * base**k * (1 - base) ** (total - k) for k in range(places, total + 1)
    )
    return math.fsum(each)


def test_a_preferred_token_is_beyond_chance(whole):
    sampled = {each.link.text for tenth in whole.heads[0].tenths for each in tenth}
    tokens = Counter(
        text.strip() or text
        for index in sampled
        for text, special in zip(
            whole.kept[index].text.texts, whole.kept[index].text.special, strict=True
        )
        if not special
    )
    named = [head for head in whole.heads if head.prefers is not None]
    assert len(named) > 5
    for head in named:
        known = head.prefers
        links = [each.link for tenth in head.tenths for each in tenth]
        ends = [link.queries.texts[getattr(link, known.side)].strip() for link in links]
        assert known.places == ends.count(known.token) >= 8
        assert known.share == pytest.approx(known.places / len(links))
        assert known.base_rate == pytest.approx(tokens[known.token] / sum(tokens.values()))
        chance = tail(known.places, len(links), known.base_rate)
        assert chance * 2 * len(tokens) * len(whole.heads) < 0.05


@pytest.mark.long
def test_shards_add_up_to_the_bit(tiny, whole, tmp_path):
    parts = [measured(tiny, Shard(number, 3)).record for number in range(3)]
    for number, part in enumerate(parts):
        part.save(tmp_path / str(number))
    expected = json.dumps(whole.to_dict())
    for order in itertools.permutations(parts):
        assert json.dumps(report_of(reduce(add, order)).to_dict()) == expected
    read = reduce(add, [read_record(tmp_path / str(number)) for number in (2, 0, 1)])
    assert json.dumps(report_of(read).to_dict()) == expected
    attnviz.merge(parts).write(tmp_path / "atlas", tiny)
    assert len((tmp_path / "atlas" / "heads.jsonl").read_text().splitlines()) == len(whole.heads)
    assert not report_of(parts[0]).complete
    assert report_of(parts[0]).finding.startswith("Incomplete: 64 texts.")


def test_the_best_of_rows_are_those_of_a_loop():
    draw = np.random.default_rng(0)
    for count in (1, 4, 9):
        rows = draw.integers(0, 4, (3, 7, 4)).astype(float)
        rows[draw.random((3, 7)) < 0.2] = np.nan
        for row, found in zip(rows, best_of(rows, count), strict=True):
            kept = {}
            there = [entry for entry in row.tolist() if not math.isnan(entry[0])]
            for entry in sorted(there, key=lambda each: (-each[0], *each[1:])):
                kept.setdefault(entry[-1], entry)
            assert found[~np.isnan(found[:, 0])].tolist() == [*kept.values()][:count]
            assert len(found) == count


@pytest.fixture(scope="module")
def found(tiny):
    return scan(open_probing(tiny), [Input(tiny.encode(text)) for text in SENTENCES])


def words_by_hand(tokens):
    """Return the number of each token's word: one begins with a blank, or is punctuation."""
    found, before = [], ""
    for text in tokens.texts:
        inside = before[-1:].isalnum() and text[:1].isalnum() and not text.startswith(" ")
        found.append(found[-1] + (not inside) if found else 0)
        before = text
    return found


def check(model, one, words, sink):
    """Compare what was found with loops over the cells that each query sees."""
    record = capture(model, one.queries, kind=model.kinds[0])
    heads = [(layer, head) for layer, head, _ in record]
    assert list(one.heads) == heads
    seen = {layer.layer: record.seen(layer) for layer in record.layers}
    count = range(len(words))
    for at, (layer, _, weights) in enumerate(record):
        evenly = {query: 1 / int(seen[layer][query].sum()) for query in count}
        links = [
            (q, k)
            for q in count
            for k in count
            if seen[layer][q, k] and not {q, k} & {*sink} and words[q] != words[k]
        ]
        best = max(links, key=lambda link: (weights[link], -link[0], -link[1]))
        assert tuple(one.places[at]) == best
        assert one.scores[0, at] == pytest.approx(weights[best], abs=1e-6)
        assert one.chance[0, at] == pytest.approx(evenly[best[0]])
        sums = np.zeros((3, one.links.shape[1]))
        for query, key in links:
            part = 1, weights[query, key], evenly[query]
            away = abs(query - key)
            sums[:, away - 1 if away <= 4 else 1 + math.ceil(math.log2(away))] += part
        mine = one.links[at], one.weight[at], one.even[at]
        np.testing.assert_allclose(mine, sums, atol=1e-5)


@pytest.mark.parametrize("place", range(len(SENTENCES)))
def test_links_are_those_of_a_loop(tiny, found, place):
    check(tiny, found[place], words_by_hand(found[place].queries), [0])


@pytest.mark.parametrize("name", ["sliding, every other layer", "both ways"])
def test_a_link_is_in_the_window_of_its_layer(name):
    model = opened(name, WORDS, masked_model(name, len(WORDS), spread=0.3, seed=0))
    text = model.encode("the cat sat on the mat , and the dog sat on the cat")
    (one,) = scan(open_probing(model), [Input(text)])
    sink = [
        at
        for at, special in enumerate(text.special)
        if special or (at == 0 and name != "both ways")
    ]
    check(model, one, [*range(len(text))], sink)


def test_scores_are_those_of_patterns(tiny, found):
    for text, one in zip(SENTENCES, found, strict=True):
        entries = attnviz.patterns(tiny, text).heads
        assert [(entry.layer, entry.head) for entry in entries] == [*one.heads]
        for at, entry in enumerate(entries):
            known = {**entry.statistics, **entry.scores}
            for row, name in enumerate(NAMES[1:], 1):
                value, mine = known.get(name), one.scores[row, at]
                assert np.isnan(mine) if value is None else mine == pytest.approx(value, abs=1e-6)
                if (base := entry.base_rate.get(name)) is not None:
                    assert one.chance[row, at] == pytest.approx(base, abs=1e-6)


def test_a_text_of_one_word_has_no_link(tiny):
    (one,) = scan(open_probing(tiny), [Input(tiny.encode("The"))])
    assert np.isnan(one.scores[0]).all()
    assert (one.places == -1).all()
    assert not one.links.any()


@pytest.mark.parametrize("kind", ["decoder", "cross"])
def test_links_of_a_decoder_are_those_of_a_loop(checkpoint, kind):
    """T5's decoder reads the text, and for cross attention what the model writes."""
    import torch
    from transformers import T5ForConditionalGeneration

    model = attnviz.load(str(checkpoint("t5")))
    text = "the cat sat on the mat because it was tired"
    probing = open_probing(model, kind)
    given = probing.input_of(text, model.encode(text))
    (one,) = scan(probing, [given])
    assert one.queries == given.target
    assert one.keys == (given.target if kind == "decoder" else given.text)
    with torch.no_grad():
        read = {"input_ids": torch.tensor([given.ids])}
        read["decoder_input_ids"] = torch.tensor([given.target.ids])
        own = T5ForConditionalGeneration.from_pretrained(
            checkpoint("t5"), attn_implementation="eager"
        )
        maps = own.eval()(**read, output_attentions=True)
    layers = maps.decoder_attentions if kind == "decoder" else maps.cross_attentions
    record = [weights for layer in layers for weights in layer[0].numpy()]
    assert len(one.heads) == len(record)
    for at, weights in enumerate(record):
        visible = [
            (q, k)
            for q, k in np.ndindex(*weights.shape)
            if not one.keys.special[k]
            and (kind == "cross" or (0 < k < q and not one.queries.special[q]))
        ]
        best = max(visible, key=lambda link: (weights[link], -link[0], -link[1]))
        assert tuple(one.places[at]) == best
        assert one.scores[0, at] == pytest.approx(weights[best], abs=1e-6)
        assert one.links[at].sum() == len(visible)
        if kind == "cross":
            assert one.links[at, 0] == len(visible)
            assert one.chance[0, at] == pytest.approx(1 / len(one.keys))
