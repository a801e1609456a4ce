"""The parts of a logit add up to it, and each is what the model's own modules make of it."""

import numpy as np
import pytest
import torch

from attnviz.engine.attribution.on_numpy import NumpyAttributor
from attnviz.engine.attribution.on_torch import TorchAttributor
from attnviz.engine.attribution.parts import AskedLogit
from attnviz.engine.backend import backend_of
from attnviz.engine.patchable import patchable_transformers
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.model import MaskToken
from attnviz.models.prepare import prepared
from attnviz.models.resolve import load
from attnviz.records import Input

from ...attention.test_families import IDS, MODELS
from ..architectures import ARCHITECTURES, inputs_of, quick_or_long, small_model, state_of
from ..stacks import HEADED, both, once_quick
from .attribution_oracle import ROUTES, Recorded, head_written, to_logits

MASK, ANSWER, FOIL, MASKED = MaskToken(96, "<mask>"), 5, 7, 4
ROUNDING = 2e-6
"""Some norms are float32 in any model."""

PREDICTING = [name for name in ARCHITECTURES if name != "fsmt"]
"""transformers tells of no language-model head of fsmt."""
ATTENTIONS = {"self": "attentions", "decoder": "decoder_attentions"}
_LLAMA = ("model.layers.{}.mlp.down_proj", "act_fn", "gate_proj", "up_proj")
_PLAIN = ("mlp.dense_4h_to_h", None, "mlp.dense_h_to_4h", None)


def asked(name):
    """A model's inputs, as transformers and as attnviz take them; masked where it reads ahead."""
    inputs = inputs_of(name)
    if ARCHITECTURES[name].stack == "encoder":
        inputs["input_ids"][0, MASKED] = MASK
    target = inputs.get("decoder_input_ids")
    ids = inputs["input_ids"][0].tolist()
    return inputs, Input.of_ids(ids, None if target is None else target[0].tolist())


def opened(name, model, given):
    kind = "decoder" if ARCHITECTURES[name].stack == "both" else "self"
    return TorchAttributor(patchable_transformers(model, kind, given, MASK), given)


