"""``attnviz prune`` from the command line to the directory that it writes."""

from pathlib import Path

import pytest
import torch

from attnviz.models.bundled import Bundled

_TEXT = "The cat sat on the mat because it was tired, and the cat sat on the mat."
_INFO = Bundled().info
_HEADS = _INFO.layers * _INFO.heads


def _document(run, *arguments):
    return run("prune", *arguments, "--json").document


def _masked_loss(directory, ids, removed):
    """Cross-entropy of a Llama directory with heads emptied before ``o_proj``: the oracle."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    width = model.config.head_dim
    for entry in removed:

        def empty(module, args, head=entry["head"]):
            outputs = args[0].clone()
            outputs[..., head * width : (head + 1) * width] = 0
            return (outputs,)

        model.model.layers[entry["layer"]].self_attn.o_proj.register_forward_pre_hook(empty)
    batch = torch.tensor([ids])
    with torch.inference_mode():
        return float(model(batch, labels=batch).loss)


def _halves():
    """The first and the second half of the text, each after the beginning-of-text token."""
    start, *ids = Bundled().encode(_TEXT).ids
    return [start, *ids[: len(ids) // 2]], [start, *ids[len(ids) // 2 :]]


def _tiny():
    import attnviz

    return Path(attnviz.__file__).parent / "data" / "tiny"


def test_a_third_of_the_bundled_model(run):
    document = _document(run, _TEXT, "--fraction", "0.3")
    assert document["schema"] == "attnviz.prune/1"
    assert next(iter(document)) == "schema"
    gone = round(0.3 * _HEADS)
    left = list(range(_HEADS - 1, _HEADS - gone - 1, -1))
    assert len(document["removed"]) == gone
    steps = document["steps"]
    assert [{"layer": s["layer"], "head": s["head"]} for s in steps] == document["removed"]
    assert [step["heads_left"] for step in steps] == left
    scores = [step["score"] for step in steps]
    assert scores == sorted(scores)

    ranked, held_out = _halves()
    assert document["split"] == "tokens"
    assert (document["held_out"]["tokens"], document["ranking"]["tokens"]) == (
        len(held_out),
        len(ranked),
    )
    for half, told in ((held_out, document), (ranked, document["ranking"])):
        for count in (0, 1, gone):
            expected = _masked_loss(str(_tiny()), half, document["removed"][:count])
            found = told["steps"][count - 1]["loss"] if count else told["baseline"]["loss"]
            assert found == pytest.approx(expected, abs=1e-5)
    # what one removal costs alone, on the ranking half, is its score
    alone = _masked_loss(str(_tiny()), ranked, document["removed"][gone - 1 :])
    assert scores[-1] == pytest.approx(alone - document["ranking"]["baseline"]["loss"], abs=1e-5)
    assert [point["heads_left"] for point in document["random"]] == left
    assert document["pruned"]["path"] is None


def test_a_cut_model_is_smaller_and_the_same(run, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    arguments = (_TEXT, "--fraction", "0.5", "--uniform", "--draws", "1")
    document = _document(run, *arguments, "--out", "small")
    assert (document["pruned"]["form"], document["pruned"]["heads"]) == ("cut", _INFO.heads // 2)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "small", dtype=torch.float32).eval()
    numbers = sum(parameter.numel() for parameter in opened.parameters())
    assert document["parameters_after"] == numbers
    # half of the heads × 4 projections × the width of a head × that of the model
    one = 4 * _INFO.head_dim * opened.config.hidden_size
    assert document["parameters_before"] - numbers == _HEADS // 2 * one
    ids = AutoTokenizer.from_pretrained(tmp_path / "small")(_TEXT)["input_ids"]
    assert ids == list(Bundled().encode(_TEXT).ids)
    _, ids = _halves()
    batch = torch.tensor([ids])
    with torch.inference_mode():
        loss = float(opened(batch, labels=batch).loss)
    assert loss == pytest.approx(_masked_loss(str(_tiny()), ids, document["removed"]), abs=1e-5)
    assert loss == pytest.approx(document["steps"][-1]["loss"], abs=1e-5)
    # and it is a model like any other
    again = run("heads", _TEXT, "--model", "./small", "--json").document
    assert (again["model"]["heads"], again["model"]["layers"]) == (_INFO.heads // 2, _INFO.layers)


def test_an_encoder_decoder_is_pruned_in_its_encoder(run, checkpoint, tmp_path):
    directory = str(checkpoint("t5"))
    document = _document(
        run, "the cat sat", "--model", directory, "--fraction", "0.2", "--out", "d"
    )
    assert document["pruned"]["form"] == "masked"
    assert len(document["removed"]) == 1
    assert any("only the encoder's heads" in note for note in document["notes"])
    assert (tmp_path / "d" / "model.safetensors").is_file()


@pytest.mark.parametrize("removed", ["L0H1", "*.0-1"])
def test_the_plan_is_what_is_written(run, removed):
    """The plan is arithmetic on a config; what is written was counted by its own class."""
    arguments = (_TEXT, "--heads", removed, "--draws", "0")
    planned = _document(run, *arguments)["pruned"]
    written = _document(run, *arguments, "--out", "d")["pruned"]
    assert (written["path"], planned["path"]) == ("d", None)
    for key in ("form", "heads", "kv_heads", "architecture", "parameters", "zeroed", "note"):
        assert planned[key] == written[key], key


def test_a_limit_that_no_removal_meets_writes_nothing(redrawn, refused, tmp_path):
    # by gradient: the heads that exact measurement would take first lower this model's loss
    how = (_TEXT, "--uniform", "--method", "gradient", "--draws", "0")
    document = _document(redrawn, "--fraction", "0.25", *how)
    assert len(document["steps"]) == _INFO.layers
    ratio = document["steps"][-1]["loss_ratio"]
    assert ratio > 1
    limit = f"{1 + (ratio - 1) / 2:.6f}"
    arguments = ("--until-loss", limit, *how)
    assert "no head can go" in refused(2, "prune", *arguments, "--out", "d")
    assert list(tmp_path.iterdir()) == []
    document = _document(redrawn, *arguments)
    assert (document["steps"], document["removed"]) == ([], [])
    assert document["parameters_after"] == document["parameters_before"]
    assert "No head removed: no head can go" in redrawn("prune", *arguments).out


def test_a_copy_of_a_ranking_text_is_never_held_out():
    from attnviz.errors import UsageError
    from attnviz.inspect.prune.prune import split_texts

    model = Bundled()
    a, b, c = (model.encode(text) for text in ("the cat sat", "a dog ran", "it was late"))
    assert split_texts([a, b, c]) == ((a, c), (b,))
    for texts in ([a, a, b, b], [a, b, b, a, c], [b, a, a, a]):
        ranked, held_out = split_texts(texts)
        assert not {text.ids for text in ranked} & {text.ids for text in held_out}
        assert len(ranked) + len(held_out) == len(texts)
    with pytest.raises(UsageError, match="the 3 texts are all the same"):
        split_texts([a, a, a])
