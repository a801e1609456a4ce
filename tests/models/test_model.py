"""What models of every kind share: vocabularies, twins with random weights, notes about texts."""

import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

import attnviz
from attnviz.attention.checkpoint import open_checkpoint, save_checkpoint
from attnviz.engine.capture import capture
from attnviz.errors import UnsupportedError
from attnviz.models.bundled import Bundled
from attnviz.models.huggingface import load_transformers
from attnviz.models.model import (
    Vocabulary,
    frame_of,
    random_copies,
    stated_revision,
    text_notes,
    trained_tokens,
)
from attnviz.models.own import OwnAttention
from attnviz.models.resolve import random_twin
from attnviz.records import Tokens

from ..small_models import whole_weights

TINY = Path(attnviz.__file__).parent / "data" / "tiny"


def test_a_vocabulary_does_not_keep_its_model_in_memory():
    model = Bundled()
    kept = model.vocabulary()
    assert kept is model.vocabulary()
    alive = weakref.ref(model)
    del model
    assert alive() is None
    assert kept.texts([5])


def test_random_copies_stand_in_their_frame():
    tokens = random_copies(Bundled().vocabulary(), 7, 3, seed=1)
    assert tokens.ids[0] == 0
    first, second, third = (tokens.ids[1 + 7 * n : 8 + 7 * n] for n in range(3))
    assert first == second == third
    assert len(set(first)) == 7
    assert tokens.special == (True, *(False,) * 21)
    assert random_copies(Bundled().vocabulary(), 7, 3, seed=1) == tokens
    assert random_copies(Bundled().vocabulary(), 7, 3, seed=2) != tokens
    nothing = Tokens((), (), ())
    few = Vocabulary(np.arange(3), nothing, nothing, False, lambda ids: ("x",) * len(ids))
    with pytest.raises(ValueError, match="4 distinct tokens of 3"):
        random_copies(few, 4, 2, seed=0)


@pytest.mark.parametrize(
    ("special", "before", "after"),
    [((1, 0, 0, 1, 1), 1, 2), ((0, 1, 0), 0, 0), ((1, 1), 2, 0), ((), 0, 0)],
)
def test_the_frame_is_what_stands_outside(special, before, after):
    n = len(special)
    tokens = Tokens(tuple(range(n)), ("x",) * n, tuple(map(bool, special)))
    found = frame_of(tokens)
    assert (len(found[0]), len(found[1])) == (before, after)


def test_the_bundled_model_draws_no_special_token():
    vocabulary = Bundled().vocabulary()
    assert len(vocabulary.plain) == 4095
    assert 0 not in vocabulary.plain
    assert vocabulary.before.ids == (0,)
    assert vocabulary.ranked


def test_made_up_words_of_the_own_attention():
    model = OwnAttention(8, 2)
    tokens = random_copies(model.vocabulary(), 3, 2, seed=0)
    assert len(tokens) == 6
    assert not model.vocabulary().ranked
    assert whole_weights(model, tokens)[0].shape == (2, 6, 6)


@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
def test_a_checkpoints_own_frame(kind, checkpoint):
    model = load_transformers(str(checkpoint(kind)))
    vocabulary = model.vocabulary()
    assert set(vocabulary.plain.tolist()) == set(range(4, 11))  # neither special nor padding rows
    assert (vocabulary.before.ids, vocabulary.after.ids) == ((1,), (2,))
    tokens = random_copies(vocabulary, 3, 2, seed=0)
    assert tokens.texts == tuple(model.tokenizer.convert_ids_to_tokens(list(tokens.ids)))


@pytest.mark.parametrize("kind", ["gpt2", "bert", "t5", "llama"])
def test_a_twin_has_the_shape_but_not_the_weights(kind, checkpoint):
    model = load_transformers(str(checkpoint(kind)))
    state = torch.random.get_rng_state()
    twin, again, other = (random_twin(model, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (twin.info.layers, twin.info.heads) == (model.info.layers, model.info.heads)
    assert (twin.info.weights, twin.info.seed) == ("random", 1)
    assert twin.kinds == model.kinds
    assert twin.encode("the cat") == model.encode("the cat")
    weights = [next(iter(entry.model.parameters())) for entry in (model, twin, again, other)]
    assert torch.equal(weights[1], weights[2])
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[3])


def test_twins_of_the_built_in_models():
    twin = random_twin(Bundled("float64"), 3)
    assert (twin.info.weights, twin.info.seed, twin.info.dtype) == ("random", 3, "float64")
    assert twin.info.revision is None
    own = OwnAttention(16, 4, 2, causal=True, seed=0)
    other = random_twin(own, 9)
    assert (other.info.seed, other.info.kv_heads, other.causal) == (9, 2, True)


def test_what_cannot_be_built_anew():
    class Made:
        info = Bundled().info

    with pytest.raises(UnsupportedError, match="add --backend torch"):
        random_twin(Made(), 0)


def tokens(*texts):
    return Tokens(tuple(range(len(texts))), texts, (False,) * len(texts))


@pytest.mark.parametrize(("unknown", "told"), [(1, False), (2, True), (10, True)])
def test_unknown_tokens_above_a_tenth_are_told(unknown, told):
    read = tokens(*["[UNK]"] * unknown, *["word"] * (10 - unknown))
    assert text_notes(None, read) == (
        (f"{unknown} of 10 tokens are unknown to the tokenizer: the model cannot tell them apart",)
        if told
        else ()
    )


def opened(directory, metadata):
    """The bundled model's tensors as ``attnviz train`` writes them, and their revision."""
    tiny = open_checkpoint(TINY)
    tensors = {name: tiny.tensors[name] for name in tiny.config.tensor_shapes()}
    tokenizer = (TINY / "tokenizer.json").read_text(encoding="utf-8")
    revision = save_checkpoint(directory, tiny.config, tensors, tokenizer, metadata=metadata)
    return load_transformers(str(directory)), revision


def test_a_text_longer_than_those_of_the_training_has_a_note(tmp_path):
    model, revision = opened(tmp_path, {"trained_tokens": "9"})
    assert model.info.revision == revision
    short = model.encode("The cat sat.")
    assert len(short) <= 9
    assert capture(model, short, kind="self").model.notes == ()
    long = model.encode("The cat sat on the mat because it was tired.")
    note = f"trained on sequences of up to 9 tokens, not {len(long)}"
    assert capture(model, long, kind="self").model.notes == (note,)


@pytest.mark.parametrize(
    "metadata", [{}, {"trained_tokens": "many"}, {"trained_tokens": "9" * 999}]
)
def test_a_file_that_does_not_say_how_long(metadata, tmp_path):
    assert trained_tokens(metadata) is None
    model, _ = opened(tmp_path, metadata)
    assert model.notes_for(model.encode("cat " * 300)) == ()


@pytest.mark.parametrize("stated", ["", "main", "\x1b[31mabcdef0123456", "0123456789abcdef\n"])
def test_a_revision_that_is_no_digest_is_not_repeated(stated):
    assert stated_revision({"revision": stated}) is None
