"""Trains a model, saves it so that it can be resumed, and makes the report of ``attnviz train``."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from attnviz.attention.checkpoint import DecoderConfig, open_checkpoint, save_checkpoint
from attnviz.attention.torch_decoder import TorchDecoder
from attnviz.draw.labels import visible
from attnviz.draw.whole_file import directory_lock
from attnviz.errors import LoadError, UsageError
from attnviz.learn.train.directory import (
    STATE_FILE,
    check_directory,
    clean_directory,
    read_state,
    write_card,
    write_curve,
    write_state,
)
from attnviz.learn.train.recipe import Recipe
from attnviz.learn.train.report import FIRST, CorpusFacts, CurvePoint, TrainReport
from attnviz.learn.train.request import TrainRequest
from attnviz.learn.train.scores import head_scores, open_decoder, text_windows
from attnviz.learn.train.texts import (
    BEGINNING,
    Corpus,
    encode,
    hold_out,
    make_tokenizer,
    read_corpus,
)
from attnviz.learn.train.trainer import Trainer, unigram_loss, validation_loss
from attnviz.models.memory import byte_text, free_memory
from attnviz.models.placement import find_device
from attnviz.models.threads import allowed_processors, use_threads
from attnviz.progress import UNWATCHED, Watch, as_interrupt, between_steps
from attnviz.records import ModelInfo

_BETWEEN_SAVES = 30.0
"""Most seconds of training that a killed process loses."""

_PER_PARAMETER, _PER_LOGIT = 16, 12
"""Bytes of a weight, its gradient and AdamW's two means, each in float32; and of a logit, its
float32 copy and their gradient."""


class Stopped(KeyboardInterrupt):
    """Raised if the user stops a training that is saved; the message says how to resume it."""


def train(request: TrainRequest, *, device: str = "cpu", advance: Watch = UNWATCHED) -> TrainReport:
    """Train a small language model with the library's own attention, and store it in a directory.

    device: where to train. advance: shows the progress of the training.
    Raises ``Stopped`` after Ctrl-C, when the run is saved; UsageError if texts, options or the
    device do not fit, LoadError if a file cannot be read or the directory not be written.
    """
    recipe = request.recipe()
    check_directory(request.out, request.resume)
    place = find_device(device)
    use_threads(allowed_processors())  # a step has many texts at once
    learned = read_corpus(request.files)
    valid = read_corpus(request.valid, apart=learned) if request.valid else None
    learned, valid = (learned, valid) if valid else hold_out(learned)
    run = TrainingRun(learned, valid, recipe, request.out, place, resume=request.resume)
    with directory_lock(request.out):
        clean_directory(request.out)
        try:
            report = finish_saved(run, advance) if _train(run, advance) else None
        except LoadError as error:
            raise LoadError(
                f"{error}; stopped after {run.trainer.tokens:,} tokens, what was saved before "
                "stays: make room, then --resume continues from it"
            ) from error
    if report is None:
        raise Stopped(
            f"stopped after {run.trainer.tokens:,} tokens, {run.trainer.used:.0%} of the budget; "
            f"saved in {visible(repr(str(request.out)))}: the same command with --resume continues"
        )
    (request.out / STATE_FILE).unlink(missing_ok=True)  # a finished model needs no resumption
    return report


def _train(run: TrainingRun, advance: Watch) -> bool:
    """Train to the end of the budget; return False if the user stopped the training.

    The run is then saved.
    """
    trainer, saved = run.trainer, time.monotonic()
    with between_steps() as stopped:
        if trainer.step == 0:
            run.save_state()  # a killed process can be resumed from here on
            run.store(FIRST)
        for point in trainer.steps():
            advance(trainer.used)
            validated = point is not None and point.valid_loss is not None
            if validated or stopped() or time.monotonic() - saved > _BETWEEN_SAVES:
                run.save_state()
                saved = time.monotonic()
            if validated or stopped():
                run.store()  # another process can look at the heads while they form
                advance.found(partial(_losses, trainer.points[-1]))
            if stopped():
                break
        return trainer.used >= 1


def _losses(point: CurvePoint) -> str:
    """Return the losses at a point: ``40,000 tokens, phase text: loss 3.21, validation 3.40``."""
    valid = "" if point.valid_loss is None else f", validation {point.valid_loss:.2f}"
    return f"{point.tokens:,} tokens, phase {point.phase}: loss {point.loss:.2f}{valid}"


def finish_saved(run: TrainingRun, advance: Watch) -> TrainReport | None:
    """Finish a saved training and return its report; None if the user stops meanwhile."""
    advance.begin("measuring the trained model")
    try:
        with as_interrupt():
            return run.finish()
    except KeyboardInterrupt:
        return None


class TrainingRun:
    """A training run: trains a model on a text and stores it in a directory.

    directory: of the model; created if missing. resume: continue the run that is saved there.
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
        self.recipe, self.directory, self._device = recipe, directory, device
        texts = {"text": train.digest, "validation text": valid.digest}
        self._identity = {**texts, **recipe.identity(), "device": device.type}
        stored = read_state(directory, self._identity) if resume else None
        if stored is None:
            self.tokenizer = make_tokenizer(train.texts, recipe.vocabulary)
        else:
            self.tokenizer = Tokenizer.from_str(stored[0]["tokenizer"])
        vocabulary = self.tokenizer.get_vocab_size()
        train_ids = encode(self.tokenizer, train.texts, BEGINNING)
        self._valid_ids = encode(self.tokenizer, valid.texts, BEGINNING)
        longest = max(phase.length for phase in recipe.phase)
        if len(train_ids) < longest:
            raise UsageError(
                f"the training text has {len(train_ids):,} tokens, a sequence needs {longest:,}: "
                "give more text, or a config with a smaller length"
            )
        self._facts = [
            CorpusFacts(text.names, text.bytes, len(ids), text.digest, text.held_out)
            for text, ids in ((train, train_ids), (valid, self._valid_ids))
        ]
        self._unigram = unigram_loss(train_ids, self._valid_ids, vocabulary)
        require_training_memory(recipe.model.decoder(vocabulary, BEGINNING), recipe, device)
        self.trainer = Trainer(recipe, train_ids, self._valid_ids, vocabulary, BEGINNING, device)
        if stored is not None:
            self.trainer.restore(*stored)
        try:
            directory.mkdir(exist_ok=True)
        except OSError as error:
            raise LoadError(f"cannot make {str(directory)!r}: {error.strerror}") from error

    def save_state(self) -> None:
        """Write the state of the run, for ``resume``, and the curve so far as a CSV file.

        Call this between two training steps. Raises LoadError if the disk is full, UsageError if a
        number is no longer finite; the old files stay.
        """
        state = {**self.trainer.state(), "tokenizer": self.tokenizer.to_str()}
        write_state(self.directory, self._identity, state, self.trainer.points)
        write_curve(self.directory, self.trainer.points)

    def store(self, part: str = "") -> str:
        """Store the model with its present parameters as a Llama directory; return its revision.

        part: a directory within that of the run; empty for that of the run itself.
        Raises LoadError if it cannot be written.
        """
        return save_checkpoint(
            self.directory / part,
            self.trainer.model.config,
            self.trainer.model.llama_tensors(),
            self.tokenizer.to_str(),
            dtype=self.recipe.stored,
            metadata={"trained_tokens": str(self.recipe.phase[-1].length)},
        )

    def finish(self) -> TrainReport:
        """Store the model with its present parameters, its curve and its card; return the report.

        Raises LoadError if the disk is full, UsageError if a loss is no longer finite; the files of
        ``save_state`` stay.
        """
        revision = self.store()
        recipe, trainer = self.recipe, self.trainer
        config = trainer.model.config
        stored = TorchDecoder.from_llama(config, open_checkpoint(self.directory).tensors)
        stored.eval().to(self._device)
        windows = text_windows(self._valid_ids, recipe.window, BEGINNING)
        with np.errstate(over="ignore", invalid="ignore"):  # weights may have diverged
            scores = head_scores(open_decoder(self.directory), windows, beginning=BEGINNING)
        train, valid = self._facts
        length, total = recipe.phase[-1].length, sum(trainer.sequences.values())
        result = TrainReport(
            directory=str(self.directory),
            model=ModelInfo(
                name=str(self.directory),
                revision=revision,
                architecture="LlamaForCausalLM",
                dtype="float32",
                layers=config.layers,
                heads=config.heads,
                kv_heads=config.kv_heads,
                head_dim=config.head_dim,
                weights="trained",
                seed=recipe.seed,
                device=str(self._device),
            ),
            recipe=recipe,
            parameters=sum(weight.numel() for weight in trainer.model.parameters()),
            vocabulary=config.vocabulary,
            train=train,
            valid=valid,
            points=tuple(trainer.points),
            shares={kind: count / total for kind, count in trainer.sequences.most_common()},
            valid_loss=validation_loss(stored, self._valid_ids, length, BEGINNING, self._device),
            unigram_loss=self._unigram,
            finished=trainer.used >= 1,
            scores=scores,
        )
        if not all(map(math.isfinite, (result.valid_loss, result.scores.first_copy.mean))):
            raise UsageError(
                "the trained model's losses are too large for a number: train again with a smaller "
                "learning_rate or clip, in another --out"
            )
        write_curve(self.directory, trainer.points)
        write_card(result)
        return result


