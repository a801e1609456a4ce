"""A model that does not fit: its layers wait on disk, and every number stays what it was."""

import copy
import io
import json
from types import SimpleNamespace

import pytest
import torch

import attnviz
from attnviz.errors import LoadError, UnsupportedError
from attnviz.models import placement
from attnviz.models.split import device_of, whole_weight

from ..quick import one_in

TEXT = "the cat sat on the mat"
SMALL = "1kB"
"""Less than the weights of a layer of the tiny Llama."""

QUESTIONS = {
    "ablate": lambda model: attnviz.ablate(model, [TEXT]),
    "generate": lambda model: attnviz.generate(model, TEXT, tokens=2),
    "gradient": lambda model: attnviz.ablate(model, [TEXT], method="gradient"),
    "heads": lambda model: attnviz.heads(model, TEXT),
    "link": lambda model: attnviz.link(model, TEXT),
    "norms": lambda model: attnviz.patterns(model, TEXT, norm_weighted=True),
    "patch": lambda model: attnviz.patch(
        model, "the cat sat", "the mat sat", method="gradient", answer="on", foil="mat"
    ),
    "patterns": lambda model: attnviz.patterns(model, TEXT),
    "pooled": lambda model: attnviz.heads(model, TEXT, reduce="fused"),
    "rollout": lambda model: attnviz.rollout(model, TEXT),
    "why": lambda model: attnviz.why(model, TEXT),
}


@pytest.fixture(scope="module")
def on_disk(checkpoint):
    return attnviz.load(checkpoint("llama"), device="auto", max_memory=SMALL)


@pytest.fixture(scope="module")
def whole(checkpoint):
    return attnviz.load(checkpoint("llama"))


def without_places(report):
    """Return the JSON of a report without what says where the model lies, and for how long."""
    stream = io.StringIO()
    report.write_json(stream)
    found = json.loads(stream.getvalue())
    found.pop("seconds", None)
    for model in (found["model"], *(run.get("model", {}) for run in found.get("runs", ()))):
        model.update(device="", notes=[], name="")
    return found


@pytest.mark.parametrize("question", one_in(2, QUESTIONS))
def test_weights_on_disk_give_the_same_numbers(question, on_disk, whole):
    assert all(weight.is_meta for weight in on_disk.model.parameters())
    ask = QUESTIONS[question]
    assert without_places(ask(on_disk)) == without_places(ask(whole))


def test_a_weight_on_disk_is_read_whole(on_disk, whole):
    found = whole_weight(on_disk.model.lm_head)
    assert torch.equal(found, whole.model.lm_head.weight)
    assert on_disk.model.lm_head.weight.is_meta


def test_a_model_that_accelerate_offloaded_whole_takes_its_inputs_where_it_computes(whole):
    from accelerate import cpu_offload

    offloaded = cpu_offload(copy.deepcopy(whole.model))
    assert (offloaded.device.type, device_of(offloaded).type) == ("meta", "cpu")


@pytest.mark.parametrize("what", ["verify", "prune"])
def test_what_reads_all_weights_refuses(what, on_disk, tmp_path):
    texts = [TEXT, "the mat sat on the cat"]
    ask = {
        "verify": lambda: attnviz.verify(on_disk, TEXT),
        "prune": lambda: attnviz.prune(on_disk, texts, heads="L0H1", out=tmp_path / "smaller"),
    }
    with pytest.raises(UnsupportedError, match="wait on disk"):
        ask[what]()


def test_screen_and_json_say_where_the_layers_lie(run, checkpoint):
    arguments = ("rollout", TEXT, "--model", str(checkpoint("llama")), "--device", "auto")
    found = run(*arguments, "--max-memory", SMALL)
    assert "float32 on disk" in found.out
    for command in ("rollout", "heads"):
        small = run(command, *arguments[1:], "--max-memory", SMALL, "--no-full")
        assert " · on disk · " in small.lines[0]
    assert "all of its weights lie on disk" in found.out
    model = run(*arguments, "--max-memory", SMALL, "--json").document["model"]
    assert (model["device"], model["backend"]) == ("disk", "torch")
    assert run(*arguments, "--json").document["model"]["device"] == "cpu"


@pytest.mark.parametrize(
    ("places", "devices", "said"),
    [
        ({}, "", ""),
        ({"": "disk"}, "disk", "all of its weights lie on disk"),
        (
            {"embed": 0, "layers.0": 0, "layers.1": "cpu", "layers.2": "cpu", "norm": "disk"},
            "cuda:0 and cpu and disk",
            "of its 3 layers, from the first: 1 on cuda:0, 2 on cpu",
        ),
        (
            {"embed": 0, "layers": 1, "norm": 0},
            "cuda:0 and cuda:1",
            "of its 3 layers, from the first: 3 on cuda:1",
        ),
    ],
)
def test_places_are_said_in_words(places, devices, said):
    names = [
        "",
        "embed",
        "layers",
        *(f"layers.{at}" for at in range(3)),
        "layers.0.heads.1",
        "norm",
    ]
    model = SimpleNamespace(
        hf_device_map=places, named_modules=lambda: [(name, None) for name in names]
    )
    assert placement.places_of(model) == (devices, (said,) * bool(said))


def test_accelerate_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(placement, "find_spec", lambda name: None)
    with pytest.raises(LoadError, match=r"pip install 'attnviz\[dist\]'"):
        placement.spread(None, None)
