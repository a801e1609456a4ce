"""``attnviz params``: whole screens, JSON and files that say the same, comparisons, names."""

import csv

import pytest

from ...command_line import json_of
from ...small_models import bert_fields

SHAPE = ("--d-model", "4096", "--heads", "32")
SCREENS = {
    "shape": SHAPE,
    "shape_ascii": (*SHAPE, "--bias", "--kv-heads", "8", "--ascii", "--explain"),
    "shape_formula": (*SHAPE, "--bias", "--formula"),
    "heads": (*SHAPE, "--compare", "heads=1,2,3,4,8,16,32"),
    "kv_heads": (*SHAPE, "--compare", "kv-heads=32,8,1"),
    "explained": ("gpt2", "--compare", "dtype=float32,int4", "--explain"),
    "grid": (*SHAPE, "--compare", "kv-heads=32,8", "--compare", "tokens=1024,4096"),
    "llama-2-70b": ("llama-2-70b", "--tokens", "4096", "--memory", "160GB"),
    "gemma-2-2b_layers": ("gemma-2-2b", "--per-layer", "--quiet"),
    "t5-base": ("t5-base", "--quiet"),
    "narrow": (*SHAPE, "--width", "40", "--quiet"),
}

counted = json_of("params")
TOTAL = {"one": 124_439_808, "several": 124_439_808, "compared": 16_384}


@pytest.mark.parametrize("name", SCREENS)
def test_screen(run, golden, name):
    result = run("params", *SCREENS[name])
    assert (result.code, result.err) == (0, "")
    golden(name, result.out)
    widest = 40 if name == "narrow" else 80
    assert max(map(len, result.lines)) <= widest


def test_json_of_a_comparison(counted):
    document = counted(*SHAPE, "--compare", "heads=8,3,16")
    assert document["compare"] == ["heads"]
    assert document["changed"] == ["head_dim", "maps"]
    rows = document["rows"]
    assert [row["values"] for row in rows] == [{"heads": 8}, {"heads": 3}, {"heads": 16}]
    assert "--heads 3 does not divide" in rows[1]["error"]
    assert rows[0]["total"] == rows[2]["total"] == 67_108_864
    assert any("does not depend on the number of heads" in text for text in document["reading"])


@pytest.mark.parametrize(
    ("wish", "values"),
    [
        ("dtype=float32,int4", ["float32", "int4"]),
        ("memory=1MB,1GB", ["1MB", "1GB"]),
        ("bias=yes,no", ["yes", "no"]),
        ("--kv-heads=4,2", [4, 2]),
    ],
)
def test_any_option_can_be_compared(counted, wish, values):
    rows = counted("--d-model", "64", "--heads", "8", "--compare", wish)["rows"]
    assert [next(iter(row["values"].values())) for row in rows] == values
    assert ["error" in row for row in rows] == [value == "x" for value in values]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("llama-2-7b", "--memory", "1GB"), "none in 1 GB, the weights alone do not fit"),
        (("llama-2-7b", "--memory", "24GB"), "20,071 tokens in 24 GB, its positions end at 4,096"),
        ((*SHAPE, "--linear", "--memory", "1GB"), "any in 1 GB, the cache does not grow"),
        (("llama-2-7b", "--memory", "24GB"), "total 14.55 GB 9.45 GB left for activations"),
        (("llama-2-7b", "--memory", "1GB"), "total 14.55 GB 13.55 GB more than 1 GB"),
    ],
)
def test_what_fits_is_said_in_words(run, arguments, said):
    text = " ".join(run("params", *arguments, "--quiet").out.split())
    assert said in text


def test_a_directory_is_counted(run, counted, checkpoint):
    folder = checkpoint("llama")
    document = counted("--model", str(folder))
    assert document["counted_by"] == "arithmetic"
    assert document["model"]["kv_heads"] == 2
    assert document == counted(str(folder))
    import safetensors

    with safetensors.safe_open(folder / "model.safetensors", "numpy") as weights:
        held = sum(weights.get_tensor(name).size for name in weights.keys())  # noqa: SIM118
    assert document["total"] == held


