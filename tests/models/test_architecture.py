"""The shape and the context of many architectures, from the defaults of their configs."""

from pathlib import Path

import pytest
import transformers
import yaml
from torch import nn

from attnviz.draw.values import model_facts, model_of
from attnviz.errors import UnsupportedError
from attnviz.models.architecture import HeadCounts, context_length, read_shape, text_config
from attnviz.records import ModelInfo

PUBLISHED = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("model_type", "fields", "expected", "context"), PUBLISHED["shapes"])
def test_shape_and_context(model_type, fields, expected, context):
    config = transformers.AutoConfig.for_model(model_type, **fields)
    assert read_shape(config, "name") == HeadCounts(*expected)
    assert context_length(config, nn.Module()) == context


def test_decoders_have_contexts_of_their_own():
    assert context_length(transformers.LEDConfig(), nn.Module(), decoder=True) == 1024
    joined = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.BertConfig(num_attention_heads=3, hidden_size=6, num_hidden_layers=2),
        transformers.GPT2Config(n_head=2, n_embd=6, n_layer=5, n_positions=7),
    )
    assert read_shape(joined, "name") == HeadCounts(2, 3, 3, 2)
    assert text_config(joined, decoder=True).n_layer == 5
    assert context_length(joined, nn.Module()) == 512
    assert context_length(joined, nn.Module(), decoder=True) == 7


@pytest.mark.parametrize("padding", [0, 1, None])
def test_positions_behind_the_padding_shorten_the_context(padding):
    config = transformers.BertConfig(max_position_embeddings=13)
    model = nn.ModuleDict({"position_embeddings": nn.Embedding(13, 2, padding_idx=padding)})
    assert context_length(config, model) == 13 - (0 if padding is None else padding + 1)


@pytest.mark.parametrize("model_type", ["mamba", "rwkv", "fnet"])
def test_no_heads_at_all(model_type):
    with pytest.raises(UnsupportedError, match=f"'name' is a {model_type} model"):
        read_shape(transformers.AutoConfig.for_model(model_type), "name")


def test_only_layers_that_attend_have_heads():
    """Convolutions and linear attention have none; a hybrid layer has heads and another mixer."""
    fields = {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2}
    conv = read_shape(transformers.Lfm2Config(**fields), "name")
    both = read_shape(transformers.FalconH1Config(num_hidden_layers=2), "name")
    plain = read_shape(transformers.Gemma3TextConfig(), "name")
    infos = [
        ModelInfo("made", None, "None", "float32", **vars(shape)) for shape in (conv, both, plain)
    ]
    assert [[*info.heads_of_layers] for info in infos[:2]] == [[1, 3], [0, 1]]
    assert [info.not_followed for info in infos] == [(0, 2), (0, 1), ()]
    assert model_of(model_facts(infos[0])) == infos[0]
