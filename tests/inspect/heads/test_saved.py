"""``heads --from`` shows what other programs captured: queries and keys, or weights."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

import attnviz
from attnviz.errors import LoadError
from attnviz.inspect.heads import saved
from attnviz.inspect.heads.saved import read_heads

TOKENS = ["<s>", "The", " cat", " sat", " on", " a", " mat"]
LAYERS, HEADS, SHARED, WIDTH = 2, 6, 3, 5
MANUAL = (Path(attnviz.__file__).parent / "docs" / "captures.md").read_text("utf-8")
WRITERS = "".join(re.findall(r"```python\n(.*?)```", MANUAL, re.DOTALL))


def vectors(seed=0):
    random, tokens = np.random.default_rng(seed), len(TOKENS)
    return {
        f"layer.{layer}.{part}": random.normal(size=(heads, tokens, WIDTH)).astype(np.float32)
        for layer in range(LAYERS)
        for part, heads in (("query", HEADS), ("key", SHARED))
    }


def write(path, arrays, **facts):
    told = json.dumps({"schema": "attnviz.capture/1", "tokens": TOKENS, **facts})
    if path.suffix == ".npz":
        np.savez(path, capture=np.array(told), **arrays)
    else:
        save_file(arrays, path, metadata={"capture": told})
    return path


def by_definition(arrays, layer, scale, window, cap, sinks):
    """The weights of a layer, one exponential after the other, in Python's own floats."""
    query, key = (arrays[f"layer.{layer}.{part}"].tolist() for part in ("query", "key"))
    found = np.zeros((HEADS, len(TOKENS), len(TOKENS)))
    for head in range(HEADS):
        for i in range(len(TOKENS)):
            seen = range(max(0, i - window + 1), i + 1)
            scores = [
                scale * sum(a * b for a, b in zip(query[head][i], k[j], strict=True))
                for k in [key[head // (HEADS // SHARED)]]
                for j in seen
            ]
            scores = [cap * np.tanh(score / cap) for score in scores] if cap else scores
            total = sum(np.exp(score) for score in scores)
            total += np.exp(float(sinks[head])) if sinks is not None else 0.0
            for j, score in zip(seen, scores, strict=True):
                found[head, i, j] = np.exp(score) / total
    return found


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
@pytest.mark.parametrize("block", [2**22, 15])
def test_weights_are_the_softmax_of_what_was_captured(run, tmp_path, monkeypatch, ending, block):
    monkeypatch.setattr(saved, "_BLOCK", block)
    arrays = vectors()
    arrays["layer.1.sinks"] = np.linspace(-1, 3, HEADS).astype(np.float32)
    facts = {"scale": [0.3, 0.8], "window": [None, 3], "softcap": [2.0, None], "model": "mine"}
    write(tmp_path / f"a.{ending}", arrays, **facts)
    found = run("heads", "--from", f"a.{ending}", "--json").document
    assert (found["model"]["kv_heads"], found["model"]["weights"]) == (SHARED, "captured")
    for layer, scale, window, cap in ((0, 0.3, 99, 2.0), (1, 0.8, 3, 0.0)):
        wanted = by_definition(
            arrays, layer, scale, window, cap, arrays.get(f"layer.{layer}.sinks")
        )
        kept = [each["weights"] for each in found["heads"] if each["layer"] == layer]
        np.testing.assert_allclose(kept, wanted, atol=2e-6)
    assert "learned sink" in run("heads", "--from", f"a.{ending}").out


def test_the_page_of_a_capture_takes_scores_apart_and_has_no_value_norms(run, tmp_path):
    write(tmp_path / "a.safetensors", vectors())
    assert run("heads", "--from", "a.safetensors", "--save", "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert '"query_key":' in page
    assert "The capture has no value norms" in page


def written_by_engines(**more):
    """The writers of the manual, a model's config, and what an engine captures: rows of tokens."""
    names = {}
    exec(compile(WRITERS, "writer", "exec"), names)
    config = SimpleNamespace(
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=SHARED,
        model_type="gemma2", query_pre_attn_scalar=16, attn_logit_softcapping=2.0,
        sliding_window=3, layer_types=["full_attention", "sliding_attention"],
    )  # fmt: skip
    vars(config).update(more)
    arrays = vectors()
    rows = {
        f"{part[0]}.{layer}": arrays[f"layer.{layer}.{part}"].swapaxes(0, 1).reshape(7, -1)
        for layer in range(LAYERS)
        for part in ("query", "key")
    }
    return SimpleNamespace(**names), config, arrays, rows


def test_the_writer_for_interp_engine_carries_cap_window_and_sinks(run, tmp_path):
    writers, config, arrays, rows = written_by_engines()
    sinks = np.linspace(-1, 3, HEADS)
    writers.from_interp_engine(
        tmp_path / "a.safetensors", rows | {"sinks.1": sinks}, config, TOKENS
    )
    found = run("heads", "--from", "a.safetensors", "--json").document
    for layer, window, sink in ((0, 99, None), (1, 3, sinks)):
        kept = [each["weights"] for each in found["heads"] if each["layer"] == layer]
        wanted = by_definition(arrays, layer, 0.25, window, 2.0, sink)
        np.testing.assert_allclose(kept, wanted, atol=2e-6)
    config.model_type = "gpt_oss"
    with pytest.raises(ValueError, match="lacks the learned sinks"):
        writers.from_interp_engine(tmp_path / "b.safetensors", rows, config, TOKENS)


def test_the_writer_for_vllm_hook_has_the_last_row_and_refuses_a_window(run, tmp_path):
    writers, config, arrays, rows = written_by_engines(layer_types=None, sliding_window=None)
    taken = {layer: (rows[f"q.{layer}"][-1], rows[f"k.{layer}"]) for layer in range(LAYERS)}
    writers.from_vllm_hook(tmp_path / "a.safetensors", taken, config, TOKENS)
    found = run("heads", "--from", "a.safetensors", "--json").document
    for layer in range(LAYERS):
        kept = [each["weights"] for each in found["heads"] if each["layer"] == layer]
        wanted = by_definition(arrays, layer, 0.25, 99, 2.0, None)[:, -1:]
        np.testing.assert_allclose(kept, wanted, atol=2e-6)
    for change in ({"sliding_window": 3}, {"model_type": "gpt_oss"}, {"layer_types": ["chunked"]}):
        vars(config).update(change)
        with pytest.raises(ValueError, match=r"not carried|expected full or sliding"):
            writers.from_vllm_hook(tmp_path / "b.safetensors", taken, config, TOKENS)


def test_weights_and_cross_attention_are_taken_as_they_are(run, tmp_path):
    weights = np.random.default_rng(1).dirichlet(np.ones(3), (2, len(TOKENS))).astype(np.float16)
    write(tmp_path / "a.npz", {"layer.0.weights": weights}, key_tokens=["x", " y", " z"])
    found = run("heads", "--from", "a.npz", "--json", "--head", "L0H1").document
    assert (found["kind"], found["key_tokens"]) == ("cross", ["x", " y", " z"])
    kept = np.array(found["heads"][0]["weights"], np.float32)
    np.testing.assert_array_equal(kept, weights[1].astype(np.float32))


def test_bfloat16_is_read(run, tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_tensors

    rounded = {name: torch.tensor(each).bfloat16() for name, each in vectors().items()}
    told = json.dumps({"schema": "attnviz.capture/1", "tokens": TOKENS})
    save_tensors(rounded, tmp_path / "a.safetensors", metadata={"capture": told})
    write(tmp_path / "b.npz", {name: each.float().numpy() for name, each in rounded.items()})
    one, other = (run("heads", "--from", name, "--json").out for name in ("a.safetensors", "b.npz"))
    assert one == other


@pytest.mark.parametrize(
    ("change", "facts", "said"),
    [
        ({"layer.1.key": lambda a: a[:, 1:]}, {}, "layer 1: key is 3 × 6 × 5, expected any × 7"),
        ({"layer.1.query": lambda a: a[1:]}, {}, "query is 5 × 7 × 5, expected 6 × 7 × any"),
        ({"layer.0.key": lambda a: a[:, :, :4]}, {}, "key is 3 × 7 × 4, expected any × 7 × 5"),
        ({"layer.0.key": lambda a: a[:0]}, {}, "key is 0 × 7 × 5"),
        ({"layer.0.key": lambda a: np.tile(a, (4, 1, 1))[:4]}, {}, "cannot share 4 key heads"),
        ({"layer.0.query": lambda a: a * np.nan}, {}, "layer 0: query has numbers that are not"),
        ({"layer.0.query": lambda a: a.astype(np.int32)}, {}, "numbers of int32, expected float16"),
        ({"layer.0.key": None}, {}, "layer 0: expected query and key, or weights"),
        ({"layer.0.key": None, "layer.0.query": None}, {}, "has no layer 0: expected all layers"),
        ({"layer.0.query": lambda a: a * 1e30}, {"scale": 1e30}, "too large: is scale right?"),
        ({}, {"window": 0}, "window is 0, expected a number above 0"),
        ({}, {"window": 3, "causal": False}, "a window is of causal attention"),
        ({}, {"scale": [1.0]}, "scale has 1 numbers, expected one per layer"),
        ({}, {"windows": 4}, "'windows' is no fact of attnviz.capture/1"),
        ({}, {"tokens": 5}, "is damaged"),
        ({}, {"tokens": "pierces"}, "expected tokens as a list of texts"),
        ({}, {"special": [7]}, "special are no indices of its 7 keys"),
        ({}, {"model": "a\u009bb"}, "name 'a\\x9bb' cannot be printed"),
    ],
)
def test_what_does_not_fit_is_one_line(refused, tmp_path, change, facts, said):
    arrays = vectors()
    for name, made in change.items():
        whole = arrays.pop(name)
        arrays |= {} if made is None else {name: made(whole)}
    write(tmp_path / "a.npz", arrays, **facts)
    assert said in refused(3, "heads", "--from", "a.npz")


def test_what_would_fill_the_memory_is_refused(refused, tmp_path):
    arrays = {
        f"layer.{layer}.{part}": np.zeros((9, 2000, 1), np.float32)
        for layer in range(20)
        for part in ("query", "key")
    }
    write(tmp_path / "a.safetensors", arrays, tokens=[" a"] * 2000)
    assert "take 2.9 GB, expected at most 2.1" in refused(3, "heads", "--from", "a.safetensors")


def test_files_that_are_none_are_said(refused, tmp_path):
    whole = write(tmp_path / "a.safetensors", vectors()).read_bytes()
    archive = write(tmp_path / "a.npz", vectors()).read_bytes()
    random = np.random.default_rng(0).bytes(400)
    for name, content, said in (
        ("random.npz", random, "is not an .npz, .safetensors or .json file"),
        ("empty.npz", b"", "is not an .npz, .safetensors or .json file"),
        ("short.safetensors", whole[:900], "is damaged"),
        ("short.npz", archive[:900], "is damaged"),
        ("bare.npz", _bare(tmp_path), "holds no schema"),
    ):
        (tmp_path / name).write_bytes(content)
        assert said in refused(3, "heads", "--from", name)
    with_other = vectors() | {"layer.0.value": np.zeros((1, 1, 1), np.float32)}
    write(tmp_path / "more.safetensors", with_other)
    assert "an array 'layer.0.value'" in refused(3, "heads", "--from", "more.safetensors")
    integers = {name: each.astype(np.int64) for name, each in vectors().items()}
    write(tmp_path / "whole.safetensors", integers)
    assert "numbers of I64" in refused(3, "heads", "--from", "whole.safetensors")


def _bare(where):
    np.savez(where / "bare", weights=np.zeros(3))
    return (where / "bare.npz").read_bytes()


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
@pytest.mark.parametrize(
    "name", ["layer.0.sink", "Layer.0.sinks", "layers.0.sinks", "layer.00.key", "sinks"]
)
def test_an_array_that_no_capture_has_is_named(tmp_path, ending, name):
    path = write(tmp_path / f"a.{ending}", vectors() | {name: np.zeros(6, np.float32)})
    with pytest.raises(LoadError, match=f"an array '{re.escape(name)}', expected layer.N.query"):
        read_heads(path.read_bytes(), "a")


def test_arrays_that_do_not_go_together_are_refused(tmp_path):
    arrays = {"layer.0.weights": np.full((6, 7, 7), 1 / 7), "layer.0.sinks": np.zeros(6)}
    path = write(tmp_path / "a.npz", arrays, causal=False)
    with pytest.raises(LoadError, match="layer 0: expected query and key, or weights; sinks go"):
        read_heads(path.read_bytes(), "a")
