"""``attnviz retrieve``: its scores against a plain loop over whole matrices, and what it names."""

import math
from dataclasses import replace

import numpy as np
import pytest
from transformers import AutoTokenizer

import attnviz
from attnviz.count.params.params import counted_model, short_cache
from attnviz.engine.backend import backend_of
from attnviz.errors import UnsupportedError
from attnviz.inspect.retrieve.haystacks import (
    DEPTHS,
    material,
    needles_of,
    questions,
    read_sentences,
)
from attnviz.inspect.retrieve.request import Needle, RetrieveRequest
from attnviz.inspect.retrieve.retrieve import answered, retrieval_heads
from attnviz.models.bundled import Bundled
from attnviz.records import Input, Tokens

from ...chat_models import TEMPLATES, write_chat_model

_RANDOM_SEEDS = 8


@pytest.fixture(scope="module")
def bundled():
    return Bundled()


@pytest.fixture(scope="module")
def made_of(bundled):
    return material(bundled, read_sentences(None), RetrieveRequest())


@pytest.fixture(scope="module")
def found(bundled):
    return attnviz.retrieve(bundled, lengths="192")


def test_a_question_stands_where_it_says(bundled, made_of):
    words, (facts, asked) = bundled.vocabulary().texts, needles_of(RetrieveRequest())
    assert asked == len(facts) == len(made_of.needles)
    answers = {needle.answer: needle.cue for needle in facts}
    for question in questions(made_of, 300, 2, 0):
        answer = "".join(words(question.ids[question.start :])).strip()
        fact = f"{answers[answer]} {answer}"
        assert "".join(words([question.ids[at] for at in question.span])).strip() == fact
        assert "".join(words(question.ids)).strip().endswith(fact)
        for step, places in enumerate(question.right):
            assert question.ids[question.start + step] in [question.ids[at] for at in places]
            assert set(places) <= set(question.span)
        other = [words([question.ids[at]])[0] for at in question.others[0]]
        assert len(other) == len(DEPTHS) - 1
        assert not set(question.others[0]) & set(question.span)


def test_every_depth_is_asked_for(made_of):
    for number in range(2):
        asked = questions(made_of, 1000, number, 0)
        assert sorted(question.depth for question in asked) == [*range(len(DEPTHS))]
        for question in asked:
            share = (question.span[0] - 1) / len(question.text)
            assert abs(share - DEPTHS[question.depth]) < 0.07


def test_shuffled_tokens_are_the_same_in_another_order(made_of):
    asked = questions(made_of, 256, 0, 0)
    for question in asked:
        other = question.shuffled((5, 1))
        text = slice(question.text.start, question.text.stop)
        assert sorted(other.ids[text]) == sorted(question.ids[text])
        assert other.ids[text] != question.ids[text]
        assert other.ids[text.stop :] == question.ids[text.stop :]
        for step, places in enumerate(other.right):
            expected = question.ids[question.start + step]
            assert {other.ids[at] for at in places} == {expected}
    first, second = (each.shuffled((5, 1)).ids[: each.text.stop] for each in asked[:2])
    assert first == second  # one haystack, so that it is read once


def test_given_needles_stand_beside_built_in_ones(bundled):
    request = RetrieveRequest(needle=("The key of the tower is| blue rain ",))
    facts, asked = needles_of(request)
    assert facts[0] == Needle("The key of the tower is", "blue rain")
    assert (asked, len(facts)) == (1, len(DEPTHS))
    made = material(bundled, read_sentences(None), request)
    depths = [questions(made, 256, number, 0)[0].depth for number in range(len(DEPTHS))]
    assert sorted(depths) == [*range(len(DEPTHS))]


@pytest.mark.parametrize("name", ["chatml", "llama3"])
@pytest.mark.long
def test_a_chat_is_what_the_tokenizer_makes_of_it(name, tmp_path):
    """transformers renders the user's message; the answer follows its generation prompt."""
    path = write_chat_model(tmp_path / name, TEMPLATES[name])
    model, tokenizer = attnviz.load(str(path)), AutoTokenizer.from_pretrained(path)
    request = RetrieveRequest(needle=("The key is|blue rain", "The door is|red"), chat=True)
    answers = {needle.answer: needle.cue for needle in needles_of(request)[0]}
    for question in questions(material(model, read_sentences(None), request), 500, 1, 0):
        assert len(question.ids) <= 500
        cue = answers[tokenizer.decode(question.ids[question.start :]).strip()]
        text = tokenizer.decode([*question.ids[question.text.start : question.start]])
        content = text[: text.rindex(cue) + len(cue)]
        expected = tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        found = tokenizer.decode(question.ids[: question.start])
        assert found.replace(f"{cue} <", f"{cue}<") == expected  # here a blank is its own token
        special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
        read = tokenizer(expected, add_special_tokens=False).input_ids
        marks = [each for each in question.ids if each in special]
        assert marks == [each for each in read if each in special]
        for step, places in enumerate(question.right):
            assert question.ids[question.start + step] in [question.ids[at] for at in places]
    report = attnviz.retrieve(model, needle=request.needle, chat=True, lengths="500", haystacks=1)
    assert report.to_dict()["chat"] is True
    assert "asked in a chat" in str(report)


def test_a_model_without_a_template_has_no_chat(bundled):
    with pytest.raises(UnsupportedError, match="no chat template: leave out --chat"):
        attnviz.retrieve(bundled, chat=True)


