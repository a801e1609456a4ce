"""A speech model in the form that the engine observes: a sound is a text of frames of 20 ms.

Frames have ids of their own, and a hook of the model replaces such ids by the features of their
sound: so whatever runs an encoder–decoder on token ids runs this one. A .wav file of whole numbers
is read by the standard library, others by the libraries of the extra ``audio``.
"""

from __future__ import annotations

import io
import math
import os
import wave
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import GenerationMixin, WhisperFeatureExtractor

from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.models.attention_interface import unobserved
from attnviz.models.pieces import check_limit
from attnviz.models.prepare import described, moved
from attnviz.models.split import device_of
from attnviz.models.third_party import third_party, tokenizing
from attnviz.models.transformers_model import TransformersModel
from attnviz.models.vision import handed, own_copy, processing
from attnviz.reading import read_bytes
from attnviz.records import Kind, Tokens

MOST_BYTES = 200_000_000  # the largest file: half an hour of stereo at 48 kHz
_NEEDS = "pip install 'attnviz[audio]'"
_SILENT = 1e-5  # the largest amplitude of silence: a third of a step of 16 bits


@dataclass(frozen=True, eq=False)
class SoundFile:
    """A sound: its name, samples (time,) from −1 to 1, samples per second, and what was changed."""

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
        lack = "no file" if os.path.isdir(name) else "missing"
        raise LoadError(f"{name!r} is {lack}: expected audio, such as a .wav file")
    content = read_bytes(Path(path), name=repr(name), most=MOST_BYTES)
    samples, own = _decoded(content, name)
    if not len(samples):
        raise UsageError(f"{name!r} has no samples: expected audio")
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
        with _library("soundfile", f"{name!r} is not a .wav file of integers"):
            read: Any = import_module("soundfile").read
            with third_party(f"{name!r} is not audio that soundfile knows"):
                samples, rate = read(io.BytesIO(content), always_2d=True)
            return samples, int(rate)
    whole = np.frombuffer(data, np.uint8)
    whole = whole[: len(whole) // (channels * width) * channels * width].reshape(-1, width)
    if width == 1:  # the only width without a sign
        numbers = whole[:, 0].astype(np.float64) - 128
    else:
        padded = np.zeros((len(whole), 4), np.uint8)
        padded[:, 4 - width :] = whole
        numbers = padded.view("<i4")[:, 0] / 2.0 ** (32 - 8 * width)
    return (numbers / 2.0 ** (8 * width - 1)).reshape(-1, channels), rate


@contextmanager
def _library(library: str, why: str) -> Iterator[None]:
    """Raise LoadError with what to install if a library is missing."""
    try:
        yield
    except ImportError as error:
        raise LoadError(f"{why}; {library} reads it: {_NEEDS}") from error


FEATURES = "input_features"
_HALVED = 2  # how many frames of features make a frame of the encoder, by its second convolution


@dataclass(frozen=True, eq=False)
class HeardSound:
    """A sound as the model hears it.

    file: the sound. features: (1, mel, frame) what the model reads, padded to its whole window.
    tokens: a frame of the encoder each, named by the second that it begins with. heard: how many
    of them the sound fills; the rest is padding. starts: the tokens that begin its transcript.
    """

    file: SoundFile
    features: Tensor
    tokens: Tokens
    heard: int
    starts: tuple[int, ...]


@dataclass(frozen=True, eq=False, repr=False)
class SpeechModel(TransformersModel):
    """A Whisper model; ``encode`` takes the path of a sound, the decoder writes its words.

    extractor: what makes the model's features of a sound. whole: the model that was observed, as
    it was handed over, which writes transcripts. sounds: those that were heard, by name.
    """

    extractor: Any = None
    whole: Any = None
    sounds: dict[str, HeardSound] = field(default_factory=dict)

    reads_text = False

    @property
    def frame_seconds(self) -> float:
        """Return how long a frame of the encoder is: 0.02 s."""
        return float(_HALVED * self.extractor.hop_length / self.extractor.sampling_rate)

    def encode(self, text: str, limit: int | None = None) -> Tokens:
        """Return the frames of a sound, by its path or by the name of one that was heard.

        Raises LoadError or UsageError as ``read_sound`` does, UsageError if it must be cut.
        """
        tokens = self.hear(text).tokens
        if limit is not None and len(tokens) > limit:
            raise UsageError(f"{self.info.name!r} hears its whole window: leave out --truncate")
        return tokens

    def hear(self, sound: str | SoundFile) -> HeardSound:
        """Return a sound as the model hears it, and keep it for its runs."""
        known = self.sounds.get(sound if isinstance(sound, str) else sound.name)
        if known is not None:
            return known
        frames, reads = self.context, self.extractor
        assert frames is not None
        rate, longest = int(reads.sampling_rate), frames * self.frame_seconds
        file = read_sound(sound, rate, longest) if isinstance(sound, str) else sound
        with third_party(f"the features of {file.name!r} cannot be made"):
            made = reads(
                file.samples, sampling_rate=rate, return_tensors="pt", return_attention_mask=True
            )
        features = made[FEATURES].to(device_of(self.model), self.model.dtype)
        heard = max(1, min(int(made["attention_mask"].sum()) // _HALVED, frames))
        ends = (other.tokens.ids[-1] + 1 for other in self.sounds.values())
        first = max(ends, default=0)
        digits = max(0, math.ceil(-math.log10(self.frame_seconds)))
        times = (f"{frame * self.frame_seconds:.{digits}f}" for frame in range(frames))
        ids = tuple(range(first, first + frames))
        tokens = Tokens(ids, tuple(times), (False,) * frames)
        starts = self._starts(features)
        self.sounds[file.name] = read = HeardSound(file, features, tokens, heard, starts)
        return read

    def forget(self, heard: HeardSound) -> None:
        """Let go of a sound; its frames cannot be run any more."""
        del self.sounds[heard.file.name]

    def features_of(self, ids: Tensor) -> Tensor:
        """Return the features (sound, mel, frame) of the sounds of these ids (sound, frame)."""
        by_first = {heard.tokens.ids[0]: heard for heard in self.sounds.values()}
        rows = [by_first[int(row[0])] for row in ids]
        if any(len(row.tokens) != ids.shape[1] for row in rows):
            raise UnsupportedError(f"{self.info.name!r} hears its whole window, no part of it")
        return torch.cat([row.features for row in rows])

    # The decoder's tokens --------------------------------------------------------------------

    def encode_target(self, text: str, limit: int | None = None) -> Tokens:
        """Return the start tokens and those of a transcript; the language is the last sound's."""
        heard = next(reversed(self.sounds.values()), None)
        starts = (self._start_id, *self._silent_timestamps) if heard is None else heard.starts
        check_limit(self.info.name, len(starts), limit)
        return self.transcript(starts, [self.word_ids(text)], limit)

    def transcript(
        self, starts: tuple[int, ...], words: list[list[int]], limit: int | None = None
    ) -> Tokens:
        """Return the decoder's tokens of words, behind the start tokens."""
        return self._tokens([*starts, *(number for word in words for number in word)][:limit])

    def word_ids(self, text: str) -> list[int]:
        """Return the ids of words as they stand in a transcript, with a blank before them."""
        if self.tokenizer is None:
            return list(self._words(text).ids)
        with tokenizing(self.info.name):
            spaced = f" {' '.join(text.split())}"
            ids: list[int] = self.tokenizer(spaced, add_special_tokens=False)["input_ids"]
        if not ids or not text.strip():
            raise UsageError("the transcript has no words: expected at least one")
        return ids

    def greedy_target(self, tokens: Tokens, limit: int) -> Tokens:
        """Return the start tokens and the transcript that the model writes, without timestamps."""
        by_first = {heard.tokens.ids[0]: heard for heard in self.sounds.values()}
        heard = by_first[tokens.ids[0]]
        settings = self.whole.generation_config
        silent = {
            name: value
            for name in ("suppress_tokens", "begin_suppress_tokens")
            if (value := getattr(settings, name, None))
        }
        silent["max_new_tokens"] = max(1, limit - len(heard.starts))
        starts = torch.tensor([heard.starts], device=device_of(self.model))
        with (
            third_party(f"{self.info.name!r} cannot transcribe"),
            self._plainly_greedy(self.whole, heard.starts[0], **silent) as config,
        ):
            written = GenerationMixin.generate(
                self.whole, heard.features, generation_config=config, decoder_input_ids=starts
            )
        ids = written[0].tolist()
        ended = [at for at, number in enumerate(ids) if number in self.end_ids]
        return self._tokens(ids[: next((at for at in ended if at >= len(heard.starts)), None)])

    @property
    def published(self) -> tuple[tuple[int, int], ...]:
        """Return the alignment heads that its files name, as (layer, head); empty if none."""
        stated = getattr(self.whole.generation_config, "alignment_heads", None) or ()
        return tuple((int(layer), int(head)) for layer, head in stated)

    @property
    def decoder_shape(self) -> tuple[int, int]:
        """Return the layers of the decoder, and the heads of each."""
        config = self.model.config
        return config.decoder_layers, config.decoder_attention_heads

    def stack_shape(self, kind: Kind) -> tuple[int, int]:
        """Return the layers and heads of one kind of attention."""
        return (self.info.layers, self.info.heads) if kind == "encoder" else self.decoder_shape

    @property
    def _silent_timestamps(self) -> tuple[int, ...]:
        """Return the token that asks for words without timestamps, if there is one."""
        stated = getattr(self.whole.generation_config, "no_timestamps_token_id", None)
        if stated is None and self.tokenizer is not None:
            with tokenizing(self.info.name):
                stated = self.tokenizer.get_vocab().get("<|notimestamps|>")
        known = self._known(stated)
        return () if known is None else (known,)

    @torch.inference_mode()
    def _starts(self, features: Tensor) -> tuple[int, ...]:
        """Return start, language (set, or the likeliest), task and “no timestamps”, if known."""
        settings = self.whole.generation_config
        languages: Mapping[str, int] = getattr(settings, "lang_to_id", None) or {}
        starts = [self._start_id]
        if languages:
            known = list(languages.values())
            spoken = languages.get(f"<|{getattr(settings, 'language', None)}|>")
            if spoken is None:
                begun = torch.tensor([starts], device=features.device)
                with unobserved():
                    logits = self.whole(features, decoder_input_ids=begun).logits[0, -1]
                spoken = known[int(logits[known].argmax())]
            starts.append(spoken)
            task = (getattr(settings, "task_to_id", None) or {}).get("transcribe")
            starts += [] if task is None else [task]
        return (*starts, *self._silent_timestamps)


def require_speech(name: str, config: Any) -> None:
    """Raise UnsupportedError if a config is not that of a Whisper model that writes words."""
    wanted = str((getattr(config, "architectures", None) or ["WhisperForConditionalGeneration"])[0])
    if config.model_type != "whisper" or wanted != "WhisperForConditionalGeneration":
        raise UnsupportedError(
            f"{name!r} is a {wanted} ({config.model_type}): --audio takes a Whisper model, such as "
            "openai/whisper-tiny"
        )


def plain_extractor(config: Any) -> Any:
    """Return what makes features for a config of Whisper, whose files need not say more."""
    extractor: Any = WhisperFeatureExtractor
    usual = extractor()
    hop = _HALVED * usual.hop_length
    seconds = config.max_source_positions * hop // usual.sampling_rate
    return extractor(feature_size=config.num_mel_bins, chunk_length=seconds)


def open_extractor(name: str, directory: Path, config: Any) -> Any:
    """Return the feature extractor of a Whisper checkpoint, or that of its config without one."""
    if not (directory / "preprocessor_config.json").is_file():
        return plain_extractor(config)
    with processing(name, "feature extractor"):
        return WhisperFeatureExtractor.from_pretrained(directory, local_files_only=True)


def speech_model(
    name: str,
    model: Any,
    tokenizer: Any,
    extractor: Any,
    *,
    device: torch.device | None = None,
    **facts: Any,
) -> SpeechModel:
    """Return a loaded Whisper model in the form that is observed, with its feature extractor.

    The model itself is not changed: what is observed is a copy that shares all of its parts.
    facts: those of ``prepare.described``, such as the revision and notes.
    """
    require_speech(name, model.config)
    model = model if device is None else moved(name, model, device)
    twin = own_copy(model)
    trunk = twin._modules["model"] = own_copy(twin.model)
    encoder = trunk._modules["encoder"] = own_copy(trunk.encoder)
    known = described(name, twin, tokenizer, **facts)
    opened = SpeechModel(**vars(known), extractor=extractor, whole=model)

    def sounds_for_ids(
        module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        ids = named.pop("input_ids", None)
        return args, named if ids is None else {**named, FEATURES: opened.features_of(ids)}

    for part in (twin, trunk, encoder):
        part.register_forward_pre_hook(sounds_for_ids, with_kwargs=True)
    return opened


def handed_speech(model: Any, processor: Any) -> SpeechModel:
    """Return a Whisper model that the caller's Python code has loaded, with its processor.

    processor: a ``WhisperProcessor``, or a tokenizer alone. Raises UsageError for another object.
    """
    model, name = handed(model, processor, "speech")
    require_speech(name, model.config)
    tokenizer = getattr(processor, "tokenizer", processor)
    extractor = getattr(processor, "feature_extractor", None) or plain_extractor(model.config)
    return speech_model(name, model, tokenizer, extractor, loaded=True)


def loudness(file: SoundFile, bins: int, seconds: float) -> NDArray[np.float64]:
    """Return the RMS (bin,) of equal parts of a sound's first ``seconds``; the loudest is 1."""
    edges = np.linspace(0, min(seconds, file.seconds) * file.rate, bins + 1).round().astype(int)
    power = np.concatenate([[0.0], np.cumsum(file.samples.astype(np.float64) ** 2)])
    sizes = np.maximum(np.diff(edges), 1)
    root: NDArray[np.float64] = np.sqrt(
        np.maximum(np.diff(power[np.minimum(edges, len(power) - 1)]), 0) / sizes
    )
    root /= max(float(root.max()), np.finfo(float).tiny)
    return root
