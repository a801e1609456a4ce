"""Random repeated tokens of every kind of model, and their randomly initialised twins."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch

from attnviz.errors import UnsupportedError
from attnviz.models.bundled import Bundled
from attnviz.models.huggingface import load_transformers
from attnviz.models.model import Vocabulary, frame_of, random_copies
from attnviz.models.own import OwnAttention
from attnviz.models.resolve import random_twin
from attnviz.records import Tokens

from ..small_models import whole_weights


def test_a_vocabulary_does_not_keep_its_model_in_memory() -> None:
    model = Bundled()
    kept = model.vocabulary()
    assert kept is model.vocabulary()
    alive = weakref.ref(model)
    del model
    assert alive() is None
    assert kept.texts([5])


def test_copies_of_random_tokens_in_their_frame() -> None:
    tokens = random_copies(Bundled().vocabulary(), 7, 3, seed=1)
    assert tokens.ids[0] == 0
    first, second, third = (tokens.ids[1 + 7 * n : 8 + 7 * n] for n in range(3))
    assert first == second == third
    assert len(set(first)) == 7
    assert tokens.special == (True, *(False,) * 21)
    assert random_copies(Bundled().vocabulary(), 7, 3, seed=1) == tokens
    assert random_copies(Bundled().vocabulary(), 7, 3, seed=2) != tokens


def test_more_tokens_than_there_are() -> None:
    nothing = Tokens((), (), ())
    few = Vocabulary(np.arange(3), nothing, nothing, False, lambda ids: ("x",) * len(ids))
    with pytest.raises(ValueError, match="4 distinct tokens of 3"):
        random_copies(few, 4, 2, seed=0)


@pytest.mark.parametrize(
    ("special", "before", "after"),
    [((1, 0, 0, 1, 1), 1, 2), ((0, 1, 0), 0, 0), ((1, 1), 2, 0), ((), 0, 0)],
)
def test_the_frame_is_what_stands_outside(special: tuple, before: int, after: int) -> None:
    n = len(special)
    tokens = Tokens(tuple(range(n)), ("x",) * n, tuple(map(bool, special)))
    found = frame_of(tokens)
    assert (len(found[0]), len(found[1])) == (before, after)


def test_the_bundled_model_draws_no_special_token() -> None:
    vocabulary = Bundled().vocabulary()
    assert len(vocabulary.plain) == 4095
    assert 0 not in vocabulary.plain
    assert vocabulary.before.ids == (0,)
    assert vocabulary.ranked


def test_made_up_words_of_the_own_attention() -> None:
    model = OwnAttention(8, 2)
    tokens = random_copies(model.vocabulary(), 3, 2, seed=0)
    assert len(tokens) == 6
    assert not model.vocabulary().ranked
    assert whole_weights(model, tokens)[0].shape == (2, 6, 6)


@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
def test_a_checkpoints_own_frame(kind: str, checkpoint) -> None:
    model = load_transformers(str(checkpoint(kind)))
    vocabulary = model.vocabulary()
    assert set(vocabulary.plain.tolist()) == set(range(4, 11))  # neither special nor padding rows
    assert (vocabulary.before.ids, vocabulary.after.ids) == ((1,), (2,))
    tokens = random_copies(vocabulary, 3, 2, seed=0)
    assert tokens.texts == tuple(model.tokenizer.convert_ids_to_tokens(list(tokens.ids)))


@pytest.mark.parametrize("kind", ["gpt2", "bert", "t5", "llama"])
def test_a_twin_has_the_shape_but_not_the_weights(kind: str, checkpoint) -> None:
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


def test_twins_of_the_built_in_models() -> None:
    twin = random_twin(Bundled("float64"), 3)
    assert (twin.info.weights, twin.info.seed, twin.info.dtype) == ("random", 3, "float64")
    assert twin.info.revision is None
    own = OwnAttention(16, 4, 2, causal=True, seed=0)
    other = random_twin(own, 9)
    assert (other.info.seed, other.info.kv_heads, other.causal) == (9, 2, True)


def test_what_cannot_be_built_anew() -> None:
    class Made:
        info = Bundled().info

    with pytest.raises(UnsupportedError, match="add --backend torch"):
        random_twin(Made(), 0)
