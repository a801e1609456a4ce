"""Trains a model, saves it so that it can be resumed, and makes the report of ``attnviz train``.

The directory of a run has its curve, its state, the model and its card. The heads of the stored
model are scored on text and on random tokens, with standard errors; the scores are those of Olsson
et al. 2022 and Wang et al. 2022, see ``measures``.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from attnviz.attention.checkpoint import (
    DecoderConfig,
    llama_stack,
    open_checkpoint,
    save_checkpoint,
)
from attnviz.attention.functional import Floats
from attnviz.attention.numpy_stack import NumpyStack
from attnviz.attention.torch_decoder import TorchDecoder
from attnviz.draw import document as doc
from attnviz.draw.files import check_new_directory, directory_lock, whole_file
from attnviz.draw.labels import visible
from attnviz.draw.markdown import document_markdown, part_markdown
from attnviz.engine.text_pass import token_losses
from attnviz.errors import LoadError, UsageError
from attnviz.learn.train.recipe import Recipe
from attnviz.learn.train.report import (
    FIRST,
    CorpusFacts,
    CurvePoint,
    ModelScores,
    ScoredHeads,
    SequenceMean,
    TrainReport,
)
from attnviz.learn.train.request import TrainRequest
from attnviz.learn.train.texts import (
    BEGINNING,
    Corpus,
    encode,
    hold_out,
    make_tokenizer,
    read_corpus,
)
from attnviz.learn.train.trainer import Trainer, unigram_loss, validation_loss
from attnviz.measures.rows import Conditions, RowBlock, TextFacts, scores_of
from attnviz.measures.sinks import uniform_weights
from attnviz.models.memory import byte_text, free_memory
from attnviz.models.placement import find_device
from attnviz.models.threads import allowed_processors, use_threads
from attnviz.progress import UNWATCHED, Watch, as_interrupt, between_steps
from attnviz.reading import CORPUS_BYTES, damage, damaged, read_bytes
from attnviz.records import ModelInfo, Tokens
from attnviz.resume import refuse_other_run

_BETWEEN_SAVES = 30.0  # most seconds of training that a killed process loses
_PER_PARAMETER, _PER_LOGIT = 16, 12  # bytes with gradient and AdamW's means; with copy and gradient


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
    where = find_device(device)
    use_threads(allowed_processors())  # a step has many texts at once
    learned = read_corpus(request.files)
    valid = read_corpus(request.valid, apart=learned) if request.valid else None
    learned, valid = (learned, valid) if valid else hold_out(learned)
    run = TrainingRun(learned, valid, recipe, request.out, where, resume=request.resume)
    with directory_lock(request.out):
        for pattern in _PARTS:
            for path in request.out.glob(pattern):
                path.unlink(missing_ok=True)
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
    """Train to the end of the budget; once the user stops it, save the run and return False."""
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
        points = self.trainer.points
        stored = {"form": _FORM, "run": self._identity, "state": state}
        buffer = io.BytesIO()
        torch.save({**stored, "points": [*map(asdict, points)]}, buffer)
        with whole_file(self.directory / STATE_FILE) as stream:
            stream.write(buffer.getbuffer())
        write_curve(self.directory, points)

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


# The directory of a run -----------------------------------------------------------------------


CARD_FILE = "README.md"
"""The model card, which is written last: a directory with a card holds a finished model."""

LOG_FILE = "log.csv"
"""The learning curve of a run."""

STATE_FILE = "training.pt"
"""The state of a run, next to the model's files; it may be deleted once the run is finished."""

_PARTS = (".attnviz-*.part", ".*.tmp")  # names of unfinished files that a killed process may leave
_FORM = 2  # version of the stored state; to be raised when ``Trainer.state`` changes
_LOOK = """`attnviz heads --model THIS_DIRECTORY "The cat sat on the mat."` shows its heads, and
`LlamaForCausalLM.from_pretrained("THIS_DIRECTORY")` of transformers reads the same files."""


