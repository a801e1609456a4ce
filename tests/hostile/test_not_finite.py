"""Weights in a file that are no numbers, or too large for a pass: named, not made use of."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import attnviz

from ..first_screens import command_lines
from ..quick import one_in

TEXT = "the cat sat on the mat"
QUERY = "model.layers.1.self_attn.q_proj.weight"
PLACES = (
    *("model.embed_tokens.weight", QUERY),
    *("model.layers.0.input_layernorm.weight", "lm_head.weight"),
)
ADVICE = "try --dtype float32"

COMMANDS = command_lines("not finite")


VALUES = [(0.0, ""), (3e38, ""), (3e38, QUERY)]
EVERYWHERE = [
    (command, *VALUES[(at + turn) % 3]) for at, command in enumerate(COMMANDS) for turn in range(3)
]


@pytest.fixture
def broken(llama):
    """``broken(value, place, dtype)``: a checkpoint with this number in that tensor, or in all."""

    def make(value, place="", dtype="float32"):
        directory = llama(dtype=dtype)
        file = directory / "model.safetensors"
        tensors = {name: held.to(getattr(torch, dtype)) for name, held in load_file(file).items()}
        for name, held in tensors.items():
            if place in ("", name):
                held.fill_(value) if math.isfinite(value) else held[..., -1:].fill_(value)
        save_file(tensors, file, metadata={"format": "pt"})
        return str(directory)

    return make


def on(command, model):
    """Its line with this model."""
    name, *rest = COMMANDS[command]
    return (name, model, *rest) if name == "diff" else (name, *rest, "--model", model)


def said(result):
    return " ".join((result.out + result.err).split())


@pytest.mark.parametrize("command", COMMANDS)
def test_the_tensor_is_named_and_no_advice_given(run, broken, command):
    """No number and an infinite one in turn."""
    model = broken([math.nan, math.inf][[*COMMANDS].index(command) % 2], QUERY)
    for extra in ((), ("--json",)):
        result = run(*on(command, model), *extra)
        assert result.code in ({1} if command == "verify" else {0, 3}), result
        assert "unexpected" not in result.err
        assert f"weights that are not finite: {QUERY}" in said(result)
        assert ADVICE not in said(result)
        if extra and result.out:
            json.loads(result.out, parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_logit_that_is_none_is_not_taken_apart(run, broken, place, backend):
    """The same words from both; torch's fused attention makes zeros of a query of NaN."""
    model = broken(math.nan, place)
    for extra in ((), ("--json",)):
        result = run("why", TEXT, "--model", model, "--backend", backend, *extra)
        assert (result.code, result.out) == (3, "")
        assert result.err == (
            f"attnviz: the logit of {model!r} is nan in float32, nothing can be ranked: weights "
            f"that are not finite: {place}; what they reach has no numbers\n"
        )


@pytest.mark.parametrize("place", PLACES)
def test_heads_without_numbers_have_no_trait(run, broken, place):
    document = run("heads", TEXT, "--json", "--model", broken(math.nan, place)).document
    named = {head["layer"]: head["trait"]["name"] for head in document["heads"]}
    empty = {0, 1} if place in (PLACES[0], PLACES[2]) else {1} if place == QUERY else set()
    assert {layer for layer, name in named.items() if name == "no numbers"} == empty
    labels = run("patterns", TEXT, "--json", "--model", broken(math.nan, place)).document["heads"]
    assert all(head["label"] is None for head in labels if head["layer"] in empty)


@pytest.mark.parametrize(("command", "value", "place"), one_in(3, EVERYWHERE))
def test_zeros_and_overflow_crash_nothing(run, broken, command, value, place):
    """The quick run asks each command once, with the values in turn."""
    result = run(*on(command, broken(value, place)), "--json")
    assert result.code in (0, 1, 2, 3, 5), result
    assert "unexpected" not in result.err
    assert ADVICE not in said(result)  # it is float32 already
    if result.out:
        json.loads(result.out, parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize("command", ["heads", "patterns", "rollout"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_overflows_in_half_precision_is_advised_to_be_wider(run, broken, dtype, command):
    largest = torch.finfo(getattr(torch, dtype)).max
    half = (*COMMANDS[command], "--backend", "torch", "--model")
    assert ADVICE in said(run(*half, broken(largest, QUERY, dtype)))
    assert ADVICE not in said(run(*COMMANDS[command], "--model", broken(math.inf, QUERY, dtype)))


def test_many_tensors_are_counted_and_named_in_python(run, broken):
    record = attnviz.capture(broken(math.nan, QUERY), TEXT).report.record
    assert any(QUERY in note for note in record.model.notes)
    out = said(run("heads", TEXT, "--model", broken(math.nan)))
    assert "lm_head.weight" in out or "model.embed_tokens.weight" in out
    assert " more; what they reach has no numbers" in out


def test_predictions_that_are_none_are_not_alike(run, broken):
    other = ("--dtype-b", "bfloat16")
    model = broken(math.nan, "lm_head.weight")
    found = run("diff", model, *other, "--text", TEXT, "--json", "-q").document
    assert (found["kl"], found["same_top"]) == (None, None)


def test_a_gate_does_not_hold(run, broken):
    rules = (
        *("loss_on = 'the cat sat'", "head = 'L1H0'\nscore = 'first'"),
        *("heads_labelled = 'first'", "head = 'L1H0'\nscore = 'entropy'"),
        *("span = 'cat'\ntext = 'the cat sat'", "rows_sum_to_one = true"),
    )
    text = "".join(f"[[check]]\n{rule}\nat_most = 99\n" for rule in rules)
    Path("rules.toml").write_text(text)
    result = run("check", "rules.toml", "--model", broken(math.nan, PLACES[0]))
    assert result.code == 6
    assert "6 of 6 rules fail" in result.out
    assert f"weights that are not finite: {PLACES[0]}" in said(result)
    result = run("check", "new.toml", "--init", "--model", broken(math.nan, PLACES[0]))
    assert (result.code, result.out) == (3, "")
    assert f"weights that are not finite: {PLACES[0]}" in result.err


@pytest.mark.parametrize("command", ["heads", "rollout", "ablate"])
def test_a_run_that_gives_no_numbers_is_no_finding(run, llama, command):
    """Its weights are finite: only the run shows it."""
    directory = llama()
    config = json.loads((directory / "config.json").read_text()) | {"rms_norm_eps": math.nan}
    (directory / "config.json").write_text(json.dumps(config))
    line = said(run(*on(command, str(directory)), "--backend", "torch"))
    assert "(NaN)" in line
    assert "No link" not in line
