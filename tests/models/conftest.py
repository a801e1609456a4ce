"""Tiny random checkpoints with tokenizers built on the spot, as directories on the disk."""

import shutil
from pathlib import Path

import pytest
import torch
from transformers.utils import logging as transformers_logging

from .. import small_models

CONFIGS = {
    **small_models.TINY,
    "bert": ("BertForMaskedLM", "BertConfig", small_models.bert_fields(6, 5, 11)),
    "roberta": (
        "RobertaForMaskedLM",
        "RobertaConfig",
        small_models.bert_fields(6, 5, 13) | {"pad_token_id": 1},
    ),
    "bart": (
        "BartForConditionalGeneration",
        "BartConfig",
        small_models.bart_fields(6, 5, 19, (2, 1), (3, 2))
        | {**small_models.SPECIAL, "decoder_start_token_id": 2, "forced_eos_token_id": 2},
    ),
}


def save_checkpoint(kind, directory, model_class=None):
    """A tiny random checkpoint of one of ``CONFIGS`` with its tokenizer."""
    named, config_class, fields = CONFIGS[kind]
    torch.manual_seed(5)
    transformers_logging.disable_progress_bar()
    classes = (model_class or named, config_class, fields)
    model = small_models.random_model(classes, vocab_size=small_models.VOCABULARY)
    model.save_pretrained(directory)
    small_models.word_tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def _checkpoints(tmp_path_factory):
    made = {}

    def get(kind, model_class):
        key = (kind, model_class)
        if key not in made:
            made[key] = save_checkpoint(kind, tmp_path_factory.mktemp("made") / kind, model_class)
        return made[key]

    return get


@pytest.fixture
def checkpoint(_checkpoints, tmp_path):
    """A fresh copy of a tiny checkpoint, which the test may damage."""

    def copy(kind, model_class=None):
        return Path(shutil.copytree(_checkpoints(kind, model_class), tmp_path / "checkpoint"))

    return copy
