"""A part of a model is refused in words, with layers gone or with less attention in them."""

from pathlib import Path

import pytest
import torch
import transformers
import yaml
from torch import nn

import attnviz
from attnviz.draw.values import model_facts, model_of
from attnviz.errors import UnsupportedError
from attnviz.models import whole
from attnviz.models.model import weights_fingerprint
from attnviz.models.prepare import handed_over
from attnviz.records import ModelInfo

from ..small_models import bert_fields, llama_fields

PUBLISHED = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))


def made(**changes):
    torch.manual_seed(0)
    fields = llama_fields(12, 13, 31, (3, 1, 4)) | {"num_hidden_layers": 4} | changes
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{"vocab_size": 11, **fields}))


@pytest.mark.parametrize("gone", [1, 2])
def test_layers_that_are_gone_are_missed(gone):
    model = made()
    del model.model.layers[:gone]
    with pytest.raises(UnsupportedError, match=f"it has {4 - gone} layers, and its config names 4"):
        attnviz.params(model)


class Passed(nn.Module):
    """A layer that hands its input on, and may hold the layer that it stands for."""

    def __init__(self, layer=None):
        super().__init__()
        self.layer = layer

    def forward(self, hidden, *_, **__):
        return hidden


def halved(model):
    """Leave the second layer half of its query heads, as a split over processes does."""
    attention = model.model.layers[1].self_attn
    attention.q_proj.weight = nn.Parameter(attention.q_proj.weight[:6].clone())
    attention.q_proj.out_features = 6


def dropped(model):
    model.model.layers[1] = Passed()


def skipped(model):
    model.model.layers[1] = Passed(model.model.layers[1])


QUESTIONS = {
    "heads": lambda model, tokenizer: attnviz.capture(model, "the cat sat", tokenizer=tokenizer),
    "ablate": lambda model, tokenizer: attnviz.ablate(model, "the cat sat", tokenizer=tokenizer),
    "why": lambda model, tokenizer: attnviz.why(model, "the cat sat", tokenizer=tokenizer),
    "patterns": lambda model, tokenizer: attnviz.patterns(model, tokenizer=tokenizer),
}


@pytest.mark.parametrize(
    ("question", "spoil", "said"),
    [
        ("heads", dropped, "3 of its modules have attention, and its config names 4"),
        ("why", halved, r"q_proj is \d+ × 6, and its config names \d+ × \d+"),
        *(
            (question, skipped, "1 of its 4 attention modules take no part in a forward pass")
            for question in QUESTIONS
        ),
    ],
)
def test_a_layer_that_takes_no_part_is_missed(spoil, said, question, checkpoint):
    path = checkpoint("llama")
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = made(vocab_size=len(tokenizer)).eval()
    QUESTIONS[question](model, tokenizer)  # whole, it answers
    spoil(model)
    with pytest.raises(UnsupportedError, match=said):
        QUESTIONS[question](model, tokenizer)


def test_an_encoder_decoder_without_a_decoder_layer_is_refused(checkpoint):
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(checkpoint("t5"))
    layers = len(model.decoder.block)
    whole.require_whole(model, "t5", len(model.encoder.block))
    del model.decoder.block[0]
    with pytest.raises(UnsupportedError, match=f"it has {layers - 1} layers"):
        whole.require_whole(model, "t5", len(model.encoder.block))


def test_layers_that_share_their_weights_are_whole():
    fields = bert_fields(12, 13, 512, layers=5)
    config = transformers.AlbertConfig(vocab_size=11, embedding_size=6, **fields)
    whole.require_whole(transformers.AlbertModel(config), "albert", 5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile itself
@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, pytest.param(torch.compile, marks=pytest.mark.long)]
)
def test_a_wrapper_that_holds_the_whole_model_is_opened(wrap, checkpoint):
    path = checkpoint("llama")
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
    inside = attnviz.capture(model, "the cat sat", tokenizer=tokenizer)
    found = attnviz.capture(wrap(model), "the cat sat", tokenizer=tokenizer)
    assert (found["L0H0"] == inside["L0H0"]).all()


def test_a_model_of_images_is_named_as_one(tmp_path, run):
    config = transformers.ViTConfig(**bert_fields(12, 13, 4), image_size=8, patch_size=4)
    model = transformers.ViTModel(config)
    with pytest.raises(UnsupportedError, match="reads pixel_values, not text"):
        attnviz.capture(model, "a cat", tokenizer=object())
    model.save_pretrained(tmp_path / "vit")
    result = run("heads", "a cat", "--model", str(tmp_path / "vit"))
    assert result.code == 5
    assert "takes no text" in result.err