@pytest.mark.parametrize("name", quick_or_long(PREDICTING))
def test_the_parts_add_up_to_the_models_own_logit(name):
    model, (inputs, given) = small_model(name), asked(name)
    before = state_of(model)
    with torch.no_grad():
        logits = model(**inputs).logits[0].double()
    attributor = opened(name, model, given)
    place = MASKED if ARCHITECTURES[name].stack == "encoder" else len(logits) - 1
    positions = [place] if place == MASKED else [place, 3]
    for position in positions:
        found = attributor.attribute(given, position=position, foil=FOIL)
        own = logits[position]
        assert found.answer == int(own.argmax())
        assert found.logit == pytest.approx(float(own.max() - own[FOIL]), abs=1e-5)
        assert [token for token, _ in found.top] == own.topk(5).indices.tolist()
        assert dict(found.top)[found.answer] == pytest.approx(float(own.softmax(-1).max()))
        assert found.tolerance <= 1e-4 * float(own.abs().max()) * 1.001
        assert found.tallies
        assert len(found.rows) == len(found.heads)
        assert found.notes == ()
        for key, row in found.rows.items():
            assert row.sum() == pytest.approx(found.heads[key], abs=found.tolerance)
        assert [part.kind for part in found.parts].count("embedding") == 1
    assert attributor.attribute(given).position == place
    assert state_of(model) == before
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", ROUTES)
def test_each_part_is_what_the_models_own_modules_make_of_it(name):
    model, (inputs, given) = small_model(name, attention="eager"), asked(name)
    if name != "gpt_oss":  # its experts know no float64
        model = model.double()
    route, run = ROUTES[name], Recorded(model, inputs, output_attentions=True)
    layers = len(ARCHITECTURES[name].layers)
    place = MASKED if name == "bert" else len(given.predicted) - 1
    attributor = opened(name, model, given)
    keys = list(attributor.attribute(given).heads)
    found = attributor.attribute(given, answer=ANSWER, foil=FOIL, maps=keys)

    def towards(logits):
        return (logits[..., ANSWER] - logits[..., FOIL]).detach()

    parts = {(one.kind, one.layer): one.contribution for one in found.parts if one.head is None}
    entered = run.entered[route.block.format(0)][0, place]
    stream = to_logits(run, route, layers, 0, 0, entered, place)
    assert parts["embedding", None] == pytest.approx(float(towards(stream)), abs=ROUNDING)
    for layer in range(layers):
        path, *between = (one.format(layer) for one in route.mlp)
        written = run.left[path].flatten(0, -2)[place]
        for step in between:
            written = run.through(step, written, place)
        bias = getattr(model.get_submodule(path), "bias", None)
        assert bias is None or name in ("bert", "bloom")
        written = to_logits(run, route, layers, layer, 1, written, place)
        assert parts["mlp", layer] == pytest.approx(float(towards(written)), abs=ROUNDING), layer

    for kind, layer, head in keys:
        total = sum(key[:2] == (kind, layer) for key in keys)
        merged = run.entered[route.heads[kind][0].format(layer)][0]
        alone = torch.zeros_like(merged).unflatten(-1, (total, -1))
        alone[:, head] = merged.unflatten(-1, (total, -1))[:, head]
        alone = alone.flatten(-2)
        one = towards(head_written(run, route, layers, kind, layer, alone[place], place))
        assert found.heads[kind, layer, head] == pytest.approx(float(one), abs=ROUNDING)
        if kind not in route.values:
            continue
        # Every query and source token: the weights that transformers reports times the values.
        reported = run.outputs["cross_attentions" if kind == "cross" else ATTENTIONS[kind]]
        weights = reported[layer][0, head]
        values = run.left[route.values[kind].format(layer)][0]
        values = values.unflatten(-1, (-1, alone.shape[-1] // total))
        group = head * values.shape[1] // total
        for query in {place, 1}:
            moved = torch.zeros(len(values), total, values.shape[-1], dtype=values.dtype)
            moved[:, head] = weights[query, :, None] * values[:, group]
            each = head_written(run, route, layers, kind, layer, moved.flatten(-2), query)
            expected = towards(each).numpy()
            assert found.maps[kind, layer, head][query] == pytest.approx(expected, abs=ROUNDING)
        assert found.rows[kind, layer, head] == pytest.approx(
            found.maps[kind, layer, head][place], abs=ROUNDING
        )


def test_a_softcap_is_named_and_undone():
    model, (inputs, given) = small_model("gemma2"), asked("gemma2")
    with torch.no_grad():
        model.lm_head.weight.mul_(20)  # into the bend of the cap
        logits = model(**inputs).logits[0, -1].double()
    found = opened("gemma2", model, given).attribute(given, answer=ANSWER, foil=FOIL)
    cap = model.config.final_logit_softcapping
    assert found.softcap == pytest.approx(cap)
    before = cap * torch.atanh(logits / cap)
    assert found.logit == pytest.approx(float(logits[ANSWER] - logits[FOIL]), abs=1e-4)
    assert found.uncapped == pytest.approx(float(before[ANSWER] - before[FOIL]), rel=1e-3)
    assert abs(found.uncapped - found.logit) > 0.5
    assert found.tallies


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gpt2", "gemma2", "t5"])
def test_half_precision_tallies_within_its_own_rounding(name, dtype):
    model, (_, given) = small_model(name), asked(name)
    whole = opened(name, model, given).attribute(given, answer=ANSWER)
    half = opened(name, model.to(dtype), given).attribute(given, answer=ANSWER)
    assert half.tallies
    assert len(half.rows) == len(half.heads)
    assert half.tolerance <= 0.07 * max(abs(half.logit) * 4, 4)
    for key, contribution in whole.heads.items():
        assert half.heads[key] == pytest.approx(contribution, abs=half.tolerance)


def test_a_model_whose_parts_do_not_add_up_says_so():
    model, (_, given) = small_model("gpt2"), asked("gpt2")

    def change(module, args, output):
        output.mul_(1.1)  # in place, behind the back of what follows the pass

    model.transformer.h[1].mlp.register_forward_hook(change)
    found = opened("gpt2", model, given).attribute(given)
    assert found.tallies
    model.transformer.h[1].register_forward_hook(change)
    found = opened("gpt2", model, given).attribute(given)
    assert abs(found.sum - found.logit) > 10 * found.tolerance
    assert not found.tallies


def test_a_hook_that_asks_for_gradients_changes_nothing():
    """As ``enable_input_require_grads`` sets it, which training with adapters calls."""
    model, (_, given) = small_model("llama"), asked("llama")
    plain = opened("llama", model, given).attribute(given)
    model.enable_input_require_grads()
    assert opened("llama", model, given).attribute(given).heads == plain.heads


@pytest.mark.parametrize("change", [torch.sin, lambda stream: stream.cumsum(-1)])
def test_a_stream_that_is_lost_is_refused_and_the_model_left_alone(change):
    model, (_, given) = small_model("llama"), asked("llama")
    model.model.layers[1].register_forward_hook(lambda *call: change(call[-1]))
    attributor, before = opened("llama", model, given), state_of(model)
    with pytest.raises(UnsupportedError, match="cannot be followed"):
        attributor.attribute(given)
    assert state_of(model) == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"position": 11}, "no position 11: the text has tokens 0 to 10"),
        ({"answer": 97}, "no answer 97: the model has tokens 0 to 96"),
        ({"answer": 5, "foil": 5}, "the same token"),
        ({"maps": [("self", 3, 0)]}, "no self head 0 in layer 3"),
        ({"maps": [("cross", 0, 0)]}, "no cross head 0 in layer 0"),
    ],
)
def test_what_does_not_exist_is_refused(options, said):
    model, (_, given) = small_model("gpt2"), asked("gpt2")
    attributor, before = opened("gpt2", model, given), state_of(model)
    with pytest.raises(UsageError, match=said):
        attributor.attribute(given, **options)
    assert state_of(model) == before


