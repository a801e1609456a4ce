"""The bundled model loads in place, without torch, and is what its card and header say."""

import csv
import hashlib
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import AutoTokenizer

import attnviz
import attnviz.models.bundled
from attnviz.errors import UsageError
from attnviz.learn.train.recipe import read_recipe
from attnviz.models.bundled import Bundled

DIRECTORY = Path(attnviz.__file__).parent / "data" / "tiny"
SENTENCE = "The cat sat on the mat because it was tired."
TINY = Path(attnviz.models.bundled.__file__).parent.parent / "data" / "tiny"
ROOT = Path(__file__).parents[2]
CARD = (TINY / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def model():
    return Bundled()


def test_the_revision_names_the_content(model):
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(DIRECTORY / "model.safetensors").items()):
        digest.update(name.encode() + tensor.tobytes())
    assert model.info.revision == digest.hexdigest()[:12]


def test_it_is_small_enough_for_a_wheel():
    assert sum(path.stat().st_size for path in DIRECTORY.iterdir()) < 16_000_000
    dtypes = {one.dtype for one in load_file(DIRECTORY / "model.safetensors").values()}
    assert dtypes == {np.dtype(np.float16)}


def test_tokens_are_those_of_the_text(model):
    tokens = model.encode(SENTENCE)
    assert tokens.ids[0] == 0
    assert tokens.texts[:4] == ("<|endoftext|>", "The", " cat", " sat")
    assert tokens.special == (True, *[False] * (len(tokens) - 1))
    assert "".join(tokens.texts[1:]) == SENTENCE
    texts = model.encode("학🐈").texts[1:]
    assert b"".join(bytes([int(text[3:5], 16)]) for text in texts) == "학🐈".encode()
    tokens = model.encode("cat<|endoftext|>")
    assert (tokens.ids[-1], tokens.texts[-1], tokens.special[-1]) == (0, "<|endoftext|>", True)
    tokens, every = model.encode(SENTENCE, 4), model.encode(SENTENCE)
    assert (tokens.ids, tokens.texts) == (every.ids[:4], every.texts[:4])
    assert len(model.encode(SENTENCE, 999)) == len(every)


@pytest.mark.parametrize(
    "text", [SENTENCE, "", " two  spaces\n", "나는 학교에 갔다 🐈", "again<|endoftext|> and"]
)
def test_transformers_reads_the_same_ids(model, text):
    tokenizer = AutoTokenizer.from_pretrained(DIRECTORY)
    assert tuple(tokenizer(text)["input_ids"]) == model.encode(text).ids
    assert tokenizer.decode(model.encode(text).ids) == f"<|endoftext|>{text}"


def test_another_type_is_refused():
    with pytest.raises(UsageError, match=r"float32 and float64, got bfloat16"):
        Bundled("bfloat16")


def test_it_is_trained_for_its_context(model):
    # Random tokens said twice surprise it the first time and not the second.
    length = 40
    half = np.random.default_rng(0).integers(1, model.stack.shape.vocabulary, size=length)
    ids = np.concatenate([[0], half, half])
    logits = model.stack.logits(ids)[:-1]
    logits -= logits.max(axis=-1, keepdims=True)
    losses = np.log(np.exp(logits).sum(axis=-1)) - logits[np.arange(2 * length), ids[1:]]
    assert losses[length + 1 :].mean() < 0.1 * losses[:length].mean()
    assert model.notes_for(model.encode("cat " * 2000, model.context)) == ()


def test_its_recipe_and_its_curve_are_kept():
    recipe = read_recipe(ROOT / "configs" / "tiny.toml")
    assert f"seed {recipe.seed}" in CARD
    stated = re.search(r"```toml\n(.*?)```", CARD, flags=re.DOTALL)
    told = tomllib.loads(stated[1])
    kept = tomllib.loads((ROOT / "configs" / "tiny.toml").read_text(encoding="utf-8"))
    for table in ("model", "optimiser", "budget"):
        assert {name: told[table][name] for name in kept[table]} == kept[table]
    for told_phase, kept_phase in zip(told["phase"], kept["phase"], strict=True):
        assert {name: told_phase[name] for name in kept_phase} == kept_phase
    with (TINY / "log.csv").open(newline="") as file:
        curve = list(csv.DictReader(file))
    assert int(curve[-1]["tokens"]) >= recipe.budget.tokens
    assert float(curve[-1]["valid_loss"]) < float(curve[0]["valid_loss"])
