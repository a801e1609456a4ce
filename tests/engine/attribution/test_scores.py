"""The scores of a head are the sum of what wrote its query and keys, as the model's weights say."""

import json
import re
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from attnviz.engine.attribution.scores import SIDES, AskedLink, StreamPart
from attnviz.engine.attribution.scores_on_numpy import NumpyScoreSplitter
from attnviz.engine.backend import backend_of
from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.models.prepare import prepared
from attnviz.models.resolve import load
from attnviz.models.third_party import third_party
from attnviz.records import Input

from ...attention.test_families import stack as stack_of
from ...every_causal import WORDS, causal_kinds, small_causal
from ...quick import one_in
from ..architectures import small_model, state_of

GOLDEN = json.loads((Path(__file__).parent / "golden_scores.json").read_text())
"""Of an implementation with hooks alone, in float64, which shares no code with the package."""

CLOSE = 1e-4
GQA = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10}
SMALL = {"num_hidden_layers": 3, "intermediate_size": 56, "max_position_embeddings": 64}
FAMILIES = {
    "llama": dict(GQA, **SMALL, hidden_size=40),
    "gpt2": {"n_embd": 40, "n_layer": 3, "n_head": 4, "n_positions": 64},
    "gemma2": dict(
        GQA,
        **SMALL,
        hidden_size=40,
        query_pre_attn_scalar=12,
        attn_logit_softcapping=5.0,
        sliding_window=5,
    ),
    "gpt_neox": dict(SMALL, hidden_size=48, num_attention_heads=4, rotary_pct=0.5),
    "qwen3": dict(GQA, **SMALL, hidden_size=40),
}
OWN = ("bloom", "falcon", "mpt", "gpt_neo", "openai-gpt")
"""They compute attention by themselves: queries and keys are the factors of their scores."""


