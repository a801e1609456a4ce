"""LoRA adapters: what is merged is what peft computes, and what is more than LoRA is refused."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from attnviz.engine.capture import capture
from attnviz.errors import AttnvizError, LoadError, UnsupportedError
from attnviz.models.adapters import LoraAdapter
from attnviz.models.model import weights_fingerprint
from attnviz.models.resolve import load
from attnviz.models.work import LoadOptions, Work

_FIELDS = {"peft_type": "LORA", "lora_alpha": 8, "r": 3, "init_lora_weights": True}
_QUERY = "model.layers.0.self_attn.q_proj"


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def pair(module, inputs, outputs, rank=3):
    name = f"base_model.model.{module}.lora_"
    return {f"{name}A.weight": drawn(rank, inputs), f"{name}B.weight": drawn(outputs, rank, seed=1)}


def written(directory, tensors, base="base", **fields):
    directory.mkdir(exist_ok=True)
    save_file(dict(tensors), directory / "adapter_model.safetensors")
    said = {**_FIELDS, "base_model_name_or_path": base, **fields}
    (directory / "adapter_config.json").write_text(json.dumps(said))
    return directory


@pytest.mark.parametrize(
    ("fields", "scale"),
    [
        ({}, 8 / 3),
        ({"use_rslora": True}, 8 / 3**0.5),
        ({"alpha_pattern": {"v_proj": 1, r"layers\.0\..*q_proj": 5}}, 5 / 3),
        ({"alpha_pattern": {"proj": 5}}, 8 / 3),  # names a module from a dot on
    ],
)
def test_a_matrix_gains_scale_times_b_a(tmp_path, fields, scale):
    parts = pair(_QUERY, 5, 7)
    adapter = LoraAdapter("name", written(tmp_path, parts, **fields))
    down, up = parts.values()
    base = drawn(7, 5, seed=2)
    changed = adapter.on([f"{_QUERY}.weight"], ())[f"{_QUERY}.weight"](base)
    np.testing.assert_allclose(changed, base + scale * up @ down, rtol=1e-5, atol=1e-6)
    turned = adapter.on([f"{_QUERY}.weight"], [f"{_QUERY}.weight"])[f"{_QUERY}.weight"](base.T)
    np.testing.assert_allclose(turned, changed.T, rtol=1e-5, atol=1e-6)


def test_tables_and_modules_saved_whole(tmp_path):
    table = {
        f"base_model.model.wte.lora_embedding_{side}": one
        for side, one in [("A", drawn(3, 11)), ("B", drawn(5, 3))]
    }
    whole = {
        "base_model.model.norm.weight": drawn(5),
        "base_model.model.wte.base_layer.bias": drawn(4),
    }
    adapter = LoraAdapter("name", written(tmp_path, {**table, **whole}))
    down, up = table.values()
    names = ["transformer.wte.weight", "norm.weight", "transformer.wte.bias"]
    base = {"transformer.wte.weight": drawn(11, 5), "norm.weight": drawn(5), names[2]: drawn(4)}
    changed = {name: change(base[name]) for name, change in adapter.on(names, ()).items()}
    np.testing.assert_allclose(
        changed[names[0]], base[names[0]] + 8 / 3 * (up @ down).T, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(changed["norm.weight"], whole["base_model.model.norm.weight"])
    np.testing.assert_array_equal(changed[names[2]], whole["base_model.model.wte.base_layer.bias"])


WHOLE = pair(_QUERY, 5, 7)


@pytest.mark.parametrize(
    ("tensors", "fields", "named"),
    [
        (WHOLE, {"use_dora": True}, "use_dora = True"),
        (WHOLE, {"peft_type": "IA3"}, "of the type IA3.*merge_and_unload"),
        (WHOLE, {"peft_type": "PROMPT_TUNING"}, "of the type PROMPT_TUNING.*open its base alone"),
        (WHOLE, {"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa'"),
        (WHOLE, {"a_later_field": 1}, "a_later_field = 1"),
        (WHOLE, {"alpha_pattern": {"(a+)+$": 1}}, "alpha_pattern"),
        (WHOLE, {"lora_alpha": [8]}, "damaged"),
        (WHOLE, {"alpha_pattern": {"(": 1}}, "damaged"),
        (WHOLE, {"base_model_name_or_path": None}, "has no base_model_name_or_path"),
        ({"base_model.model.q.lora_magnitude_vector": drawn(3)}, {}, "lora_magnitude_vector"),
        ({"q.lora_A.weight": drawn(3, 5)}, {}, "the tensor q.lora_A.weight"),
        ({"base_model.model.q.lora_A.weight": drawn(3, 5)}, {}, r"got \(3, 5\)"),
        ({**pair("q", 5, 7), "base_model.model.q.lora_B.weight": drawn(7, 2)}, {}, r"got \(7, 2\)"),
    ],
)
def test_more_than_lora_and_what_does_not_fit_is_refused_by_name(tmp_path, tensors, fields, named):
    with pytest.raises(AttnvizError, match=named):
        LoraAdapter("name", written(tmp_path, tensors, **fields))


def test_another_model_is_no_base(tmp_path):
    adapter = LoraAdapter("name", written(tmp_path, pair("q", 5, 7)))
    with pytest.raises(LoadError, match=r"changes q\.weight, which its base model does not have"):
        adapter.on(["k.weight"], ())
    with pytest.raises(LoadError, match=r"q.weight is \(7, 6\) there, and \(7, 5\) in the adapter"):
        adapter.on(["q.weight"], ())["q.weight"](drawn(7, 6))


def opened(directory, backend):
    return load(str(directory), LoadOptions(backend=backend, work=Work(5)))


def maps(model):
    record = capture(model, model.encode("the cat sat on the mat", None), kind="self")
    return np.concatenate([layer.weights for layer in record.layers])


@pytest.mark.parametrize("alone", [True, False])
def test_both_backends_open_the_tuned_model(checkpoint, tmp_path, alone):
    base = checkpoint("llama")
    stored = load_file(base / "model.safetensors")
    outputs, inputs = stored[f"{_QUERY}.weight"].shape
    parts = pair(_QUERY, inputs, outputs)
    down, up = parts.values()
    stored[f"{_QUERY}.weight"] = stored[f"{_QUERY}.weight"] + 8 / 3 * up @ down
    merged, tuned = tmp_path / "merged", tmp_path / "tuned"
    shutil.copytree(base, merged)
    save_file(stored, merged / "model.safetensors", {"format": "pt"})
    if not alone:
        shutil.copytree(base, tuned)
    written(tuned, parts, str(base))
    expected, plain = maps(opened(merged, "numpy")), opened(base, "numpy")
    assert np.abs(expected - maps(plain)).max() > 1e-3
    prints = set()
    for backend in ("numpy", "torch"):
        model = opened(tuned, backend)
        assert np.abs(maps(model) - expected).max() < 1e-5
        assert "its LoRA adapter is merged" in model.info.notes[0]
        prints.add(weights_fingerprint(model))
    assert len(prints) == 1
    assert weights_fingerprint(plain) not in prints


def test_a_base_that_is_gone_or_an_adapter_itself_is_named(tmp_path):
    first = written(tmp_path / "first", pair(_QUERY, 5, 7), "/nowhere/at all")
    with pytest.raises(LoadError, match="LoRA adapter of '/nowhere/at all', which is needed too"):
        load(str(first))
    second = written(tmp_path / "second", pair(_QUERY, 5, 7), str(first))
    with pytest.raises(UnsupportedError, match="which is one of its own: merge that"):
        load(str(second))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": ["q_proj", "down_proj"], "use_rslora": True},
        {
            "target_modules": ["v_proj"],
            "rank_pattern": {"layers.0.*": 2},
            "alpha_pattern": {"1.*": 5},
        },
        {"target_modules": ["o_proj", "embed_tokens"], "modules_to_save": ["lm_head"]},
    ],
)
def test_peft_computes_the_same(checkpoint, tmp_path, fields):
    peft, torch = pytest.importorskip("peft"), pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(checkpoint("llama"), attn_implementation="eager")
    tuned = peft.get_peft_model(model, peft.LoraConfig(r=3, **fields)).eval()
    for part in filter(lambda one: one.requires_grad, tuned.parameters()):
        part.data = torch.randn_like(part) * 0.3
    tuned.save_pretrained(tmp_path)
    found = opened(tmp_path, "torch")
    ids = torch.tensor([found.encode("the cat sat on the mat", None).ids])
    with torch.no_grad():
        out = tuned(ids, output_attentions=True)
        own = found.model(ids).logits
    assert (own - out.logits).abs().max() < 1e-4 * out.logits.abs().max()
    expected = torch.cat([one[0] for one in out.attentions]).numpy()
    assert np.abs(maps(found) - expected).max() < 1e-5