def test_a_class_that_no_arithmetic_knows_is_built(run, tmp_path):
    import transformers

    config = transformers.XLNetConfig(
        d_model=12, n_layer=2, n_head=3, d_inner=5, vocab_size=13, architectures=["XLNetModel"]
    )
    config.save_pretrained(tmp_path / "odd")
    result = run("params", "./odd", "--memory", "1GB")
    assert (result.code, result.out) == (2, "")
    assert "nothing tells what './odd' caches" in result.err
    document = run("params", "./odd", "--json").document
    assert document["counted_by"] == "building"
    built = sum(weight.numel() for weight in transformers.XLNetModel(config).parameters())
    assert document["total"] == built
    shown = run("params", "./odd")
    assert f"{built:,}" in shown.out
    assert "the arithmetic does not know" in " ".join(shown.out.split())
    assert "--memory" not in shown.out
    assert run("params", "./odd", "--save", "odd.csv").code == 0
    assert f"total,sum,{built}" in (tmp_path / "odd.csv").read_text()


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("ApertusConfig", {"architectures": ["ApertusForCausalLM"]}),
        ("Lfm2Config", {"full_attn_idxs": [1, 3], "architectures": ["Lfm2ForCausalLM"]}),
    ],
)
def test_weights_and_cache_suffice_to_answer(counted, run, tmp_path, name, more):
    import transformers

    sizes = bert_fields(32, 24, 64, heads=4, layers=4) | {"num_key_value_heads": 2}
    config = getattr(transformers, name)(**{"vocab_size": 60, **sizes, **more})
    config.save_pretrained(tmp_path / "odd")
    alone = counted("./odd", "--tokens", "64")
    needed = alone["weights"]["bytes"] + alone["weights"]["buffer_bytes"]
    needed += alone["kv_cache"]["bytes"]
    assert alone["needed_bytes"] == needed
    for memory in (needed, needed - 1):
        fit = counted("./odd", "--tokens", "64", "--memory", f"{memory}B")["memory"]
        assert (fit["by_memory"] >= 64) == (memory == needed)
    (card,) = counted("./odd", "--tokens", "64", "--gpu", "4090", "--overhead", "0B")["gpus"]
    assert card["needs"]["total"] == needed
    assert card["decode"] is card["needs"]["activations"] is card["prefill_seconds"] is None
    rows = counted("./odd", "--compare", "dtype=float32,int8")["rows"]
    assert rows[0]["weights"]["bytes"] == 4 * rows[1]["weights"]["bytes"]
    both = run("params", "./odd", "llama-2-7b", "--memory", "1GB", "--no-full").out
    assert "1 of 2 fit in 1 GB: ./odd." in both
    assert "not counted" in " ".join(run("params", "./odd", "--gpu", "4090").out.split())


REQUESTS = {
    "one": ("gpt2", "--memory", "1GB"),
    "several": ("gpt2", "t5-base"),
    "compared": ("--d-model", "64", "--heads", "8", "--compare", "kv-heads=8,3,1"),
}


@pytest.fixture
def saved(run, tmp_path):
    """The content of a file that was saved: ``saved("one", ".md")``."""

    def save(name, ending):
        result = run("params", *REQUESTS[name], "--save", f"x{ending}", "--json")
        assert (result.code, result.err) == (0, "")
        assert [path.name for path in tmp_path.iterdir()] == [f"x{ending}"]
        return (tmp_path / f"x{ending}").read_text(encoding="utf-8")

    return save


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("ending", [".csv", ".md", ".svg", ".html", ".txt"])
def test_the_total_is_in_every_file(saved, name, ending):
    text = saved(name, ending)
    written = "124.4 M" if name == "several" else f"{TOTAL[name]:,}"
    assert (str(TOTAL[name]) if ending == ".csv" else written) in text
    assert text.endswith("\n")


def test_csv_adds_up_and_names_what_is_compared(saved):
    rows = list(csv.DictReader(saved("one", ".csv").splitlines()))
    parts = [row for row in rows if row["section"] == "parameters"]
    assert sum(int(row["value"]) for row in parts if not row["detail"]) == TOTAL["one"]
    (total,) = [row for row in parts if row["item"] == "total"]
    assert int(total["value"]) == TOTAL["one"]
    rows = list(csv.DictReader(saved("compared", ".csv").splitlines()))
    assert {row["kv_heads"] for row in rows} == {"8", "3", "1"}
    (refused,) = [row for row in rows if row["section"] == "refused"]
    assert "does not divide" in refused["item"] + refused["detail"]


def test_missing_things_end_with_3(refused, tmp_path):
    (tmp_path / "a.toml").write_text('name = "a"\nsorce = "b"\n')
    assert "unknown key 'sorce'; did you mean 'source'?" in refused(3, "params", "./a.toml")
    (tmp_path / "b.toml").write_text("[shape]\nd_model = 64\nheads = 8\nkvheads = 2\n")
    assert "unknown key 'kvheads'; did you mean 'kv_heads'?" in refused(3, "params", "./b.toml")