def require_training_memory(config: DecoderConfig, recipe: Recipe, device: torch.device) -> None:
    """Raise LoadError if the training needs more memory than is free on ``device``.

    config: the final sizes of the model. Counted are parameters, gradients, AdamW's means and the
    activations kept for the backward pass of the largest batches, not temporaries.
    """
    few = (replace(config, layers=layers).tensor_shapes() for layers in (1, 2))
    single, double = (sum(map(math.prod, shapes.values())) for shapes in few)
    needed = [_PER_PARAMETER * (single + (config.layers - 1) * (double - single))]
    for index, phase in enumerate(recipe.phase):
        shape = recipe.shape(index)
        attended = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        layer = 4 * shape.d_model + 2 * attended + 4 * shape.d_ff
        numbers = _PER_LOGIT * config.vocabulary + 2 * shape.layers * layer  # two bytes a number
        needed.append(needed[0] + phase.batch * phase.length * numbers)
    free = free_memory(device)
    if free is not None and max(needed) > free:
        raise LoadError(
            f"training this model needs at least {byte_text(max(needed))}, and {byte_text(free)} "
            f"are free on {device}: make the model, its vocabulary, the batch or the length in the "
            "config smaller, or choose another --device"
        )


def with_known_precision(recipe: Recipe, device: torch.device) -> Recipe:
    """Return the recipe with ``auto`` replaced by a number type for matrix products.

    It is bfloat16 if the device has instructions for it. Measured on two cores with AVX-512 BF16:
    1.6 times the speed of float32. Without instructions it is emulated, and slower.
    """
    known = False
    if device.type == "cuda":
        known = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu" and hasattr(torch.cpu, "get_capabilities"):  # from torch 2.9 on
        capabilities = torch.cpu.get_capabilities().items()
        known = any(present is True and "bf16" in name for name, present in capabilities)
    if recipe.autocast != "auto":
        return recipe
    return replace(recipe, autocast="bfloat16" if known else "float32")
