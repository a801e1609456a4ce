"""A training run from its texts to the model's directory, resumable at any moment."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from attnviz.attention.checkpoint import open_checkpoint, save_checkpoint
from attnviz.attention.decoder_config import DecoderConfig
from attnviz.attention.torch_decoder import TorchDecoder
from attnviz.draw.whole_file import whole_file
from attnviz.errors import LoadError, UsageError
from attnviz.records import ModelInfo
from attnviz.train.card import card_text
from attnviz.train.corpus import Corpus, encode
from attnviz.train.evaluation import validation_loss
from attnviz.train.head_scores import head_scores, open_decoder, text_windows
from attnviz.train.memory import require_training_memory
from attnviz.train.place import CARD_FILE, LOG_FILE
from attnviz.train.precision import with_known_precision
from attnviz.train.recipe import Recipe
from attnviz.train.records import CorpusFacts, CurvePoint, ModelScores, TrainedModel
from attnviz.train.state import STATE_FILE, read_state, write_state
from attnviz.train.trainer import Trainer
from attnviz.train.vocabulary import BEGINNING, make_tokenizer

__all__ = ["TrainingRun"]


class TrainingRun:
    """A model to be trained on a text and stored in a directory.

    train, valid: the texts. recipe: how. directory: the model's; made where it is missing.
    device: where to train. resume: go on where an interrupted run in ``directory`` was saved.

    Raises UsageError where a text is too short, or the run to resume is another one; LoadError
    where the directory cannot be written or holds nothing to resume.
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
        self.recipe, self.directory, self.device = recipe, directory, device
        self._texts = train, valid
        self._identity = _identity(recipe, train, valid, device)
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
            raise UsageError(
                f"the training text has {len(train_ids):,} tokens, a sequence needs {longest:,}: "
                "give more text, or a config with a smaller length"
            )
        self.train = _facts(train, len(train_ids))
        self.valid = _facts(valid, len(self._valid_ids))
        require_training_memory(recipe.model.decoder(vocabulary, BEGINNING), recipe, device)
        self.trainer = Trainer(recipe, train_ids, self._valid_ids, vocabulary, BEGINNING, device)
        if stored is not None:
            self.trainer.restore(*stored)
        _make_directory(directory)

    @property
    def model(self) -> TorchDecoder:
        """As it is now; it grows between phases that say so."""
        return self.trainer.model

    @property
    def config(self) -> DecoderConfig:
        """The model's shape as it is now."""
        return self.model.config

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(one.numel() for one in self.model.parameters())

    def points(self) -> Iterator[CurvePoint]:
        """Train to the end of the budget, a point of the curve at a time; see ``Trainer.run``."""
        return self.trainer.run()

    def steps(self) -> Iterator[CurvePoint | None]:
        """The same a step at a time; see ``Trainer.steps``."""
        return self.trainer.steps()

    def save_state(self) -> None:
        """Write what ``resume`` goes on from, and the curve so far as a CSV file.

        To be called between two steps. LoadError where the disk is full, UsageError where a number
        is no longer finite; the old files stay.
        """
        state = {**self.trainer.state(), "tokenizer": self.tokenizer.to_str()}
        with self._advice():
            write_state(self.directory, self._identity, state, self.trainer.points)
            self._write_curve()

    def store(self) -> str:
        """Store the model as it is now, a Llama directory; its revision.

        Raises LoadError where it cannot be written.
        """
        with self._advice():
            return save_checkpoint(
                self.directory,
                self.config,
                self.model.llama_tensors(),
                self.tokenizer.to_str(),
                dtype=self.recipe.stored,
                metadata={"trained_tokens": str(self._length)},
            )

    def finish(self) -> TrainedModel:
        """Store the model as it is now, with its curve and card, and say what came of the run.

        Raises LoadError where the disk is full, UsageError where what the model computes is no
        longer finite; what ``save_state`` wrote stays.
        """
        revision = self.store()
        total = sum(self.trainer.sequences.values())
        result = TrainedModel(
            directory=str(self.directory),
            model=self._info(revision),
            parameters=self.parameters,
            vocabulary=self.config.vocabulary,
            d_model=self.config.d_model,
            train=self.train,
            valid=self.valid,
            points=tuple(self.trainer.points),
            shares={kind: count / total for kind, count in self.trainer.sequences.most_common()},
            valid_loss=self._stored_loss(),
            valid_windows=self._length,
            curve_windows=self.recipe.window,
            dtype=self.recipe.autocast,
            stored=self.recipe.stored,
            seed=self.recipe.seed,
            budget=str(self.recipe.budget),
            finished=self.trainer.used >= 1,
            scores=self._stored_scores(),
        )
        if not all(map(math.isfinite, (result.valid_loss, result.scores.first_copy.mean))):
            raise UsageError(
                "the trained model's losses are too large for a number: train again with a smaller "
                "learning_rate or clip, in another --out"
            )
        with self._advice():
            self._write_curve()
            with whole_file(self.directory / CARD_FILE) as stream:
                stream.write(card_text(result, self.recipe, *self._texts).encode())
        return result

    def close(self) -> None:
        """Leave the finished model's files alone in the directory: there is nothing to resume."""
        (self.directory / STATE_FILE).unlink(missing_ok=True)

    @contextmanager
    def _advice(self) -> Iterator[None]:
        """Adds to a LoadError what is safe, and how to go on."""
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

    def _write_curve(self) -> None:
        with whole_file(self.directory / LOG_FILE) as stream:
            stream.write(_curve_csv(self.trainer.points).encode())

    def _info(self, revision: str) -> ModelInfo:
        return ModelInfo(
            name=str(self.directory),
            revision=revision,
            architecture="LlamaForCausalLM",
            dtype="float32",
            layers=self.config.layers,
            heads=self.config.heads,
            kv_heads=self.config.kv_heads,
            head_dim=self.config.head_dim,
            weights="trained",
            seed=self.recipe.seed,
            device=str(self.device),
        )

    @property
    def _length(self) -> int:
        """Tokens of the sequences that the model learned from last."""
        return self.recipe.phases[-1].length

    def _stored_loss(self) -> float:
        """The loss on the whole validation text, of the weights as they were stored."""
        stored = TorchDecoder.from_llama(self.config, open_checkpoint(self.directory).tensors)
        stored.eval().to(self.device)
        return validation_loss(stored, self._valid_ids, self._length, BEGINNING, self.device)

    def _stored_scores(self) -> ModelScores:
        windows = text_windows(self._valid_ids, self.recipe.window, BEGINNING)
        with np.errstate(over="ignore", invalid="ignore"):  # of weights that grew without bounds
            return head_scores(open_decoder(self.directory), windows, beginning=BEGINNING)


def _identity(recipe: Recipe, train: Corpus, valid: Corpus, device: torch.device) -> dict[str, Any]:
    """What a resumed run must have in common with the one that was interrupted."""
    values = recipe.values()
    del values["card"]  # words about the model change nothing of it
    values["phases"] = [{**phase, "period": list(phase["period"])} for phase in values["phases"]]
    return {"text": train.digest, "validation text": valid.digest, **values, "device": device.type}


def _facts(corpus: Corpus, tokens: int) -> CorpusFacts:
    return CorpusFacts(corpus.names, corpus.bytes, tokens, corpus.digest, corpus.held_out)


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LoadError(
            f"cannot make the directory {str(directory)!r}: {error.strerror or error}"
        ) from error


def _curve_csv(points: list[CurvePoint]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(one.name for one in fields(CurvePoint))
    for point in points:
        row = asdict(point)
        row["seconds"] = f"{point.seconds:.1f}"
        row["learning_rate"] = f"{point.learning_rate:.3e}"
        row["loss"] = f"{point.loss:.4f}"
        row["valid_loss"] = "" if point.valid_loss is None else f"{point.valid_loss:.4f}"
        writer.writerow(row.values())
    return text.getvalue()
