"""Small random models of every causal class of transformers, made from the config classes alone.

Each field of a config's defaults that names a size gets a small one, in nested configs as well, by
what it is called; nothing here knows an architecture but the few lines of ``every_causal.yaml``.
"""

import re
from pathlib import Path

import torch
import transformers
import yaml
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

LAYERS, HEADS, KV_HEADS, WORDS = 4, 4, 2, 97
_TABLE = yaml.safe_load(Path(__file__).with_name("every_causal.yaml").read_text(encoding="utf-8"))
_UNSET = r"head_dim|num_key_value_heads|n_routed_experts|n_shared_experts|num_experts_per_tok"
_LATENT = {"head_dim": 4, "num_key_value_heads": HEADS}


def causal_kinds():
    return [kind for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if kind in CONFIG_MAPPING_NAMES]


def small_config(kind):
    cls = transformers.CONFIG_MAPPING[kind]
    fields = _small(cls().to_dict())
    fields |= _TABLE["special"].get(kind, {})
    return cls(**fields, architectures=[MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]])


def small_causal(kind, attention=None):
    """Its model with random weights of some size, in evaluation mode."""
    config = small_config(kind)
    torch.manual_seed(0)
    cls = transformers.AutoModelForCausalLM
    model = cls.from_config(config, attn_implementation=attention).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.requires_grad_(False)


def _small(fields):
    """The fields whose names tell that they are sizes, small."""
    found = {}
    layers = next(
        (
            v
            for k, v in fields.items()
            if re.fullmatch(r"num_hidden_layers|n_layers?|num_layers", k)
        ),
        None,
    )
    for name, value in fields.items():
        if value is None and re.fullmatch(_UNSET, name):
            value = 1
        if name == "is_decoder":
            found[name] = True  # a text predictor of this class is one
        elif isinstance(value, dict) and "model_type" in value:
            found[name] = _small(value) | {"model_type": value["model_type"]}
        elif isinstance(value, dict) and name in ("attn_config", "ffn_config"):
            found[name] = _small(value)
        elif isinstance(value, list) and layers and len(value) == layers and layers > LAYERS:
            found[name] = _kinds_of(value)
        elif re.fullmatch(
            r"(pad|bos|eos|decoder_start|sep|cls|mask|unk|image|boi|eoi|audio|video)_token_id", name
        ):
            found[name] = {"pad": 0, "bos": 1, "eos": 2}.get(name[:3], 3)
        elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
            size = next(
                (size for pattern, size in _TABLE["sizes"] if re.fullmatch(pattern, name)), None
            )
            if size is not None:
                found[name] = size
    return found | (_LATENT if "qk_rope_head_dim" in found else {})


def _kinds_of(values):
    """As many as there are layers, with each kind of layer among them."""
    kinds = sorted(set(values), key=values.index)
    return [kinds[at % len(kinds)] for at in range(LAYERS)]