@cache
def opened(name):
    """The bundled model, or a small one of a family whose parameters NumPy draws."""
    if name == "tiny":
        return load("tiny")
    config = AutoConfig.for_model(name, vocab_size=97, **FAMILIES[name])
    for special in ("bos_token_id", "eos_token_id"):
        setattr(config, special, 1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    draw = np.random.default_rng(0)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            noise = torch.tensor(draw.standard_normal(tuple(parameter.shape)), dtype=torch.float32)
            if parameter.ndim > 1:
                parameter.copy_(noise * 1.5 * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(0.3 * noise)
    return prepared(name, model, None, torch.device("cpu"), seed=0)


def split(name, layer, head, query, key, than=None):
    """The scores of one query, the matrix of the lead, and what was asked for."""
    given = Input.of_ids(GOLDEN[name]["ids"])
    asked = AskedLink(("self", layer, head), query, key, than)
    found = backend_of(opened(name)).open_splitter("self", given).split(given, asked)
    return found, found.matrix(found.coefficients(key, than)), asked


def named(part, layer):
    if part.kind == "bias":
        return "bias" if part.layer in (None, layer) else f"L{part.layer} bias"
    suffix = {"head": f"H{part.head}", "mlp": "FF"}.get(part.kind)
    return f"L{part.layer}{suffix}" if suffix else part.kind


@pytest.mark.parametrize("name", GOLDEN)
def test_leads_and_parts_are_those_of_hooks_in_float64(name):
    for link in GOLDEN[name]["links"]:
        layer, head = map(int, re.findall(r"\d+", link["head"]))
        found, matrix, asked = split(name, layer, head, link["query"], link["key"])
        assert found.tallies
        assert found.gap <= 1e-5
        names = [named(part, layer) for part in found.parts]
        assert len(found.visible) == link["visible"]
        assert found.weights[asked.key] == pytest.approx(link["weight"], abs=1e-5)
        assert found.scores[asked.key] == pytest.approx(link["score"], abs=CLOSE)
        assert matrix.sum() == pytest.approx(link["lead"], abs=CLOSE)
        if link["capped"] is not None:
            own = found.limited(found.scores)[asked.key]
            assert own == pytest.approx(link["capped"], abs=CLOSE)
        for side, sums in (("query", matrix.sum(1)), ("key", matrix.sum(0))):
            expected = link[f"{side}_side"]
            assert set(names) == set(expected)
            by_name = dict(zip(names, sums, strict=True))
            assert by_name == pytest.approx(expected, abs=CLOSE)
        for query, key, value in link["top"]:
            place = names.index(query), names.index(key)
            assert matrix[place] == pytest.approx(value, abs=CLOSE)


@pytest.mark.parametrize("name", one_in(2, GOLDEN))
def test_every_layer_and_key_tallies_with_the_models_own_weights(name):
    model, tokens = opened(name), len(GOLDEN[name]["ids"])
    for layer in range(model.info.layers):
        for head in (layer % 2, model.info.heads - 1):
            for query in (tokens // 2, tokens - 1):
                found, *_ = split(name, layer, head, query, query)
                assert found.gap <= found.tolerance <= 1e-4
                for key in found.visible:
                    others = [each for each in found.visible if each != key]
                    own = np.log(found.weights[key]) - np.mean(np.log(found.weights[others]))
                    lead = found.lead(found.limited(found.scores), found.coefficients(key, None))
                    assert lead == pytest.approx(own, abs=2 * found.tolerance)
                if not layer:
                    assert {part.kind for part in found.parts} <= {"token", "position", "bias"}


@pytest.mark.parametrize(
    ("name", "than"), [(name, (None, 6)[at % 2]) for at, name in enumerate(GOLDEN)]
)
def test_leads_in_other_texts_are_those_of_their_own_splits(name, than):
    ids = GOLDEN[name]["ids"]
    given = Input.of_ids(ids)
    others = [Input.of_ids([*ids[:1], *reversed(ids[1:])]), Input.of_ids([*ids[1:], 5]), given]
    splitter = backend_of(opened(name)).open_splitter("self", given)
    for layer in (0, 1):
        asked = AskedLink(("self", layer, 1), len(ids) - 1, len(ids) - 3, than)
        known = splitter.split(given, asked)
        found = splitter.leads(others, asked, known)
        for at, other in enumerate(others):
            own = splitter.split(other, asked)
            matrix = own.matrix(own.coefficients(asked.key, asked.than))
            for side, sums in zip(found, (matrix.sum(1), matrix.sum(0)), strict=True):
                assert side[at] == pytest.approx(sums, abs=2e-5)
                assert abs(sums).max() > 0.01


def test_the_lead_over_one_key_is_the_log_of_the_ratio_of_weights():
    found, matrix, _ = split("tiny", 1, 2, 10, 4, than=0)
    ratio = np.log(found.weights[4] / found.weights[0])
    assert matrix.sum() == pytest.approx(ratio, abs=1e-5)
    assert matrix.sum() == pytest.approx(3.0455, abs=CLOSE)  # of the same implementation
    by_part = dict(zip(found.parts, matrix.sum(0), strict=True))
    assert by_part[StreamPart("head", 0, 0)] == pytest.approx(7.68, abs=5e-3)
    assert by_part[StreamPart("mlp", 0)] == pytest.approx(-4.36, abs=5e-3)


@pytest.mark.parametrize("name", GOLDEN)
def test_what_a_head_read_adds_up_to_its_part(name):
    layer = 1 if name == "tiny" else 2
    found, matrix, _ = split(name, layer, 1, 8, 5)
    assert len(found.sources) == 8
    for (side, at), row in found.sources.items():
        assert row.shape == (len(GOLDEN[name]["ids"]),)
        whole = matrix.sum(1 if side == "query" else 0)[at]
        assert row.sum() == pytest.approx(whole, abs=1e-5)


def test_without_a_part_is_what_the_norm_makes_of_the_rest():
    """By hand: the stream of the embedding alone, less the token, through norm and projections."""
    model = opened("llama")
    name, layer, head, query = "llama", 1, 3, 8
    found, _, _ = split(name, layer, head, query, 8)
    ids = torch.tensor([GOLDEN[name]["ids"]])
    block = model.model.model.layers[layer]
    streams, head_outputs = [], []
    hooks = [
        block.register_forward_pre_hook(lambda module, args: streams.append(args[0])),
        model.model.model.layers[0].self_attn.o_proj.register_forward_pre_hook(
            lambda module, args: head_outputs.append(args[0])
        ),
    ]
    with torch.no_grad():
        model.model(ids)
        for hook in hooks:
            hook.remove()
        (stream,), (merged,) = streams, head_outputs
        only = torch.zeros_like(merged)
        only[..., 10:20] = merged[..., 10:20]  # head 1
        removed = {
            StreamPart("token"): model.model.model.embed_tokens(ids),
            StreamPart("head", 0, 1): model.model.model.layers[0].self_attn.o_proj(only),
        }
        cos, sin = model.model.model.rotary_emb(stream, torch.arange(ids.shape[1])[None])

        def vectors(stream):
            normed = block.input_layernorm(stream)
            q = block.self_attn.q_proj(normed)[0, :, 30:40]
            k = block.self_attn.k_proj(normed)[0, :, 10:20]
            turned = []
            for x in (q, k):
                half = torch.cat([-x[:, 5:], x[:, :5]], -1)
                turned.append(x * cos[0] + half * sin[0])
            return turned

        q, k = vectors(stream)
        for part, write in removed.items():
            less_q, less_k = vectors(stream - write)
            at = found.parts.index(part)
            for side, scores in (("query", less_q[query] @ k.T), ("key", less_k @ q[query])):
                expected = (scores / 10**0.5)[: query + 1]
                assert found.without[side][at][: query + 1] == pytest.approx(
                    expected.numpy(), abs=1e-5
                )
                share = float(expected.softmax(-1)[8])
                assert found.weight(found.without[side][at], 8) == pytest.approx(share, abs=1e-6)


def test_a_router_in_front_of_the_attention_leaves_the_weights_without_parts():
    """Which experts a router chooses is read of its product, though no derivative shows it."""
    model = prepared("moe", small_causal("longcat_flash"), None, torch.device("cpu"), seed=0)
    given = Input.of_ids((7, 5, 11, 42, 13, 5, 23))
    asked = AskedLink(("self", model.info.layers - 1, 1), 6, 3)
    found = backend_of(model).open_splitter("self", given).split(given, asked)
    assert found.tallies
    for side in SIDES:
        known = found.without[side][~np.isnan(found.without[side]).all(1)]
        assert len(known) > len(found.parts) / 2
        assert np.abs(known - found.scores).max() > 100 * found.tolerance


@pytest.mark.parametrize("name", ["gpt2", "qwen3", "bert", "electra", "distilbert"])
def test_numpy_and_torch_agree_on_every_part(name, tmp_path):
    model = small_model(name)
    model.save_pretrained(tmp_path)
    given = Input.of_ids((7, 5, 11, 42, 13, 5, 23, 31))
    torch_model = prepared(name, model, None, torch.device("cpu"), seed=0)
    before = state_of(model)
    theirs = backend_of(torch_model).open_splitter("self", given)
    ours = NumpyScoreSplitter(stack_of(tmp_path)[0])
    for layer in (0, 2):
        asked = AskedLink(("self", layer, 1), 5, 2)
        one, other = ours.split(given, asked), theirs.split(given, asked)
        assert one.tallies
        assert other.tallies
        assert list(one.parts) == list(other.parts)
        for field in ("query", "key", "weights"):
            assert getattr(one, field) == pytest.approx(getattr(other, field), abs=2e-5)
        for side in SIDES:
            assert one.without[side] == pytest.approx(other.without[side], abs=5e-5, nan_ok=True)
        assert one.sources.keys() == other.sources.keys()
        texts = [given, Input.of_ids((7, 9, 11, 40, 3, 5, 2, 31))]
        for both in zip(
            ours.leads(texts, asked, one), theirs.leads(texts, asked, other), strict=True
        ):
            assert both[0] == pytest.approx(both[1], abs=2e-5)
    assert state_of(model) == before


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_both_stacks_of_an_encoder_decoder_tally(name, kind):
    opened = prepared(name, small_model(name), None, torch.device("cpu"), seed=0)
    given = Input.of_ids((7, 5, 11, 42, 13, 5, 23), (3, 9, 8, 11, 5) * (kind == "decoder") or None)
    asked = AskedLink((kind, 1, 1), 4, 2)
    found = backend_of(opened).open_splitter(kind, given).split(given, asked)
    assert found.tallies
    distance = found.by_distance(found.coefficients(2, None))
    assert (distance is not None) == (name == "t5")
    whole = found.limited(found.scores) - found.scores
    if distance is not None:
        there = [whole[key] for key in found.visible if key != 2]
        assert distance == pytest.approx(whole[2] - np.mean(there), abs=1e-6)


def test_a_part_that_is_equal_at_every_key_leads_to_nothing_without_rotary_positions():
    found, matrix, _ = split("gpt2", 2, 1, 9, 6)
    biases = [at for at, part in enumerate(found.parts) if part == StreamPart("bias", 2)]
    (at,) = biases
    assert np.abs(matrix[:, at]).max() <= 1e-5 < np.abs(matrix[at]).max()


def test_a_head_that_is_not_there_is_refused():
    given = Input.of_ids((7, 5, 11, 42))
    model = opened("gpt2")
    with pytest.raises(UsageError, match="no self head 9 in layer 2"):
        backend_of(model).open_splitter("self", given).split(given, AskedLink(("self", 2, 9), 3, 1))


def outcome(kind):
    """``tallies`` on both outer layers, and on the last in other texts at once, or why not."""
    ids = torch.randint(4, WORDS, (13,), generator=torch.Generator().manual_seed(3)).tolist()
    given, draw = Input.of_ids(ids), np.random.default_rng(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with third_party("cannot be made"):
                model = small_causal(kind)
            opened = prepared(kind, model, None, torch.device("cpu"), seed=0)
            splitter = backend_of(opened).open_splitter("self", given)
            calls = [one for one in splitter._opened.hook_points.calls if one.kind == "self"]
            for call in {calls[0].layer: calls[0], calls[-1].layer: calls[-1]}.values():
                asked = AskedLink(("self", call.layer, call.heads - 1), 12, 8)
                known = splitter.split(given, asked)
                if not known.tallies:
                    return "does not tally"
            others = [Input.of_ids([*ids[:1], *draw.integers(4, WORDS, 11), ids[-1]]) for _ in "ab"]
            together = splitter.leads(others, asked, known)
            alone = [splitter.leads([other], asked, known) for other in others]
            for both, each in zip(together, zip(*alone, strict=True), strict=True):
                if not np.allclose(both, np.concatenate(each), atol=10 * known.tolerance, rtol=0):
                    return "differs among other texts"
        except (LoadError, UnsupportedError) as error:
            return str(error)
    return "tallies"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("gpt_oss", "tallies"),
        ("deepseek_v2", "tallies"),  # its queries and keys are turned as complex numbers
        *((kind, "tallies") for kind in OWN),
    ],
)
def test_some_causal_classes_tally_or_are_refused(kind, expected):
    assert expected in outcome(kind)


@pytest.mark.long
def test_every_third_causal_class_tallies_or_is_refused():
    found = {kind: outcome(kind) for kind in causal_kinds()[1::3]}
    assert not any("\n" in said for said in found.values())
    assert not {"does not tally", "differs among other texts"} & set(found.values())
    assert sum(said == "tallies" for said in found.values()) >= 40
