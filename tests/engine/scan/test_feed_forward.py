"""A scan without feed-forward blocks equals hooks that zero their outputs, on both backends."""

import numpy as np
import pytest
import torch

from attnviz.engine.effects import Variant

from ...attention.test_families import IDS, MODELS
from ..ablation_loop import MASK, PROJECTIONS
from ..architectures import ARCHITECTURES, inputs_of, quick_or_long, small_model, state_of
from ..patch_loop import Put, place_of, run
from ..scans import input_of, measured, torch_scan
from ..stacks import HEADED, both, once_quick

STACKS = [name for name in PROJECTIONS if ARCHITECTURES[name].stack != "encoder"]


def variants_of(layers, heads):
    """A block, two of them, and one with all heads of its layer."""
    first, last = layers[0], layers[-1]
    whole = Variant(tuple((last, head) for head in range(heads)), feed_forward=(last,))
    return [Variant((), feed_forward=(first,)), Variant((), feed_forward=(first, last)), whole]


def loop_losses(model, name, inputs, variants, heads, values=None):
    """The mean loss of the text as it is and without each variant, in nats per token."""
    kind = "decoder" if "decoder_input_ids" in inputs else "self"
    read = inputs["decoder_input_ids" if kind == "decoder" else "input_ids"][0]

    def put(what, layer, head):
        place = place_of(name, kind, what, layer, heads)
        width = 0 if values is None else values[what, layer].shape[-1]
        value = None if values is None else torch.as_tensor(values[what, layer][:, head])
        return Put(place, head, None, Zeros() if value is None else value.expand(len(read), width))

    losses = []
    for variant in (None, *variants):
        heads_out = [put("output", *head) for head in variant.heads] if variant else []
        blocks = [put("mlp", layer, 0) for layer in variant.feed_forward] if variant else []
        scores = run(model, name, inputs, [*heads_out, *blocks])[0].log_softmax(-1)
        losses.append(-float(scores[:-1].gather(-1, read[1:, None]).mean()))
    return np.array(losses)


class Zeros:
    """Zero wherever it is put."""

    def __getitem__(self, tokens):
        return 0.0


@pytest.mark.parametrize("name", quick_or_long(STACKS))
def test_every_architecture_loses_what_it_loses_by_hooks(name):
    model = small_model(name)
    before, inputs = state_of(model), inputs_of(name)
    kind = "decoder" if ARCHITECTURES[name].stack == "both" else "self"
    scan = torch_scan(model, [input_of(inputs)], kind=kind)
    heads = min(scan.heads.values())
    variants = variants_of([*scan.heads], heads)
    found = measured(scan, variants)["loss_delta"]
    losses = loop_losses(model, name, inputs, variants, heads)
    assert found == pytest.approx(losses[1:] - losses[0], abs=1e-5)
    assert np.abs(found).max() > 1e-3
    assert state_of(model) == before


def test_a_masked_model_loses_its_guess_of_each_word():
    model, ids = small_model("bert"), inputs_of("bert")["input_ids"][0, :5]
    scan = torch_scan(model, [input_of({"input_ids": ids[None]})], mask=MASK)
    changes = []
    for at, word in enumerate(ids.tolist()):
        hidden = ids.clone()
        hidden[at] = MASK
        place = place_of("bert", "self", "mlp", 1, 1)
        scores = [
            run(model, "bert", {"input_ids": hidden[None]}, puts)[0].log_softmax(-1)[at, word]
            for puts in ((), [Put(place, 0, None, Zeros())])
        ]
        changes.append(float(scores[0] - scores[1]))
    found = measured(scan, [Variant((), feed_forward=(1,))])["loss_delta"]
    assert found == pytest.approx([np.mean(changes)], abs=1e-5)
    assert not any("mask token" in note for note in scan.notes)


def test_a_masked_model_without_a_mask_token_says_that_it_has_no_loss():
    ids = inputs_of("bert")["input_ids"][0, :5]
    scan = torch_scan(small_model("bert"), [input_of({"input_ids": ids[None]})] * 2)
    assert "loss_delta" not in measured(scan, [Variant((), feed_forward=(1,))])
    assert [note for note in scan.notes if note.startswith("no loss")] == [
        "no loss: the model is bidirectional, and its tokenizer has no mask token"
    ]


@pytest.mark.parametrize(
    "name",
    once_quick([name for name in HEADED if "MaskedLM" not in MODELS[name][0]], every=2, start=1),
)
def test_numpy_loses_the_same(name, tmp_path):
    model = both(name, tmp_path)
    shape = model.numpy.stack.shape
    variants = variants_of(range(shape.layers), shape.heads)
    losses = loop_losses(
        model.wide, model.loop, {"input_ids": torch.tensor([IDS])}, variants, shape.heads
    )
    for scan in model.scans([IDS]):
        found = measured(scan, variants)["loss_delta"]
        assert found == pytest.approx(losses[1:] - losses[0], abs=1e-5)


def test_another_text_or_the_mean_stands_in_on_both_backends(tmp_path):
    model, other = both("gpt2", tmp_path), [*IDS[5:], *IDS[:5]]
    heads, layers = model.numpy.stack.shape.heads, range(model.numpy.stack.shape.layers)
    places = {
        (what, layer): place_of(model.loop, "self", what, layer, heads)
        for what in ("output", "mlp")
        for layer in layers
    }
    inputs = {"input_ids": torch.tensor([other])}
    held = run(model.wide, model.loop, inputs, keep=list(places.values()))[1]
    values = {key: held[place] for key, place in places.items()}
    means = {key: value.mean(0, keepdim=True) for key, value in values.items()}
    variants, given = variants_of(layers, heads), {"input_ids": torch.tensor([IDS])}
    for mode, puts in (("mean", means), ("resample", values)):
        losses = loop_losses(model.wide, model.loop, given, variants, heads, puts)
        for scan in model.scans([IDS], [other], mode=mode):
            found = measured(scan, variants)["loss_delta"]
            assert found == pytest.approx(losses[1:] - losses[0], abs=1e-5), mode


def test_a_random_direction_of_equal_norm_is_the_control(tmp_path):
    model = both("gpt2", tmp_path)
    for scan in model.scans([IDS]):
        variants = [Variant((), feed_forward=(1,))]
        whole, control = (measured(one, variants) for one in (scan, scan.changed(control=True)))
        assert 0 < control["output_mse"][0] != whole["output_mse"][0]
