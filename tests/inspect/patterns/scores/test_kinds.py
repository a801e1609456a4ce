"""Encoders, and all three kinds of an encoder–decoder's attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers

from attnviz.errors import UnsupportedError
from attnviz.inspect.patterns.score import score_patterns
from attnviz.measures.registry import RELATIONS
from attnviz.models.prepare import prepared
from attnviz.models.transformers_model import TransformersModel

from ....small_models import SPECIAL, bart_fields


@pytest.fixture(scope="module")
def bart() -> TransformersModel:
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


def test_an_encoder_sees_the_future(bart: TransformersModel) -> None:
    report = score_patterns(bart)
    assert (report.kind, report.causal) == ("encoder", False)
    assert len(report.heads) == 2 * 3
    assert {"next", "induction", *RELATIONS} <= set(report.labels)
    assert report.heads[0].statistics["signed_distance"] is not None
    assert report.notes == ()


def test_a_decoder_reads_its_own_text(bart: TransformersModel) -> None:
    report = score_patterns(bart, kind="decoder", control=1)
    assert report.causal
    assert len(report.heads) == 3 * 2
    probes = {probe.name: probe for probe in report.probes}
    assert probes["random repeats"].longest == 121  # a start token and 60 tokens twice
    assert any("later word" in note for note in report.notes)


def test_cross_attention_is_scored_by_its_alignment(bart: TransformersModel) -> None:
    report = score_patterns(bart, kind="cross")
    assert "alignment" in report.labels
    assert "previous" not in report.labels
    assert report.not_measured["previous"].startswith("queries and keys of cross attention")
    assert report.not_measured["subject"].startswith("words that belong together")
    for head in report.heads:
        assert 0 <= head.scores["alignment"] <= 1
        assert -1 <= head.scores["monotone"] <= 1
        assert head.base_rate["alignment"] is not None
    best = report.ranked("alignment")[0]
    assert best.example is not None
    assert len(best.example.keys) > 0


def test_a_persons_texts_of_both_stacks(bart: TransformersModel) -> None:
    text, target = bart.encode("a b c d e f"), bart.encode_target("g h i j k")
    report = score_patterns(bart, [text], targets=[target], kind="cross")
    assert report.probes[0].longest == len(target)


def test_norms_are_those_of_the_encoder(bart: TransformersModel) -> None:
    assert score_patterns(bart, view="norm-weighted").view == "norm-weighted"
    with pytest.raises(UnsupportedError, match="choose another view"):
        score_patterns(bart, kind="decoder", view="norm-weighted")


def test_a_text_longer_than_in_training_is_noted(bart: TransformersModel) -> None:
    model = replace(bart, trained_tokens=20)
    long = model.encode("the cat sat on the mat and " * 5)
    assert any("trained on sequences" in note for note in score_patterns(model, [long]).notes)
