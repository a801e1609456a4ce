"""What cannot be measured is refused in one line, with the documented exit code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnviz.models.bundled import Bundled

from ...classifiers import save_classifier

SENTENCE = "The cat sat on the mat."
TINY = Bundled().info
HEADS = f"this model has heads 0 to {TINY.heads - 1}"
LAYERS = f"this model has layers 0 to {TINY.layers - 1}"

CASES = [
    (("--head", "9"), f"no head 9: {HEADS}"),
    (("--layer", str(TINY.layers)), f"no layer {TINY.layers}: {LAYERS}"),
    (("--head", "L0H-9"), "no head -9"),
    (("--head", "one"), "cannot read 'one' as a head"),
    (("--together",), "add --head or --layer"),
    (("--budget", "0"), "--budget 0 leaves nothing to measure"),
    (("--budget", "soon"), "cannot read --budget 'soon'"),
    (("--method", "budget"), "--method budget needs --budget"),
    (("--method", "exact", "--budget", "5"), "--budget is for --method budget, not exact"),
    (("--method", "gradient", "--mode", "mean"), "--mode is for exact or budget"),
    (("--method", "gradient", "--unit", "layer"), "ranks single heads"),
    (("--method", "gradient", "--metric", "kl"), "ranks by the gradient of the loss"),
    (("--method", "gradient", "--resume", "f"), "--resume is for exact or budget"),
    (("--answer", "Mary"), "needs both --answer and --foil: add --foil"),
    (("--foil", "Mary"), "add --answer"),
    (("--metric", "logit_diff"), "add --answer and --foil"),
    (("--answer", "Mary", "--foil", "Mary"), "are the same token, ' Mary': name two that differ"),
    (("--answer", "Eleanor", "--foil", "Mary"), "is 4 tokens here (' E' 'le' 'an' 'or')"),
    (("--reference", "f"), "add --mode mean or resample"),
    (("--draws", "3"), "add --mode resample"),
    (("--mode", "resample"), "no other text of at least"),
    (("--max-memory", "lots"), "cannot read --max-memory 'lots'"),
    (("--max-memory", "1kB"), "--max-memory allows 1.00 kB"),
    (("--target", "a text"), "--target is the"),
    (("--kind", "cross"), "has no cross attention"),
    (("--save", "scan.xlsx"), "end it in one of .json"),
    (("--metric", "kl", "--model", "mha"), "'mha' has no kl here: choose --metric output_mse"),
    (("--answer", "Mary", "--model", "mha"), "'mha' predicts no token and no single label; leave"),
    (("--method", "gradient", "--model", "mha"), "without a loss there is no gradient"),
    (("--heads", "4"), "--heads shapes the library's own attention: add --model mha"),
]


@pytest.mark.parametrize(("options", "said"), CASES, ids=[" ".join(case[0]) for case in CASES])
def test_refused(refused: Callable[..., str], options: tuple[str, ...], said: str) -> None:
    assert said in refused(2, "ablate", SENTENCE, *options)


def test_a_text_without_a_loss(refused: Any, checkpoint: Any) -> None:
    assert "the text is empty" in refused(2, "ablate", " ")
    words = ("--model", "configs/gpt2", "--layer", "99")
    assert "no layer 99" in refused(2, "ablate", "cat dog", *words)


def test_a_text_of_one_token(refused: Any, tmp_path: Path, checkpoint: Any) -> None:
    (tmp_path / "texts").write_text("the cat\n\nsat\n", encoding="utf-8")
    said = refused(2, "ablate", "--texts", "texts", "--model", str(one_word_model(checkpoint)))
    assert said.startswith("text 2 (line 3) has 1 token: a loss needs at least 2")


def one_word_model(checkpoint: Any) -> Path:
    """A model whose tokenizer adds nothing to a text."""
    import json

    directory = checkpoint("gpt2").parent / "bare"
    if not directory.exists():
        directory.mkdir()
        for file in checkpoint("gpt2").iterdir():
            (directory / file.name).write_bytes(file.read_bytes())
        tokenizer = json.loads((directory / "tokenizer.json").read_text())
        tokenizer["post_processor"] = None
        (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return directory


def test_a_text_beyond_the_context(refused: Any, run: Any, checkpoint: Any, tmp_path: Path) -> None:
    long = " ".join(["cat"] * 40)
    model = ("--model", str(checkpoint("gpt2")))
    assert "add --truncate" in refused(2, "ablate", long, *model)
    document = run("ablate", long, *model, "--truncate", "--json").document
    assert len(document["tokens"]) == 17


def test_a_damaged_line(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "fine"}\n{"text": "cut\n', encoding="utf-8")
    said = refused(3, "ablate", "--texts", "texts.jsonl")
    assert said.startswith("texts.jsonl line 2 is damaged: expected")


def test_a_missing_file(refused: Any) -> None:
    assert "cannot read gone" in refused(3, "ablate", "--texts", "gone")
    assert "cannot read gone" in refused(
        3, "ablate", SENTENCE, "--mode", "mean", "--reference", "gone"
    )
    assert "no directory" in refused(3, "ablate", SENTENCE, "--save", "gone/scan.json")


def test_an_empty_reference(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n", encoding="utf-8")
    said = refused(2, "ablate", SENTENCE, "--mode", "mean", "--reference", "empty")
    assert said.startswith("--reference empty has no text")


def test_two_sources(refused: Any) -> None:
    assert "expected one source" in refused(2, "ablate", SENTENCE, "--texts", "some")


def test_a_resume_file_of_another_run(refused: Any, run: Any, tmp_path: Path) -> None:
    path = tmp_path / "scan.jsonl"
    options = ("ablate", SENTENCE, "--head", "L0H0", "--resume", str(path))
    assert run(*options).code == 0
    whole = path.read_bytes()
    for others, said in (
        ((*options, "--mode", "mean"), "its mode is zero, here it is mean"),
        (("ablate", "Another text.", *options[2:]), "its texts are 1 ("),
        ((*options, "--model", "mha"), "its model is tiny, here it is mha"),
        ((*options, "--head", "L0H1"), "its removals are 1 ("),
    ):
        refusal = refused(2, *others)
        assert said in refusal
        assert "it is left as it is" in refusal
        assert path.read_bytes() == whole


def test_a_resume_file_that_is_none(refused: Any, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("do not touch\n", encoding="utf-8")
    assert "is no resume file" in refused(2, "ablate", SENTENCE, "--resume", str(path))
    assert path.read_text(encoding="utf-8") == "do not touch\n"


def test_copies_of_a_text_are_no_evidence(run: Callable[..., Any], tmp_path: Path) -> None:
    """Ten copies of one would have given intervals without width."""
    same, mixed = tmp_path / "same.txt", tmp_path / "mixed.txt"
    same.write_text("The cat sat on the mat.\n" * 10)
    document = run("ablate", "--texts", str(same), "--head", "L0H0", "--json").document
    assert "texts" not in document
    assert any("9 of 10 texts are copies" in note for note in document["notes"])
    mixed.write_text("The cat sat on the mat.\nA dog ran.\nThe cat sat on the mat.\n")
    for extra in ([], ["--mode", "resample"]):
        asked = ("ablate", "--texts", str(mixed), "--head", "L0H0", "--json", *extra)
        document = run(*asked).document
        assert len(document.get("texts", ["one"])) == (1 if extra else 2)
        assert any("1 of 3 texts is a copy" in note for note in document["notes"])


@pytest.mark.parametrize("asked", [("--answer", "sad"), ("--answer", "sad", "--foil", "glad")])
def test_a_classifier_of_several_labels_compares_none(
    refused: Any, tmp_path: Path, asked: tuple[str, ...]
) -> None:
    """A foil would not help: a text may have both labels, so neither leads over the other."""
    model = save_classifier(tmp_path / "m", problem_type="multi_label_classification")
    said = refused(2, "ablate", "the cat sat", "--model", model, *asked)
    assert "predicts no token and no single label; leave --answer and --foil out" in said
    assert "add --foil" not in said
