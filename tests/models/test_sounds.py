"""Sounds are read as their samples, and what is none is refused in a line."""

import sys

import numpy as np
import pytest

from attnviz.errors import LoadError, UsageError
from attnviz.models.speech import read_sound
from tests.models.speech_models import RATE, noise, write


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
