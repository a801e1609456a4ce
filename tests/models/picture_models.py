"""Tiny vision-language models of each family with random weights, and their processors."""

import sys
from pathlib import Path

import torch
import transformers
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.pixtral import image_processing_pil_pixtral

from attnviz.models.picture_texts import without_videos

# Pixtral's processor takes one function from a module that needs torchvision.
sys.modules.setdefault(
    "transformers.models.pixtral.image_processing_pixtral", image_processing_pil_pixtral
)
from transformers.models.pixtral.processing_pixtral import PixtralProcessor  # noqa: E402

WORDS = "what is in the picture ? write a general description of image . dog cat : User Assistant"

MARKS = {  # the special tokens of a family's prompt, by the names that its processor reads
    "image_token": "<image>",
    "boi_token": "<boi>",
    "eoi_token": "<eoi>",
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<image>",
    "video_token": "<video>",
}
OTHERS = ["[IMG_BREAK]", "[IMG_END]", "<fake_token_around_image>", "<global-img>", "\n", "\n\n"]
OTHERS += [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
OTHERS += ["\n\n\n", "<end_of_utterance>"]


def tokenizer():
    special = ["<pad>", "<bos>", "<eos>", "<unk>", *dict.fromkeys(MARKS.values()), *OTHERS]
    words = dict.fromkeys([*special, *WORDS.split()])
    plain = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, "<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        extra_special_tokens=MARKS,
        additional_special_tokens=OTHERS,
    )


SIDE = {"height": 16, "width": 16}


def pictures(name, **settings):
    """Return the image processor of a family, without torchvision."""
    return getattr(transformers, f"{name}ImageProcessorPil")(**settings)


def _llava():
    images = pictures("CLIP", size={"shortest_edge": 16}, crop_size=SIDE)
    make = transformers.LlavaProcessor
    extra = {"patch_size": 4, "vision_feature_select_strategy": "default"}
    return images, make, extra | {"num_additional_image_tokens": 1}


def _llava_next():
    pins = [[16, 32], [32, 16], [32, 32], [48, 16]]
    images = pictures(
        "LlavaNext", size={"shortest_edge": 16}, crop_size=SIDE, image_grid_pinpoints=pins
    )
    extra = {"patch_size": 4, "vision_feature_select_strategy": "default"}
    return images, transformers.LlavaNextProcessor, extra | {"num_additional_image_tokens": 1}


def _onevision():
    pins = [[high, wide] for high in (16, 32, 48) for wide in (16, 32, 48)]
    images = pictures("LlavaOnevision", size=SIDE, image_grid_pinpoints=pins)
    extra = {"num_image_tokens": 16, "vision_feature_select_strategy": "full"}
    return images, transformers.LlavaOnevisionProcessor, extra | {"vision_aspect_ratio": MAX}


MAX = "anyres_max_3"


def _qwen():
    sizes = {"patch_size": 4, "merge_size": 2, "min_pixels": 64, "max_pixels": 10**6}
    return pictures("Qwen2VL", **sizes), transformers.Qwen2VLProcessor, {}


def _qwen3():
    return _qwen()[0], transformers.Qwen3VLProcessor, {}


def _idefics3():
    sizes = {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16}}
    return pictures("Idefics3", **sizes), Idefics3Processor, {"image_seq_len": 4}


def _smolvlm():
    sizes = {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16}}
    return pictures("SmolVLM", **sizes), Idefics3Processor, {"image_seq_len": 4}


def _internvl():
    sizes = {"size": SIDE, "crop_to_patches": True, "max_patches": 6}
    return pictures("GotOcr2", **sizes), transformers.InternVLProcessor, {"image_seq_length": 4}


def _paligemma():
    images = pictures("Siglip", size=SIDE)
    images.image_seq_length = 16
    return images, transformers.PaliGemmaProcessor, {}


def _gemma3():
    images = pictures("Gemma3", size=SIDE)
    return images, transformers.Gemma3Processor, {"image_seq_length": 4}


def _pixtral():
    images = pictures("Pixtral", patch_size=4, size={"longest_edge": 40})
    extra = {"patch_size": 4, "spatial_merge_size": 2, "image_token": "<image>"}
    return images, PixtralProcessor, extra


def _pixtral_unmerged():
    images, make, extra = _pixtral()
    return images, make, extra | {"spatial_merge_size": 1}


PROCESSORS = {
    make.__name__[1:]: make
    for make in (
        *(_llava, _llava_next, _onevision, _qwen, _qwen3, _idefics3, _smolvlm, _internvl),
        *(_paligemma, _gemma3, _pixtral, _pixtral_unmerged),
    )
}
_TABLE = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
FAMILIES = yaml.safe_load(_TABLE)["families"]
"""By name a config's class, its settings, its tower and text, and what makes the processor."""


def tiny(name, *, layers=0, tower_layers=0):
    """Return a family's model with random weights and its processor.

    A tower with no layers passes its embedded patches on. Where a model reads the states after a
    layer, it has one that changes nothing.
    """
    family = FAMILIES[name]
    settings, tower = family["settings"], family["tower"]
    images, processor_class, extra = PROCESSORS[family["processor"]]()
    words = tokenizer()
    still = tower_layers == 0 and "vision_feature_layer" in settings
    count = "depth" if "depth" in tower else "num_hidden_layers"
    config = getattr(transformers, f"{family['class']}Config")(
        vision_config={**tower, count: tower_layers + still},
        text_config={**family["text"], "num_hidden_layers": layers},
        image_token_id=words.convert_tokens_to_ids("<image>"),
        **settings,
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{family['class']}ForConditionalGeneration")
    model = model(config).eval()
    for key, weight in model.named_parameters():
        if "mm_input_projection" in key:  # zeros, of which nothing would be seen
            torch.nn.init.normal_(weight)
    if still:
        for key, weight in model.named_parameters():
            if "vision_tower" in key and "layers.0." in key:
                weight.data.zero_()
    make = without_videos(processor_class)
    return model, make(image_processor=images, tokenizer=words, **extra)
