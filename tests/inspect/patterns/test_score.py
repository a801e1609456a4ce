"""Whole runs of scoring: heads that are known get their label, and nothing else gets one."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from attnviz.engine.capture import capture
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.patterns.score import score_patterns
from attnviz.measures.one_text import head_scores
from attnviz.measures.registry import LABELS, RELATIONS
from attnviz.models.bundled import Bundled
from attnviz.models.own import OwnAttention
from attnviz.models.prepare import prepared
from attnviz.records import Input
from attnviz.texts import natural_texts

from ...small_models import SPECIAL, bart_fields
from .conftest import HEADS, NEXT_HEAD, ScriptedModel, even

TEXT = "a b , c a b . d a b , c e . a b , c"


@pytest.fixture(scope="module")
def tiny():
    return score_patterns(Bundled())


def labels(report):
    return {
        report.head_name((head.layer, head.head)): head.label for head in report.heads if head.label
    }


@pytest.mark.parametrize("label", ["previous", "first", "self", "duplicate", "induction"])
def test_a_known_head_is_named_on_the_probes(label):
    report = score_patterns(ScriptedModel([[HEADS[label], even]]))
    head, other = report.heads
    assert head.label == label
    assert head.score == pytest.approx(1)
    assert head.margin == pytest.approx(1 - head.base_rate[label])
    assert head.agreement == 1
    assert other.label is None


@pytest.mark.parametrize("label", ["previous", "first", "self", "duplicate", "induction"])
def test_a_known_head_is_named_on_a_text(label):
    model = ScriptedModel([[even, HEADS[label]]])
    report = score_patterns(model, Input(model.encode("a b c d e f g h i j a b c d e f g h i j")))
    assert [head.label for head in report.heads] == [None, label]
    assert report.heads[1].agreement is None
    assert report.heads[1].events >= 8
    assert report.labels_from == "text"


@pytest.mark.parametrize("label", ["duplicate", "induction", "delimiter"])
def test_a_few_places_of_a_text_name_no_head(label):
    model = ScriptedModel([[even, HEADS[label]]])
    report = score_patterns(model, Input(model.encode(TEXT)))
    assert {head.label for head in report.heads} <= {None, "first"}


def test_random_weights_get_no_names():
    report = score_patterns(OwnAttention(causal=True))
    assert labels(report) == {}


def test_what_a_fixed_offset_explains_cannot_be_tested(tiny):
    """Every adjective of the shipped sentences stands right before its noun."""
    assert tiny.untestable["adjective"] == 1
    assert "subject" not in tiny.untestable
    assert not {head.label for head in tiny.heads} & set(tiny.untestable)


def test_a_next_token_head_needs_to_see_the_future():
    model = ScriptedModel([[NEXT_HEAD, lambda tokens: even(tokens)[::-1, ::-1]]])
    report = score_patterns(model)
    assert not report.causal
    assert report.heads[0].label == "next"
    assert report.heads[0].statistics["signed_distance"] == pytest.approx(1, abs=0.05)


def test_the_bundled_models_specialists_are_found(tiny):
    found = labels(tiny)
    assert found["L0H0"] == "previous"
    assert found["L1H0"] == found["L1H2"] == found["L1H3"] == "induction"
    by_name = {tiny.head_name((head.layer, head.head)): head for head in tiny.heads}
    # As its card says, which measured on fresh random tokens.
    for name, measured in {"L1H0": 0.844, "L1H2": 0.857}.items():
        assert by_name[name].scores["induction"] == pytest.approx(measured, abs=0.03)
        assert by_name[name].agreement == 1
    assert by_name["L0H0"].scores["previous"] >= 0.75
    assert max(head.scores["duplicate"] for head in tiny.heads) < 0.1
    assert by_name["L0H0"].agreement == 1


def test_every_score_has_its_base_rate_and_its_texts(tiny):
    assert set(tiny.labels) == set(LABELS) - {"next", "separator", "alignment"}
    for head in tiny.heads:
        for label in tiny.labels:
            assert head.scores[label] is not None
            assert head.base_rate[label] is not None
            assert head.measured[label] > 0
    assert {"next", "separator"} <= set(tiny.not_measured)
    probes = {probe.name: probe for probe in tiny.probes}
    assert probes["random repeats"].seeds == (0, 1, 2)
    assert probes["annotated sentences"].texts >= 60
    assert set(probes["annotated sentences"].pairs) == set(RELATIONS)


def test_the_base_rate_of_a_position_is_even_attention(tiny):
    lengths = [len(Bundled().encode(text)) for text in natural_texts()]
    expected = np.mean([np.mean([1 / (i + 1) for i in range(1, n)]) for n in lengths])
    assert tiny.heads[0].base_rate["previous"] == pytest.approx(expected)


@pytest.mark.long
def test_a_random_model_gets_no_label_but_what_its_control_explains():
    report = score_patterns(Bundled(seed=0), control=10)
    explained = set(report.control.labelled)
    assert set(labels(report).values()) <= explained
    assert report.heads[0].control


def test_the_first_token_disappears_from_its_view():
    def half(tokens):
        return (HEADS["first"](tokens) + HEADS["previous"](tokens)) / 2

    model = ScriptedModel([[half, HEADS["first"]]])
    raw = score_patterns(model, Input(model.encode(TEXT)))
    without = score_patterns(model, Input(model.encode(TEXT)), view="without-first")
    assert raw.heads[0].scores["previous"] == pytest.approx(0.5, abs=0.05)
    assert without.heads[0].scores["previous"] == pytest.approx(1)
    assert without.heads[0].scores["first"] is None
    assert without.not_measured["first"].startswith("the first token is left out")
    # What looked at nothing else has nothing left: not measured, never zero.
    assert without.heads[1].scores["previous"] is None
    assert without.heads[1].label is None


def test_a_text_without_repeats_is_not_measured():
    model = ScriptedModel([[even, even]])
    report = score_patterns(model, Input(model.encode("one two three four")))
    assert report.heads[0].scores["duplicate"] is None
    assert report.heads[0].scores["induction"] is None
    assert "no token of the text repeats" in report.not_measured["duplicate"]
    assert "duplicate" not in report.labels


def test_a_short_text_says_how_many_tokens_are_needed():
    model = ScriptedModel([[even, even]])
    with pytest.raises(UsageError, match="has 3 tokens: scoring heads needs at least 4"):
        score_patterns(model, Input(model.encode("one two")))


def test_chosen_heads_alone_are_scored():
    report = score_patterns(Bundled(), heads={1: {0, 3}, 3: {2}})
    assert [(head.layer, head.head) for head in report.heads] == [(1, 0), (1, 3), (3, 2)]
    assert labels(report)["L1H0"] == "induction"
    with pytest.raises(UsageError, match="none of the chosen layers"):
        score_patterns(Bundled(), heads={0: set()})


def test_what_cannot_be_had_is_refused():
    model = ScriptedModel([[even, even]])
    with pytest.raises(UsageError, match="no cross attention"):
        score_patterns(model, kind="cross")
    with pytest.raises(UnsupportedError, match="random weights"):
        score_patterns(model, control=1)


@pytest.fixture(scope="module")
def bart():
    torch.manual_seed(0)
    config = transformers.BartConfig(
        **bart_fields(12, 11, 127, (2, 3), (3, 2)),
        **SPECIAL,
        vocab_size=131,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
    )
    model = transformers.BartForConditionalGeneration(config)
    return prepared("bart", model, None, torch.device("cpu"))


def test_an_encoder_sees_the_future(bart):
    report = score_patterns(bart)
    assert (report.kind, report.causal) == ("encoder", False)
    assert len(report.heads) == 2 * 3
    assert {"next", "induction", *RELATIONS} <= set(report.labels)
    assert report.heads[0].statistics["signed_distance"] is not None
    assert report.notes == ()


def test_a_decoder_reads_its_own_text(bart):
    report = score_patterns(bart, kind="decoder", control=1)
    assert report.causal
    assert len(report.heads) == 3 * 2
    probes = {probe.name: probe for probe in report.probes}
    assert probes["random repeats"].longest == 121  # a start token and 60 tokens twice
    assert any("later word" in note for note in report.notes)


def test_cross_attention_is_scored_by_its_alignment(bart):
    report = score_patterns(bart, kind="cross")
    assert "alignment" in report.labels
    assert "previous" not in report.labels
    assert report.not_measured["previous"].startswith("queries and keys of cross attention")
    assert report.not_measured["subject"].startswith("words that belong together")
    for head in report.heads:
        assert 0 <= head.scores["alignment"] <= 1
        assert -1 <= head.scores["monotone"] <= 1
        assert head.base_rate["alignment"] is not None


def test_a_persons_texts_of_both_stacks(bart):
    text, target = bart.encode("a b c d e f"), bart.encode_target("g h i j k")
    report = score_patterns(bart, Input(text, target), kind="cross")
    assert report.probes[0].longest == len(target)


def test_norms_are_those_of_the_encoder(bart):
    assert score_patterns(bart, view="norm-weighted").view == "norm-weighted"
    with pytest.raises(UnsupportedError, match="choose another view"):
        score_patterns(bart, kind="decoder", view="norm-weighted")


def test_a_text_longer_than_in_training_is_noted(bart):
    model = replace(bart, trained_tokens=20)
    long = model.encode("the cat sat on the mat and " * 5)
    assert any("trained on sequences" in note for note in score_patterns(model, Input(long)).notes)


def test_texts_that_the_tokenizer_does_not_know_give_no_label(monkeypatch):
    """All built-in texts go if commas and articles are unknown; random tokens stay."""
    monkeypatch.setattr("attnviz.records.UNKNOWN", (" the", ",", " of", " and", "."))
    model = Bundled()
    report = score_patterns(model, seeds=(0,), no_known_labels=True)
    assert "natural text" not in [probe.name for probe in report.probes]
    assert "10 of 10 built-in texts left out" in " ".join(report.notes)
    assert report.not_measured["previous"] == "the tokenizer does not know the built-in texts"
    assert "next" not in report.not_measured
    own = model.encode("The cat, the dog, and the hen, and the fox.")
    alone = score_patterns(model, Input(own), no_known_labels=True)
    assert all(head.label is None for head in alone.heads)
    assert "has a label: more than a tenth of the tokens are unknown" in alone.document().finding
    repeated = capture(model, model.encode("one, two, three, four, five, six, " * 3), kind="self")
    assert not any(head.label.is_finding for head in head_scores(repeated))
    monkeypatch.undo()
    assert any(head.label.is_finding for head in head_scores(repeated))
