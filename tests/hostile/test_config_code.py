"""A config.json chooses no code: nothing is fetched from the hub, whatever it names."""

import json

from attnviz.count.params.meta_count import count_on_meta

HUB_CODE = "kernels-community/evil"
CHOICES = [
    {"_attn_implementation": HUB_CODE},
    {"attn_implementation": HUB_CODE},
    {"attn_implementation": {"": HUB_CODE}},
    {"attn_implementation": "flash_attention_2"},
    {"_attn_implementation_internal": HUB_CODE},
    {"experts_implementation": "sonicmoe", "use_kernels": True},
    {"transformers_weights": "../other.safetensors"},
]


def test_a_config_that_names_code_just_opens(llama, document):
    file = llama() / "config.json"
    before = json.loads(file.read_text())
    plain = document("the cat", "--backend", "torch", "--model", "m")
    for fields in CHOICES:
        file.write_text(json.dumps(before | fields))
        assert count_on_meta(before | fields).total == 2268, fields
        assert document("the cat", "--model", "m")["heads"] == plain["heads"], fields


def test_a_part_of_a_config_names_no_code_either(llama):
    from transformers import AutoConfig

    from attnviz.models.attention_interface import without_choices

    asked = {"_attn_implementation": HUB_CODE, "experts_implementation": "sonicmoe"}
    text = {"num_hidden_layers": 2, "hidden_size": 8, **asked}
    config = AutoConfig.for_model("gemma3", text_config=text, vision_config=dict(asked), **asked)
    config.more = [{"attn_implementation": HUB_CODE}]
    without_choices(config)
    for part in (config, config.text_config, config.vision_config):
        assert part._attn_implementation is None
        assert part._experts_implementation is None
    assert config.more == [{}]