def test_a_model_that_reads_both_ways_predicts_only_what_is_masked():
    model, (_, given) = small_model("bert"), asked("bert")
    attributor = opened("bert", model, given)
    with pytest.raises(UsageError, match="position 3 is not a mask token: expected position 4"):
        attributor.attribute(given, position=3)
    with pytest.raises(UsageError, match="predicts what its mask token hides"):
        attributor.attribute(Input.of_ids([5, 6, 7]))
    unmasked = TorchAttributor(patchable_transformers(model, "self", given), given)
    with pytest.raises(UsageError, match="has no mask token"):
        unmasked.attribute(given)


def test_a_model_without_predictions_is_refused():
    given = Input.of_ids([5, 6, 7])
    with pytest.raises(UsageError, match="'mha' predicts no tokens"):
        backend_of(load("mha")).open_attributor(given)
    headless = prepared("bert", small_model("bert").bert, None, torch.device("cpu"), seed=0)
    with pytest.raises(UsageError, match="predicts no tokens"):
        backend_of(headless).open_attributor(given)


BLOCKS = {
    **dict.fromkeys(("llama", "cohere", "gemma2", "olmo2", "mistral", "qwen2", "qwen3"), _LLAMA),
    "gpt2": ("transformer.h.{}.mlp.c_proj", None, "mlp.c_fc", None),
    "gpt_neox": (f"gpt_neox.layers.{{}}.{_PLAIN[0]}", *_PLAIN[1:]),
    "bloom": (f"transformer.h.{{}}.{_PLAIN[0]}", *_PLAIN[1:]),
    "bert": ("bert.encoder.layer.{}.output.dense", None, "intermediate.dense", None),
    "t5": ("decoder.block.{}.layer.2.DenseReluDense.wo", None, "wi", None),
}
"""By architecture the last matrix of the block, written from the modeling files."""


