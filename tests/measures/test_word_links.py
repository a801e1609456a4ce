"""Links between words beyond a head's habit, and beyond chance, against loops and draws."""

import math

import numpy as np
import pytest

from attnviz.measures.word_links import AGREEING, FEWEST_HEADS, MOST_CELLS, agreed_links
from attnviz.measures.words import word_ranges
from attnviz.records import AttentionRecord, LayerWeights, ModelInfo, Tokens

SENTENCES = (
    "The cat sat on the mat because it was tired",
    "When Mary and John went to the shop John gave a drink to Mary",
    "the cat sat on the mat and the dog sat on the rug",
)


def record(maps, texts=None, causal=True):
    """Maps (head, query, key), one for each layer, of a trained model over words."""
    count = maps[0].shape[-1]
    texts = texts or ["<s>", *(f" w{place}" for place in range(1, count))]
    tokens = Tokens(tuple(range(count)), tuple(texts), tuple(text == "<s>" for text in texts))
    heads = len(maps[0])
    info = ModelInfo("made", None, "None", "float32", len(maps), heads, heads, 8)
    layers = [LayerWeights(at, tuple(range(heads)), each) for at, each in enumerate(maps)]
    return AttentionRecord(info, "self", causal, tokens, tokens, tuple(layers))


def random_maps(heads, count, seed, sharpness=2.0):
    scores = np.random.default_rng(seed).normal(size=(heads, count, count)) * sharpness
    weights = np.where(np.tri(count, dtype=bool), np.exp(scores), 0)
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def excess_by_hand(weights):
    """The weight above the habit of one causal head over words; the first token is the sink."""
    count = len(weights)
    cells = [(query, key) for query in range(1, count) for key in range(1, query)]

    def mean(values, prior):
        return (sum(values) + 2 * prior) / (len(values) + 2)

    usual = {}
    for query, key in cells:
        even = 1 / (query + 1)
        far = [each for each in cells if each[0] - each[1] == query - key and each[0] != query]
        here = [each for each in cells if each[1] == key and each[0] != query]
        multiples = [
            [weights[each] * (each[0] + 1) for each in others] or [] for others in (far, here)
        ]
        usual[query, key] = (
            mean([weights[each] for each in far], even),
            mean(multiples[0], 1) * even,
            max(mean(multiples[1], 1), 1) * even,
        )
    errors = [sum((usual[each][way] - weights[each]) ** 2 for each in cells) for way in (0, 1)]
    way = errors.index(min(errors))
    found = np.zeros((count, count))
    for each in cells:
        found[each] = max(weights[each] - min(max(usual[each][way], usual[each][2]), 1), 0)
    return found


def reversed_by_hand(weights):
    """A causal head whose scores have the other sign; the sink keeps its weight."""
    found = weights.copy()
    for query in range(1, len(weights)):
        row = weights[query, 1 : query + 1]
        found[query, 1 : query + 1] = row.sum() * (1 / row) / (1 / row).sum()
    return found


def test_the_excess_is_what_loops_find():
    maps = random_maps(9, 8, seed=3)
    excess = np.stack([excess_by_hand(each) for each in maps])
    found = agreed_links(record([maps[:4], maps[4:8]]))
    assert (found.heads, found.pairs) == (8, 21)
    assert found.links
    for link in found.links:
        cell = link.query.start, link.key.start
        here = excess[:8, *cell]
        place = link.layer * 4 + link.head
        assert place == here.argmax()
        assert link.weight == pytest.approx(maps[place, *cell])
        assert link.weight - link.habit == pytest.approx(here.max())
        assert link.heads == (here > AGREEING).sum()


@pytest.mark.parametrize("seed", range(3))
def test_the_chance_is_that_of_heads_that_are_reversed_at_random(seed):
    """Reverse each head or not in 20,000 draws; count how often some pair has as large a sum."""
    maps = random_maps(16, 9, seed=seed)
    both = [[excess_by_hand(each), excess_by_hand(reversed_by_hand(each))] for each in maps]
    over = np.stack([plain - other for plain, other in both])
    found = agreed_links(record([maps]))
    draws = np.random.default_rng(seed).choice([-1.0, 1.0], (20_000, 16))
    largest = np.einsum("dh,hqk->dqk", draws, over).max((1, 2))
    for link in found.links[:3]:
        reached = (largest >= over[:, link.query.start, link.key.start].sum() - 1e-6).mean()
        assert link.chance == pytest.approx(reached, abs=0.05)
    chances = [link.chance for link in found.links]
    assert chances == sorted(chances)


def planted(heads, agreeing):
    """Random heads, of which some put .8 of word 7's attention on word 3."""
    maps = random_maps(heads, 11, seed=1, sharpness=0.7)
    maps[:agreeing, 7] *= 0.2
    maps[:agreeing, 7, 3] += 0.8
    return maps


def test_heads_that_agree_on_a_link_beat_chance_and_one_does_not():
    found = agreed_links(record([planted(16, 8)]))
    link = found.links[0]
    assert (link.query, link.key) == (range(7, 8), range(3, 4))
    assert link.beats_chance
    assert link.heads >= 8
    assert link.chance < 0.02
    found = agreed_links(record([planted(16, 1)]))
    assert not any(link.beats_chance for link in found.links)


@pytest.mark.parametrize("mark", [".", "\u200b", "\u202e\u2069", "\x1b", "+", "—"])
def test_marks_and_what_is_invisible_have_no_links(mark):
    found = agreed_links(record([random_maps(8, 4, seed=2)], ["<s>", " a", mark, " b"]))
    assert found.pairs == 1