class Peft:
    """What peft wraps around a model whose layers it has changed, or that it gives a prompt."""

    active_adapters = ("tuned",)

    def __init__(self, model, prompts):
        config = type("Config", (), {"is_prompt_learning": prompts})()
        self.peft_config, self._model = {"tuned": config}, model

    def get_base_model(self):
        return self._model


def test_a_model_of_peft_is_taken_unless_its_prompt_would_be_lost():
    model = made()
    assert whole.unwrapped(Peft(model, prompts=False)) is model
    with pytest.raises(UnsupportedError, match="'tuned' of this Peft has a Config"):
        whole.unwrapped(Peft(model, prompts=True))


def test_an_adapter_that_is_switched_off_is_not_said_to_be_there():
    model = made()
    wrapped = Peft(model, prompts=False)
    wrapped.active_adapters = ["tuned"]
    assert handed_over(wrapped, None, reads=False).info.notes == ("with the adapter tuned",)
    model.model.layers[0].mlp.disable_adapters = True
    (note,) = handed_over(wrapped, None, reads=False).info.notes
    assert note == "without the adapter tuned, which is switched off"


def test_a_wrapped_table_has_the_rows_of_its_embedding():
    config = transformers.LlamaConfig(vocab_size=13)
    assert whole.table_rows(nn.Sequential(nn.Embedding(17, 3)), config) == 17
    assert whole.table_rows(Passed(), config) == 13


def test_settings_of_a_foreign_layer_are_part_of_the_fingerprint():
    model = made()
    layer = Passed(model.model.layers[0])
    model.model.layers[0] = layer
    before = weights_fingerprint(handed_over(model, None, reads=False))
    layer.scale = 2.0
    assert weights_fingerprint(handed_over(model, None, reads=False)) != before


@pytest.mark.parametrize(("model_type", "fields", "expected", "context"), PUBLISHED["shapes"])
def test_shape_and_context(model_type, fields, expected, context):
    config = transformers.AutoConfig.for_model(model_type, **fields)
    assert whole.read_shape(config, "name") == whole.HeadCounts(*expected)
    assert whole.context_length(config, nn.Module()) == context


def test_decoders_have_contexts_of_their_own():
    assert whole.context_length(transformers.LEDConfig(), nn.Module(), decoder=True) == 1024
    joined = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.BertConfig(num_attention_heads=3, hidden_size=6, num_hidden_layers=2),
        transformers.GPT2Config(n_head=2, n_embd=6, n_layer=5, n_positions=7),
    )
    assert whole.read_shape(joined, "name") == whole.HeadCounts(2, 3, 3, 2)
    assert whole.text_config(joined, decoder=True).n_layer == 5
    assert whole.context_length(joined, nn.Module()) == 512
    assert whole.context_length(joined, nn.Module(), decoder=True) == 7


@pytest.mark.parametrize("padding", [0, 1, None])
def test_positions_behind_the_padding_shorten_the_context(padding):
    config = transformers.BertConfig(max_position_embeddings=13)
    model = nn.ModuleDict({"position_embeddings": nn.Embedding(13, 2, padding_idx=padding)})
    assert whole.context_length(config, model) == 13 - (0 if padding is None else padding + 1)


@pytest.mark.parametrize("model_type", ["mamba", "rwkv", "fnet"])
def test_no_heads_at_all(model_type):
    with pytest.raises(UnsupportedError, match=f"'name' is a {model_type} model"):
        whole.read_shape(transformers.AutoConfig.for_model(model_type), "name")


def test_only_layers_that_attend_have_heads():
    """Convolutions and linear attention have none; a hybrid layer has heads and another mixer."""
    fields = {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2}
    conv = whole.read_shape(transformers.Lfm2Config(**fields), "name")
    both = whole.read_shape(transformers.FalconH1Config(num_hidden_layers=2), "name")
    plain = whole.read_shape(transformers.Gemma3TextConfig(), "name")
    infos = [
        ModelInfo("made", None, "None", "float32", **vars(shape)) for shape in (conv, both, plain)
    ]
    assert [[*info.heads_of_layers] for info in infos[:2]] == [[1, 3], [0, 1]]
    assert [info.not_followed for info in infos] == [(0, 2), (0, 1), ()]
    assert model_of(model_facts(infos[0])) == infos[0]