def written_by_hand(name, model, inputs, layer, place):
    """The contribution of each neuron (neuron,), and of the bias, through the held modules."""
    run, route = Recorded(model, inputs), ROUTES.get(name, ROUTES["llama"])
    path = BLOCKS[name][0].format(layer)
    down, inner = model.get_submodule(path), run.entered[path].flatten(0, -2)
    weight = down.weight if name == "gpt2" else down.weight.T  # (neuron, width)
    rows = inner[place][:, None] * weight
    bias = getattr(down, "bias", None)
    rows = torch.cat([rows, torch.zeros_like(rows[:1]) if bias is None else bias[None]])
    for step in route.mlp[1:]:
        rows = run.through(step.format(layer), rows, place)
    logits = to_logits(run, route, len(ARCHITECTURES[name].layers), layer, 1, rows, place)
    towards = (logits[:, ANSWER] - logits[:, FOIL]).detach().numpy()
    return towards[:-1], towards[-1], inner.numpy()


@pytest.mark.parametrize("name", quick_or_long(BLOCKS))
def test_every_architecture_writes_what_its_modules_make(name):
    model, (inputs, given) = small_model(name, attention="eager").double(), asked(name)
    before = state_of(model)
    place = MASKED if name == "bert" else len(given.predicted) - 1
    attributor = opened(name, model, given)
    parts = attributor.attribute(given, answer=ANSWER, foil=FOIL).parts
    for layer in {0, len(ARCHITECTURES[name].layers) - 1}:
        found = attributor.neurons(given, AskedLogit(None, ANSWER, FOIL, ()), layer)
        neurons, bias, inner = written_by_hand(name, model, inputs, layer, place)
        assert found.written == pytest.approx(neurons, abs=1e-5)
        assert found.bias == pytest.approx(bias, abs=1e-5)
        assert found.values == pytest.approx(inner, abs=1e-5)
        part = sum(p.contribution for p in parts if p.layer == layer and p.kind == "mlp")
        assert found.written.sum() + found.bias == pytest.approx(part, abs=1e-5)
        assert found.tallies
        assert found.activation is not None
        product = found.active if found.up is None else found.active * found.up
        assert product == pytest.approx(found.values, abs=1e-6)
        assert (found.up is not None) == (BLOCKS[name] is _LLAMA)
    assert state_of(model) == before


def test_layers_that_share_a_block_are_told_apart():
    model, (_, given) = small_model("albert"), asked("albert")
    attributor = opened("albert", model, given)
    found = [attributor.neurons(given, AskedLogit(None, 5, 7, ()), at) for at in range(3)]
    assert all(reading.tallies for reading in found)
    assert not np.allclose(found[0].values, found[1].values)


@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_next"])
def test_experts_are_refused(name):
    model, (_, given) = small_model(name), asked(name)
    with pytest.raises(UnsupportedError, match="not a sum over neurons, as with experts"):
        opened(name, model, given).neurons(given, AskedLogit(None, ANSWER, FOIL, ()), 1)


@pytest.mark.parametrize(
    "name", once_quick([name for name in HEADED if "MaskedLM" not in MODELS[name][0]], every=2)
)
def test_numpy_says_the_same(name, tmp_path):
    model, given = both(name, tmp_path), Input.of_ids(IDS)
    patchable = patchable_transformers(model.wide, "self", given, None)
    question = AskedLogit(-2, ANSWER, FOIL, ())
    for layer in {0, model.numpy.stack.shape.layers - 1}:
        other = TorchAttributor(patchable, given).neurons(given, question, layer)
        found = NumpyAttributor(model.numpy).neurons(given, question, layer)
        assert found.position == other.position
        for own, theirs in ((found.written, other.written), (found.values, other.values)):
            assert own == pytest.approx(theirs, abs=1e-5, rel=1e-4)
        assert found.bias == pytest.approx(other.bias, abs=1e-5)
        assert found.part == pytest.approx(other.part, abs=2e-5)
        assert found.tallies
        assert found.activation == other.activation
        assert (found.up is None) == (other.up is None)
        assert found.off() == pytest.approx(other.off(), abs=1e-3)
