"""A random Whisper of a window of one second, and sounds for it."""

import json
import wave

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, WhisperConfig, WhisperForConditionalGeneration

from ..small_models import bart_fields

RATE, FRAMES = 16_000, 50
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
MARKS = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")


def build(**changed):
    """A random model whose weights are large enough that attention is not even."""
    torch.manual_seed(0)
    sizes = {
        **bart_fields(32, 32, 32, layers=(2, 3), heads=(4, 4)),
        "vocab_size": 40,
        "max_source_positions": FRAMES,
        "max_target_positions": 32,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
        **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens")),
        "decoder_start_token_id": 1,
        **changed,
    }
    model = WhisperForConditionalGeneration(WhisperConfig(**sizes)).eval()
    for name, parameter in model.named_parameters():
        if "q_proj.weight" in name or "k_proj.weight" in name:
            parameter.data *= 12
    settings = model.generation_config
    settings.lang_to_id, settings.task_to_id = {"<|en|>": 2}, {"transcribe": 3}
    settings.no_timestamps_token_id, settings.is_multilingual = 4, True
    settings.suppress_tokens = settings.begin_suppress_tokens = None
    settings.alignment_heads = [[1, 0], [2, 3]]
    return model


def tokenizer():
    """Words of one token each, and start tokens."""
    made = Tokenizer(
        models.WordLevel({word: at for at, word in enumerate((*MARKS, *WORDS))}, MARKS[0])
    )
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=MARKS[0], additional_special_tokens=list(MARKS[1:])
    )


def noise(seconds=0.8, rate=RATE, seed=0):
    drawn = np.random.default_rng(seed).normal(0, 3000, (round(seconds * rate), 1))
    return drawn.clip(-32768, 32767).astype("<i2")


def write(path, samples, rate=RATE, width=2):
    """Write whole numbers (time, channel) of 16 bits as a .wav file of a width in bytes."""
    wide = samples.astype(np.int64) << (8 * width - 16) if width > 1 else (samples >> 8) + 128
    content = wide.astype("<i8").reshape(-1, 1).view(np.uint8).reshape(-1, 8)[:, :width]
    with wave.open(str(path), "wb") as file:
        file.setparams((samples.shape[1], width, rate, 0, "NONE", ""))
        file.writeframes(np.ascontiguousarray(content).tobytes())
    return str(path)


def checkpoint(folder, **changed):
    build(**changed).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    settings = json.loads((folder / "generation_config.json").read_text())
    settings.pop("_from_model_config", None)
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return str(folder)
