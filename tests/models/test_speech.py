"""Speech models run on ids of frames, and their maps are the softmax of queries and keys."""

import sys

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from attnviz.engine.capture import capture
from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.models.speech import handed_speech, read_sound
from tests.models.speech_models import FRAMES, RATE, build, noise, tokenizer, write
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


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_every_width_of_whole_numbers(tmp_path, width):
    samples = noise(0.1)
    file = read_sound(write(tmp_path / "a.wav", samples, width=width), RATE, 30)
    step = 1 / 128 if width == 1 else 1e-7
    np.testing.assert_allclose(file.samples, samples[:, 0] / 32768, atol=step)
    assert (file.rate, file.notes, round(file.seconds, 3)) == (RATE, (), 0.1)


def test_channels_are_mixed_and_long_sounds_cut_with_a_note(tmp_path):
    pair = np.concatenate([noise(0.5), noise(0.5, seed=1)], axis=1)
    file = read_sound(write(tmp_path / "a.wav", pair), RATE, 0.25)
    np.testing.assert_allclose(file.samples, pair[: RATE // 4].mean(1) / 32768, atol=1e-7)
    assert "2 channels were mixed" in file.notes[0]
    assert "0.5 s long: the first 0.25 s are read" in file.notes[1]


def test_what_is_no_sound(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, "soxr", None)
    (tmp_path / "text.wav").write_text("no sound")
    (tmp_path / "empty.wav").write_bytes(b"")
    write(tmp_path / "none.wav", noise(0))
    write(tmp_path / "silent.wav", noise() * 0)
    write(tmp_path / "slow.wav", noise(), 8000)
    for name, error, words in (
        ("missing.wav", LoadError, "is missing"),
        (".", LoadError, "is no file"),
        ("text.wav", LoadError, r"is not a .wav file .* pip install 'attnviz\[audio\]'"),
        ("empty.wav", LoadError, "pip install"),
        ("none.wav", UsageError, "has no samples"),
        ("silent.wav", UsageError, "is silent"),
        ("slow.wav", LoadError, r"8,000 samples per second.* pip install 'attnviz\[audio\]'"),
    ):
        with pytest.raises(error, match=words) as raised:
            read_sound(tmp_path / name, RATE, 30)
        assert "\n" not in str(raised.value)


def test_libraries_read_other_files_and_rates(tmp_path, monkeypatch):
    class Library:
        """What soundfile and soxr are asked for."""

        @staticmethod
        def read(stream, always_2d):
            return np.array([[0.5], [np.nan if stream.read() == b"nan" else 0.25]]), RATE // 2

        @staticmethod
        def resample(samples, own, rate):
            return np.repeat(samples, rate // own)

    monkeypatch.setitem(sys.modules, "soundfile", Library)
    monkeypatch.setitem(sys.modules, "soxr", Library)
    (tmp_path / "a.flac").write_bytes(b"flac")
    (tmp_path / "nan.flac").write_bytes(b"nan")
    file = read_sound(tmp_path / "a.flac", RATE, 30)
    assert file.samples.tolist() == [0.5, 0.5, 0.25, 0.25]
    assert file.notes == ("resampled from 8,000 to 16,000 samples per second",)
    with pytest.raises(UsageError, match="not numbers"):
        read_sound(tmp_path / "nan.flac", RATE, 30)