def check_directory(directory: Path, resume: bool) -> None:
    """Raise an error if a training cannot begin or continue in ``directory``; create nothing.

    resume: whether the run continues an interrupted one. Raises UsageError if files would be lost
    or the run is finished, LoadError if there is nothing to resume or no permission to write.
    """
    shown = repr(str(directory))
    there = {name for name in (STATE_FILE, LOG_FILE, CARD_FILE) if (directory / name).exists()}
    finished = STATE_FILE not in there and len(there) == 2
    if finished and resume:
        raise UsageError(
            f"the run in {shown} is finished, nothing is left to resume: attnviz heads --model "
            f"{shown} shows the model, another --out trains a new one"
        )
    if finished:
        raise UsageError(
            f"{shown} already holds a trained model: name a new --out, nothing is overwritten"
        )
    if STATE_FILE in there and not resume:
        raise UsageError(
            f"{shown} holds a run that is not finished: --resume goes on with it, another --out "
            "begins a new one"
        )
    if STATE_FILE not in there and resume:
        raise LoadError(
            f"nothing to resume: {shown} holds no {STATE_FILE}; leave out --resume to begin"
        )
    if not resume:
        check_new_directory(directory)


def write_curve(directory: Path, points: Sequence[CurvePoint]) -> None:
    """Write the curve of a run as a CSV file of rounded numbers, replacing the previous file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(CurvePoint.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    forms = {"seconds": ".1f", "learning_rate": ".3e", "loss": ".4f", "valid_loss": ".4f"}
    for point in points:
        row = {name: value for name, value in asdict(point).items() if value is not None}
        writer.writerow({name: format(value, forms.get(name, "")) for name, value in row.items()})
    with whole_file(directory / LOG_FILE) as stream:
        stream.write(text.getvalue().encode())


def read_state(directory: Path, run: Mapping[str, Any]) -> tuple[dict[str, Any], list[CurvePoint]]:
    """Return the state and the curve that ``TrainingRun.save_state`` wrote last.

    run: identifies the run that is to be continued, as JSON values.
    Raises LoadError if there is no state or it is damaged, UsageError if it is of another run.
    """
    path = directory / STATE_FILE
    content = read_bytes(path, most=CORPUS_BYTES)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as parts:
            if parts.testzip() is not None:  # torch itself compares no checksums
                raise zipfile.BadZipFile
        stored = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        form, there, state, points = (stored[key] for key in ("form", "run", "state", "points"))
    except damage() as error:
        raise LoadError(f"{str(path)!r} is not a training state, or is damaged") from error
    if form != _FORM:
        raise LoadError(
            f"{str(path)!r} was written by another version of attnviz: go on with that one, or "
            "begin again in another --out"
        )
    refuse_other_run(repr(str(path)), there, run, "name what it began with, or another --out")
    with damaged(repr(str(path)), "begin again in another --out"):
        return state, [CurvePoint(**point) for point in points]


def write_card(report: TrainReport) -> None:
    """Write the model card: the person's words on the model, the whole report, and the recipe."""
    card, settings = report.recipe.card, report.recipe.identity().items()
    front = {"license": card.license, "language": card.language}
    recipe = [(f"{name} {given}", False) for name, given in settings if given is not None]
    name = card.name or Path(report.directory).resolve().name
    spoken = re.split(r"\n\s*\n", f"{card.data}\n\n{card.limits}")
    text = [
        "---",
        *(f"{key}: {json.dumps(given)}" for key, given in front.items() if given),
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [attnviz, attention, interpretability, llama]",
        "---\n",
        f"# {part_markdown(doc.Say(name))}\n",
        *(f"{part_markdown(doc.Say(part))}\n" for part in spoken if part.strip()),
        f"{_LOOK}\n",
        *document_markdown(report.document()),
        part_markdown(doc.Facts(recipe, "recipe")),
    ]
    with whole_file(Path(report.directory) / CARD_FILE) as stream:
        stream.write(("\n".join(text) + "\n").encode())


# The heads of the trained model ---------------------------------------------------------------


Ids = NDArray[np.int64]

SCORED = ("previous", "first", "duplicate", "induction")
"""The measures on a model's card."""

_HELD_OUT = 3  # a stream of random numbers that training never draws from, whatever its seed
_TOKENS_AT_ONCE, _SEQUENCES = 1024, 32


def open_decoder(directory: Path) -> NumpyStack:
    """Return the stored model as a NumPy decoder in float32; raise LoadError if it is damaged."""
    checkpoint = open_checkpoint(directory)
    return llama_stack(checkpoint.config, checkpoint.tensors, np.float32)


