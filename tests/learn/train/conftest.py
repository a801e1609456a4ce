"""A text and recipes that train in a second, and a run whose numbers are simple."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnviz.learn.train import report
from attnviz.learn.train.recipe import Card, Phase, Recipe, TrainingBudget, read_recipe
from attnviz.learn.train.texts import hold_out, read_corpus
from attnviz.learn.train.train import TrainingRun
from attnviz.records import ModelInfo

CARD = Card(
    name="my *model*", license="cc0-1.0", language="en", data="Mine.", limits="Cats\nand\n\ndogs."
)
WORDS = "the cat sat on the mat and the dog sat on the log while it rained all day"


def points_of(run):
    """The curve of a run that is trained to the end of its budget."""
    return [point for point in run.trainer.steps() if point is not None]


@pytest.fixture(scope="session")
def recipe():
    """Some 50 steps over two phases; the model grows from one narrow layer to two."""
    return read_recipe(Path(__file__).with_name("grown.toml"))


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    words = WORDS.split()
    starts = range(0, 450, 3)
    lines = [" ".join(words[(start + at) % len(words)] for at in range(9)) for start in starts]
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(".\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def finished(texts, recipe, tmp_path_factory):
    """A run that never stopped, and its report; no test changes them."""
    directory = tmp_path_factory.mktemp("finished") / "m"
    trained = TrainingRun(*texts, replace(recipe, card=CARD), directory, torch.device("cpu"))
    points_of(trained)
    return trained, trained.finish()


@pytest.fixture(scope="session")
def texts(text_file):
    """To train and to validate on."""
    return hold_out(read_corpus([text_file]))


def _scored(name, probe, best):
    """Head L1H2 has ``best``, every other one a tenth of it."""
    heads = tuple(
        tuple(
            report.SequenceMean(best if (layer, head) == (1, 2) else best / 10, 0.001)
            for head in range(3)
        )
        for layer in range(2)
    )
    return report.ScoredHeads(name, probe, heads, 0.05)


@pytest.fixture
def made():
    """100 points; the loss falls from 6 to 0 in one phase and from 8 to 4 in the next."""
    points = tuple(
        report.CurvePoint(
            step=10 * number,
            tokens=10_000 * number,
            seconds=1.5 * number,
            learning_rate=1e-3,
            loss=6 - number / 4 if number <= 20 else 8 - (number - 20) / 20,
            valid_loss=9 - number / 20 if number % 20 == 0 or number == 1 else None,
            phase="repetition" if number <= 20 else "text",
        )
        for number in range(1, 101)
    )
    names = ("previous", "first", "duplicate", "induction")
    scores = report.ModelScores(
        tuple(
            _scored(name, probe, 0.9 - 0.2 * place)
            for probe in ("text", "random")
            for place, name in enumerate(names)
        ),
        windows=32,
        window_tokens=256,
        copies=32,
        copy_tokens=60,
        seed=0,
        first_copy=report.SequenceMean(9.5, 0.01),
        second_copy=report.SequenceMean(0.25, 0.02),
    )
    recipe = Recipe(
        seed=7,
        autocast="bfloat16",
        stored="float16",
        phase=(Phase(),),
        budget=TrainingBudget(tokens=1_000_000),
    )
    return report.TrainReport(
        directory="a \x1b[31mmodel",
        model=ModelInfo(
            "a \x1b[31mmodel", "0123456789ab", "LlamaForCausalLM", "float32", 2, 3, 3, 16, seed=7
        ),
        recipe=recipe,
        parameters=1_234_567,
        vocabulary=4096,
        train=report.CorpusFacts(("one.txt", "[red]two.txt"), 4_000_000, 1_000_000, "aaaaaaaaaaaa"),
        valid=report.CorpusFacts(("three.txt",), 400_000, 100_000, "bbbbbbbbbbbb"),
        points=points,
        shares={"text": 0.7, "repeated_tokens": 0.25, "repeated_passages": 0.05},
        valid_loss=4.0,
        unigram_loss=6.5,
        finished=True,
        scores=scores,
    )
