"""``attnviz train`` from the command line to the directory that it writes."""

import csv
import itertools
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from attnviz.attention.checkpoint import llama_stack, open_checkpoint
from attnviz.attention.torch_decoder import TorchDecoder
from attnviz.cli.learn import spread_lists
from attnviz.errors import LoadError, UsageError
from attnviz.learn.train import train
from attnviz.learn.train.recipe import Optimiser, Recipe
from attnviz.learn.train.request import TrainRequest
from attnviz.learn.train.train import STATE_FILE
from attnviz.progress import UNWATCHED, Watch

from ...terminals import POSIX
from .conftest import CARD, points_of

RECIPE = Path(__file__).with_name("quick.toml").read_text(encoding="utf-8")
QUICK = ("--config", "quick.toml", "--out", "m")
CPU = torch.device("cpu")


@pytest.fixture
def folder(run, tmp_path):
    """A folder of two texts, a third to validate on, a recipe of 30 steps and one of minutes."""
    words = ("the cat sat on the mat", "a dog ran to the log", "it rained all day long")
    (tmp_path / "books").mkdir()
    for number, name in enumerate(("books/a.txt", "books/b.txt", "valid.txt", "other.txt")):
        lines = [f"{number} {words[row % 3]} {words[row * 7 % 3]}" for row in range(60)]
        (tmp_path / name).write_text(".\n".join(lines), encoding="utf-8")
    (tmp_path / "quick.toml").write_text(RECIPE)
    (tmp_path / "long.toml").write_text(RECIPE.replace("2500", "4_000_000"))
    return tmp_path


def test_from_texts_to_a_model_that_heads_shows(run, folder):
    result = run("train", "books", "--valid", "valid.txt", "other.txt", *QUICK)
    assert result.code == 0, result
    for words in (
        *("2 layers × 3 heads", "seed 0", "trained on a.txt and b.txt"),
        *("validated on valid.txt and other.txt", "nats per token", "bits per byte"),
        *("training", "validation", "phase text from", "Best heads", "Did not train: "),
        *("--tokens 2000000 --out NEW: train longer", "uniform random tokens, repeated"),
    ):
        assert words in result.out.replace("\n            ", " "), words
    assert max(map(len, result.lines)) <= 80
    files = {path.name for path in (folder / "m").iterdir()}
    assert files == {
        *("README.md", "config.json", "log.csv", "model.safetensors", "tokenizer.json"),
        *("tokenizer_config.json", "first"),
    }
    before = run("diff", "m/first", "m", "--text", "the cat sat on the mat")
    assert "1 text, too few to test a head" in " ".join(before.out.split())
    shown = run("heads", "the cat sat", "--model", "m")
    assert shown.code == 0
    assert "2 layers × 3 heads" in shown.out


@pytest.mark.parametrize(
    ("arguments", "spread"),
    [
        (["a", "--valid", "b", "c", "-o"], ["a", "--valid", "b", "--valid", "c", "-o"]),
        (["--valid", "b", "--valid", "c", "d"], ["--valid", "b", "--valid", "c", "--valid", "d"]),
        (["a", "--valid=b", "c", "-q", "e"], ["a", "--valid", "b", "--valid", "c", "-q", "e"]),
        (["--valid", "b", "--", "c"], ["--valid", "b", "--", "c"]),
        (["a", "--valid", "--out", "d"], ["a", "--valid", "--out", "d"]),
        (["a", "--validate", "b", "c"], ["a", "--validate", "b", "c"]),
        ([], []),
    ],
)
def test_several_values_may_follow_an_option(arguments, spread):
    assert spread_lists(arguments) == spread


def test_a_finished_model_is_never_overwritten(run, refused, folder):
    assert run("train", "books", *QUICK, "-q").code == 0
    before = {path: path.read_bytes() for path in (folder / "m").rglob("*") if path.is_file()}
    assert "already holds a trained model" in refused(2, "train", "books", *QUICK)
    line = refused(2, "train", "books", *QUICK, "--resume")
    assert "is finished, nothing is left to resume" in line
    files = (path for path in (folder / "m").rglob("*") if path.is_file())
    assert {path: path.read_bytes() for path in files} == before


