"""Speech models run on ids of frames, and their maps are the softmax of queries and keys."""

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from attnviz.engine.capture import capture
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.speech import handed_speech
from tests.models.speech_models import FRAMES, build, noise, tokenizer, write
from tests.models.test_vision import softmaxes


@pytest.fixture
def opened(tmp_path):
    model = build()
    speech = handed_speech(model, tokenizer())
    return model, speech, speech.hear(write(tmp_path / "a.wav", noise()))


@pytest.mark.parametrize("kind", ["cross", "encoder", "decoder"])
def test_maps_are_the_softmax_by_hand_in_float64(opened, kind):
    model, speech, heard = opened
    words = speech.encode_target("one two three")
    maps = capture(speech, heard.tokens, kind=kind, target=words).layers
    ids = torch.tensor([words.ids])
    seen = softmaxes(model, lambda: model(heard.features, decoder_input_ids=ids))
    rows, keys = (len(side) for side in (words if kind != "encoder" else heard.tokens,) * 2)
    keys = FRAMES if kind == "cross" else keys
    expected = [weights for weights in seen if weights.shape[1:] == (rows, keys)]
    assert len(maps) == len(expected) == (2 if kind == "encoder" else 3)
    for layer, weights in zip(maps, expected, strict=True):
        np.testing.assert_allclose(layer.weights, weights, atol=1e-5)
    assert max(np.ptp(layer.weights) for layer in maps) > 0.05


def test_frames_and_the_part_that_is_heard(opened):
    _, speech, heard = opened
    assert heard.tokens.texts[:3] == ("0.00", "0.02", "0.04")
    assert (len(heard.tokens), heard.heard) == (FRAMES, 40)  # .8 of 1 s
    assert speech.hear(heard.file.name) is heard
    with pytest.raises(UnsupportedError, match="whole window"):
        speech.features_of(torch.tensor([heard.tokens.ids[:5]]))
    with pytest.raises(UsageError, match="whole window"):
        speech.encode(heard.file.name, 5)


def test_start_tokens_stand_before_transcripts(opened):
    model, speech, heard = opened
    assert heard.starts == (1, 2, 3, 4)
    assert speech.encode_target(" one  two").texts[4:] == ("one", "two")
    with pytest.raises(UsageError, match="no words"):
        speech.encode_target(" ")
    written = speech.greedy_target(heard.tokens, 12)
    ids = torch.tensor([written.ids])
    with torch.no_grad():
        likeliest = model(heard.features, decoder_input_ids=ids).logits[0].argmax(-1).tolist()
    assert list(written.ids[4:]) == likeliest[3 : len(written) - 1]
    assert speech.published == ((1, 0), (2, 3))


def test_several_sounds_and_the_model_that_was_handed_over(opened, tmp_path):
    model, speech, first = opened
    second = speech.hear(write(tmp_path / "b.wav", noise(seed=1)))
    together = speech.features_of(torch.tensor([second.tokens.ids, first.tokens.ids]))
    torch.testing.assert_close(together, torch.cat([second.features, first.features]))
    assert all(len(part._forward_pre_hooks) == 0 for part in model.modules())
    assert model.main_input_name == "input_features"


def test_other_models_are_refused():
    text = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=4, vocab_size=9))
    with pytest.raises(UnsupportedError, match="--audio takes a Whisper model"):
        handed_speech(text, tokenizer())
    with pytest.raises(UsageError, match="got dict"):
        handed_speech({}, tokenizer())
