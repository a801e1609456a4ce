"""Reads sound files as one channel at the rate of a speech model.

A .wav file of whole numbers is read by the standard library. Other files, and other rates, need
libraries of the extra ``audio``: soundfile (libsndfile) and soxr, both well kept.
"""

from __future__ import annotations

import io
import os
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.errors import LoadError, UsageError
from attnviz.models.third_party import third_party
from attnviz.reading import read_bytes

MOST_BYTES = 200_000_000
"""The largest file: half an hour of stereo at 48 kHz, of which the first seconds are read."""

_NEEDS = "pip install 'attnviz[audio]'"
_SILENT = 1e-5
"""The largest amplitude of silence: a third of a step of 16 bits."""


@dataclass(frozen=True, eq=False)
class SoundFile:
    """A sound as a model hears it.

    name: its path as typed, or what a person calls it. samples: (time,), from −1 to 1, in float32.
    rate: samples per second. notes: sentences on what was changed.
    """

    name: str
    samples: NDArray[np.float32]
    rate: int
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Return how long it is."""
        return len(self.samples) / self.rate


def read_sound(path: str | os.PathLike[str], rate: int, longest: float) -> SoundFile:
    """Return a sound at ``rate`` samples per second, channels mixed, at most ``longest`` seconds.

    Raises LoadError for a file that is missing, no sound or damaged, or without a library that it
    needs; UsageError for one without samples, for silence, and for samples that are not numbers.
    """
    name = os.fspath(path)
    if not os.path.isfile(name):
        what = "no file" if os.path.isdir(name) else "missing"
        raise LoadError(f"{name!r} is {what}: expected a sound, such as a .wav file")
    content = read_bytes(Path(path), name=repr(name), most=MOST_BYTES)
    samples, own = _decoded(content, name)
    if not len(samples):
        raise UsageError(f"{name!r} has no samples: expected a sound")
    if not np.isfinite(samples).all():
        raise UsageError(f"{name!r} has samples that are not numbers (NaN or infinite)")
    notes = []
    if samples.shape[1] > 1:
        notes.append(f"the {samples.shape[1]} channels were mixed to one")
    if len(samples) > longest * own:
        notes.append(f"{name} is {len(samples) / own:.1f} s long: the first {longest:g} s are read")
        samples = samples[: round(longest * own)]
    mixed = samples.mean(axis=1)
    if np.abs(mixed).max() < _SILENT:
        raise UsageError(f"{name!r} is silent: there is no word to hear")
    if own != rate:
        with _library("soxr", f"{name!r} has {own:,} samples per second, the model reads {rate:,}"):
            mixed = import_module("soxr").resample(mixed, own, rate)
        notes.append(f"resampled from {own:,} to {rate:,} samples per second")
    return SoundFile(name, np.asarray(mixed, np.float32), rate, tuple(notes))


def _decoded(content: bytes, name: str) -> tuple[NDArray[np.float64], int]:
    """Return the samples (time, channel) of a file, and how many there are a second."""
    try:
        with wave.open(io.BytesIO(content)) as file:
            rate, channels, width = file.getframerate(), file.getnchannels(), file.getsampwidth()
            data = file.readframes(file.getnframes())
        if rate < 1 or channels < 1 or width not in (1, 2, 3, 4):
            raise wave.Error
    except (wave.Error, EOFError):
        return _by_library(content, name)
    whole = np.frombuffer(data, np.uint8)
    whole = whole[: len(whole) // (channels * width) * channels * width].reshape(-1, width)
    if width == 1:  # the only width without a sign
        numbers = whole[:, 0].astype(np.float64) - 128
    else:
        padded = np.zeros((len(whole), 4), np.uint8)
        padded[:, 4 - width :] = whole
        numbers = padded.view("<i4")[:, 0] / 2.0 ** (32 - 8 * width)
    return (numbers / 2.0 ** (8 * width - 1)).reshape(-1, channels), rate


def _by_library(content: bytes, name: str) -> tuple[NDArray[np.float64], int]:
    with _library("soundfile", f"{name!r} is not a .wav file of integers"):
        read: Any = import_module("soundfile").read
        with third_party(f"{name!r} is not a sound that soundfile knows"):
            samples, rate = read(io.BytesIO(content), always_2d=True)
        return samples, int(rate)


@contextmanager
def _library(library: str, why: str) -> Iterator[None]:
    """Raise LoadError with what to install if a library is missing."""
    try:
        yield
    except ImportError as error:
        raise LoadError(f"{why}; {library} reads it: {_NEEDS}") from error
