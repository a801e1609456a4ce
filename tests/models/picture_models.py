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
_TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
PROCESSORS = _TABLE["processors"]
"""By name the image processor of a family with its settings, its processor and what that takes."""
_OWN = {"Idefics3Processor": Idefics3Processor, "PixtralProcessor": PixtralProcessor}
FAMILIES = _TABLE["families"]
"""By name a config's class, its settings, its tower and text, and what makes the processor."""


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


def parts_of(name):
    """Return an image processor without torchvision, a processor's class and its settings."""
    row = PROCESSORS[name]
    images = getattr(transformers, f"{row['images']}ImageProcessorPil")(**row["settings"])
    vars(images).update(row.get("attributes", {}))
    return images, _OWN.get(row["make"]) or getattr(transformers, row["make"]), row.get("extra", {})


def tiny(name, *, layers=0, tower_layers=0):
    """Return a family's model with random weights and its processor.

    A tower with no layers passes its embedded patches on. Where a model reads the states after a
    layer, it has one that changes nothing.
    """
    family = FAMILIES[name]
    settings, tower = family["settings"], family["tower"]
    images, processor_class, extra = parts_of(family["processor"])
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
