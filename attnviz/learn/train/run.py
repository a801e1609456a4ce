"""A training run from its texts to the model's directory, resumable at any moment."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from attnviz.attention.checkpoint import open_checkpoint, save_checkpoint
from attnviz.attention.decoder_config import DecoderConfig
from attnviz.attention.torch_decoder import TorchDecoder
from attnviz.draw.whole_file import whole_file
from attnviz.errors import LoadError, UsageError
from attnviz.learn.train.card import card_text
from attnviz.learn.train.directory import (
    CARD_FILE,
    STATE_FILE,
    make_directory,
    read_state,
    write_curve,
    write_state,
)
from attnviz.learn.train.recipe import Phase, Recipe
from attnviz.learn.train.report import CorpusFacts, ModelScores, TrainReport
from attnviz.learn.train.scores import head_scores, open_decoder, text_windows
from attnviz.learn.train.texts import BEGINNING, Corpus, encode, make_tokenizer, text_too_short
from attnviz.learn.train.trainer import Trainer, unigram_loss, validation_loss
from attnviz.models.memory import byte_text, free_memory
from attnviz.records import ModelInfo


class TrainingRun:
    """A training run: trains a model on a text and stores it in a directory.

    train, valid: the texts. recipe: the settings. directory: of the model; created if missing.
    device: where to train. resume: continue the interrupted run saved in ``directory``.
    trainer: its ``steps`` train the model to the end of the budget.
    Raises UsageError if a text is too short or the saved run is another one, LoadError if the
    directory cannot be written or contains nothing to resume.
    """

    def __init__(
        self,
        train: Corpus,
        valid: Corpus,
        recipe: Recipe,
        directory: Path,
        device: torch.device,
        *,
        resume: bool = False,
    ) -> None:
        recipe = with_known_precision(recipe, device)
        self.recipe, self.directory = recipe, directory
        self._texts, self._device = (train, valid), device
        self._identity = {
            "text": train.digest,
            "validation text": valid.digest,
            **recipe.identity(),
            "device": device.type,
        }
        stored = read_state(directory, self._identity) if resume else None
        self.tokenizer: Tokenizer = (
            make_tokenizer(train.texts, recipe.vocabulary)
            if stored is None
            else Tokenizer.from_str(stored[0]["tokenizer"])
        )
        vocabulary = self.tokenizer.get_vocab_size()
        train_ids = encode(self.tokenizer, train.texts, BEGINNING)
        self._valid_ids = encode(self.tokenizer, valid.texts, BEGINNING)
        longest = max(phase.length for phase in recipe.phases)
        if len(train_ids) < longest:
            raise text_too_short(len(train_ids), longest)
        self._facts = _facts(train, len(train_ids)), _facts(valid, len(self._valid_ids))
        self._unigram = unigram_loss(train_ids, self._valid_ids, vocabulary)
        require_training_memory(recipe.model.decoder(vocabulary, BEGINNING), recipe, device)
        self.trainer = Trainer(recipe, train_ids, self._valid_ids, vocabulary, BEGINNING, device)
        if stored is not None:
            self.trainer.restore(*stored)
        make_directory(directory)

    def save_state(self) -> None:
        """Write the state of the run, for ``resume``, and the curve so far as a CSV file.

        Call this between two training steps. Raises LoadError if the disk is full, UsageError if a
        number is no longer finite; the old files stay.
        """
        state = {**self.trainer.state(), "tokenizer": self.tokenizer.to_str()}
        with self._advice():
            write_state(self.directory, self._identity, state, self.trainer.points)
            write_curve(self.directory, self.trainer.points)

    def store(self) -> str:
        """Store the model with its present parameters as a Llama directory; return its revision.

        Raises LoadError if it cannot be written.
        """
        with self._advice():
            return save_checkpoint(
                self.directory,
                self.trainer.model.config,
                self.trainer.model.llama_tensors(),
                self.tokenizer.to_str(),
                dtype=self.recipe.stored,
                metadata={"trained_tokens": str(self._length)},
            )

    def finish(self) -> TrainReport:
        """Store the model with its present parameters, its curve and its card; return the report.

        Raises LoadError if the disk is full, UsageError if a loss is no longer finite; the files of
        ``save_state`` stay.
        """
        revision = self.store()
        model, recipe, trainer = self.trainer.model, self.recipe, self.trainer
        train, valid = self._facts
        total = sum(trainer.sequences.values())
        result = TrainReport(
            directory=str(self.directory),
            model=self._info(revision),
            parameters=sum(one.numel() for one in model.parameters()),
            vocabulary=model.config.vocabulary,
            d_model=model.config.d_model,
            train=train,
            valid=valid,
            points=tuple(trainer.points),
            shares={kind: count / total for kind, count in trainer.sequences.most_common()},
            valid_loss=self._stored_loss(),
            valid_tokens=trainer.closing_tokens,
            unigram_loss=self._unigram,
            valid_windows=self._length,
            curve_windows=recipe.window,
            dtype=recipe.autocast,
            stored=recipe.stored,
            seed=recipe.seed,
            budget=str(recipe.budget),
            finished=trainer.used >= 1,
            scores=self._stored_scores(),
        )
        if not all(map(math.isfinite, (result.valid_loss, result.scores.first_copy.mean))):
            raise UsageError(
                "the trained model's losses are too large for a number: train again with a smaller "
                "learning_rate or clip, in another --out"
            )
        with self._advice():
            write_curve(self.directory, trainer.points)
            with whole_file(self.directory / CARD_FILE) as stream:
                stream.write(card_text(result, recipe, *self._texts).encode())
        return result

    def close(self) -> None:
        """Remove the saved state: the finished model needs no resumption."""
        (self.directory / STATE_FILE).unlink(missing_ok=True)

    @contextmanager
    def _advice(self) -> Iterator[None]:
        """Add to a LoadError of the block which files are saved and how to continue."""
        try:
            yield
        except LoadError as error:
            saved = (self.directory / STATE_FILE).exists()
            raise LoadError(
                f"{error}; stopped after {self.trainer.tokens:,} tokens, "
                + (
                    "what was saved before stays: make room, then --resume goes on from it"
                    if saved
                    else "before anything was saved: make room, then begin again"
                )
            ) from error

    def _info(self, revision: str) -> ModelInfo:
        config = self.trainer.model.config
        return ModelInfo(
            name=str(self.directory),
            revision=revision,
            architecture="LlamaForCausalLM",
            dtype="float32",
            layers=config.layers,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            weights="trained",
            seed=self.recipe.seed,
            device=str(self._device),
        )

    @property
    def _length(self) -> int:
        return self.recipe.phases[-1].length

    def _stored_loss(self) -> float:
        """Return the loss on the validation text, computed with the stored parameters."""
        stored = TorchDecoder.from_llama(
            self.trainer.model.config, open_checkpoint(self.directory).tensors
        )
        stored.eval().to(self._device)
        read = self._valid_ids[: self.trainer.closing_tokens]
        return validation_loss(stored, read, self._length, BEGINNING, self._device)

    def _stored_scores(self) -> ModelScores:
        windows = text_windows(self._valid_ids, self.recipe.window, BEGINNING)
        with np.errstate(over="ignore", invalid="ignore"):  # weights may have diverged
            return head_scores(open_decoder(self.directory), windows, beginning=BEGINNING)


def _facts(corpus: Corpus, tokens: int) -> CorpusFacts:
    return CorpusFacts(corpus.names, corpus.bytes, tokens, corpus.digest, corpus.held_out)


_PER_PARAMETER = 16
"""Bytes of a weight, its gradient and AdamW's two means, each in float32."""

