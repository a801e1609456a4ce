"""What ``--gpu`` says: findings, the table, cautions, JSON, CSV; from Python the same."""

import csv
import json

import pytest

import attnviz


@pytest.fixture
def finding():
    return lambda *models, **options: attnviz.params(list(models), **options).document().finding


def test_findings(finding):
    assert finding("llama-3-8b", gpu="L4", batch=2) == (
        "Fits on L4: needs 17.88 GB of 23.80 GB; at most 38.6 tokens/s (19.3 each)."
    )
    assert finding("llama-2-13b", gpu="L4") == (
        "Does not fit on one L4: needs 29.00 GB of 23.80 GB; 2 such cards have the room."
    )
    assert finding("llama-3-8b", gpu=["4090", "A100-40"]) == (
        "Needs 17.61 GB: RTX 4090 ✓ · A100-40 ✓."
    )
    assert finding("bert-base", gpu="all").endswith("cards hold it, the smallest T4.")
    assert "none of" in finding("deepseek-v3", gpu="all")
    assert finding("gpt2", gpu="T4", tokens=2048).endswith("trained for 1,024 tokens only.")
    several = finding("llama-3-8b", "mixtral-8x7b", gpu="H100")
    assert several == "Cards that hold it, of 3: llama-3-8b 3 · mixtral-8x7b 1."
    assert finding("llama-3-8b", gpu="T4", compare="dtype=bfloat16,int4") == (
        "On T4: bfloat16 ✗ 2× · int4 ✓."
    )


def test_cautions(run):
    out = run("params", "llama-2-7b", "--gpu", "T4,L4,H200").out
    assert "T4: no bfloat16, taken as float16." in out
    assert "max tokens: by memory; the model's positions end at 4,096." in out
    assert "no bfloat16" not in run("params", "llama-2-7b", "--gpu", "L4").out
    assert "no bfloat16" not in run("params", "gpt2", "--dtype", "float16", "--gpu", "T4").out


def test_json(run):
    both = json.loads(
        run("params", "llama-2-7b", "--tokens", "512", "--gpu", "L4,T4", "--json").out
    )
    assert [card["name"] for card in both["gpus"]] == ["L4", "T4"]
    l4, t4 = both["gpus"]
    assert l4["needs"]["total"] == sum(
        size for part, size in l4["needs"].items() if part not in ("step", "total")
    )
    assert l4["free"] == l4["memory"] - l4["needs"]["total"]
    assert (l4["fits"], t4["fits"]) == (True, True)
    assert l4["decode"]["tokens_per_second"] == pytest.approx(3e11 / l4["decode"]["read"])
    assert l4["source"]
    plain = json.loads(run("params", "llama-2-7b", "--tokens", "512", "--json").out)
    assert {key: value for key, value in both.items() if key != "gpus"} == plain


def test_csv(tmp_path):
    report = attnviz.params("bert-base", gpu="L4")
    report.save(tmp_path / "cards.csv")
    lines = (tmp_path / "cards.csv").read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(lines))
    found = {row["detail"]: (row["value"], row["unit"]) for row in rows if row["section"] == "gpus"}
    (card,) = report.to_dict()["gpus"]
    assert found["batch"] == (str(card["batch"]), "sequences")
    assert found["needs"] == (str(card["needs"]["total"]), "bytes")
    assert found["decode"] == ("", "tokens/s")


def test_chunk_and_overhead():
    one, other = (
        attnviz.params("llama-2-7b", gpu="L4", **more).to_dict()["gpus"][0]["needs"]
        for more in ({}, {"chunk": 512, "overhead": "2GiB"})
    )
    assert one["activations"] == 4 * other["activations"]
    assert other["overhead"] == 2 * one["overhead"] == 2**31
