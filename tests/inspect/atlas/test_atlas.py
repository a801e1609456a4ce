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
from attnviz.engine.capture import open_probing
from attnviz.inspect.atlas.atlas import FIRES, NAMES, atlas, edges, report_of, scan
from attnviz.inspect.atlas.request import AtlasRequest
from attnviz.mergeable import best_of, read_record
from attnviz.records import Input

from .conftest import TEXTS, TOP


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