_PER_LOGIT = 12
"""Bytes of a logit, its float32 copy and their gradient."""


def needed_memory(config: DecoderConfig, recipe: Recipe) -> int:
    """Return the bytes that training takes at least, in the phase with the largest batches.

    config: the final sizes of the model. Counted are parameters, gradients, AdamW's means and the
    activations kept for the backward pass, not temporaries.
    """
    few = (replace(config, layers=layers).tensor_shapes() for layers in (1, 2))
    one, two = (sum(map(math.prod, shapes.values())) for shapes in few)
    parameters = one + (config.layers - 1) * (two - one)  # every layer has equally many
    batches = max(
        _batch_bytes(recipe.shape(index).decoder(config.vocabulary, 0), phase)
        for index, phase in enumerate(recipe.phases)
    )
    return _PER_PARAMETER * parameters + batches


def require_training_memory(config: DecoderConfig, recipe: Recipe, device: torch.device) -> None:
    """Raise LoadError if the training needs more memory than is free on ``device``.

    config: the final sizes of the model.
    """
    needed, free = needed_memory(config, recipe), free_memory(device)
    if free is not None and needed > free:
        raise LoadError(
            f"training this model needs at least {byte_text(needed)}, and {byte_text(free)} are "
            f"free on {device}: make the model, its vocabulary, the batch or the length in the "
            "config smaller, or choose another --device"
        )


def _batch_bytes(config: DecoderConfig, phase: Phase) -> int:
    """Return the bytes of one batch's activations for the backward pass, two bytes a number."""
    tokens = phase.batch * phase.length
    attended = config.heads * config.head_dim + 2 * config.kv_heads * config.head_dim
    layer = 4 * config.d_model + 2 * attended + 4 * config.d_ff
    return tokens * (_PER_LOGIT * config.vocabulary + 2 * config.layers * layer)


def with_known_precision(recipe: Recipe, device: torch.device) -> Recipe:
    """Return the recipe with ``auto`` replaced by a number type for matrix products.

    It is bfloat16 if the device has instructions for it. Measured on two cores with AVX-512 BF16:
    1.6 times the speed of float32. Without instructions it is emulated, and slower.
    """
    if recipe.autocast != "auto":
        return recipe
    return replace(recipe, autocast="bfloat16" if _has_bfloat16(device) else "float32")


def _has_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):  # before torch 2.9
        return False
    capabilities = torch.cpu.get_capabilities()
    return any(present is True and "bf16" in name for name, present in capabilities.items())
