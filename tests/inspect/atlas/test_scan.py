"""What a text shows of every head, against loops over the definitions."""

import math

import numpy as np
import pytest

import attnviz
from attnviz.engine.capture import capture, open_probing
from attnviz.inspect.atlas.atlas import NAMES, scan
from attnviz.records import Input

from ...masked_models import masked_model, opened

WORDS = ["<pad>", "<s>", "</s>", "<unk>", ",", "the", "cat", "dog", "sat", "on", "mat", "and"]
TEXTS = ("Then Mary saw Tom. Then Mary saw", "It was unbelievable, they said; she believed it.")


@pytest.fixture(scope="module")
def found(tiny):
    return scan(open_probing(tiny), [Input(tiny.encode(text)) for text in TEXTS])


def words_by_hand(tokens):
    """Return the number of each token's word: one begins with a blank, or is punctuation."""
    found, before = [], ""
    for text in tokens.texts:
        inside = before[-1:].isalnum() and text[:1].isalnum() and not text.startswith(" ")
        found.append(found[-1] + (not inside) if found else 0)
        before = text
    return found


def group_by_hand(distance):
    return distance - 1 if distance <= 4 else 4 + math.ceil(math.log2(distance)) - 3


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
            sums[:, group_by_hand(abs(query - key))] += part
        mine = one.links[at], one.weight[at], one.even[at]
        np.testing.assert_allclose(mine, sums, atol=1e-5)


@pytest.mark.parametrize("place", range(len(TEXTS)))
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
    for text, one in zip(TEXTS, found, strict=True):
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
