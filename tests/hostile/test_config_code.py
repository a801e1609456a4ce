"""A config.json chooses no code: nothing is fetched from the hub, whatever it names."""

import json
import os
import subprocess
import sys

import pytest

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

KERNELS = '''
"""Stands in for the package that fetches code from the hub, and notes what it is asked for."""

import os


def _noted(*arguments, **options):
    with open(os.environ["NOTED"], "a") as file:
        file.write(f"{arguments} {options}\\n")
    raise FileNotFoundError("code from the hub")


get_kernel = kernelize = replace_kernel_forward_from_hub = _noted


def use_kernel_forward_from_hub(*names):
    return lambda decorated: decorated


use_kernelized_func = use_kernel_forward_from_hub


class _Harmless:
    def __init__(self, *arguments, **options): ...


CUDAProperties = Device = KernelizeFallback = LayerRepository = LocalLayerRepository = _Harmless
FuncRepository = Mode = ROCMProperties = _Harmless
register_kernel_mapping = use_kernel_mapping = _Harmless
'''
FROM_PYTHON = """
import sys, transformers
assert transformers.utils.is_kernels_available()
from attnviz.models.resolve import load, LoadOptions
from attnviz.count.params.meta_count import count_on_meta
from attnviz.reading import read_json
from pathlib import Path
load(sys.argv[1], LoadOptions(offline=True)).encode("the cat")
count_on_meta(read_json(Path(sys.argv[1], "config.json")))
"""


@pytest.fixture
def hub_code(tmp_path, environment):
    """An environment in which the package ``kernels`` seems installed, and what it notes."""
    packages, noted = tmp_path / "packages", tmp_path / "noted.txt"
    (packages / "kernels" / "layer").mkdir(parents=True)
    (packages / "kernels" / "__init__.py").write_text(KERNELS)
    (packages / "kernels" / "layer" / "__init__.py").write_text("")
    (packages / "kernels" / "layer" / "mode.py").write_text("from kernels import Mode\n")
    said = packages / "kernels-0.18.2.dist-info"
    said.mkdir()
    (said / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 0.18.2\n")
    path = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
    return environment | {"PYTHONPATH": path, "NOTED": str(noted)}, noted


def test_a_config_that_names_code_just_opens(llama, document):
    file = llama() / "config.json"
    before = json.loads(file.read_text())
    plain = document("the cat", "--backend", "torch", "--model", "m")
    for fields in CHOICES:
        file.write_text(json.dumps(before | fields))
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


@pytest.mark.long
def test_python_calls_no_code_of_the_hub(llama, hub_code):
    directory = llama(_attn_implementation=HUB_CODE, attn_implementation=HUB_CODE)
    done = subprocess.run(
        [sys.executable, "-c", FROM_PYTHON, str(directory)],
        env=hub_code[0],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not hub_code[1].exists()