def test_the_scores_are_those_of_a_loop_over_whole_matrices(bundled, made_of):
    """The reader reads token by token; the loop has one pass over all tokens, in plain Python."""
    question = questions(made_of, 160, 1, 0)[1]
    weights = {}
    wide = Bundled("float64")
    residual = wide.stack.run_outputs(
        np.array(question.ids), lambda layer, found, outputs: weights.update({layer: found})
    )
    steps, begun = range(len(question.ids) - question.start), Tokens.bare(question.ids[:2])
    reader = backend_of(bundled).open_reader(begun, begun, "self", ())
    measured = answered(reader, question, bundled.info.layers, bundled.info.heads)
    for layer, head in np.ndindex(len(weights), len(weights[0])):
        hits, elsewhere, near = 0, [], 0.0
        for step in steps:
            at = question.start + step
            row = [float(weight) for weight in weights[layer][head][at - 1][:at]]
            top, places = max(range(at), key=row.__getitem__), question.others[step]
            hits += top in question.span and question.ids[top] == question.ids[at]
            if places:
                elsewhere.append(sum(top == place for place in places) / len(places))
            near += sum(row[:4]) + sum(row[-64:])
        expected = hits / len(steps), sum(elsewhere) / len(elsewhere), near / len(steps)
        assert measured.heads[:, layer, head] == pytest.approx(expected, abs=1e-4)
    losses = []
    for at, row in enumerate(wide.stack.unembed(residual)[question.start - 1 : -1]):
        scores = [float(score) for score in row]
        total = math.log(sum(math.exp(score - max(scores)) for score in scores)) + max(scores)
        losses.append(total - scores[question.ids[question.start + at]])
    assert measured.loss == pytest.approx(sum(losses) / len(losses), abs=1e-4)


def test_what_is_written_is_what_why_measures(bundled, found):
    """The mean over haystacks of contributions, each by the reader of another command."""
    request = RetrieveRequest(lengths="192")
    made = material(bundled, read_sentences(None), request)
    total = []
    attributor = backend_of(bundled).open_attributor(Input.of_ids([0, 1]))
    for number in range(5):
        asked = questions(made, 192, number, 0)
        question = asked[number % len(asked)]
        step = number % len(question.right)
        token = question.ids[question.start + step]
        foil = next(question.ids[at] for at in question.others[step] if question.ids[at] != token)
        row = [
            attributor.attribute(Input.of_ids(question.ids[: question.start + step]), answer=each)
            .rows["self", 1, 2][question.span[0] : question.span[-1] + 1]
            .sum()
            for each in (token, foil)
        ]
        total.append(row[0] - row[1])
    (head,) = [one for one in found.heads if one.place == (1, 2)]
    assert head.written == pytest.approx(sum(total) / 5, abs=1e-3)


@pytest.mark.long
def test_random_weights_name_no_head():
    for seed in range(_RANDOM_SEEDS):
        report = attnviz.retrieve(
            Bundled(seed=seed), needle="The key is|blue rain", lengths="96", seed=seed
        )
        assert not report.named
        assert report.without is None
        assert not report.caches


def test_a_head_is_named_above_both_base_rates():
    draw = np.random.default_rng(0)
    scores = draw.normal([[0.5, 0.5, 0.5, 0.08]], 0.05, (8, 4))[:, None]
    unasked, shuffled = np.zeros_like(scores), np.zeros_like(scores)
    unasked[:, 0, 1] = shuffled[:, 0, 2] = 0.5
    assert retrieval_heads(scores, unasked, shuffled) == ((0, 0),)
    assert retrieval_heads(scores[:4], unasked[:4], shuffled[:4]) == ()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_reader_goes_back_to_where_two_texts_part(kind, checkpoint, one_thread):
    """Questions about one haystack share its keys and values; each is read as if it were alone."""
    model = attnviz.load(str(checkpoint(kind)), backend="torch")
    begun = Tokens.bare(model.vocabulary().plain.tolist()[:2])

    def opened():
        return backend_of(model).open_reader(begun, begun, "self", ())

    plain = model.vocabulary().plain.tolist()
    text = np.random.default_rng(0).choice(plain, 8).tolist()
    reader = opened()
    for end in (plain[:3], plain[2:4], [*plain[:2], *plain[3:5]]):
        for step in range(1, len(end) + 1):
            scores, rows = reader.read((*text, *end[:step]))
            expected, others = opened().read((*text, *end[:step]))
            np.testing.assert_allclose(scores, expected, atol=1e-4)
            for layer, row in rows.items():
                np.testing.assert_allclose(row, others[layer], atol=1e-4)


def test_the_cache_is_counted_by_hand(bundled):
    """Six layers of four heads, 2 × 32 numbers of two bytes per token and head."""
    found = short_cache(counted_model(bundled), 32_768, {(1, 0), (1, 2)})
    each = 2 * 32 * 2
    assert found.whole == 24 * each * 32_768
    assert found.short == 2 * each * 32_768 + 22 * each * (64 + 256)
    assert short_cache(counted_model(bundled), 300, ()).short == 24 * each * 300


def test_grouped_heads_share_a_column(found, tmp_path):
    grouped = replace(found, model=replace(found.model, kv_heads=2))
    grouped.save(tmp_path / "full_attention_heads.tsv")
    table = np.loadtxt(tmp_path / "full_attention_heads.tsv", delimiter="\t")
    best = {one.place: one.score for one in found.heads}
    for layer, head in np.ndindex(6, 2):
        expected = max(best[layer, 2 * head], best[layer, 2 * head + 1])
        assert table[layer, head] == pytest.approx(expected, abs=1e-6)
