"""Vision-language models: their decoder's attention is the softmax of its own queries and keys."""

import json
import warnings

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from attnviz.engine.capture import capture
from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.models.picture_texts import picture_text_model
from attnviz.models.pictures import PictureFile, PicturePrompt
from attnviz.models.resolve import load
from attnviz.models.work import LoadOptions, Work

from .picture_models import FAMILIES, tiny

CHAT = (
    "{% for turn in messages %}User : {% for part in turn.content %}{% if part.type == 'image' %}"
    "<image> dog {% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %} Assistant :"
)
CHATS = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "smolvlm"}
"""The families that are tested with a chat template."""
PARTS = ("ids", "texts", "special")


def prompt(*sizes, seed=0):
    """Return a prompt with pictures of noise of these heights and widths."""
    draw = np.random.default_rng(seed)
    pixels = [draw.integers(0, 256, (*size, 3), np.uint8) for size in sizes]
    files = [PictureFile(f"{at}.png", one) for at, one in enumerate(pixels)]
    return PicturePrompt("what is in the picture ?", files)


def by_hand(model, processor, text, pictures):
    """Return the weights (head, query, key) of each layer of a plain run, in float64."""
    found, decoder = [], model.get_decoder()

    def attention(module, query, key, value, attention_mask, scaling=None, softcap=None, **_):
        groups = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(groups, 1).double() for part in (key, value))
        scores = query.double() @ key.transpose(2, 3) * (scaling or query.shape[-1] ** -0.5)
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        weights = (scores + attention_mask).softmax(-1)
        found.append(weights[0].numpy())
        return (weights @ value).transpose(1, 2).to(query.dtype), None

    AttentionInterface.register("by_hand", attention)
    AttentionMaskInterface.register("by_hand", eager_mask)
    images = [[Image.fromarray(picture.pixels) for picture in pictures]]
    with warnings.catch_warnings(action="ignore"), torch.no_grad():
        inputs = dict(processor(text=text, images=images, return_tensors="pt"))
        inputs.pop("labels", None)
        before = decoder.config._attn_implementation
        decoder.config._attn_implementation = "by_hand"
        model(**inputs)
        decoder.config._attn_implementation = before
    return found


def opened(name, **sizes):
    """Return a family's model, its processor and both as attnviz opens them."""
    model, processor = tiny(name, **sizes)
    if name in CHATS:
        processor.chat_template = CHAT
    return model, processor, picture_text_model(name, model, processor)


def written(name, processor, text):
    """Return a prompt as it is written for a family."""
    count = len(text.pictures)
    if name in CHATS:
        return f"User : {'<image> dog ' * count}{text} Assistant :"
    return f"{processor.image_token}\n" * (count - 1) + processor.image_token + text


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_are_the_softmax_of_the_decoders_queries_and_keys(name):
    model, processor, known = opened(name, layers=2, tower_layers=1)
    for sizes in ([(40, 24)], [(24, 40), (32, 32)]):
        text = prompt(*sizes)
        expected = by_hand(model, processor, written(name, processor, text), text.pictures)
        tokens = known.encode(text)
        record = capture(known, tokens, kind="self")
        assert len(expected) == len(record.layers) == 2
        for layer, weights in zip(record.layers, expected, strict=True):
            assert np.abs(layer.weights - weights).max() < 1e-5
        assert len(tokens.layout) == len(tokens)
        assert {grid.picture for grid in tokens.layout.grids} == set(range(len(sizes)))


def test_the_same_prompt_with_other_pictures_is_another_text():
    model, processor, known = opened("llava", layers=1)
    texts = [prompt((20, 20), seed=seed) for seed in (0, 1)]
    tokens = [known.encode(text) for text in texts]
    assert tokens[0].ids != tokens[1].ids
    for text, own in zip(texts, tokens, strict=True):
        expected = by_hand(model, processor, written("llava", processor, text), text.pictures)
        assert np.abs(capture(known, own, kind="self").layers[0].weights - expected[0]).max() < 1e-5
    assert known.encode(texts[0]) is tokens[0]
    hooks = [part._forward_pre_hooks for part in (model, model.model)]
    assert not any(hooks)
    assert "get_image_features" not in vars(model.model)


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "gemma3"])
def test_a_prompt_that_goes_on_or_is_cut(name):
    _, _, known = opened(name, layers=1)
    tokens = known.encode(prompt((24, 24)))
    rows = capture(known, tokens, kind="self").layers[0].weights
    more = known.encode("dog cat")
    longer = type(tokens)(*(getattr(tokens, own) + getattr(more, own) for own in PARTS))
    again = capture(known, longer, kind="self").layers[0].weights
    assert np.abs(again[:, : len(tokens), : len(tokens)] - rows).max() < 1e-6
    cut = capture(known, tokens.cut(5), kind="self").layers[0].weights
    assert np.isfinite(cut).all()
    with pytest.raises(UsageError, match="give smaller or fewer images"):
        known.encode(prompt((24, 24)), 5)


@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "idefics3"])
def test_a_checkpoint_with_its_processor(name, tmp_path):
    model, processor, known = opened(name, layers=1)
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    loaded = load(str(tmp_path), LoadOptions(work=Work(reads="picture and text")))
    text = prompt((24, 40))
    expected = capture(known, known.encode(text), kind="self").layers[0].weights
    tokens = loaded.encode(text)
    assert np.array_equal(capture(loaded, tokens, kind="self").layers[0].weights, expected)
    for settings in tmp_path.glob("*processor_config.json"):
        settings.unlink()
    with pytest.raises(LoadError, match="how it reads texts with images: it has no file; copy"):
        load(str(tmp_path), LoadOptions(work=Work(reads="picture and text")))
    (tmp_path / "processor_config.json").write_text(json.dumps({"processor_class": "Path"}))
    with pytest.raises(LoadError, match="does not know its Path"):
        load(str(tmp_path), LoadOptions(work=Work(reads="picture and text")))


def test_models_that_read_no_text_with_pictures_are_refused(tmp_path):
    config = transformers.CLIPConfig()
    config.architectures = ["CLIPModel"]
    config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedError, match="reads no text with images: leave the text out"):
        load(str(tmp_path), LoadOptions(work=Work(reads="picture and text")))
    for name, why in (("tiny", "reads text"), ("configs/gpt2", "has random weights and no")):
        with pytest.raises(UsageError, match=why):
            load(name, LoadOptions(work=Work(reads="picture and text")))


def test_the_tower_runs_once_for_all_rows_of_changed_heads():
    model, _, known = opened("llava", layers=2, tower_layers=1)
    calls = []
    tower = model.model.vision_tower
    tower.register_forward_pre_hook(lambda _, args, named: calls.append(named), with_kwargs=True)
    ids = torch.tensor([known.encode(prompt((16, 16), seed=seed)).ids for seed in (0, 1)])
    with torch.inference_mode():
        first = known.model(input_ids=ids).logits
        assert torch.equal(known.model(input_ids=ids).logits, first)
        assert len(calls) == 1
        swapped = known.model(input_ids=ids.flip(0)).logits  # other rows are read again
        assert torch.allclose(swapped.flip(0), first, atol=1e-6)
        assert len(calls) == 2
    known.model(input_ids=ids).logits.sum()  # in another mode of torch
    assert len(calls) == 3
    known.model.to(torch.float64)(input_ids=ids)  # in other numbers
    assert len(calls) == 4