def text_windows(ids: NDArray[np.integer], length: int, beginning: int) -> Ids:
    """Return at most 32 windows spread evenly over a text, each after the beginning token.

    The result is (window, 1 + length). ids: of the text's tokens. length: of a window. beginning:
    the id that is put first. A text shorter than ``length`` is one window.
    """
    length = min(length, len(ids))
    count = min(_SEQUENCES, len(ids) // length)
    starts = np.linspace(0, len(ids) - length, count).astype(np.int64)
    windows = ids[starts[:, None] + np.arange(length)].astype(np.int64)
    return np.insert(windows, 0, beginning, axis=1)


def random_twice(vocabulary: int, beginning: int, length: int, sequences: int, seed: int) -> Ids:
    """Return sequences: the beginning token, random tokens that all differ, and their copy.

    The shape is (sequence, 1 + 2 · length). vocabulary: ids are below it. beginning: the id that is
    put first. length: how many random tokens. sequences: how many. seed: of the tokens.
    """
    random = np.random.default_rng((seed, _HELD_OUT))
    plain = np.delete(np.arange(vocabulary), beginning)
    drawn = np.stack([random.permutation(plain)[:length] for _ in range(sequences)])
    return np.insert(np.tile(drawn, 2), 0, beginning, axis=1)


def head_scores(
    decoder: NumpyStack,
    windows: Ids,
    *,
    beginning: int,
    copies: int = _SEQUENCES,
    copy_tokens: int = 60,
    seed: int = 0,
) -> ModelScores:
    """Measure the pattern scores of every head of a trained decoder.

    decoder: the model. windows: (window, token) of a text, from ``text_windows``.
    beginning: the id that begins a text.
    copies, copy_tokens: number of sequences of random tokens and tokens of one of their two copies;
    the model's context and vocabulary may limit these. seed: of the random tokens.
    """
    config = decoder.shape
    copy_tokens = min(copy_tokens, (config.context - 1) // 2, config.vocabulary - 1)
    twice = random_twice(config.vocabulary, beginning, copy_tokens, copies, seed)
    losses = np.stack(
        [
            token_losses(logits, ids)
            for _, batch in _batches(twice)
            for logits, ids in zip(decoder.logits(batch[:, :-1]), batch, strict=True)
        ]
    )
    return ModelScores(
        (*_scored(decoder, windows, "text"), *_scored(decoder, twice, "random")),
        windows=len(windows),
        window_tokens=windows.shape[1] - 1,
        copies=copies,
        copy_tokens=copy_tokens,
        seed=seed,
        first_copy=_estimate(losses[:, :copy_tokens].mean(1)),
        # The first token of the second copy is not predictable.
        second_copy=_estimate(losses[:, copy_tokens + 1 :].mean(1)),
    )


def _scored(decoder: NumpyStack, sequences: Ids, probe: str) -> tuple[ScoredHeads, ...]:
    """Return the pattern scores of every head and of uniform attention, as means over sequences."""
    config, (count, tokens) = decoder.shape, sequences.shape
    uniform = uniform_weights(tokens, tokens, causal=True)
    blank, ordinary, plain = ("",) * tokens, (False,) * tokens, Conditions("self", causal=True)
    every = [Tokens(tuple(ids), blank, ordinary) for ids in sequences.tolist()]
    texts = [TextFacts(text, text, plain) for text in every]
    measured = {name: np.full((config.layers, config.heads, count), np.nan) for name in SCORED}
    for start, batch in _batches(sequences):

        def observe(layer: int, weights: Floats, outputs: Floats, start: int = start) -> None:
            for sequence, maps in enumerate(weights, start):
                for name, scores in scores_of(RowBlock(texts[sequence], maps), SCORED).items():
                    measured[name][layer, :, sequence] = scores

        decoder.run_outputs(batch, observe)
    even = [scores_of(RowBlock(text, uniform), SCORED) for text in texts]
    return tuple(
        ScoredHeads(
            name,
            probe,
            tuple(tuple(map(_estimate, heads)) for heads in values),
            _estimate(np.array([float(scores[name]) for scores in even])).mean,
        )
        for name, values in measured.items()
    )


def _batches(sequences: Ids) -> Iterator[tuple[int, Ids]]:
    """Yield the index of the first sequence of each batch, and the batch."""
    size = max(1, _TOKENS_AT_ONCE // sequences.shape[1])
    for start in range(0, len(sequences), size):
        yield start, sequences[start : start + size]


def _estimate(values: Floats) -> SequenceMean:
    """Return the mean over the values that are not NaN; 0 if there are none."""
    known = values[~np.isnan(values)]
    if not len(known):
        return SequenceMean(0.0, None)
    error = float(known.std(ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else None
    return SequenceMean(float(known.mean()), error)
