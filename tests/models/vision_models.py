"""Random vision models of each family, as a person would hand them over with a processor."""

import numpy as np
import torch
import transformers
from transformers import ViTImageProcessorPil

SIDE, PATCH = 32, 8
_SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": SIDE,
    "patch_size": PATCH,
}
_TEXT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 99}
_BOTH = {"vision_config": {**_SIZES, "intermediate_size": 64}}
_BOTH["text_config"] = {**_TEXT, "intermediate_size": 32}

FAMILIES = {  # the class, further settings of its config, and the tokens before the patches
    "ViTForImageClassification": ({"num_labels": 3}, ("CLS",)),
    "DeiTModel": ({}, ("CLS", "CLS2")),
    "CLIPModel": (_BOTH, ("CLS",)),
    "SiglipVisionModel": ({}, ()),
    "Dinov2Model": ({"mlp_ratio": 2}, ("CLS",)),
    "Dinov2WithRegistersModel": ({"mlp_ratio": 2}, ("CLS", "R1", "R2", "R3", "R4")),
    "DINOv3ViTModel": ({"num_register_tokens": 2}, ("CLS", "R1", "R2")),
    "BeitModel": ({"use_relative_position_bias": True}, ("CLS",)),
}


def build(name, **changed):
    """A random model of a class, its weights large enough that attention is not even."""
    model_class = getattr(transformers, name)
    settings = FAMILIES[name][0] | changed
    sizes = {} if "vision_config" in settings else _SIZES | {"intermediate_size": 64}
    if "mlp_ratio" in settings:
        del sizes["intermediate_size"]
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**(sizes | settings))).eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter.ndim == 2 and any(word in parameter_name for word in ("q_proj", "query")):
            parameter.data *= 20
    return model


def processor(height=SIDE, width=SIDE):
    return ViTImageProcessorPil(size={"height": height, "width": width})


def noise(height=60, width=44, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