@pytest.mark.parametrize("offset", [1, 2])
def test_a_habit_is_no_news(offset):
    """All heads attend a fixed number of tokens back, and always to the same word."""
    count = 12
    maps = np.zeros((12, count, count))
    for query in range(count):
        maps[:6, query, max(query - offset, 0)] = 1
        maps[6:, query, min(query, 4)] = 1
    found = agreed_links(record([maps]))
    assert not any(link.beats_chance for link in found.links)


def test_few_heads_cannot_tell_chance():
    found = agreed_links(record([planted(FEWEST_HEADS - 1, 5)]))
    assert all(math.isnan(link.chance) and not link.beats_chance for link in found.links)
    excesses = [link.weight - link.habit for link in found.links]
    assert excesses == sorted(excesses, reverse=True)


def test_tokens_of_a_word_count_together():
    texts = ["<s>", " a", " la", "rge", " w", "ord", " is", " here", ".", " so", " there"]
    maps = random_maps(8, 11, seed=5)
    found = agreed_links(record([maps], texts))
    assert found.pairs == 7 * 6 / 2  # the stop is no word
    whole = {range(1, 2), range(2, 4), range(4, 6), range(6, 7), range(7, 8), range(9, 10)}
    assert {link.query for link in found.links} <= whole | {range(10, 11)}
    link = next(each for each in found.links if len(each.key) == 2 or len(each.query) == 2)
    cells = maps[link.head, link.query.start : link.query.stop, link.key.start : link.key.stop]
    assert link.weight == pytest.approx(cells.sum(1).mean())


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["<s>", "The", " m", "at", "."], ["<s>", "The", " mat", "."]),
        (["He", " didn", "'t", " see", " Ann", "’s"], ["He", " didn't", " see", " Ann’s"]),
        (["[CLS]", "trans", "##form", "##er", "is"], ["[CLS]", "transformer", "is"]),
        (["ᄒ##ᅡ", "##ᆨ"], ["ᄒ##ᅡ##ᆨ"]),
        (["我", "喜", "欢", " 猫"], ["我", "喜", "欢", " 猫"]),
        (["나는", "오늘"], ["나는", "오늘"]),
        (["<0xE6>", "<0x88>", "<0x91>", "<0xE5>", "<0x96>", "<0x9C>"], ["我", "喜"]),
        ([" ", "<0xEB>", "<0x82>", "<0x98>", "<0xEB>", "<0x8A>", "<0x94>", " x"], ["나는", " x"]),
    ],
)
def test_the_words_of_a_text(texts, words):
    special = tuple(text in ("<s>", "[CLS]") for text in texts)
    tokens = Tokens(tuple(range(len(texts))), tuple(texts), special)
    found = word_ranges(tokens)
    assert [place for word in found for place in word] == list(range(len(texts)))
    joined = ["".join(texts[word.start : word.stop]) for word in found]
    shown = [
        bytes.fromhex(each.replace("<0x", "").replace(">", "")).decode() if "<0x" in each else each
        for each in joined
    ]
    assert [each.replace("##", "") for each in shown] == [each.replace("##", "") for each in words]


def test_too_much_work_is_not_begun():
    count = 2 + math.isqrt(MOST_CELLS)
    none = np.zeros((1, count, count), np.float32)
    assert agreed_links(record([none])) is None


def test_a_word_unlike_the_others_is_no_link():
    """Heads with random weights that read one stream, in which two words stand apart.

    They draw much or little attention in every head, so that heads agree on them for no reason.
    """
    claims = []
    for seed in range(100):
        generator = np.random.default_rng(seed)
        words = generator.normal(size=(10, 16)) * 0.3 + generator.normal(size=16)
        words[[4, 8]] += 2 * generator.normal(size=(2, 16))
        scores = np.einsum("qi,hij,kj->hqk", words, generator.normal(size=(16, 16, 16)) / 16, words)
        weights = np.where(np.tri(10, dtype=bool), np.exp(scores - scores.max(-1)[..., None]), 0)
        found = agreed_links(record([weights / weights.sum(-1, keepdims=True)]))
        claims.append(any(link.beats_chance for link in found.links))
    assert sum(claims) <= 0.05 * len(claims)


def test_a_word_of_many_tokens_is_no_link():
    """Heads with random weights over three words of nine tokens each, as of Korean in bytes.

    The many weights to such a word add up to much in every head; so they do in a reversed head.
    """
    texts = ["<s>", *(" a" if place % 9 == 0 else "b" for place in range(27)), "."]
    claims = []
    for seed in range(60):
        found = agreed_links(record([random_maps(16, len(texts), seed)], texts))
        assert found.pairs == 3
        claims.append(found.links[0].beats_chance)
    assert sum(claims) <= 0.05 * len(claims)


@pytest.mark.parametrize("slopes", [0.3, 1.0])
def test_a_bias_by_distance_is_no_link(slopes):
    """Scores that fall with the distance, as ALiBi's: late words see more, but nothing new."""
    away = np.arange(14)[:, None] - np.arange(14)
    maps = np.stack(
        [np.where(away >= 0, np.exp(-slopes * away / (1 + head)), 0) for head in range(12)]
    )
    found = agreed_links(record([maps / maps.sum(-1, keepdims=True)]))
    assert not any(link.beats_chance for link in found.links)