def begin(program, environment, folder, *arguments):
    """A long run in a process of its own, once it has saved its state."""
    process = subprocess.Popen(
        [*program, "train", "books", "--config", "long.toml", "--out", "m", *arguments],
        env=environment | {"OMP_NUM_THREADS": "1"},
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    for _ in range(6000):
        if (folder / "m" / "training.pt").exists():
            return process
        assert process.poll() is None, "the run ended before it could be stopped"
        time.sleep(0.01)
    raise AssertionError("the run did not get there")


@pytest.mark.long
@POSIX
def test_stopped_it_saves_and_says_how_to_go_on(program, environment, run, refused, folder):
    """Stopped twice, by either signal; what a killed process leaves half written is swept away."""
    part = folder / "m" / ".attnviz-0123.part"
    for number, options in ((signal.SIGTERM, ()), (signal.SIGINT, ("--resume",))):
        process = begin(program, environment, folder, *options)
        for _ in range(6000):
            if not part.exists():
                break
            time.sleep(0.01)
        time.sleep(0.3)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        lines = " ".join(said.decode().split())
        assert process.returncode == 130, said
        assert "saved in 'm': the same command with --resume continues" in lines
        assert lines.endswith("attnviz: interrupted")
        assert "Traceback" not in lines
        assert not part.exists()
        part.write_text("half")
    again = ("train", "books", "--config", "long.toml", "--out", "m")
    assert "holds a run that is not finished: --resume goes on with it" in refused(2, *again)
    line = refused(2, *again, "--resume", "--seed", "1")
    assert "is of another run: its seed is 0, here it is 1" in line
    assert run("heads", "the cat", "--model", "m").code == 0  # it can be looked at on its way


@pytest.mark.parametrize("name", ["books/a.txt", "valid.txt"])
def test_a_text_is_not_overwritten_by_the_result(refused, folder, name):
    before = (folder / name).read_bytes()
    options = ("--valid", "valid.txt", *QUICK, "--save", name)
    assert "would overwrite" in refused(2, "train", "books", *options)
    assert (folder / name).read_bytes() == before


def run(texts, recipe, directory, *, resume=False):
    return train.TrainingRun(*texts, recipe, directory, CPU, resume=resume)


def weights(trained):
    return [one.detach().numpy().copy() for one in trained.trainer.model.parameters()]


def same(one, two):
    return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_attnviz_and_transformers_read_what_it_leaves(finished):
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
    seen = {}
    ours.run_outputs(ids, lambda layer, weights, outputs: seen.update({layer: weights}))
    for layer, attention in enumerate(expected.attentions):
        np.testing.assert_allclose(seen[layer], attention[0].numpy(), atol=1e-6)
    assert result.model.revision == checkpoint.metadata["revision"]
    assert result.finished
    assert result.parameters == sum(one.numel() for one in theirs.parameters())


def test_its_numbers_add_up(finished):
    trained, result = finished
    points = result.points
    assert sum(result.shares.values()) == pytest.approx(1)
    assert 5000 <= points[-1].tokens < 5000 + 5 * 23
    assert [point.step for point in points] == sorted({point.step for point in points})
    assert points[0].step == 1
    assert (result.model.layers, result.model.head_dim) == (2, 8)
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
    with (trained.directory / "log.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["tokens"]) for row in rows] == [point.tokens for point in points]
    assert float(rows[-1]["loss"]) == pytest.approx(points[-1].loss, abs=5e-5)


def test_the_loss_of_a_finished_model_is_that_of_its_stored_weights(texts, recipe, tmp_path):
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


def test_a_resumed_run_ends_as_one_that_never_stopped(texts, recipe, tmp_path, finished):
    """It stops in its first phase, is resumed, and stops again in its second."""
    whole, result = finished
    begun = run(texts, replace(recipe, card=CARD), tmp_path / "m")
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


def test_a_loss_that_is_not_finite_ends_the_run_and_leaves_the_state(texts, recipe, tmp_path):
    wild = replace(recipe, optimiser=Optimiser(learning_rate=1e35, warmup_steps=0))
    trained = run(texts, wild, tmp_path)
    trained.save_state()
    good = (tmp_path / STATE_FILE).read_bytes()
    with pytest.raises(UsageError, match="no longer finite after step"):
        points_of(trained)
    with pytest.raises(UsageError, match="no longer finite"):
        trained.save_state()
    assert (tmp_path / STATE_FILE).read_bytes() == good


@pytest.mark.parametrize(
    ("capabilities", "chosen"),
    [
        ({"avx512_bf16": True, "cpu_name": "bf16"}, "bfloat16"),
        ({"amx_bf16": True}, "bfloat16"),
        ({"avx512_bf16": False, "avx2": True, "cpu_name": "bf16"}, "float32"),
    ],
)
def test_a_processor_decides_by_its_instructions(monkeypatch, capabilities, chosen):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert train.with_known_precision(Recipe(), CPU).autocast == chosen


def test_what_does_not_fit_is_refused(recipe, monkeypatch):
    """Parameters four times, and at least the logits of the largest batch three times."""
    shape = recipe.model.decoder(301, 0)
    parameters = sum(one.numel() for one in TorchDecoder(shape).parameters())
    least = 16 * parameters + 3 * 4 * 5 * 23 * 301
    memory = "attnviz.learn.train.train.free_memory"
    for free in (None, 2 * least):
        monkeypatch.setattr(memory, lambda device, free=free: free)
        train.require_training_memory(shape, recipe, CPU)
    monkeypatch.setattr(memory, lambda device: least)
    with pytest.raises(LoadError, match="are free on cpu: make the model, its vocabulary, the"):
        train.require_training_memory(shape, recipe, CPU)


class Recorder(Watch):
    def __init__(self):
        self.told = []

    def begin(self, words):
        self.told.append(words)

    def found(self, words):
        self.told.append(words())


class Asked:
    """A run that is asked to end while it measures."""

    def finish(self):
        signal.raise_signal(self.number)

    def __init__(self, number):
        self.number = number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_end_is_no_failure(number):
    assert train.finish_saved(Asked(number), UNWATCHED) is None


def test_what_was_not_measured_is_measured_when_it_is_resumed(texts, recipe, tmp_path):
    begun = run(texts, recipe, tmp_path / "m")
    points_of(begun)
    begun.save_state()
    watch = Recorder()
    result = train.finish_saved(run(texts, recipe, tmp_path / "m", resume=True), watch)
    assert result.finished
    assert (tmp_path / "m" / "README.md").exists()
    assert watch.told == ["measuring the trained model"]


def test_losses_are_told_and_a_full_disk_says_how_to_go_on(
    text_file, recipe, tmp_path, monkeypatch
):
    monkeypatch.setattr(TrainRequest, "recipe", lambda request: recipe)
    watch, request = Recorder(), TrainRequest(files=(text_file,), out=tmp_path / "m")

    def full(run, part=""):
        if len(watch.told) == 2:
            raise LoadError("full")
        return ""

    monkeypatch.setattr(train.TrainingRun, "store", full)
    with pytest.raises(LoadError, match="full; stopped after 3,050 tokens, what was saved"):
        train.train(request, advance=watch)
    first = "65 tokens, phase repetition: loss 5"
    assert re.fullmatch(first + r".\d+, validation 5.\d+", watch.told[0])
