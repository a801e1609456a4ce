"""Scores that a model computes by itself: ALiBi is the part by distance, as it is published."""

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from attnviz.engine.attribution.scores import AskedLink, StreamPart
from attnviz.engine.backend import backend_of
from attnviz.models.prepare import prepared
from attnviz.records import Input

IDS = (7, 5, 11, 42, 13, 5, 23, 31)
HEADS, WIDTH, QUERY, KEY = 4, 40, 6, 2
MODELS = {
    "bloom": {"hidden_size": WIDTH, "n_layer": 3, "n_head": HEADS},
    "mpt": {"d_model": WIDTH, "n_layers": 3, "n_heads": HEADS, "max_seq_len": 64},
    "falcon": {
        "hidden_size": WIDTH,
        "num_hidden_layers": 3,
        "num_attention_heads": HEADS,
        "alibi": True,
        "new_decoder_architecture": False,
        "multi_query": True,
    },
}


def model_of(name, **more):
    config = AutoConfig.for_model(name, vocab_size=97, **MODELS[name] | more)
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.requires_grad_(False)


def split(model, layer, head):
    opened = prepared("model", model, None, torch.device("cpu"), seed=0)
    given = Input.of_ids(IDS)
    asked = AskedLink(("self", layer, head), QUERY, KEY)
    return backend_of(opened).open_splitter("self", given).split(given, asked)


def own_row(name, model, layer, head):
    """The weights of the query, as transformers reports them.

    Falcon's are seen with values that are a token's place alone: transformers 5.24 adds ALiBi twice
    where it reports weights, so that they are not those of its usual pass.
    """
    if name != "falcon":
        weights = model(torch.tensor([IDS]), output_attentions=True).attentions[layer]
        return weights[0, head, QUERY].double().numpy()
    seen = []
    real = torch.nn.functional.scaled_dot_product_attention

    def mixed(query, key, value, **more):
        places = torch.eye(len(IDS)).expand(*key.shape[:2], -1, -1)
        seen.append(real(query, key, places, **more))
        return real(query, key, value, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", mixed)
        model(torch.tensor([IDS]))
    return seen[layer][0, head, QUERY].double().numpy()


@pytest.mark.parametrize("name", MODELS)
def test_alibi_is_slope_times_place(name):
    model = model_of(name)
    for layer, head in ((0, 1), (2, 3)):
        found = split(model, layer, head)
        assert found.tallies
        assert found.gap <= 1e-5
        logs = np.log(own_row(name, model, layer, head)[: QUERY + 1])
        others = [at for at in range(QUERY + 1) if at != KEY]
        assert found.visible == list(range(QUERY + 1))
        towards = found.coefficients(KEY, None)
        distance = found.by_distance(towards)
        lead = float(found.matrix(towards).sum()) + distance
        assert lead == pytest.approx(logs[KEY] - logs[others].mean(), abs=1e-5)
        slope = 2.0 ** (-8 * (head + 1) / HEADS)
        if name == "falcon":  # it adds the bias before it divides by the root of the width
            slope /= (WIDTH / HEADS) ** 0.5
        assert distance == pytest.approx(slope * (KEY - np.mean(others)), abs=1e-2 * slope)


def test_the_weight_without_a_part_is_what_the_layer_computes_without_it():
    model = model_of("bloom")
    layer, head, dim = 1, 2, WIDTH // HEADS
    found = split(model, layer, head)
    blocks = model.transformer.h
    seen = {}
    hooks = [
        blocks[0].mlp.dense_4h_to_h.register_forward_hook(
            lambda module, args, output: seen.update(written=output)
        ),
        blocks[1].register_forward_pre_hook(lambda module, args: seen.update(stream=args[0])),
    ]
    model(torch.tensor([IDS]))
    for hook in hooks:
        hook.remove()

    def part(stream, which):
        read = blocks[1].self_attention.query_key_value(blocks[1].input_layernorm(stream))
        return read[0].view(len(IDS), HEADS, 3, dim)[:, head, which].double()

    whole, without = seen["stream"], seen["stream"] - seen["written"]
    at = found.parts.index(StreamPart("mlp", 0))
    expected = part(whole, 1) @ part(without, 0)[QUERY] / dim**0.5
    assert found.without["query"][at] == pytest.approx(expected.numpy(), abs=1e-4)
    expected = part(without, 1) @ part(whole, 0)[QUERY] / dim**0.5
    assert found.without["key"][at] == pytest.approx(expected.numpy(), abs=1e-4)


def test_the_model_is_left_as_it_was():
    model = model_of("falcon")
    before = model(torch.tensor([IDS])).logits
    split(model, 1, 0)
    assert torch.equal(model(torch.tensor([IDS])).logits, before)
    assert not any(module._forward_hooks for module in model.modules())
