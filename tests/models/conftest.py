"""Tiny random checkpoints with tokenizers built on the spot, as directories on the disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers.utils import logging as transformers_logging

WORDS = ("<pad>", "<s>", "</s>", "<unk>", "the", "cat", "sat", "on", "mat", "because", "tired")
VOCABULARY = 13
"""More than the words: an embedding table is often padded."""


def word_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Whole words; ``<s>`` in front and ``</s>`` behind."""
    tokenizer = Tokenizer(WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
    )


CONFIGS: dict[str, tuple[str, Any]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        lambda: transformers.GPT2Config(
            vocab_size=VOCABULARY, n_positions=17, n_embd=6, n_layer=2, n_head=3, n_inner=5
        ),
    ),
    "bert": (
        "BertForMaskedLM",
        lambda: transformers.BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=6,
            num_hidden_layers=2,
            num_attention_heads=3,
            intermediate_size=5,
            max_position_embeddings=11,
        ),
    ),
    "roberta": (
        "RobertaForMaskedLM",
        lambda: transformers.RobertaConfig(
            vocab_size=VOCABULARY,
            hidden_size=6,
            num_hidden_layers=2,
            num_attention_heads=3,
            intermediate_size=5,
            max_position_embeddings=13,
            pad_token_id=1,
        ),
    ),
    "t5": (
        "T5ForConditionalGeneration",
        lambda: transformers.T5Config(
            vocab_size=VOCABULARY,
            d_model=6,
            d_kv=5,
            d_ff=7,
            num_layers=2,
            num_heads=3,
            decoder_start_token_id=0,
            pad_token_id=0,
            eos_token_id=2,
        ),
    ),
    "bart": (
        "BartForConditionalGeneration",
        lambda: transformers.BartConfig(
            vocab_size=VOCABULARY,
            d_model=6,
            encoder_layers=2,
            decoder_layers=1,
            encoder_attention_heads=3,
            decoder_attention_heads=2,
            encoder_ffn_dim=5,
            decoder_ffn_dim=5,
            max_position_embeddings=19,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=2,
            forced_eos_token_id=2,
        ),
    ),
    "llama": (
        "LlamaForCausalLM",
        lambda: transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=12,
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=4,
            intermediate_size=5,
            max_position_embeddings=23,
        ),
    ),
}


def save_checkpoint(kind: str, directory: Path, model_class: str | None = None) -> Path:
    """A tiny random checkpoint of one of ``CONFIGS`` with its tokenizer."""
    named, config = CONFIGS[kind]
    torch.manual_seed(5)
    transformers_logging.disable_progress_bar()
    getattr(transformers, model_class or named)(config()).save_pretrained(directory)
    word_tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def _checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str | None], Path]:
    made: dict[tuple[str, str | None], Path] = {}

    def get(kind: str, model_class: str | None) -> Path:
        key = (kind, model_class)
        if key not in made:
            made[key] = save_checkpoint(kind, tmp_path_factory.mktemp("made") / kind, model_class)
        return made[key]

    return get


@pytest.fixture
def checkpoint(
    _checkpoints: Callable[[str, str | None], Path], tmp_path: Path
) -> Callable[..., Path]:
    """A fresh copy of a tiny checkpoint, which the test may damage."""

    def copy(kind: str, model_class: str | None = None) -> Path:
        return Path(shutil.copytree(_checkpoints(kind, model_class), tmp_path / "checkpoint"))

    return copy
