"""What is answered on a GPU, of whatever maker, is what is answered on the processor.

A runner with Apple's sets PYTORCH_ENABLE_MPS_FALLBACK=1.
"""

import copy

import numpy as np
import pytest
import torch
import transformers

import attnviz
from attnviz.models.prepare import prepared

from ..small_models import llama_fields

TEXT = " ".join(f"w{word}" for word in np.random.default_rng(1).integers(0, 60, 150))
ASKED = {
    "heads": {"reduce": "fused", "top": 3},
    "patterns": {"reduce": "fused"},
    "lens": {},
    "why": {},
    "ablate": {},
}


def numbers(found):
    """All numbers of a JSON object, in order."""
    if isinstance(found, dict):
        found = found.values()
    if isinstance(found, list | type({}.values())):
        return [number for each in found for number in numbers(each)]
    return [found] if isinstance(found, float) else []


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("command", ASKED)
def test_a_gpu_answers_as_the_processor_does(command):
    torch.manual_seed(3)
    fields = llama_fields(12, 17, 512, (6, 2, 4)) | {"vocab_size": 101, "initializer_range": 1.0}
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))
    devices = [torch.device("cpu"), torch.accelerator.current_accelerator()]
    found = []
    for device in devices:
        model = prepared("made", copy.deepcopy(made).to(device), None, device)
        found.append(getattr(attnviz, command)(model, TEXT, **ASKED[command]).to_dict())
        found[-1].pop("seconds", None)
    expected, given = map(numbers, found)
    assert given == pytest.approx(expected, abs=1e-3)
