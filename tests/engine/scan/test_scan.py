"""Scans of models: on every architecture against the slow loop, and what they leave behind."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Model, GPTBigCodeConfig

from attnviz.engine.effects import METRICS, ScanOptions, Variant
from attnviz.engine.patchable import ablating, patchable_transformers, probe_of
from attnviz.engine.scan.plan import is_causal
from attnviz.engine.scan.run import open_scan
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.own import OwnAttention
from attnviz.records import Input, Tokens

from ...small_models import SPECIAL, gpt_fields
from ..ablation_loop import MASK, PROJECTIONS, heads_of, loop_metrics, outputs_without
from ..architectures import ARCHITECTURES, inputs_of, quick_or_long, small_model, state_of
from ..scans import IDS, every, input_of, measured, torch_scan
from ..sizes import set_sizes

OTHER = tuple(reversed(IDS))
HEADS = [(layer, head) for layer in range(3) for head in range(3)]
CASES = [(name, kind) for name, kinds in PROJECTIONS.items() for kind in kinds]
TOLERANCE = 1e-5
APART = ("gpt2", "gemma2", "gpt_neox", "qwen3_next", "albert", "t5", "bloom", "falcon")
"""Projections that lie transposed, are shared by layers, or follow attention of the model's own."""


def head_outputs(model, ids):
    """By (layer, head) the input columns of gpt2's output projection, (token, dim)."""
    seen = []
    hooks = [
        block.attn.c_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0][0]))
        for block in model.transformer.h
    ]
    with torch.inference_mode():
        model(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return {(at, head): seen[at][:, head * 8 : head * 8 + 8] for at, head in HEADS}


def test_draws_are_averaged_and_have_a_standard_error():
    model, others = small_model("gpt2"), (OTHER, IDS[3:] + IDS[:3], IDS[5:] + IDS[:5])
    variants = [Variant(((1, 2),))]
    each = [
        measured(torch_scan(model, references=(other,), mode="resample"), variants)["kl"][0]
        for other in others
    ]
    scan = torch_scan(model, references=(IDS, *others), mode="resample", draws=3)
    (piece,) = scan.scan(0, variants, [0])
    assert piece.metrics["kl"][0] == pytest.approx(np.mean(each))
    assert piece.errors["kl"][0] == pytest.approx(np.std(each, ddof=1) / 3**0.5)


@pytest.mark.parametrize(
    ("references", "options", "sentence"),
    [
        ((), {"mode": "mean"}, "reference is empty"),
        ((OTHER[:4],), {"mode": "resample"}, "no other text of at least 11 tokens"),
        ((IDS,), {"mode": "resample"}, "no other text"),
    ],
)
def test_a_reference_that_does_not_do_is_refused(references, options, sentence):
    scan = torch_scan(small_model("gpt2"), references=references, **options)
    with pytest.raises(UsageError, match=sentence):
        measured(scan, every(scan))


def test_the_loss_of_each_token_is_at_the_token_that_was_predicted():
    model = small_model("gpt2")
    scan = torch_scan(model, token_losses=True)
    (piece,) = scan.scan(0, [Variant(((1, 1),))], [0])
    inputs = {"input_ids": torch.tensor([IDS])}
    clean = outputs_without(model, "gpt2", "self", 3, (), inputs).scores
    removed = outputs_without(model, "gpt2", "self", 3, [(1, 1)], inputs).scores
    expected = [float(clean[at, IDS[at + 1]] - removed[at, IDS[at + 1]]) for at in range(10)]
    assert np.isnan(piece.token_losses[0, 0])
    assert piece.token_losses[0, 1:] == pytest.approx(expected, abs=1e-5)
    assert piece.metrics["loss_delta"][0] == pytest.approx(np.nanmean(piece.token_losses[0]))
    loss = -np.mean([float(clean[at, IDS[at + 1]]) for at in range(10)])
    assert piece.baseline["loss"] == pytest.approx(loss, abs=1e-5)


def test_a_masked_model_is_asked_for_words_only_and_for_the_answer_at_its_own_mask():
    model, mask = small_model("bert"), 96
    ids = (IDS[0], 11, mask, 13, IDS[1])
    given = Input(Tokens(ids, ("",) * 5, (True, False, False, False, True)))
    scan = torch_scan(model, [given], mask=mask, token_losses=True, pair=(5, 7))
    (piece,) = scan.scan(0, [Variant(((0, 1),))], [0])
    assert np.isnan(piece.token_losses[0]).tolist() == [True, False, True, False, True]
    inputs = {"input_ids": torch.tensor([ids])}
    pair = [
        outputs_without(model, "bert", "self", 3, at, inputs).logits[2] for at in ((), [(0, 1)])
    ]
    change = (pair[1][5] - pair[1][7]) - (pair[0][5] - pair[0][7])
    assert piece.metrics["logit_diff"][0] == pytest.approx(float(change), abs=1e-5)


def test_chunks_change_nothing(monkeypatch):
    model = small_model("llama")
    scan = torch_scan(model)
    variants = [*every(scan), Variant(((0, 0), (2, 5)))]
    at_once = measured(scan, variants)
    set_sizes(monkeypatch, pass_tokens=11 * 4)
    scan = torch_scan(model)
    assert [len(piece.variants) for piece in scan.scan(0, variants, range(19))] == [4] * 4 + [3]
    for name, values in measured(scan, variants).items():
        assert values == pytest.approx(at_once[name], rel=0, abs=1e-6)


def test_a_control_takes_off_as_much_in_a_direction_of_its_own():
    model = small_model("gpt2")
    outputs = head_outputs(model, IDS)[2, 1]
    taken = []

    def watch(module, args):
        taken.append(args[0])

    hook = model.transformer.h[2].attn.c_proj.register_forward_pre_hook(watch)
    scan = torch_scan(model, control=True, seed=3)
    measured(scan, [Variant(((2, 1),))])
    hook.remove()
    # A block is called on the clean row first, and then on the copies that begin there.
    clean, grown = [rows[0] for rows in taken if rows.shape[:2] == (1, 11)][-2:]
    change = clean - grown
    assert change.norm(dim=-1) == pytest.approx(outputs.norm(dim=-1), rel=1e-4)
    assert int(torch.linalg.matrix_rank(change, rtol=1e-4)) == 1  # one direction for all tokens
    again, other = (
        measured(torch_scan(model, control=True, seed=seed), [Variant(((2, 1),))])["kl"]
        for seed in (3, 4)
    )
    assert again == measured(scan, [Variant(((2, 1),))])["kl"]
    assert other != again


def big_code():
    torch.manual_seed(0)
    config = GPTBigCodeConfig(**gpt_fields(24, 31, layers=3), vocab_size=97, n_inner=37, **SPECIAL)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def test_a_batch_that_cannot_grow_gives_the_same_numbers_one_at_a_time():
    model = big_code()
    scan = torch_scan(model)
    found = measured(scan, [Variant((pair,)) for pair in HEADS])
    assert "one at a time" in scan.notes[0]
    for at, (layer, head) in enumerate(HEADS):
        with torch.inference_mode():
            clean = model(torch.tensor([IDS])).logits[0].double().log_softmax(-1)

            def without(module, args, head=head):
                merged = args[0].clone()
                merged[..., head * 8 : head * 8 + 8] = 0
                return (merged,)

            hook = model.transformer.h[layer].attn.c_proj.register_forward_pre_hook(without)
            removed = model(torch.tensor([IDS])).logits[0].double().log_softmax(-1)
            hook.remove()
        kl = float((clean.exp() * (clean - removed)).sum(-1).mean())
        assert found["kl"][at] == pytest.approx(kl, abs=1e-5)


def test_what_predicts_no_words_has_its_output_only():
    model = GPT2Model(small_model("gpt2").config).eval()
    scan = torch_scan(model)
    assert set(measured(scan, every(scan))) == {"output_mse", "output_cosine"}
    (piece,) = scan.scan(0, every(scan), range(len(every(scan))))
    with torch.inference_mode():
        own = model(torch.tensor([IDS])).last_hidden_state.square().mean()
    assert piece.baseline == {"output_square": pytest.approx(float(own), rel=1e-6)}
    scan = torch_scan(small_model("t5"), kind="encoder")
    found = measured(scan, every(scan))
    assert set(found) == {"output_mse", "output_cosine"}
    assert (found["output_mse"] > 0).all()


@pytest.mark.parametrize(
    ("heads", "sentence"),
    [(((3, 0),), "no layer 3 with heads: expected 0 to 2"), (((1, 3),), "expected 0 to 2")],
)
def test_a_head_that_does_not_exist_is_named(heads, sentence):
    scan = torch_scan(small_model("gpt2"))
    with pytest.raises(UsageError, match=sentence):
        list(scan.scan(0, [Variant(heads)], [0]))


def test_what_cannot_be_taken_apart_is_refused():
    with pytest.raises(UsageError, match="decoder text"):
        patchable_transformers(small_model("t5"), "cross", Input.of_ids(IDS))
    from transformers import XLNetConfig, XLNetLMHeadModel

    model = XLNetLMHeadModel(
        XLNetConfig(vocab_size=97, d_model=24, n_layer=2, n_head=3, d_inner=37)
    )
    with pytest.raises(UnsupportedError, match="its heads cannot be removed"):
        patchable_transformers(model.eval(), "self", Input.of_ids(IDS))


class StopError(Exception):
    """Raised inside a scan."""


@pytest.mark.parametrize("name", ["gpt2", "gptj", "bert"])
def test_an_exception_leaves_the_model_as_it_was(name, monkeypatch):
    model = small_model(name)
    model.train()
    next(model.children()).eval()
    before = state_of(model)
    scan = torch_scan(model, mask=96)

    def stop(*args, **kwargs):
        raise StopError

    monkeypatch.setattr("attnviz.engine.scan.unembedding.Unembedding.compare", stop)
    with pytest.raises(StopError):
        measured(scan, every(scan))
    assert state_of(model) == before
    assert not torch.is_inference_mode_enabled()


def test_the_context_manager_removes_heads_from_any_run():
    model = small_model("gpt2")
    subject = patchable_transformers(model, "self", Input.of_ids(IDS))
    batch = torch.tensor([IDS, OTHER])
    with ablating(subject, [(0, 2), (1, 0)]), torch.inference_mode():
        removed = [model(batch).logits, model(batch).logits]
    for row, ids in enumerate((IDS, OTHER)):
        inputs = {"input_ids": torch.tensor([ids])}
        expected = outputs_without(model, "gpt2", "self", 3, [(0, 2), (1, 0)], inputs).logits
        for logits in removed:
            torch.testing.assert_close(logits[row].double(), expected, rtol=0, atol=1e-5)
    with pytest.raises(UsageError, match="no head 3"), ablating(subject, [(0, 3)]):
        pass


@pytest.mark.parametrize("kv_heads", [None, 2])
def test_the_own_attention_loses_what_the_head_put_in(kv_heads):
    model = OwnAttention(24, 4, kv_heads, seed=3)
    tokens = model.encode("she sells sea shells by the sea shore")
    scan = open_scan(model, [Input(tokens)])
    variants = [*every(scan), Variant(((0, 0), (0, 1))), Variant(((0, 0), (0, 1), (0, 2), (0, 3)))]
    (piece,) = scan.scan(0, variants, range(len(variants)))
    outputs, weight = model.head_outputs(tokens), model.attention.output_weight
    parts = [outputs[head] @ weight[:, head * 6 : head * 6 + 6].T for head in range(4)]
    for at, variant in enumerate(variants):
        lost = sum(parts[head] for _, head in variant.heads)
        assert piece.metrics["output_mse"][at] == pytest.approx(np.square(lost).mean(), rel=1e-4)
    assert piece.metrics["output_cosine"][-1] == pytest.approx(0.5)  # nothing left, no bias
    with pytest.raises(UsageError, match="no loss"):
        scan.gradients()
    with pytest.raises(UsageError, match="no answer"):
        open_scan(model, [Input(tokens)], ScanOptions(pair=(0, 1)))


def test_replacements_of_the_own_attention():
    model = OwnAttention(24, 4, seed=3)
    first, second = (model.encode(text) for text in ("a b c d", "d d b a e"))
    for mode in ("mean", "resample"):
        options, references = ScanOptions(mode=mode), [Input(first), Input(second)]
        scan = open_scan(model, [Input(first)], options, references=references)
        (piece,) = scan.scan(0, every(scan), range(4))
        assert (piece.metrics["output_mse"] > 0).all()
    control = open_scan(model, [Input(first)], ScanOptions(control=True))
    (piece,) = control.scan(0, every(control), range(4))
    assert (piece.metrics["output_mse"] > 0).all()
    with pytest.raises(UsageError, match="no other text"):
        measured(
            open_scan(model, [Input(first)], ScanOptions(mode="resample")), [Variant(((0, 0),))]
        )


@pytest.mark.parametrize("options", [{"draws": 0}, {"seed": -1}, {"max_memory": 0}])
def test_senseless_numbers_are_refused(options):
    with pytest.raises(UsageError):
        ScanOptions(**options)


def layers_of(name, kind):
    if kind == "encoder":
        return (0, 1)
    return ARCHITECTURES[name].layers


def short_inputs(name):
    # The loop over masked models runs once for each word.
    masked = ARCHITECTURES[name].stack == "encoder"
    return inputs_of(name, source=5 if masked else 11, target=7), masked


@pytest.mark.parametrize("name", quick_or_long(PROJECTIONS))
def test_every_metric_equals_the_loop(name):
    for kind in PROJECTIONS[name]:
        compared(name, kind)


def compared(name, kind):
    model, (inputs, masked) = small_model(name), short_inputs(name)
    before = state_of(model)
    scan = torch_scan(model, [input_of(inputs)], kind=kind, mask=MASK, pair=(5, 7))
    pairs = heads_of(name, kind, layers_of(name, kind))
    assert [(layer, head) for layer, some in scan.heads.items() for head in range(some)] == pairs
    variants = [Variant((pair,)) for pair in pairs]
    variants.append(Variant((pairs[0], pairs[-1])))  # two layers together
    (piece,) = scan.scan(0, variants, range(len(variants)))
    assert scan.notes == []  # nothing fell back on the loop
    assert set(piece.metrics) == set(METRICS)
    heads = scan.heads[pairs[0][0]]
    for place, index in enumerate(piece.variants):
        if index not in (0, len(pairs) // 2, len(pairs) - 1, len(pairs)):
            continue  # the loop takes the time
        expected = loop_metrics(model, name, kind, heads, variants[index].heads, inputs, masked)
        found = {metric: float(values[place]) for metric, values in piece.metrics.items()}
        assert found == pytest.approx(expected, rel=0, abs=TOLERANCE), variants[index]
    assert state_of(model) == before


@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if case[0] in APART])
def test_a_head_without_rows_in_the_projection_costs_exactly_nothing(name, kind):
    model, (inputs, _) = small_model(name), short_inputs(name)
    layer, head = heads_of(name, kind, layers_of(name, kind))[-2]
    scan = torch_scan(
        model, [input_of(inputs)], kind=kind, mask=MASK, pair=(5, 7), token_losses=True
    )
    heads = scan.heads[layer]
    projection = model.get_submodule(PROJECTIONS[name][kind].format(layer))
    transposed = type(projection).__name__ == "Conv1D"
    weight = projection.weight if transposed else projection.weight.T
    width = weight.shape[0] // heads
    with torch.no_grad():
        weight[head * width : (head + 1) * width] = 0
    variants = [Variant((pair,)) for pair in heads_of(name, kind, layers_of(name, kind))]
    (piece,) = scan.scan(0, variants, range(len(variants)))
    place = piece.variants.index(variants.index(Variant(((layer, head),))))
    assert {
        metric: float(values[place]) for metric, values in piece.metrics.items()
    } == dict.fromkeys(METRICS, 0.0)
    losses = piece.token_losses[place]
    assert set(losses[losses == losses]) == {0.0}


@pytest.mark.parametrize("name", ["distilbert", "bert", "gpt2"])
def test_attention_that_moves_states_by_rounding_alone_still_shows_what_it_sees(name):
    model = small_model(name)
    with torch.no_grad():  # what attention writes is lost beside the stream
        for layer in ARCHITECTURES[name].layers:
            model.get_submodule(PROJECTIONS[name]["self"].format(layer)).weight.mul_(1e-5)
    subject = patchable_transformers(model, "self", Input.of_ids(IDS), MASK)
    with torch.inference_mode(), subject.hook_points.borrowed():
        assert is_causal(subject, probe_of(Input.of_ids(IDS))) == (name == "gpt2")
    scan = torch_scan(model, mask=MASK)
    assert scan.causal == (name == "gpt2")
