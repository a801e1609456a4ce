"""``attnviz rollout``: the product of the layers, the two maps, JSON and files."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

import attnviz
from attnviz.draw.terminal import terminal_block
from attnviz.draw.theme import Theme
from attnviz.engine.capture import capture
from attnviz.errors import UsageError
from attnviz.inspect.rollout import rollout as measuring
from attnviz.inspect.rollout.report import RolloutReport
from attnviz.models.bundled import Bundled
from attnviz.models.prepare import prepared
from attnviz.records import ModelInfo, Tokens

from ...small_models import bert_fields, llama_fields

TEXT = "The cat sat on the mat because it was tired."
SHORT = "Old Tom saw Ann, and Ann saw Tom."
PLAIN = Theme(colour=False)
PIECES = ("<s>", "Old", " Tom", " saw", " A", "nn", ",", " and", " A", "nn", " saw", " Tom", ".")
LONG = " ".join(["The old captain saw the ship and the boat came home again"] * 32)


def make_rollout(pieces=PIECES, **fields):
    """Made-up weights, followed through three layers."""
    rng = np.random.default_rng(5)
    count = len(pieces)
    raw = np.tril(rng.dirichlet(np.full(count, 0.3), count) + 1e-4)
    raw /= raw.sum(-1, keepdims=True)
    step = 0.5 * raw + 0.5 * np.eye(count)
    info = ModelInfo("made", "0123456789abcdef", "None", "float32", 3, 5, 5, 8)
    tokens = Tokens(tuple(range(count)), tuple(pieces), tuple(text == "<s>" for text in pieces))
    made = RolloutReport(info, "self", True, tokens, step @ step @ step, raw, 3)
    return replace(made, **fields)


def test_golden_value():
    layer = np.array([[1.0, 0], [0.5, 0.5]])
    joined = measuring.rollout_after(layer, measuring.rollout_after(layer, None))
    assert joined.tolist() == [[1, 0], [0.4375, 0.5625]]


def test_a_model_is_followed_through_all_layers():
    model = Bundled("float64")
    found = attnviz.rollout(model, TEXT)
    record = capture(model, model.encode(TEXT), kind="self")
    assert len(record.layers) == model.info.layers
    expected = np.eye(len(found.tokens))
    for layer in record.layers:
        mean = sum(layer.weights) / len(layer.weights)
        expected = (0.5 * mean + 0.5 * np.eye(len(expected))) @ expected
    assert found.matrix == pytest.approx(expected)
    assert found.raw == pytest.approx(record.layers[-1].weights.mean(0))
    assert (found.layers, found.causal, found.tokens) == (model.info.layers, True, record.keys)


@pytest.mark.parametrize("name", ["llama", "mistral", "bert"])
def test_followed_rows_equal_those_of_all(name, monkeypatch):
    """With grouped heads, a window, and an encoder."""
    torch.manual_seed(2)
    fields = llama_fields(12, 17, 400, (6, 2, 4), layers=3) | {"initializer_range": 1.0}
    window = fields | {"sliding_window": 20}
    config, built, fields = {
        "llama": (transformers.LlamaConfig, transformers.LlamaModel, fields),
        "mistral": (transformers.MistralConfig, transformers.MistralModel, window),
        "bert": (transformers.BertConfig, transformers.BertModel, bert_fields(12, 17, 400)),
    }[name]
    made = built(config(vocab_size=101, **fields))
    model = prepared("made", made, None, torch.device("cpu"))
    text = " ".join(f"w{number * number % 89}" for number in range(150))
    monkeypatch.setattr(measuring, "_SAMPLED", 5)
    whole, some = (attnviz.rollout(model, text, reduce=reduce) for reduce in ("auto", "fused"))
    assert whole.sampled is None
    assert len(some.sampled) == 5
    assert some.sampled[-1] == whole.query
    for one, other in ((some.matrix, whole.matrix), (some.raw, whole.raw)):
        assert np.abs(one - other[list(some.sampled)]).max() < 1e-5
    assert (some.layers, some.causal) == (whole.layers, whole.causal)
    screen = str(some)
    assert "5 of them followed" in screen
    assert "sums over 3 keys" in screen
    rows = list(some.rows())[1:]
    assert {row[0] for row in rows} == set(some.sampled)
    assert some.data()["queries"] == some.sampled
    monkeypatch.setattr("attnviz.models.memory.free_memory", lambda device=None: 1_000)
    with pytest.raises(UsageError, match=r"queries and keys of .* shorten the text"):
        attnviz.rollout(model, text, reduce="fused")


def test_layers_that_are_no_attention_are_named_and_nothing_is_a_share_of_the_input():
    model = Bundled()
    types = ("linear_attention", *["full_attention"] * 5)
    model._info = replace(model.info, layer_types=types)
    found = attnviz.rollout(model, "The cat sat.")
    assert found.data()["layers_not_followed"] == (0,)
    assert "no shares of the input" in found.model.notes[-1]
    finding = found.document().finding
    assert "these are no shares of the input, as tokens also mix in layer 0" in finding
    assert "comes from" not in finding


def test_the_sink_is_left_out_unless_asked(run):
    """Each row without its first column, divided by what is left of it."""
    found = run("rollout", TEXT, "--json").document
    assert found["sink"] == [0]
    matrix = np.array(found["rollout"])
    left = np.array(found["rollout_without_sink"], dtype=float)
    assert np.isnan(left[0]).all()
    assert np.isnan(left[:, 0]).all()
    expected = matrix[1:, 1:] / matrix[1:, 1:].sum(-1, keepdims=True)
    np.testing.assert_allclose(left[1:, 1:], expected)
    finding = " ".join(run("rollout", TEXT).out.split())
    told = "Rollout from the last word, “tired”, to content words: none clearly exceeds uniform"
    assert f"{told} attention; “cat” has the largest share, {expected[-2, 1]:.0%} (" in finding
    assert "--sink keeps it" in run("rollout", TEXT, "--width", "200").out
    raw = run("rollout", TEXT, "--sink", "--width", "200")
    assert "raw rollout" in raw.out
    assert "left out" not in raw.out


def test_a_word_of_several_pieces_is_one_word_and_any_word_may_be_asked_for(run):
    text = "The nurse thanked the plumber because he had repaired her sink."
    found = run("rollout", text, "--json").document
    tokens, left = found["tokens"], np.array(found["rollout_without_sink"], dtype=float)
    last, than = tokens.index("umber"), tokens.index(" than")
    assert tokens[than : than + 2] == [" than", "ked"]
    share = left[last, than : than + 2].sum()
    shown = " ".join(run("rollout", text, "--token", "plumber").out.split())
    assert (
        f"“thanked” has the largest share and exceeds uniform attention most, {share:.0%} ("
        in shown
    )
    assert attnviz.rollout("tiny", text, token=last).finding in shown
    with pytest.raises(UsageError, match="no token 'cat' in the text"):
        attnviz.rollout("tiny", text, token="cat")


def test_an_encoder_leaves_out_what_its_tokenizer_added(run, checkpoint):
    options = ["--model", str(checkpoint("bert"))]
    found = run("rollout", "the cat sat on the mat", *options, "--json").document
    assert found["sink"] == [0, len(found["tokens"]) - 1]
    shown = " ".join(run("rollout", "the cat sat on the mat", *options).out.split())
    assert "Rollout from the last word, “mat”, to content words: none clearly exceeds" in shown
    assert "sink <s> and </s> (" in shown


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_an_encoder_decoder(run, checkpoint, kind):
    options = ["--model", str(checkpoint("t5")), "--kind", kind]
    target = ["--target", "the mat sat"] if kind == "decoder" else []
    found = run("rollout", "the cat sat", *options, *target, "--json").document
    assert found["kind"] == kind
    assert found["causal"] == (kind == "decoder")
    assert np.shape(found["rollout"]) == (len(found["tokens"]),) * 2
    assert np.sum(found["rollout"], -1) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "room", "wish"),
    [
        ("rollout_80", 80, {}),
        ("rollout_120", 120, {"values": True}),
        ("rollout_40", 40, {"target": "a target"}),
    ],
)
def test_golden(name, room, wish, golden):
    document = replace(make_rollout(), text=SHORT, **wish).document(explain=room == 120)
    golden(name, terminal_block(document, PLAIN, room).plain)


def test_programs_get_both_matrices():
    rollout = make_rollout()
    report = replace(rollout, text=SHORT)
    document = report.to_dict()
    assert np.array_equal(document["rollout"], rollout.matrix)
    assert np.array_equal(document["last_layer"], rollout.raw)
    header, *rows = report.rows()
    assert header == ("query", "key", "query_token", "key_token", "rollout", "last_layer")
    assert len(rows) == 13 * 14 // 2
    for query, key, *tokens, followed, last in rows:
        assert (followed, last) == (rollout.matrix[query, key], rollout.raw[query, key])
        assert tokens == [rollout.tokens.texts[query], rollout.tokens.texts[key]]


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("tiny", TEXT),
        ("tiny", LONG),
        ("tiny", "one"),
        ("mha", "나는 오늘 학교에 갔다"),
        ("bert", LONG),
    ],
)
def test_the_first_screen(fitted, checkpoint, golden, columns, lines, text, kind):
    model = str(checkpoint(kind)) if kind == "bert" else kind
    result = fitted(columns, lines, "rollout", text, "--model", model, "--truncate")
    assert re.search("the last word, |Every token", " ".join(result.lines[1:3]))
    if kind == "tiny" and text in (TEXT, LONG):
        golden(f"rollout_first_{'long_' * (text == LONG)}{columns}", result.out)


def test_a_word_stands_out_above_the_uniform_rollout_or_the_largest_share_is_told():
    report = make_rollout()
    row = report.uniform()
    row[1:3] *= 0.3  # early words, which get the most from uniform attention
    for more, told in (0.0, "“Ann” (4) has the largest share"), (0.1, "“Ann” (8) stands out"):
        row[8] += more
        assert told in replace(report, matrix=np.tile(row, (len(PIECES), 1))).finding


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("keep_sink", [True, False])
def test_the_uniform_share_is_the_rollout_of_uniform_attention(causal, keep_sink):
    report = replace(make_rollout(), causal=causal, keep_sink=keep_sink, asked=8)
    count = len(PIECES)
    even = np.tril(np.ones((count, count))) if causal else np.ones((count, count))
    even /= even.sum(1, keepdims=True)
    row = np.linalg.matrix_power((np.eye(count) + even) / 2, 3)[8]
    row[0] *= keep_sink
    np.testing.assert_allclose(report.uniform(), row / row.sum())
