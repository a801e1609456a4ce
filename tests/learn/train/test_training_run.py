"""A run: what it leaves, what it goes on from, what it refuses."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from attnviz.attention.checkpoint import open_checkpoint
from attnviz.attention.family_reading import llama_stack
from attnviz.errors import LoadError, UsageError
from attnviz.learn.train.directory import STATE_FILE
from attnviz.learn.train.recipe import Optimiser, Recipe, TrainingBudget, Validation
from attnviz.learn.train.report import TrainReport
from attnviz.learn.train.texts import Corpus
from attnviz.learn.train.train import TrainingRun
from attnviz.learn.train.trainer import Trainer

from .conftest import PHASES, points_of

CPU = torch.device("cpu")
Texts = tuple[Corpus, Corpus]


def run(texts: Texts, recipe: Recipe, directory: Path, *, resume: bool = False) -> TrainingRun:
    return TrainingRun(*texts, recipe, directory, CPU, resume=resume)


def weights(trained: TrainingRun) -> list[np.ndarray[Any, Any]]:
    return [one.detach().numpy().copy() for one in trained.trainer.model.parameters()]


def same(one: list[np.ndarray[Any, Any]], two: list[np.ndarray[Any, Any]]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.fixture(scope="module")
def finished(
    texts: Texts, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TrainingRun, TrainReport]:
    """A run that never stopped, and its result; no test changes them."""
    trained = run(texts, recipe, tmp_path_factory.mktemp("finished") / "m")
    points_of(trained)
    return trained, trained.finish()


def test_attnviz_and_transformers_read_what_it_leaves(
    finished: tuple[TrainingRun, TrainReport],
) -> None:
    trained, result = finished
    theirs, report = LlamaForCausalLM.from_pretrained(
        trained.directory, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(report.values())
    tokenizer = AutoTokenizer.from_pretrained(trained.directory)
    ids = tokenizer("the cat sat on the log")["input_ids"]
    assert ids == trained.tokenizer.encode("the cat sat on the log").ids
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids]), output_attentions=True)
    checkpoint = open_checkpoint(trained.directory)
    ours = llama_stack(checkpoint.config, checkpoint.tensors)
    np.testing.assert_allclose(ours.logits(ids), expected.logits[0].numpy(), atol=2e-5)
    seen: dict[int, np.ndarray[Any, Any]] = {}
    ours.run_outputs(ids, lambda layer, weights, outputs: seen.update({layer: weights}))
    for layer, attention in enumerate(expected.attentions):
        np.testing.assert_allclose(seen[layer], attention[0].numpy(), atol=1e-6)
    assert result.model.revision == checkpoint.metadata["revision"]
    assert result.finished
    assert result.parameters == sum(one.numel() for one in theirs.parameters())


def test_its_numbers_add_up(finished: tuple[TrainingRun, TrainReport]) -> None:
    trained, result = finished
    points = result.points
    assert sum(result.shares.values()) == pytest.approx(1)
    assert 5000 <= points[-1].tokens < 5000 + 5 * 23
    assert [point.step for point in points] == sorted({point.step for point in points})
    assert points[0].step == 1
    assert [point.phase for point in points] == sorted(point.phase for point in points)
    assert points[-1].phase == "text"
    validated = [point.tokens / 5000 for point in points if point.valid_loss is not None]
    assert len(validated) == 5  # at once, past 0.3, 0.6 and 0.9, at the end
    for found, due in zip(validated[1:4], (0.3, 0.6, 0.9), strict=True):
        assert due <= found < due + 5 * 23 / 5000
    assert points[-1].loss < points[0].loss
    assert result.valid_bits_per_byte == pytest.approx(
        result.valid_loss * result.valid.tokens / result.valid.bytes / np.log(2)
    )
    assert result.tokens_per_second == points[-1].tokens / points[-1].seconds
    assert result.whole
    assert result.valid_tokens == result.valid.tokens
    with (trained.directory / "log.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["tokens"]) for row in rows] == [point.tokens for point in points]
    assert float(rows[-1]["loss"]) == pytest.approx(points[-1].loss, abs=5e-5)


def test_the_loss_of_a_finished_model_is_that_of_its_stored_weights(
    texts: Texts, recipe: Recipe, tmp_path: Path
) -> None:
    trained = run(texts, replace(recipe, stored="float16"), tmp_path / "m")
    points_of(trained)
    result = trained.finish()
    model = LlamaForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
    ids = trained.tokenizer.encode(texts[1].texts[0], add_special_tokens=False).ids
    losses = []
    for start in range(0, len(ids), 23):
        window = torch.tensor([[0, *ids[start : start + 23]]])
        with torch.inference_mode():
            scores = model(window[:, :-1]).logits[0].log_softmax(-1)
        losses += (-scores.gather(-1, window[0, 1:, None])).flatten().tolist()
    assert result.valid_loss == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert open_checkpoint(tmp_path / "m").tensors["model.norm.weight"].dtype == np.float16


def test_a_resumed_run_ends_as_one_that_never_stopped(
    texts: Texts, recipe: Recipe, tmp_path: Path, finished: tuple[TrainingRun, TrainReport]
) -> None:
    """It stops in its first phase, is resumed, and stops again in its second."""
    whole, result = finished
    begun = run(texts, recipe, tmp_path / "m")
    for steps in (17, 23):
        list(itertools.islice(begun.trainer.steps(), steps))
        begun.save_state()
        resumed = run(texts, recipe, tmp_path / "m", resume=True)
        assert same(weights(begun), weights(resumed))
        begun = resumed
    points_of(resumed)
    assert same(weights(whole), weights(resumed))
    assert whole.trainer.sequences == resumed.trainer.sequences
    for one, two in zip(result.points, resumed.trainer.points, strict=True):
        assert replace(one, seconds=0) == replace(two, seconds=0)
    assert resumed.finish().model.revision == result.model.revision
    files = {(one.directory / "model.safetensors").read_bytes() for one in (whole, resumed)}
    assert len(files) == 1


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"seed": 1}, "seed is 0, asked for is 1"),
        ({"budget": TrainingBudget(minutes=2)}, "budget tokens is 5000, asked for is nothing"),
        ({"optimiser": Optimiser(clip=2.0)}, "optimiser clip is 1.0, asked for is 2.0"),
        ({"vocabulary": 271}, "vocabulary is 270, asked for is 271"),
        (
            {"phases": (PHASES[0], replace(PHASES[1], period=(3, 8)))},
            r"phases 2 period is \[3, 7\], asked for is \[3, 8\];",
        ),
        ({}, "validation text is"),
    ],
)
def test_another_recipe_or_text_is_no_resumption(
    texts: Texts, recipe: Recipe, tmp_path: Path, change: dict[str, Any], name: str
) -> None:
    run(texts, recipe, tmp_path).save_state()
    before = (tmp_path / STATE_FILE).read_bytes()
    valid = texts[1] if change else replace(texts[1], digest="0" * 12)
    with pytest.raises(UsageError, match=f"is of another run: its {name}"):
        run((texts[0], valid), replace(recipe, **change), tmp_path, resume=True)
    assert (tmp_path / STATE_FILE).read_bytes() == before


def _one_other_byte(content: bytes) -> bytes:
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def _other(**fields: Any) -> Callable[[bytes], bytes]:
    """Change fields of a state that is whole."""

    def change(content: bytes) -> bytes:
        changed = io.BytesIO()
        torch.save({**torch.load(io.BytesIO(content), weights_only=True), **fields}, changed)
        return changed.getvalue()

    return change


NO_STATE = "is no state of a training run, or is damaged"


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        (lambda _: b"", NO_STATE),
        (lambda _: b"no archive", NO_STATE),
        (lambda content: content[:-1000], NO_STATE),
        (_one_other_byte, NO_STATE),
        (_other(points=[{"step": 1, "far": 2}]), r"training.pt. is damaged .*: begin again"),
        (_other(form=0), "another version of attnviz"),
    ],
)
def test_what_is_no_state_is_said(
    texts: Texts, recipe: Recipe, tmp_path: Path, damaged: Callable[[bytes], bytes], said: str
) -> None:
    run(texts, recipe, tmp_path).save_state()
    path = tmp_path / STATE_FILE
    path.write_bytes(damaged(path.read_bytes()))
    with pytest.raises(LoadError, match=said):
        run(texts, recipe, tmp_path, resume=True)


def clocked(
    trainer: Trainer,
    monkeypatch: pytest.MonkeyPatch,
    step: float,
    reading: Callable[[int | None], float],
) -> list[float]:
    """A clock that only steps and validation move, by so many seconds each."""
    now = [0.0]

    def validate(tokens: int | None = None) -> float:
        now[0] += reading(tokens)
        return 5.0

    def learn(*given: Any, **named: Any) -> torch.Tensor:
        now[0] += step
        return torch.tensor(5.0)

    monkeypatch.setattr(trainer, "_clock", lambda: now[0])
    monkeypatch.setattr(trainer, "validate", validate)
    monkeypatch.setattr("attnviz.learn.train.trainer.take_step", learn)
    return now


@pytest.mark.parametrize(
    ("budget", "most"), [(TrainingBudget(minutes=2), 8), (TrainingBudget(tokens=7800), 25)]
)
def test_of_minutes_only_a_share_goes_into_validation(
    texts: Texts,
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    budget: TrainingBudget,
    most: int,
) -> None:
    """A step takes a second here, and reading the validation text four."""
    often = replace(recipe, budget=budget, validation=Validation(every=0.04))
    trained = run(texts, often, tmp_path)
    trainer = trained.trainer
    clocked(trainer, monkeypatch, 1.0, lambda tokens: 4.0)
    points = [point for point in points_of(trained) if point.valid_loss is not None]
    assert most - 3 <= len(points) <= most + 1
    assert points[0].step == 1
    assert points[-1] is trainer.points[-1]


def test_a_loss_that_is_not_finite_ends_the_run_and_leaves_the_state(
    texts: Texts, recipe: Recipe, tmp_path: Path
) -> None:
    wild = replace(recipe, optimiser=Optimiser(learning_rate=1e35, warmup_steps=0))
    trained = run(texts, wild, tmp_path)
    trained.save_state()
    good = (tmp_path / STATE_FILE).read_bytes()
    with pytest.raises(UsageError, match="no longer finite after step"):
        points_of(trained)
    with pytest.raises(UsageError, match="no longer finite"):
        trained.save_state()
    assert (tmp_path / STATE_FILE).read_bytes() == good


def test_a_full_disk_leaves_the_state_and_says_how_to_go_on(
    texts: Texts, recipe: Recipe, tmp_path: Path
) -> None:
    resource = pytest.importorskip("resource")
    trained = run(texts, recipe, tmp_path)
    trained.save_state()
    good = (tmp_path / STATE_FILE).read_bytes()
    next(trained.trainer.steps())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(LoadError, match=r"cannot write .*; stopped after 65 tokens, what"):
            trained.save_state()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / STATE_FILE).read_bytes() == good
    assert sorted(path.name for path in tmp_path.iterdir() if "attnviz" in path.name) == []
