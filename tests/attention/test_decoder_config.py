"""The decoder's configuration says what Llama's does, and refuses what is not computed."""

from pathlib import Path

import pytest
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from attnviz.attention.checkpoint import DecoderConfig, config_to_llama, read_decoder
from attnviz.errors import LoadError, UsageError

from ..small_models import decoder_config

GROUPED = decoder_config(
    vocabulary=23,
    d_model=18,
    d_ff=13,
    heads=(6, 2, 10),
    context=37,
    norm_eps=1e-5,
    rope_theta=500.0,
    tied=True,
    attention_bias=True,
    attention_dropout=0.25,
    initializer_range=0.05,
    bos=3,
    eos=(4, 5),
)
SMALL = decoder_config(7, 12, 5, (3, 3, 4), layers=1)
FIELDS = config_to_llama(SMALL, "float32")
_MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text("utf-8"))


def test_writing_and_reading_gives_the_same_configuration():
    assert read_decoder(config_to_llama(GROUPED, "float16"), GROUPED.tensor_shapes()) == GROUPED


def test_transformers_reads_what_we_write_and_we_read_what_it_writes():
    theirs = LlamaConfig(**config_to_llama(GROUPED, "float32"))
    assert theirs.rope_parameters == {"rope_type": "default", "rope_theta": 500.0}
    assert (theirs.head_dim, theirs.num_key_value_heads, theirs.eos_token_id) == (10, 2, [4, 5])
    assert read_decoder(theirs.to_dict(), GROUPED.tensor_shapes()) == GROUPED


def test_what_is_left_out_means_what_it_means_to_transformers():
    left_out = {"num_key_value_heads", "head_dim", "max_position_embeddings", "rope_theta"}
    left_out |= {"rope_parameters", "tie_word_embeddings", "attention_bias", "initializer_range"}
    fields = {name: value for name, value in FIELDS.items() if name not in left_out}
    ours, theirs = read_decoder(fields, SMALL.tensor_shapes()), LlamaConfig(**fields)
    assert (ours.kv_heads, ours.head_dim) == (theirs.num_key_value_heads, theirs.head_dim)
    assert (ours.context, ours.norm_eps) == (theirs.max_position_embeddings, theirs.rms_norm_eps)
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.tied is theirs.tie_word_embeddings


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 777.0, "rope_parameters": None},
        {"rope_theta": 777, "rope_parameters": None, "rope_scaling": {"type": "default"}},
        {"rope_parameters": {"rope_theta": 777.0, "rope_type": "default"}, "rope_theta": 3.0},
    ],
)
def test_the_rotary_base_is_read_in_the_spelling_of_transformers_4_and_5(rope):
    assert read_decoder(FIELDS | rope, SMALL.tensor_shapes()).rope_theta == 777.0


@pytest.mark.parametrize(("key", "value"), _MISTAKES)
def test_what_cannot_be_computed_is_refused_in_one_line(key, value):
    with pytest.raises(LoadError) as caught:
        read_decoder(FIELDS | {key: value}, SMALL.tensor_shapes())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 0}, "heads must be at least 1"),
        ({"heads": 5}, "18 is not a multiple of 5 heads"),
        ({"kv_heads": 4}, "6 query heads cannot share 4"),
        ({"head_dim": 3}, "even"),
        ({"attention_dropout": 1.0}, "attention_dropout"),
    ],
)
def test_sizes_that_do_not_fit_are_a_usage_error(changes, message):
    with pytest.raises(UsageError, match=message):
        DecoderConfig(**(vars(GROUPED) | changes))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_the_tensors_are_those_of_transformers(tied, bias):
    changes = {"tied": tied, "attention_bias": bias, "mlp_bias": not bias}
    ours = DecoderConfig(**(vars(GROUPED) | changes))
    theirs = LlamaForCausalLM(LlamaConfig(**config_to_llama(ours, "float32"))).state_dict()
    if tied:
        del theirs["lm_head.weight"]
    assert ours.tensor_shapes() == {name: tuple(one.shape) for name, one in theirs.items()}
