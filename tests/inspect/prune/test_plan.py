"""The plan that is counted from tensors' shapes, compared with the one that transformers makes."""

import pytest

from attnviz.inspect.prune.prune import StackPlan, is_planned
from attnviz.inspect.prune.store import PruneStore
from attnviz.models.huggingface import load_transformers
from attnviz.models.stack_model import StackModel
from attnviz.models.work import LoadOptions

from ...attention.test_families import MODELS, made, stack
from ...conftest import save_tokenizer

ASKED = ("llama, biases", "llama 3", "phi3, long", "phi3", "phi3, window")
"""Models of which only transformers knows what their config can say."""


@pytest.mark.parametrize(
    "name",
    [name if "," not in name else pytest.param(name, marks=pytest.mark.long) for name in MODELS],
)
def test_the_plan_is_the_one_of_transformers(name, tmp_path):
    """Of every family, and with ``long`` of every variation of one."""
    made(tmp_path, name)
    save_tokenizer(tmp_path)
    torch = load_transformers(str(tmp_path), LoadOptions(dtype="float32"))
    found, read = stack(tmp_path)
    ours = StackModel(
        torch.info, found, lambda: pytest.fail("no text is read"), parameters=read.parameters
    )
    assert is_planned(ours) == (name not in ASKED)
    if name in ASKED:
        return
    theirs, mine = PruneStore(torch, None, ()), StackPlan(ours)
    assert (mine.layers, mine.parameters) == (theirs.layers, theirs.parameters)
    info = torch.info
    group = info.heads // info.kv_heads
    one = [(layer, layer % info.heads) for layer in mine.layers]
    shared = [
        (layer, key * group + (layer + key) % group)
        for layer in mine.layers
        for key in range(info.kv_heads)
    ]
    for heads in (one, one[:1], shared[: len(shared) * (group > 1)], [*one, (0, info.heads - 1)]):
        assert mine.make(heads) == theirs.make(heads)


def test_tied_or_further_tensors_are_left_to_transformers(tmp_path):
    from safetensors.torch import load_file, save_file

    made(tmp_path, "gpt2")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    word = tensors["transformer.wte.weight"]
    save_file({**tensors, "lm_head.weight": word.clone()}, path, {"format": "pt"})
    assert stack(tmp_path)[1].parameters is None
